"""What the paper says that a table or figure shows, as comparisons of cells that can be tested on measured rows.

A claim compares two selections of cells. With one seed there is only a difference. With several, the differences are
paired by seed, and a one-sided t test asks whether their mean is above zero. A claim about several cells is shown only
if it holds in each of them.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Rows = Sequence[Mapping[str, Any]]
Means = dict[tuple[Any, tuple[str, ...]], float]  # by seed, and by the fields that pair the cells
_FIELDS = ("part", "row", "column")
_LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The cells with these parts, rows and columns; nothing given matches everything."""

    part: str | tuple[str, ...] = ()
    row: str | tuple[str, ...] = ()
    column: str | tuple[str, ...] = ()

    def match(self, row: Mapping[str, Any]) -> bool:
        wanted = (getattr(self, field) for field in _FIELDS)
        return all(not own or row[field] in _several(own) for field, own in zip(_FIELDS, wanted, strict=True))

    @property
    def single(self) -> bool:
        return all(isinstance(getattr(self, field), str) for field in _FIELDS)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`higher` is above `lower`, which are cells or a number.

    A number, or a single cell, is compared with every cell of the other side. Otherwise those of part, row and column
    for which both selections are the same pair the cells; over the others the mean is taken.
    """

    statement: str
    higher: Cells
    lower: Cells | float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A claim tested on measured rows."""

    statement: str
    difference: float | None  # mean over cells and seeds; None if the cells were not measured
    cells: int
    cells_above: int  # in how many of them the mean over seeds is above zero
    seeds: int
    p: float | None  # None with fewer than two seeds

    @property
    def verdict(self) -> str:
        if self.difference is None:
            return "not run"
        if self.difference > 0 and self.p is None:
            return "not tested"
        if self.p is None or self.p >= _LEVEL:
            return "not shown"
        return "shown" if self.cells_above == self.cells else "shown on average"

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.statement}: not run"
        cells = f", in {self.cells_above} of {self.cells} cells" if self.cells > 1 else ""
        tested = f"one-sided paired t test, {self.seeds} seeds, p = {self.p:.2g}" if self.p is not None else "one seed"
        return f"{self.statement}: {self.verdict} ({self.difference:+.3g}{cells}; {tested})"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def judge(claim: Claim, rows: Rows) -> Verdict:
    """Test a claim on the rows of a table (`rows.csv`)."""
    higher, lower = claim.higher, claim.lower
    one_to_many = isinstance(lower, float) or higher.single or lower.single
    paired = [field for field in _FIELDS if one_to_many or getattr(higher, field) == getattr(lower, field)]
    above = _means(higher, rows, paired)
    below: Means = {(seed, ()): lower for seed, _ in above} if isinstance(lower, float) else _means(lower, rows, paired)
    differences = {}
    for seed, cell in above | below:
        a, b = (side.get((seed, cell), side.get((seed, ()))) for side in (above, below))
        if a is not None and b is not None:
            differences[seed, cell] = a - b
    by_cell: dict[Any, list[float]] = {}
    by_seed: dict[Any, list[float]] = {}
    for (seed, cell), difference in differences.items():
        by_cell.setdefault(cell, []).append(difference)
        by_seed.setdefault(seed, []).append(difference)
    of_seeds = [statistics.fmean(own) for own in by_seed.values()]
    return Verdict(
        statement=claim.statement,
        difference=statistics.fmean(of_seeds) if of_seeds else None,
        cells=len(by_cell),
        cells_above=sum(statistics.fmean(own) > 0 for own in by_cell.values()),
        seeds=len(of_seeds),
        p=_p_value(of_seeds),
    )


def _means(cells: Cells, rows: Rows, paired: Sequence[str]) -> Means:
    """The mean of the selected cells for each seed and value of the paired fields, which a single cell lacks."""
    groups: dict[tuple[Any, tuple[str, ...]], list[float]] = {}
    for row in rows:
        if row["measured"] is not None and cells.match(row):
            key = () if cells.single else tuple(row[field] for field in paired)
            groups.setdefault((row["seed"], key), []).append(row["measured"])
    return {key: statistics.fmean(own) for key, own in groups.items()}


def _p_value(differences: Sequence[float]) -> float | None:
    if len(differences) < 2:
        return None
    if statistics.stdev(differences) == 0:
        return 0.0 if differences[0] > 0 else 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0, alternative="greater").pvalue)


def _several(values: str | tuple[str, ...]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else values
