"""How well one image explains another one, once it is cropped, scaled, brightened and sharpened to fit.

For each pair an image B is predicted from a box of an image A,

    B(x, y) = gain A(sx x + tx, sy y + ty) + offset + sharpness Laplacian(A)(sx x + tx, sy y + ty)

by Gauss-Newton steps from a given box. Both are smoothed by a Gaussian on the pixels of B, so that images that were
resized by different filters agree; the last term absorbs what is left of that. The squared difference that remains is
divided by the one that a shift of A by one pixel makes: re-encoding leaves up to 2 % of it, an image that looks the
same at first sight a tenth or more. Coordinates run from -1 to 1 over an image.

Shapes: P pairs, N images, C channels, images of up to S by S pixels, M maps, G blocks.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_LUMA_C11 = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)  # of red, green and blue, as in JPEG
_SIGMA = 1.0  # of the smoothing, in pixels
_UNIT = 64.0  # grey levels, so that all maps are of about the same size
_RIDGE = 1e-6
_BORDER = 2  # pixels
_FEWEST_BLOCKS = 6  # that count
_FEWEST_LEVELS = 2.0  # squared, by which a shift must change a block for it to count
_LOWEST_BOX = torch.tensor([0.84, -0.16, 0.84, -0.16])  # sx, tx, sy, ty: a crop of 10 % and a little more
_HIGHEST_BOX = torch.tensor([1.19, 0.16, 1.19, 0.16])
_GAINS = (0.6, 1.7)
_LEAST_CONTAINED = 0.95  # of one image in the other: a crop lies within its original
_VALUE, _ONE, _CURVE, _TARGET = 4, 5, 6, 7  # the maps after those of the four derivatives
_EXPLAINS = [_VALUE, _ONE, _CURVE]


class ImageStack(NamedTuple):
    """Images of several sizes as one tensor, each in its upper left corner."""

    values_NCSS: Tensor
    size_N2: Tensor  # height, width

    def take(self, index_n: Tensor) -> "ImageStack":
        return ImageStack(self.values_NCSS[index_n], self.size_N2[index_n])

    def grey(self) -> "ImageStack":
        """The images without colour."""
        return ImageStack((self.values_NCSS * _LUMA_C11).sum(1, keepdim=True), self.size_N2)


@dataclass(frozen=True)
class Fit:
    """How well each B is explained: 0 is perfectly, 1 as badly as by an image that is shifted by one pixel."""

    box_P4: Tensor  # sx, tx, sy, ty
    next_P4: Tensor  # the box after one step
    difference_P: Tensor  # against a shift, averaged over both directions; infinite where the fit makes no sense
    weakest_P: Tensor  # against a shift in the direction that changes less: large for stripes
    similar_P: Tensor  # of the blocks with any detail, the share that is well explained, each against its weakest shift


def fit_boxes(first: ImageStack, smooth: ImageStack, start_P4: Tensor, blocks: int = 1, well: float = 0.0) -> Fit:
    """Explain each image of `smooth` (as `smoothed` makes it) by a box of the one at the same place in `first`.

    A block, of which there are `blocks` on each side, is well explained if its difference is at most `well`.
    """
    return _Problem.of(first, smooth, start_P4, blocks).fit(well)


def read_boxes(images: ImageStack, boxes_W4: Tensor, side: int) -> Tensor:
    """Small versions of boxes of each image, for every range of rows and of columns that a box of `boxes_W4` has.

    They are of `side` by `side` pixels, and come as N×(W·side)×(W·side), for images of one channel.
    """
    count = len(images.size_N2)
    small_N2 = torch.full_like(images.size_N2, side)
    readers = []
    for axis in (0, 1):
        own = [_Reader.of(images, box.expand(count, 4), small_N2, axis, side, 0.5).value for box in boxes_W4]
        readers.append(torch.cat(own, 1))
    return readers[0] @ images.values_NCSS[:, 0] @ readers[1].mT


def colours(images: ImageStack, box_N4: Tensor, side: int) -> Tensor:
    """How the colour of a box of each image differs from grey, at `side` by `side` pixels."""
    small_N2 = torch.full_like(images.size_N2, side)
    rows, columns = (_Reader.of(images, box_N4, small_N2, axis, side, 0.5).value.unsqueeze(1) for axis in (0, 1))
    return rows @ (images.values_NCSS - images.grey().values_NCSS) @ columns.mT


def smoothed(images: ImageStack) -> ImageStack:
    """The images as those are smoothed that are fitted to them."""
    whole_N4 = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(len(images.size_N2), 4)
    side = images.values_NCSS.shape[-1]
    rows, columns = (
        _Reader.of(images, whole_N4, images.size_N2, axis, side, _SIGMA).value.unsqueeze(1) for axis in (0, 1)
    )
    return ImageStack(rows @ images.values_NCSS @ columns.mT, images.size_N2)


@dataclass(frozen=True)
class _Reader:
    """Matrices (P×steps×S) that read smoothed pixels along one axis of a box."""

    value: Tensor
    away: Tensor  # how far each pixel is from each step, in widths of the smoothing
    width: Tensor
    inside_Ps: Tensor  # which steps lie in the image
    grid_Ps: Tensor  # where the steps are in the box, from -1 to 1
    spacing_P: Tensor  # of the steps, in pixels

    @classmethod
    def of(cls, images: ImageStack, box_P4: Tensor, count_P2: Tensor, axis: int, most: int, sigma: float) -> "_Reader":
        """Axis 0 runs down, 1 across."""
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
        # Beyond the border nothing is known, so what is smoothed there cannot be compared.
        edge_Ps = (torch.arange(most) >= _BORDER) & (torch.arange(most) < count_P1 - _BORDER)
        inside_Ps = edge_Ps & (place_Ps >= _BORDER) & (place_Ps <= size_P1 - 1 - _BORDER)
        return cls(weight, away, width, inside_Ps, grid_Ps, spacing_P1.squeeze(1))

    def derivatives(self) -> tuple[Tensor, Tensor]:
        """The first and the second derivative of `value` by the position. Rows sum to 0, at the borders too."""
        slope = self.away * self.value
        slope = slope.sum(2, keepdim=True) * self.value - slope
        curve = self.away.square() * self.value
        curve = curve - curve.sum(2, keepdim=True) * self.value
        return slope / self.width, curve / self.width.square()


@dataclass(frozen=True)
class _Problem:
    """The normal equations: products of the maps (dA/dsx, dA/dtx, dA/dsy, dA/dty, A, 1, Laplacian, B), by blocks."""

    box_P4: Tensor
    products_PGMM: Tensor
    half_P2: Tensor  # pixels of A in a unit of the coordinates
    spacing_P2: Tensor

    @classmethod
    def of(cls, first: ImageStack, smooth: ImageStack, box_P4: Tensor, blocks: int) -> "_Problem":
        most = smooth.values_NCSS.shape[-1]
        rows, columns = (_Reader.of(first, box_P4, smooth.size_N2, axis, most, _SIGMA) for axis in (0, 1))
        across = [first.values_NCSS @ own.unsqueeze(1).mT for own in (columns.value, *columns.derivatives())]
        down = [own.unsqueeze(1) for own in (rows.value, *rows.derivatives())]
        value, dx, dy = down[0] @ across[0], down[0] @ across[1], down[1] @ across[0]
        bent = down[0] @ across[2] + down[2] @ across[0]
        x, y = columns.grid_Ps[:, None, None, :], rows.grid_Ps[:, None, :, None]
        maps = torch.stack((dx * x, dx, dy * y, dy, value, torch.full_like(value, _UNIT), bent, smooth.values_NCSS), 1)
        inside = rows.inside_Ps.unsqueeze(2) & columns.inside_Ps.unsqueeze(1)
        maps = maps / _UNIT * inside[:, None, None]
        return cls(
            box_P4,
            _products(maps, blocks),
            first.size_N2[:, [1, 0]].float() / 2,
            torch.stack((columns.spacing_P, rows.spacing_P), 1),
        )

    def _step(self) -> Tensor:
        """How to change the boxes: B is regressed on all maps at once."""
        coefficients_PM = _regressed(self.products_PGMM.sum(1), list(range(_TARGET)))
        gain_P1 = coefficients_PM[:, [_VALUE]]
        gain_P1 = torch.where(gain_P1.abs() < _GAINS[0], torch.ones_like(gain_P1), gain_P1)
        return (coefficients_PM[:, :4] / gain_P1 / self.half_P2.repeat_interleave(2, 1)).float()

    def fit(self, well: float) -> Fit:
        """How well the boxes explain B as they are."""
        whole_PMM = self.products_PGMM.sum(1)
        weights_PM = torch.zeros(len(whole_PMM), _TARGET + 1, dtype=whole_PMM.dtype)
        weights_PM[:, _EXPLAINS] = _regressed(whole_PMM, _EXPLAINS)
        gain_P = weights_PM[:, _VALUE].clone()
        weights_PM[:, _TARGET] = -1.0
        left_PG = torch.einsum("pm,pgmn,pn->pg", weights_PM, self.products_PGMM, weights_PM).clamp_min(0)
        step_P2 = self.spacing_P2 * gain_P.unsqueeze(1)
        moved_PG22 = self.products_PGMM[:, :, 1:4:2, 1:4:2] * (step_P2.unsqueeze(2) * step_P2.unsqueeze(1)).unsqueeze(1)
        mean_P, least_P = _shifts(moved_PG22.sum(1))
        _, least_PG = _shifts(moved_PG22)
        left_P = left_PG.sum(1)
        sensible_P = (gain_P > _GAINS[0]) & (gain_P < _GAINS[1]) & (_contained(self.box_P4) >= _LEAST_CONTAINED)
        difference_P = torch.where(sensible_P, left_P / mean_P.clamp_min(1e-9), torch.inf)
        plain_PG = least_PG < _FEWEST_LEVELS / _UNIT**2 * self.products_PGMM[:, :, _ONE, _ONE]
        similar_P = ((left_PG <= well * least_PG) & ~plain_PG).sum(1) / (~plain_PG).sum(1).clamp_min(_FEWEST_BLOCKS)
        weakest_P = left_P / least_P.clamp_min(1e-9)
        next_P4 = torch.clamp(self.box_P4 + self._step(), _LOWEST_BOX, _HIGHEST_BOX)
        return Fit(self.box_P4, next_P4, difference_P.float(), weakest_P.float(), similar_P.float())


def _contained(box_P4: Tensor) -> Tensor:
    """The share of B that lies in A, or of A that lies in B if that is more."""
    scale_P2, shift_P2 = box_P4[:, [0, 2]], box_P4[:, [1, 3]]
    length_P2 = (shift_P2 + scale_P2).clamp_max(1.0) - (shift_P2 - scale_P2).clamp_min(-1.0)
    return torch.maximum((length_P2 / 2 / scale_P2).prod(1), (length_P2 / 2).prod(1))


def _shifts(moved_X22: Tensor) -> tuple[Tensor, Tensor]:
    """What a shift by one pixel changes: on average, and in the direction that changes least (an eigenvalue)."""
    across_X, down_X, both_X = moved_X22[..., 0, 0], moved_X22[..., 1, 1], moved_X22[..., 0, 1]
    mean_X = (across_X + down_X) / 2
    spread_X = (((across_X - down_X) / 2).square() + both_X.square()).sqrt()
    return mean_X, (mean_X - spread_X).clamp_min(0)


def _products(maps_PMCSS: Tensor, blocks: int) -> Tensor:
    """The products of all pairs of maps, summed over the pixels of each block."""
    pairs, maps, channels, side = maps_PMCSS.shape[:4]
    cells = maps_PMCSS.view(pairs, maps, channels, blocks, side // blocks, blocks, side // blocks)
    rows = cells.permute(0, 3, 5, 1, 2, 4, 6).reshape(pairs, blocks**2, maps, channels * (side // blocks) ** 2)
    products_PGMM: Tensor = rows @ rows.mT
    return products_PGMM.double()


def _regressed(products_PMM: Tensor, on: list[int]) -> Tensor:
    """The coefficients of least squares of B on these maps."""
    system = products_PMM[:, on][:, :, on]
    ridge = torch.diag_embed(system.diagonal(dim1=1, dim2=2) * _RIDGE + 1e-9)
    found_PM1: Tensor = torch.linalg.solve(system + ridge, products_PMM[:, on, _TARGET].unsqueeze(2))
    return found_PM1.squeeze(2)
