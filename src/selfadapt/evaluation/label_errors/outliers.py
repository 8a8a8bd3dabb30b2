"""How far a sample is from every class: a bird among cats and dogs.

Two signals are combined, because neither is enough. An image of something else lies far from all others, even if the
head is confident; an image of a similar class lies among them, and the head is uncertain:

    d_i = min over classes c of  (distance of i to its n_c-th nearest sample of c) / (median of that among c itself)
    h_i = entropy of q_i
    outlier_i = sigmoid((z(d_i) + z(h_i) - 6) / 2)

with z the distance from the median, in medians of such distances (at least 0.2 of h: where nearly all predictions are
sure, one that is not is not yet far). d is 1 - cosine of features, each scaled by its
deviation. n_c is a twentieth of the class, so that a few outliers that resemble each other are not taken for a class.
At 0.5 a sample is six deviations out.

Shapes: N samples, R of them to compare with, F features, K classes.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.core.rng import seeded

_SHARE = 0.05
_LEAST = 3  # neighbours; classes with fewer members are ignored
_MOST_COMPARED = 10_000
_USUAL, _SLOPE = 6.0, 2.0
_REACH = (-3.0, 30.0)  # of z, so that one sign cannot silence the other
_BLOCK = 4096


def outlier_scores(features_NF: Tensor, predicted_NK: Tensor, class_N: Tensor) -> Tensor:
    """0 (usual) to 1 (far from every class). `class_N` is the likeliest class of each sample, label included."""
    far_N = _distance(features_NF.float(), class_N, predicted_NK.shape[1])
    unsure_N = -(predicted_NK * predicted_NK.clamp_min(1e-12).log()).sum(1)
    return torch.sigmoid((_deviations(far_N, 0.05) + _deviations(unsure_N, 0.2) - _USUAL) / _SLOPE)


def _distance(features_NF: Tensor, class_N: Tensor, num_classes: int) -> Tensor:
    unit_NF = normalize(features_NF / features_NF.std(0, correction=0).clamp_min(1e-6))
    count = len(unit_NF)
    compared_R = torch.randperm(count, generator=seeded(0, "outliers"))[:_MOST_COMPARED].sort().values
    least_N = torch.full((count,), torch.inf)
    members = [compared_R[class_N[compared_R] == c] for c in range(num_classes)]
    for members_m in members:
        if len(members_m) <= _LEAST:
            continue
        neighbour = max(_LEAST, int(_SHARE * len(members_m)))
        distance_N = torch.cat(
            [_to_neighbour(unit_NF, rows, members_m, neighbour) for rows in torch.arange(count).split(_BLOCK)]
        )
        usual = distance_N[members_m].median().clamp_min(1e-12)
        least_N = torch.minimum(least_N, distance_N / usual)
    return torch.where(least_N.isfinite(), least_N, 1.0)


def _to_neighbour(unit_NF: Tensor, rows: Tensor, members_m: Tensor, neighbour: int) -> Tensor:
    """The distance of these rows to their n-th nearest member, themselves left out."""
    cosine = unit_NF[rows] @ unit_NF[members_m].T
    cosine.masked_fill_(rows.unsqueeze(1) == members_m, -1.0)
    return 1 - cosine.topk(neighbour, 1).values[:, -1]


def _deviations(values_N: Tensor, least: float) -> Tensor:
    """Distances from the median, in medians of such distances, but in no less than this."""
    away_N = values_N - values_N.median()
    return (away_N / away_N.abs().median().clamp_min(least)).clamp(*_REACH)
