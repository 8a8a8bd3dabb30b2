"""What the paper says that a table or figure shows, as comparisons of cells that can be tested on measured rows.

A claim compares two selections of cells. With one seed there is only a difference. With several, the differences are
paired by seed, and a one-sided t test asks whether their mean is above zero.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Rows = Sequence[Mapping[str, Any]]
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


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`higher` is above `lower`, which are cells or a number.

    Of part, row and column, those for which both selections are the same pair the cells; over the others the mean is
    taken.
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
        if self.p is None:
            return "seen with one seed" if self.difference > 0 else "not shown"
        return "shown" if self.p < _LEVEL else "not shown"

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.statement}: not run"
        cells = f", in {self.cells_above} of {self.cells} cells" if self.cells > 1 else ""
        tested = f"one-sided paired t test, {self.seeds} seeds, p = {self.p:.2g}" if self.p is not None else "no test"
        return f"{self.statement}: {self.verdict} ({self.difference:+.3g}{cells}; {tested})"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def judge(claim: Claim, rows: Rows) -> Verdict:
    """Test a claim on the rows of a table (`rows.csv`)."""
    pairing = [
        field
        for field in _FIELDS
        if isinstance(claim.lower, float) or getattr(claim.higher, field) == getattr(claim.lower, field)
    ]
    higher, lower = (_means(cells, rows, pairing) for cells in (claim.higher, claim.lower))
    pairs = [key for key in higher if isinstance(claim.lower, float) or key in lower]
    differences = {key: higher[key] - (claim.lower if isinstance(claim.lower, float) else lower[key]) for key in pairs}
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


def _means(cells: Cells | float, rows: Rows, pairing: Sequence[str]) -> dict[tuple[Any, Any], float]:
    """The mean of the selected cells for each seed and value of the pairing fields."""
    groups: dict[tuple[Any, Any], list[float]] = {}
    for row in rows:
        if isinstance(cells, Cells) and row["measured"] is not None and cells.match(row):
            groups.setdefault((row["seed"], tuple(row[field] for field in pairing)), []).append(row["measured"])
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
