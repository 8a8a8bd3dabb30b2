"""Duplicates among the features of many samples, in time that grows hardly faster than their number.

Rows are equal if their hashes are. Near-duplicates are what groups.py calls the same direction: standardised features
with a cosine similarity of at least 0.95 and about the same length. They are proposed and then verified:

1. A sketch of each sample: its direction, on 64 random orthogonal axes. The squared distance of two sketches estimates
   that of the directions, with a standard deviation of 18 %.
2. k-means on a sample of the sketches divides the space into cells. A sample is compared with the members of its
   cell and of the cells nearest to it, and those within four standard deviations of the limit are candidates.
3. The similarity of candidates is computed from their features.

Sketches are kept in a temporary file. At most 16 candidates of a sample in a cell are verified.

Shapes: N samples, n of a block, F features, A axes of the sketch, C cells, P pairs.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.core import distributed
from selfadapt.core.array_files import Array
from selfadapt.core.rng import seeded
from selfadapt.data.duplicates.groups import (
    LEAST_DISTINCT,
    MANY_FEATURES,
    SAME_FEATURES,
    DuplicateGroup,
    groups_of_links,
)
from selfadapt.data.duplicates.near_duplicates import Link
from selfadapt.data.shards.passes import Passes
from selfadapt.data.shards.scan import Scan
from selfadapt.data.shards.shard_file import release

_AXES = 64
_PER_CELL, _MOST_CELLS = 256, 4096
_VISITED = 12  # cells
_STEPS = 6  # of k-means
_CANDIDATE = 2 * (1 - SAME_FEATURES) * (1 + 4 * (2 / _AXES) ** 0.5)  # largest squared distance of sketches
_MOST_CANDIDATES = 16
_REACH = 1 - SAME_FEATURES + 1e-6  # largest difference of the logarithms of two lengths
_QUERIES = 16_384
_VERIFIED = 2048  # pairs at a time


def duplicates_in_cells(passes: Passes, scan: Scan, sample_n: Tensor) -> list[DuplicateGroup[int]]:
    """Groups of duplicates among the features. `sample_n` is a random sample, from which the cells are made."""
    equal = _equal_rows(scan.content_N)
    repeated_N = torch.zeros(len(scan.content_N), dtype=torch.bool)
    for members in equal.values():
        repeated_N[members[1:]] = True
    if float(repeated_N.float().mean()) > 1 - LEAST_DISTINCT:
        return []
    links: Iterator[Link] = iter(())
    if passes.shards.dimensions >= MANY_FEATURES:
        with tempfile.TemporaryDirectory(prefix="selfadapt-duplicates-") as folder:
            pairs_P2 = _near_pairs(passes, _Directions(scan), sample_n, ~repeated_N, Path(folder))
        links = (Link(first, second, "same image") for first, second in pairs_P2.tolist())
    return groups_of_links(links, equal)


def _equal_rows(content_N: Tensor) -> dict[int, list[int]]:
    """The samples of each content that occurs several times, by the first of them."""
    order_N = content_N.argsort(stable=True)
    sorted_N = content_N[order_N]
    bounds = (sorted_N[1:] != sorted_N[:-1]).nonzero().flatten() + 1
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), bounds))
    sizes = torch.diff(starts, append=torch.tensor([len(content_N)]))
    several = (sizes > 1).nonzero().flatten()
    groups = [
        order_N[start : start + size].tolist()
        for start, size in zip(starts[several].tolist(), sizes[several].tolist(), strict=True)
    ]
    return {members[0]: members for members in groups}


@dataclass(frozen=True)
class _Directions:
    scan: Scan

    def __call__(self, features_nF: Tensor) -> tuple[Tensor, Tensor]:
        """The direction of each row (0 for a row without one), and the logarithm of its length."""
        scaled_nF = (features_nF - self.scan.mean_F) / self.scan.std_F.clamp_min(1e-6)
        length_n = scaled_nF.norm(dim=1)
        return normalize(scaled_nF) * (length_n > 1e-6).unsqueeze(1), length_n.clamp_min(1e-12).log()


def _near_pairs(passes: Passes, directions: _Directions, sample_n: Tensor, distinct_N: Tensor, folder: Path) -> Tensor:
    """Pairs of distinct samples with nearly the same direction and length."""
    width = passes.shards.dimensions
    axes_FA = torch.linalg.qr(torch.randn(width, _AXES, generator=seeded(0, "sketch")))[0] * (width / _AXES) ** 0.5
    centres_CA = _centres(directions(passes.shards.take(sample_n))[0] @ axes_FA, len(distinct_N))
    sketches_NA = np.memmap(folder / "sketches", np.float16, "w+", shape=(len(distinct_N), _AXES))
    cell_n, length_n = passes.own(torch.int16), passes.own(torch.float32)
    for block, features_nF in passes.blocks("sketching directions"):
        direction_nF, length_n[passes.place(block)] = directions(features_nF)
        sketch_nA = direction_nF @ axes_FA
        sketches_NA[block] = sketch_nA.numpy()
        cell_n[passes.place(block)] = _distances(sketch_nA, centres_CA).argmin(1).short()
        release(sketches_NA)
    _share(sketches_NA, passes)
    cell_N = distributed.all_gather_rows(cell_n).masked_fill_(~distinct_N, len(centres_CA))  # after all cells
    index = _CellIndex.of(sketches_NA, cell_N, distributed.all_gather_rows(length_n), centres_CA, folder)
    found = [_verified(pairs_P2, passes, directions) for pairs_P2 in index.candidates(passes)]
    near_P2: Tensor = distributed.all_gather_rows(torch.cat([torch.empty(0, 2, dtype=torch.int64), *found]))
    distinct_P2: Tensor = torch.unique(near_P2, dim=0)
    return distinct_P2


def _centres(sketch_nA: Tensor, count: int) -> Tensor:
    """The centres of the cells (C×A), by k-means from the first samples."""
    cells = max(1, min(count // _PER_CELL, _MOST_CELLS, len(sketch_nA) // 2))
    centres_CA = sketch_nA[:cells].clone()
    for _ in range(_STEPS):
        nearest_n = torch.cat([_distances(own, centres_CA).argmin(1) for own in sketch_nA.split(_QUERIES)])
        sizes_C1 = torch.bincount(nearest_n, minlength=cells).unsqueeze(1)
        sums_CA = torch.zeros_like(centres_CA).index_add_(0, nearest_n, sketch_nA)
        centres_CA = torch.where(sizes_C1 > 0, sums_CA / sizes_C1.clamp_min(1), centres_CA)
    return centres_CA


def _distances(sketch_nA: Tensor, centres_CA: Tensor) -> Tensor:
    """Squared distances, up to a constant for each sample."""
    return torch.addmm(centres_CA.square().sum(1), sketch_nA, centres_CA.T, alpha=-2)


def _share(sketches_NA: Array, passes: Passes) -> None:
    """Fill in the sketches of the other processes, a block of each at a time."""
    if distributed.world_size() == 1:
        return
    ranges = distributed.all_gather_objects((passes.start, passes.stop))
    for step in range(max(-(-(stop - start) // passes.rows) for start, stop in ranges)):
        places = [
            slice(min(start + step * passes.rows, stop), min(start + (step + 1) * passes.rows, stop))
            for start, stop in ranges
        ]
        own = torch.from_numpy(np.array(sketches_NA[places[distributed.rank()]]))
        rows = distributed.all_gather_rows(own).numpy()
        done = 0
        for place in places:
            sketches_NA[place] = rows[done : done + place.stop - place.start]
            done += place.stop - place.start
        release(sketches_NA)


@dataclass(frozen=True)
class _CellIndex:
    """The sketches in the order of their cells."""

    order_n: Tensor  # sample of each row
    start_C: list[int]  # first row of each cell, and the end of the last
    sketches_nA: Array
    length_n: Tensor
    centres_CA: Tensor

    @classmethod
    def of(cls, sketches_NA: Array, cell_N: Tensor, length_N: Tensor, centres_CA: Tensor, folder: Path) -> "_CellIndex":
        order_N = torch.from_numpy(np.argsort(cell_N.numpy(), kind="stable").astype(np.int32))
        sizes_C = torch.bincount(cell_N.int(), minlength=len(centres_CA) + 1)[: len(centres_CA)]
        starts = [0, *sizes_C.cumsum(0).tolist()]
        order_n = order_N[: starts[-1]]
        sorted_nA = np.memmap(folder / "sorted", np.float16, "w+", shape=(max(1, len(order_n)), _AXES))
        for first in range(0, len(order_n), _QUERIES):
            sorted_nA[first : first + _QUERIES] = sketches_NA[order_n[first : first + _QUERIES].numpy()]
            release(sorted_nA)
            release(sketches_NA)
        return cls(order_n, starts, sorted_nA, length_N[order_n], centres_CA)

    def candidates(self, passes: Passes) -> Iterator[Tensor]:
        """Yield pairs of samples whose sketches are near, for the share of the rows of this process."""
        count, rank, processes = len(self.order_n), distributed.rank(), distributed.world_size()
        start, stop = (count * number // processes for number in (rank, rank + 1))
        passes.on_progress("comparing with neighbours", 0, stop - start)
        for first in range(start, stop, _QUERIES):
            rows = slice(first, min(first + _QUERIES, stop))
            yield self._near(rows)
            release(self.sketches_nA)
            passes.on_progress("comparing with neighbours", rows.stop - start, stop - start)

    def _near(self, rows: slice) -> Tensor:
        queries_nA = torch.from_numpy(self.sketches_nA[rows].astype(np.float32))
        visited = min(_VISITED, len(self.centres_CA))
        visited_nV = _distances(queries_nA, self.centres_CA).topk(visited, 1, largest=False, sorted=False).indices
        by_cell = visited_nV.flatten().argsort(stable=True)
        sizes = torch.bincount(visited_nV.flatten(), minlength=len(self.centres_CA)).tolist()
        found, done = [], 0
        for cell, size in enumerate(sizes):
            members = slice(self.start_C[cell], self.start_C[cell + 1])
            if size and members.stop > members.start:
                query_n = by_cell[done : done + size] // visited
                found.append(self._near_in(queries_nA[query_n], query_n + rows.start, members))
            done += size
        pairs_P2 = torch.cat([torch.empty(0, 2, dtype=torch.int64), *found])
        sorted_P2: Tensor = self.order_n[pairs_P2].long().sort(1).values
        distinct_P2: Tensor = torch.unique(sorted_P2, dim=0)
        return distinct_P2

    def _near_in(self, queries_nA: Tensor, row_n: Tensor, members: slice) -> Tensor:
        """Rows of candidates among the members of one cell."""
        members_mA = torch.from_numpy(self.sketches_nA[members].astype(np.float32))
        square_nm = torch.addmm(members_mA.square().sum(1), queries_nA, members_mA.T, alpha=-2)
        square_nm += queries_nA.square().sum(1, keepdim=True)
        near_nm = square_nm <= _CANDIDATE
        if int(near_nm.sum()) > 2 * len(row_n):  # rarely: each sample is near itself
            least = min(_MOST_CANDIDATES + 1, square_nm.shape[1])
            near_nm &= square_nm <= square_nm.kthvalue(least, 1, keepdim=True).values
        query, member = near_nm.nonzero().unbind(1)
        pairs_P2 = torch.stack((row_n[query], member + members.start), 1)
        length_P2 = self.length_n[pairs_P2]
        same_length_P = (length_P2[:, 0] - length_P2[:, 1]).abs() < _REACH
        return pairs_P2[same_length_P & (pairs_P2[:, 0] != pairs_P2[:, 1])]


def _verified(pairs_P2: Tensor, passes: Passes, directions: _Directions) -> Tensor:
    """The pairs whose features, not only their sketches, have nearly the same direction."""
    kept = []
    for own_P2 in pairs_P2.split(_VERIFIED):
        rows_n, place_P2 = own_P2.unique(return_inverse=True)
        direction_nF = directions(passes.shards.take(rows_n))[0]
        similarity_P = (direction_nF[place_P2[:, 0]] * direction_nF[place_P2[:, 1]]).sum(1)
        kept.append(own_P2[similarity_P >= SAME_FEATURES])
    return torch.cat(kept)
