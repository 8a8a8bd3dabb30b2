"""Duplicates with different labels: they show the same thing, so at most one of the labels is right."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.evaluation.label_errors.report import LabelErrorReport


@dataclass(frozen=True)
class Conflict:
    """A group of duplicates, by their rows, most likely wrong first."""

    rows: tuple[int, ...]
    disagreeing: frozenset[int]  # its likely errors; without any, those whose label is not the most frequent


def conflicts_of(report: LabelErrorReport, groups: Sequence[DuplicateGroup[str]]) -> list[Conflict]:
    """Groups of the same image with different labels, in the order of their first rows."""
    found, taken = [], set[int]()
    for group in groups:
        rows = sorted({report.position[own] for own in group.members if own in report.position} - taken)
        counts = Counter(int(report.given_codes[row]) for row in rows)
        if group.is_evidence and len(counts) > 1:
            taken.update(rows)
            errors = frozenset(row for row in rows if report.is_error[row])
            found.append(Conflict(tuple(rows), errors or _minority(report, rows, counts)))
    return sorted(found, key=lambda own: own.rows)


def _minority(report: LabelErrorReport, rows: Sequence[int], counts: Counter[int]) -> frozenset[int]:
    """Rows whose label is not the most frequent one. Ties go to the label of the last row, the least likely wrong."""
    given = report.given_codes
    trusted = max(reversed(rows), key=lambda row: counts[int(given[row])])
    return frozenset(row for row in rows if given[row] != given[trusted])
