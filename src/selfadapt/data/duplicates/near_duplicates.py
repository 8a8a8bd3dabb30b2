"""Near-duplicate images: thumbnails propose candidates, and an alignment of the pixels decides.

Candidates are the eight most similar images of each image, by greyscale thumbnails of 8×8 pixels: the whole of one
image against 36 windows of the other (crops of up to 10 %). Each candidate pair is aligned (alignment.py) at 32 pixels
and, if still plausible, at 64; colours must agree as well. Thresholds were set on Fashion-MNIST, digits, noise textures
and photos: the residual of re-encoded images is up to 2 % of the change that a shift by one pixel causes, that of the
most similar different images of 28 pixels 2 % or more, that of other photos much larger. Images so smooth that encoding
changes them more than a shift are not found.

Shapes: N images, P pairs, W windows, D values of a thumbnail.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from selfadapt.data.duplicates.alignment import Fit, ImageStack, colours, fit_boxes, read_boxes, smoothed

Kind = Literal["same file", "same image", "same scene"]
Array = np.ndarray[Any, np.dtype[Any]]

_SIDE = 8  # pixels of a thumbnail
_COARSE, _FINE = 32, 64  # pixels at which candidates are aligned
_FLAT = 4.0  # standard deviation, of 255, below which a thumbnail has too little contrast
_TINY = 12  # pixels, below which an image is too small
_CANDIDATE = 0.88  # smallest correlation of candidates
_NEIGHBOURS = 8
_PLAUSIBLE = (1.5, 0.3, 0.25)  # largest difference at 32 pixels, before and after each step
_STEPS = 2  # Gauss-Newton steps at 64 pixels
_SAME_AT_28, _SAME = 0.018, 0.1  # largest difference of the same image: at 28 pixels, and at large sizes
_WEAKEST = 0.3
_BLOCKS, _SAME_BLOCK, _SCENE = 4, 0.25, 0.5  # same scene: half of 4×4 blocks have at most this difference
_LARGE = 64  # pixels, below which a scene is not recognised
_COLOUR = 10.0  # largest root mean squared difference of colours, of 255
_BATCH = 256  # pairs verified at once
_CELLS = 2**25  # numbers in memory at once
_SCALES = ((1.0, 0.0), (0.95, 0.05), (0.95, -0.05), (0.9, 0.1), (0.9, 0.0), (0.9, -0.1))
_WINDOWS_W4 = torch.tensor([[*across, *down] for across in _SCALES for down in _SCALES])  # sx, tx, sy, ty


class ReadPixels(Protocol):
    def __call__(self, sample: int, most: int, /) -> Array:
        """Return an image as H×W or H×W×C; sides longer than `most` pixels may be resized to it."""
        ...


class Link(NamedTuple):
    """A pair of duplicates and its kind."""

    first: int
    second: int
    kind: Kind


def near_duplicates(samples: list[int], read_pixels: ReadPixels) -> list[Link]:
    """Return the pairs of samples that show the same image or the same scene."""
    thumbnails = _stack(samples, read_pixels, _COARSE).grey()
    pairs_P2, box_P4 = _candidates(thumbnails)
    smooth = smoothed(thumbnails)
    blocks = _BLOCKS if thumbnails.values_NCSS.shape[-1] == _COARSE else 1  # scenes are only recognised in large images
    for limit in _PLAUSIBLE:
        fit = _fit_pairs(thumbnails, smooth, pairs_P2, box_P4, blocks)
        remaining = ((fit.difference_P <= limit) | (fit.similar_P >= _SCENE)).nonzero().flatten()
        pairs_P2, box_P4 = pairs_P2[remaining], fit.next_P4[remaining]
    batches = zip(pairs_P2.split(_BATCH), box_P4.split(_BATCH), strict=True)
    return [link for pairs, boxes in batches for link in _verified(samples, pairs, boxes, read_pixels)]


def _stack(samples: list[int], read_pixels: ReadPixels, most: int) -> ImageStack:
    """Read images in colour, with sides of at most `most` pixels, into one tensor."""
    images = []
    for sample in samples:
        pixels = np.asarray(read_pixels(sample, most))
        images.append(_shrink(pixels[:, :, None] if pixels.ndim == 2 else pixels[:, :, :3], most))
    size_N2 = torch.tensor([image.shape[:2] for image in images]).reshape(-1, 2)
    side = math.ceil(int(size_N2.max()) / _BLOCKS) * _BLOCKS if images else _BLOCKS
    values = np.zeros((len(images), 3, side, side), np.float32)
    for place, image in enumerate(images):
        values[place, :, : image.shape[0], : image.shape[1]] = image.transpose(2, 0, 1)
    return ImageStack(torch.from_numpy(values), size_N2)


def _shrink(pixels_HWC: Array, most: int) -> Array:
    """Resize an image to sides of at most `most` pixels."""
    if max(pixels_HWC.shape[:2]) <= most:
        return pixels_HWC
    height, width = (min(most, side) for side in pixels_HWC.shape[:2])
    values_CHW = torch.from_numpy(np.ascontiguousarray(pixels_HWC.transpose(2, 0, 1))).float()
    small_1CHW = interpolate(values_CHW.unsqueeze(0), (height, width), mode="bilinear", antialias=True)
    return small_1CHW[0].permute(1, 2, 0).numpy()


def _candidates(images: ImageStack) -> tuple[Tensor, Tensor]:
    """Return candidate pairs (an image and one that may be a crop of it), and the box of the crop."""
    count = len(images.size_N2)
    if count < 2:
        return torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 4)
    windows_WND = _windows(images)
    whole_ND = windows_WND[0]
    neighbours = min(_NEIGHBOURS, count - 1)
    found = []
    for rows in torch.arange(count).split(max(1, _CELLS // count // 16)):
        similarity_nN = torch.full((len(rows), count), -1.0)
        for window_ND in windows_WND:
            torch.maximum(similarity_nN, whole_ND[rows] @ window_ND.T, out=similarity_nN)
        similarity_nN[torch.arange(len(rows)), rows] = -1.0
        value_nk, other_nk = similarity_nN.topk(neighbours, 1)
        place, rank = (value_nk >= _CANDIDATE).nonzero().unbind(1)
        found.append(torch.stack((other_nk[place, rank], rows[place]), 1))
    pairs_P2 = torch.cat(found).sort(1).values.unique(dim=0)
    pairs_P2, best_P = _oriented(pairs_P2, windows_WND)
    return _larger_first(images, pairs_P2, _WINDOWS_W4[best_P])


def _windows(images: ImageStack) -> Tensor:
    """Return 8×8 pixels of each window of each image as a unit vector, or 0 if it is too flat or too small."""
    count, scales = len(images.size_N2), len(_SCALES)
    boxes = torch.tensor([[*scale, *scale] for scale in _SCALES])
    values = read_boxes(images, boxes, _SIDE).view(count, scales, _SIDE, scales, _SIDE)
    values_WND = values.permute(3, 1, 0, 2, 4).reshape(scales**2, count, _SIDE**2)
    values_WND = values_WND - values_WND.mean(2, keepdim=True)
    flat_WN = (values_WND.std(2) < _FLAT) | (images.size_N2.amin(1) < _TINY)
    return normalize(values_WND, dim=2).masked_fill(flat_WN.unsqueeze(2), 0.0)


def _oriented(pairs_P2: Tensor, windows_WND: Tensor) -> tuple[Tensor, Tensor]:
    """Order each pair so that the second image is most similar to a window of the first; return that window too."""
    both = []
    for pairs in (pairs_P2, pairs_P2.flip(1)):
        products = [(window_ND[pairs[:, 0]] * windows_WND[0, pairs[:, 1]]).sum(1) for window_ND in windows_WND]
        both.append(torch.stack(products).max(0))
    swapped_P = both[1].values > both[0].values
    pairs_P2 = torch.where(swapped_P.unsqueeze(1), pairs_P2.flip(1), pairs_P2)
    return pairs_P2, torch.where(swapped_P, both[1].indices, both[0].indices)


def _larger_first(images: ImageStack, pairs_P2: Tensor, box_P4: Tensor) -> tuple[Tensor, Tensor]:
    """Swap pairs whose first image has fewer pixels, because detail cannot be predicted from an image without it."""
    area_P2 = images.size_N2.prod(1)[pairs_P2]
    swap_P1 = (area_P2[:, 0] < 0.7 * area_P2[:, 1]).unsqueeze(1)
    scale_P2, shift_P2 = box_P4[:, [0, 2]], box_P4[:, [1, 3]]
    inverse_P4 = torch.stack((1 / scale_P2, -shift_P2 / scale_P2), 2).flatten(1)
    return torch.where(swap_P1, pairs_P2.flip(1), pairs_P2), torch.where(swap_P1, inverse_P4, box_P4)


def _fit_pairs(images: ImageStack, smooth: ImageStack, pairs_P2: Tensor, box_P4: Tensor, blocks: int = 1) -> Fit:
    """Align all pairs in batches."""
    batch = max(1, _CELLS // (64 * images.values_NCSS.shape[1:].numel()))
    fits = [
        fit_boxes(images.take(pair[:, 0]), smooth.take(pair[:, 1]), box, blocks, _SAME_BLOCK)
        for pair, box in zip(pairs_P2.split(batch), box_P4.split(batch), strict=True)
    ]
    return Fit(*(torch.cat([getattr(fit, name) for fit in fits]) for name in Fit.__dataclass_fields__))


def _verified(samples: list[int], pairs_P2: Tensor, box_P4: Tensor, read_pixels: ReadPixels) -> Iterator[Link]:
    """Yield the pairs that are duplicates at the fine resolution."""
    if not len(pairs_P2):
        return
    involved, places_P2 = pairs_P2.unique(return_inverse=True)
    images = _stack([samples[place] for place in involved.tolist()], read_pixels, _FINE)
    grey = images.grey()
    smooth = smoothed(grey)
    for _ in range(_STEPS):
        box_P4 = _fit_pairs(grey, smooth, places_P2, box_P4).next_P4
    fit = _fit_pairs(grey, smooth, places_P2, box_P4, _BLOCKS)
    first, second = (images.take(places_P2[:, place]) for place in (0, 1))
    whole_P4 = _WINDOWS_W4[:1].expand_as(box_P4)
    colour_change = colours(first, box_P4, _SIDE) - colours(second, whole_P4, _SIDE)
    colour_P = colour_change.square().mean((1, 2, 3)).sqrt() <= _COLOUR
    side_P = images.size_N2[places_P2].double().prod(2).sqrt().amin(1)
    same_P = (fit.difference_P <= (_SAME_AT_28 * (side_P / 28) ** 1.5).clamp_max(_SAME)) & (fit.weakest_P <= _WEAKEST)
    scene_P = (side_P >= _LARGE) & (fit.similar_P >= _SCENE) & fit.difference_P.isfinite()
    kinds = zip(pairs_P2.tolist(), (same_P & colour_P).tolist(), (scene_P & colour_P).tolist(), strict=True)
    for (one, other), same, scene in kinds:
        if same or scene:
            low, high = sorted((samples[one], samples[other]))
            yield Link(low, high, "same image" if same else "same scene")
