"""Outlier scores: how far a sample is from every class, such as a bird among cats and dogs.

The score combines two signals, because neither is sufficient. An image of something else is far from all others, even
if the head is confident. An image of a similar class is close to others, but the head is uncertain:

    d_i = min over classes c of  (distance of i to its n_c-th nearest sample of c) / (median of that among c itself)
    h_i = entropy of q_i
    outlier_i = sigmoid((z(d_i) + z(h_i) - 6) / 2)

z is the difference from the median divided by the median absolute deviation. The divisor is at least 0.2 for h, so that
an uncertain prediction is not extreme where nearly all others are confident. d is the cosine distance of features
divided by their standard deviations. n_c is a twentieth of the class, so that a few similar outliers do not count as a
class. A score of 0.5 means six deviations.

Shapes: N samples, R of them to compare with, F features, K classes.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.core.rng import seeded

_NEIGHBOUR_SHARE = 0.05
_LEAST_NEIGHBOURS = 3  # classes with fewer members are ignored
_MOST_COMPARED = 10_000
_THRESHOLD, _SLOPE = 6.0, 2.0
_Z_RANGE = (-3.0, 30.0)  # limits of z, so that one signal cannot cancel the other
_ROWS = 4096


def outlier_scores(features_NF: Tensor, predicted_NK: Tensor, class_N: Tensor) -> Tensor:
    """Scores from 0 (typical) to 1 (far from every class). `class_N` is the likeliest class given the label."""
    distance_N = _distance(features_NF.float(), class_N, predicted_NK.shape[1])
    return combined_scores(distance_N, -(predicted_NK * predicted_NK.clamp_min(1e-12).log()).sum(1))


def combined_scores(distance_N: Tensor, entropy_N: Tensor) -> Tensor:
    """The score from a relative distance and the entropy of the prediction."""
    return torch.sigmoid((_robust_z(distance_N, 0.05) + _robust_z(entropy_N, 0.2) - _THRESHOLD) / _SLOPE)


def _distance(features_NF: Tensor, class_N: Tensor, num_classes: int) -> Tensor:
    unit_NF = normalize(features_NF / features_NF.std(0, correction=0).clamp_min(1e-6))
    count = len(unit_NF)
    compared_R = torch.randperm(count, generator=seeded(0, "outliers"))[:_MOST_COMPARED].sort().values
    smallest_N = torch.full((count,), torch.inf)
    members = [compared_R[class_N[compared_R] == c] for c in range(num_classes)]
    for members_m in members:
        if len(members_m) <= _LEAST_NEIGHBOURS:
            continue
        neighbour = max(_LEAST_NEIGHBOURS, int(_NEIGHBOUR_SHARE * len(members_m)))
        distance_N = torch.cat(
            [_to_neighbour(unit_NF, rows, members_m, neighbour) for rows in torch.arange(count).split(_ROWS)]
        )
        median = distance_N[members_m].median().clamp_min(1e-12)
        smallest_N = torch.minimum(smallest_N, distance_N / median)
    return torch.where(smallest_N.isfinite(), smallest_N, 1.0)


def _to_neighbour(unit_NF: Tensor, rows: Tensor, members_m: Tensor, neighbour: int) -> Tensor:
    """The distance of these rows to their n-th nearest member, excluding themselves."""
    cosine = unit_NF[rows] @ unit_NF[members_m].T
    cosine.masked_fill_(rows.unsqueeze(1) == members_m, -1.0)
    return 1 - cosine.topk(neighbour, 1).values[:, -1]


def _robust_z(values_N: Tensor, least: float) -> Tensor:
    """Differences from the median divided by the median absolute deviation, or by `least` if that is larger."""
    difference_N = values_N - values_N.median()
    return (difference_N / difference_N.abs().median().clamp_min(least)).clamp(*_Z_RANGE)
