"""Statistics of inputs: mean and standard deviation by which a network normalises them.

Shapes: n inputs, C channels, H by W pixels, D values of a vector.
"""

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.inputs import Inputs

_SHARED_UNIT = 30.0  # values share a unit if no standard deviation exceeds the median one by this factor


def channel_statistics(inputs: Inputs, most: int = 10_000) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of images (scaled to 0..1), or of each value of vectors.

    They are estimated from at most `most` inputs, evenly spaced over the set.
    """
    chosen = _evenly_spaced(inputs, most)
    if inputs.kind == "vectors":
        values_nD = inputs.read(chosen).double()
        return values_nD.mean(0).float(), feature_scale(values_nD).float()
    # Integers are summed, so the result does not depend on how the images are batched.
    total_C = torch.zeros(inputs.shape[0], dtype=torch.int64)
    square_C, pixels = total_C.clone(), 0
    for read in read_batches(inputs, chosen.split(64)):
        if len(read.index_B):
            values = read.images_BCHW.long()
            total_C += values.sum((0, 2, 3))
            square_C += values.square().sum((0, 2, 3))
            pixels += values[:, 0].numel()
    if not pixels:
        raise UserError("none of the images can be read; check that the files still exist")
    mean_C = total_C.double() / pixels
    std_C = (square_C.double() / pixels - mean_C.square()).clamp_min(0).sqrt()
    return (mean_C / 255).float(), (std_C / 255).clamp_min(1e-3).float()  # avoids division by 0 for constant channels


def examples(images: Inputs, most: int) -> Tensor:
    """Return at most `most` images, evenly spaced over the set and scaled to 0..1, without unreadable files."""
    reads = [read.images_BCHW for read in read_batches(images, _evenly_spaced(images, most).split(64))]
    return torch.cat([images_BCHW for images_BCHW in reads if len(images_BCHW)]).float() / 255


def _evenly_spaced(inputs: Inputs, most: int) -> Tensor:
    return torch.linspace(0, len(inputs) - 1, min(most, len(inputs))).round().long()


def feature_scale(values_nD: Tensor) -> Tensor:
    """Return the divisors that standardise vectors: one for all values if they share a unit, otherwise one for each.

    A common divisor does not amplify features that hardly vary. Constant values get the divisor 1.
    """
    return scale_of(values_nD.std(0, correction=0), values_nD.abs().amax(0))


def scale_of(std_D: Tensor, largest_D: Tensor) -> Tensor:
    """The divisors of `feature_scale`, from the standard deviations and the largest absolute values."""
    varies_D = std_D > 1e-6 * largest_D
    if not varies_D.any():
        return torch.ones_like(std_D)
    if std_D.max() <= _SHARED_UNIT * std_D[varies_D].median():
        return std_D.square().mean().sqrt().expand_as(std_D)
    return torch.where(varies_D, std_D, 1.0)
