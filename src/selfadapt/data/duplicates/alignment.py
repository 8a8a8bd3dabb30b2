"""Alignment of image pairs: how well a box of one image predicts the other, up to brightness, contrast and sharpness.

For each pair, an image B is predicted from a box of an image A,

    B(x, y) = gain A(sx x + tx, sy y + ty) + offset + sharpness Laplacian(A)(sx x + tx, sy y + ty)

by Gauss-Newton steps from an initial box. Both images are smoothed by a Gaussian on the pixel grid of B, so that images
resized by different filters agree; the last term absorbs the rest. The residual sum of squares is divided by the change
that a shift of A by one pixel causes: re-encoding leaves up to 2 % of it, a different image that looks similar 10 % or
more. Coordinates run from -1 to 1 over an image.

Shapes: P pairs, N images, C channels, images of up to S by S pixels, s steps, M maps, G blocks.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_LUMA_C11 = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)  # of red, green and blue, as in JPEG
_SIGMA = 1.0  # of the smoothing, in pixels
_UNIT = 64.0  # grey levels; scales all maps to similar magnitude
_RIDGE = 1e-6
_BORDER = 2  # pixels
_FEWEST_BLOCKS = 6  # smallest divisor of the share of blocks
_FEWEST_LEVELS = 2.0  # mean squared change that a shift must cause in a block for it to count as detailed
_LOWEST_BOX = torch.tensor([0.84, -0.16, 0.84, -0.16])  # sx, tx, sy, ty: a crop of slightly more than 10 %
_HIGHEST_BOX = torch.tensor([1.19, 0.16, 1.19, 0.16])
_GAINS = (0.6, 1.7)
_LEAST_CONTAINED = 0.95  # share of one image inside the other: a crop lies within its original
_VALUE, _ONE, _CURVE, _TARGET = 4, 5, 6, 7  # indices of the maps after the four derivatives
_PREDICTORS = [_VALUE, _ONE, _CURVE]


class ImageStack(NamedTuple):
    """Images of different sizes in one tensor, each in the upper left corner."""

    values_NCSS: Tensor
    size_N2: Tensor  # height, width

    def take(self, index_n: Tensor) -> "ImageStack":
        return ImageStack(self.values_NCSS[index_n], self.size_N2[index_n])

    def grey(self) -> "ImageStack":
        """Convert to greyscale."""
        return ImageStack((self.values_NCSS * _LUMA_C11).sum(1, keepdim=True), self.size_N2)


@dataclass(frozen=True)
class Fit:
    """Residuals of the prediction of each B: 0 is perfect, 1 is as large as after a shift by one pixel."""

    box_P4: Tensor  # sx, tx, sy, ty
    next_P4: Tensor  # the box after one step
    difference_P: Tensor  # relative to a shift, averaged over both axes; infinite if the fit is implausible
    weakest_P: Tensor  # relative to a shift in the direction that changes least, so large for stripes
    similar_P: Tensor  # share of the detailed blocks with a small residual, relative to their weakest shift


def fit_boxes(first: ImageStack, smooth: ImageStack, start_P4: Tensor, blocks: int = 1, well: float = 0.0) -> Fit:
    """Predict each image of `smooth` (a result of `smoothed`) from a box of the corresponding image of `first`.

    Images are divided into `blocks` × `blocks` blocks; a block is similar if its residual is at most `well`.
    """
    return _Problem.of(first, smooth, start_P4, blocks).fit(well)


def read_boxes(images: ImageStack, boxes_W4: Tensor, side: int) -> Tensor:
    """Resample boxes of greyscale images to `side` by `side` pixels, for all pairs of row and column ranges of W boxes.

    The result is N×(W·side)×(W·side).
    """
    count = len(images.size_N2)
    small_N2 = torch.full_like(images.size_N2, side)
    resamplers = []
    for axis in (0, 1):
        values = [_Resampler.of(images, box.expand(count, 4), small_N2, axis, side, 0.5).value for box in boxes_W4]
        resamplers.append(torch.cat(values, 1))
    return resamplers[0] @ images.values_NCSS[:, 0] @ resamplers[1].mT


def colours(images: ImageStack, box_N4: Tensor, side: int) -> Tensor:
    """Return the difference of a box of each image from its greyscale version, at `side` by `side` pixels."""
    small_N2 = torch.full_like(images.size_N2, side)
    rows, columns = (_Resampler.of(images, box_N4, small_N2, axis, side, 0.5).value.unsqueeze(1) for axis in (0, 1))
    return rows @ (images.values_NCSS - images.grey().values_NCSS) @ columns.mT


def smoothed(images: ImageStack) -> ImageStack:
    """Smooth images in the same way as the boxes that are fitted to them."""
    whole_N4 = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(len(images.size_N2), 4)
    side = images.values_NCSS.shape[-1]
    rows, columns = (
        _Resampler.of(images, whole_N4, images.size_N2, axis, side, _SIGMA).value.unsqueeze(1) for axis in (0, 1)
    )
    return ImageStack(rows @ images.values_NCSS @ columns.mT, images.size_N2)


@dataclass(frozen=True)
class _Resampler:
    """Matrices (P×s×S) that resample and smooth pixels along one axis of a box."""

    value: Tensor
    away: Tensor  # distance of each pixel from each step, in units of `width`
    width: Tensor  # of the Gaussian, in pixels
    inside_Ps: Tensor  # steps inside the image
    grid_Ps: Tensor  # coordinates of the steps in the box, -1 to 1
    spacing_P: Tensor  # of the steps, in pixels

    @classmethod
    def of(
        cls, images: ImageStack, box_P4: Tensor, count_P2: Tensor, axis: int, most: int, sigma: float
    ) -> "_Resampler":
        """Create the matrices along rows (axis 0) or columns (axis 1)."""
        scale_P1, shift_P1 = box_P4[:, [2 - 2 * axis]], box_P4[:, [3 - 2 * axis]]
        size_P1, count_P1 = images.size_N2[:, [axis]].float(), count_P2[:, [axis]].float()
        grid_Ps = (torch.arange(most) + 0.5) * 2 / count_P1 - 1
        place_Ps = (scale_P1 * grid_Ps + shift_P1 + 1) / 2 * size_P1 - 0.5
        spacing_P1 = scale_P1 * size_P1 / count_P1
        width = sigma * spacing_P1.clamp_min(1.0).unsqueeze(2)
        pixels_S = torch.arange(images.values_NCSS.shape[-1])
        away = (place_Ps.unsqueeze(2) - pixels_S) / width
        weight = torch.exp(-away.square() / 2) * (pixels_S < size_P1).unsqueeze(1)
        weight = weight / weight.sum(2, keepdim=True).clamp_min(1e-12)
        # Smoothing needs pixels beyond the border, so values near it cannot be compared.
        edge_Ps = (torch.arange(most) >= _BORDER) & (torch.arange(most) < count_P1 - _BORDER)
        inside_Ps = edge_Ps & (place_Ps >= _BORDER) & (place_Ps <= size_P1 - 1 - _BORDER)
        return cls(weight, away, width, inside_Ps, grid_Ps, spacing_P1.squeeze(1))

    def derivatives(self) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of `value` by the position. Rows sum to 0, also at the borders."""
        slope = self.away * self.value
        slope = slope.sum(2, keepdim=True) * self.value - slope
        curve = self.away.square() * self.value
        curve = curve - curve.sum(2, keepdim=True) * self.value
        return slope / self.width, curve / self.width.square()


@dataclass(frozen=True)
class _Problem:
    """Normal equations: products of the maps (dA/dsx, dA/dtx, dA/dsy, dA/dty, A, 1, Laplacian, B) in each block."""

    box_P4: Tensor
    products_PGMM: Tensor
    half_P2: Tensor  # pixels of A per unit of the coordinates
    spacing_P2: Tensor

    @classmethod
    def of(cls, first: ImageStack, smooth: ImageStack, box_P4: Tensor, blocks: int) -> "_Problem":
        most = smooth.values_NCSS.shape[-1]
        rows, columns = (_Resampler.of(first, box_P4, smooth.size_N2, axis, most, _SIGMA) for axis in (0, 1))
        across = [first.values_NCSS @ matrix.unsqueeze(1).mT for matrix in (columns.value, *columns.derivatives())]
        down = [matrix.unsqueeze(1) for matrix in (rows.value, *rows.derivatives())]
        value, dx, dy = down[0] @ across[0], down[0] @ across[1], down[1] @ across[0]
        bent = down[0] @ across[2] + down[2] @ across[0]
        x, y = columns.grid_Ps[:, None, None, :], rows.grid_Ps[:, None, :, None]
        maps = torch.stack((dx * x, dx, dy * y, dy, value, torch.full_like(value, _UNIT), bent, smooth.values_NCSS), 1)
        inside = rows.inside_Ps.unsqueeze(2) & columns.inside_Ps.unsqueeze(1)
        maps = maps / _UNIT * inside[:, None, None]
        return cls(
            box_P4,
            _block_products(maps, blocks),
            first.size_N2[:, [1, 0]].float() / 2,
            torch.stack((columns.spacing_P, rows.spacing_P), 1),
        )

    def _step(self) -> Tensor:
        """Return the Gauss-Newton step of the boxes, from a regression of B on all maps."""
        coefficients_PM = _regress(self.products_PGMM.sum(1), list(range(_TARGET)))
        gain_P1 = coefficients_PM[:, [_VALUE]]
        gain_P1 = torch.where(gain_P1.abs() < _GAINS[0], torch.ones_like(gain_P1), gain_P1)
        return (coefficients_PM[:, :4] / gain_P1 / self.half_P2.repeat_interleave(2, 1)).float()

    def fit(self, well: float) -> Fit:
        """Evaluate the current boxes and compute the next ones."""
        whole_PMM = self.products_PGMM.sum(1)
        weights_PM = torch.zeros(len(whole_PMM), _TARGET + 1, dtype=whole_PMM.dtype)
        weights_PM[:, _PREDICTORS] = _regress(whole_PMM, _PREDICTORS)
        gain_P = weights_PM[:, _VALUE].clone()
        weights_PM[:, _TARGET] = -1.0
        left_PG = torch.einsum("pm,pgmn,pn->pg", weights_PM, self.products_PGMM, weights_PM).clamp_min(0)
        step_P2 = self.spacing_P2 * gain_P.unsqueeze(1)
        moved_PG22 = self.products_PGMM[:, :, 1:4:2, 1:4:2] * (step_P2.unsqueeze(2) * step_P2.unsqueeze(1)).unsqueeze(1)
        mean_P, least_P = _shift_changes(moved_PG22.sum(1))
        _, least_PG = _shift_changes(moved_PG22)
        left_P = left_PG.sum(1)
        sensible_P = (gain_P > _GAINS[0]) & (gain_P < _GAINS[1]) & (_contained(self.box_P4) >= _LEAST_CONTAINED)
        difference_P = torch.where(sensible_P, left_P / mean_P.clamp_min(1e-9), torch.inf)
        plain_PG = least_PG < _FEWEST_LEVELS / _UNIT**2 * self.products_PGMM[:, :, _ONE, _ONE]
        similar_P = ((left_PG <= well * least_PG) & ~plain_PG).sum(1) / (~plain_PG).sum(1).clamp_min(_FEWEST_BLOCKS)
        weakest_P = left_P / least_P.clamp_min(1e-9)
        next_P4 = torch.clamp(self.box_P4 + self._step(), _LOWEST_BOX, _HIGHEST_BOX)
        return Fit(self.box_P4, next_P4, difference_P.float(), weakest_P.float(), similar_P.float())


def _contained(box_P4: Tensor) -> Tensor:
    """Return the share of B inside A, or of A inside B if that is larger."""
    scale_P2, shift_P2 = box_P4[:, [0, 2]], box_P4[:, [1, 3]]
    length_P2 = (shift_P2 + scale_P2).clamp_max(1.0) - (shift_P2 - scale_P2).clamp_min(-1.0)
    return torch.maximum((length_P2 / 2 / scale_P2).prod(1), (length_P2 / 2).prod(1))


def _shift_changes(moved_X22: Tensor) -> tuple[Tensor, Tensor]:
    """Return the change that a shift by one pixel causes: on average, and in the direction of least change."""
    across_X, down_X, both_X = moved_X22[..., 0, 0], moved_X22[..., 1, 1], moved_X22[..., 0, 1]
    mean_X = (across_X + down_X) / 2
    spread_X = (((across_X - down_X) / 2).square() + both_X.square()).sqrt()
    return mean_X, (mean_X - spread_X).clamp_min(0)


def _block_products(maps_PMCSS: Tensor, blocks: int) -> Tensor:
    """Return the products of all pairs of maps, summed over the pixels of each block."""
    pairs, maps, channels, side = maps_PMCSS.shape[:4]
    cells = maps_PMCSS.view(pairs, maps, channels, blocks, side // blocks, blocks, side // blocks)
    rows = cells.permute(0, 3, 5, 1, 2, 4, 6).reshape(pairs, blocks**2, maps, channels * (side // blocks) ** 2)
    products_PGMM: Tensor = rows @ rows.mT
    return products_PGMM.double()


def _regress(products_PMM: Tensor, on: list[int]) -> Tensor:
    """Return the least-squares coefficients of B on these maps, with a small ridge."""
    system = products_PMM[:, on][:, :, on]
    ridge = torch.diag_embed(system.diagonal(dim1=1, dim2=2) * _RIDGE + 1e-9)
    coefficients_PM1: Tensor = torch.linalg.solve(system + ridge, products_PMM[:, on, _TARGET].unsqueeze(2))
    return coefficients_PM1.squeeze(2)
