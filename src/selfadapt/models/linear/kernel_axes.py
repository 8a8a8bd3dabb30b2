"""Features of a Gaussian kernel, for linear methods that should bend: k(x, z) = exp(-|x - z|^2 / (w m)).

m is the median of the squared distances and w a width. The kernel is expanded at a share of the samples, the landmarks
(Nyström's method), and turned to the principal axes of the landmarks:

    axes(x) = k(x, landmarks) U / sqrt(e)          k(landmarks, landmarks) = U diag(e) U'

so that products of axes are kernel values. Distances are measured in one of two spaces. `scaled`: features divided by
their scale, as softmax_regression.py has them. `root`: square roots of features, each sample scaled to
length 1 (the Hellinger kernel's), for features that are never negative, such as those of networks that end in a ReLU.

Shapes: N samples, F features, M landmarks, D axes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.core.rng import seeded
from selfadapt.data.input_statistics import feature_scale

WIDTHS = (1.0, 4.0)
LANDMARKS = 1000
_MOST_AXES = 600
_FLAT = 1e-6  # variance of an axis, as a share of the largest one, below which it carries rounding errors alone
_MANY_FEATURES = 64  # from which square roots are tried
_ROWS = 8192  # computed at a time


@dataclass(frozen=True)
class KernelAxes:
    """Where distances are measured, the landmarks there, and how their kernel values become axes."""

    root: bool
    centre_F: Tensor
    scale_F: Tensor
    landmarks_MF: Tensor
    unit: float  # the squared distance at which the kernel is 1/e
    turn_MD: Tensor
    mean_D: Tensor

    @classmethod
    def of(cls, features_NF: Tensor, *, root: bool, width: float, landmarks: int = LANDMARKS) -> "KernelAxes":
        whole_NF = normalize(features_NF.sqrt()) if root else features_NF
        centre_F, scale_F = whole_NF.mean(0), torch.ones(features_NF.shape[1])
        if not root:
            scale_F = 1 / feature_scale(whole_NF)
        chosen_M = torch.randperm(len(features_NF), generator=seeded(0, "landmarks"))[:landmarks].sort().values
        landmarks_MF = (whole_NF[chosen_M] - centre_F) * scale_F
        square_MM = torch.cdist(landmarks_MF, landmarks_MF).square()
        apart = square_MM[square_MM > 0]
        unit = width * float(apart.median()) if len(apart) else 1.0
        variance_M, turn_MM = torch.linalg.eigh((-square_MM / unit).exp().double())
        keep = (variance_M > _FLAT * variance_M[-1]).nonzero().flatten()[-_MOST_AXES:]
        turn_MD = (turn_MM[:, keep] / variance_M[keep].sqrt()).float()
        blank = cls(root, centre_F, scale_F, landmarks_MF, unit, turn_MD, torch.zeros(len(keep)))
        mean_D = torch.stack([axes_nD.sum(0) for axes_nD in blank.batches(features_NF)]).sum(0) / len(features_NF)
        return cls(root, centre_F, scale_F, landmarks_MF, unit, turn_MD, mean_D)

    def batches(self, features_NF: Tensor) -> Iterator[Tensor]:
        """The axes of a few thousand samples at a time."""
        for features_nF in features_NF.split(_ROWS):
            whole_nF = normalize(features_nF.clamp_min(0).sqrt()) if self.root else features_nF
            square_nM = torch.cdist((whole_nF - self.centre_F) * self.scale_F, self.landmarks_MF).square()
            yield (-square_nM / self.unit).exp() @ self.turn_MD - self.mean_D

    def __call__(self, features_NF: Tensor) -> Tensor:
        """N×D."""
        return torch.cat(list(self.batches(features_NF)))


def candidates(features_NF: Tensor) -> list[tuple[bool, float]]:
    """The spaces (`root` or not) and widths that are worth a try on these features."""
    rooted = features_NF.shape[1] >= _MANY_FEATURES and bool((features_NF >= 0).all())
    return [(root, width) for root in ((False, True) if rooted else (False,)) for width in WIDTHS]
