"""Features of a Gaussian kernel, for nonlinear models with linear methods: k(x, z) = exp(-|x - z|^2 / (w m)).

m is the median of the squared distances and w a width. The kernel is approximated with a random subset of the samples,
the landmarks (Nyström method), and rotated to the principal axes of the landmarks:

    axes(x) = k(x, landmarks) U / sqrt(e)          k(landmarks, landmarks) = U diag(e) U'

Inner products of axes approximate kernel values; the mean of the landmarks is then subtracted. Distances are measured
in one of two spaces. `scaled`: features divided by their standard deviations, as in softmax_regression.py. `root`:
square roots of features, each sample normalised to length 1 (Hellinger kernel), for nonnegative features such as those
of networks that end in a ReLU.

Shapes: N samples, n of a batch, F features, M landmarks, D axes, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.core.rng import seeded
from selfadapt.data.input_statistics import feature_scale

WIDTHS = (1.0, 4.0)
LANDMARKS = 1000
_MOST_AXES = 600
_LEAST_VARIANCE = 1e-6  # relative to the largest one; axes below it hold only rounding errors
_MANY_FEATURES = 64  # square roots are tried from this number on
_ROWS = 1024  # per batch


@dataclass(frozen=True)
class KernelAxes:
    """The space of the distances, the landmarks, and the map from kernel values to axes."""

    root: bool
    centre_F: Tensor
    scale_F: Tensor
    landmarks_MF: Tensor
    unit: float  # the squared distance at which the kernel is 1/e
    turn_MD: Tensor
    mean_D: Tensor

    @classmethod
    def of(cls, features_NF: Tensor, *, root: bool, width: float, landmarks: int = LANDMARKS) -> "KernelAxes":
        mapped_NF = normalize(features_NF.sqrt()) if root else features_NF
        centre_F, scale_F = mapped_NF.mean(0), torch.ones(features_NF.shape[1])
        if not root:
            scale_F = 1 / feature_scale(mapped_NF)
        chosen_M = torch.randperm(len(features_NF), generator=seeded(0, "landmarks"))[:landmarks].sort().values
        landmarks_MF = (mapped_NF[chosen_M] - centre_F) * scale_F
        square_MM = torch.cdist(landmarks_MF, landmarks_MF).square()
        distances = square_MM[square_MM > 0]
        unit = width * float(distances.median()) if len(distances) else 1.0
        variance_M, turn_MM = torch.linalg.eigh((-square_MM / unit).exp().double())
        keep = (variance_M > _LEAST_VARIANCE * variance_M[-1]).nonzero().flatten()[-_MOST_AXES:]
        deviation_D = variance_M[keep].sqrt()
        turn_MD = (turn_MM[:, keep] / deviation_D).float()
        mean_D = (turn_MM[:, keep].mean(0) * deviation_D).float()  # of the landmarks
        return cls(root, centre_F, scale_F, landmarks_MF, unit, turn_MD, mean_D)

    def values(self, features_nF: Tensor) -> Tensor:
        """The values of the kernel (n×M)."""
        mapped_nF = normalize(features_nF.clamp_min(0).sqrt()) if self.root else features_nF
        scaled_nF = (mapped_nF - self.centre_F) * self.scale_F
        size_n, size_M = (own.square().sum(1) / self.unit for own in (scaled_nF, self.landmarks_MF))
        exponent_nM = torch.addmm(size_M, scaled_nF, self.landmarks_MF.T, beta=-1, alpha=2 / self.unit)
        return exponent_nM.sub_(size_n.unsqueeze(1)).clamp_max_(0).exp_()

    def scores(self, values_nM: Tensor, head_DK: Tensor) -> Tensor:
        """The scores (n×K) of a head on the axes, with its bias in the last row.

        In the cheaper order: with few classes, turning the head costs less than turning the samples.
        """
        slopes_DK = head_DK[:-1]
        scores_nK: Tensor = torch.linalg.multi_dot((values_nM, self.turn_MD, slopes_DK))
        return scores_nK.add_(head_DK[-1] - self.mean_D @ slopes_DK)

    def __call__(self, features_NF: Tensor) -> Tensor:
        """The axes of these samples (N×D), computed in batches that stay in the cache."""
        axes_ND = torch.empty(len(features_NF), len(self.mean_D))
        for batch, features_nF in zip(axes_ND.split(_ROWS), features_NF.split(_ROWS), strict=True):
            torch.addmm(self.mean_D, self.values(features_nF), self.turn_MD, beta=-1, out=batch)
        return axes_ND


def candidates(features_NF: Tensor) -> list[tuple[bool, float]]:
    """The pairs of `root` and width to try on these features."""
    allow_root = features_NF.shape[1] >= _MANY_FEATURES and bool((features_NF >= 0).all())
    return [(root, width) for root in ((False, True) if allow_root else (False,)) for width in WIDTHS]
