"""Duplicates with different labels: one thing to look at, and at most one of the labels is right."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.run_folder.labels_file import Verdicts


@dataclass(frozen=True)
class Conflict:
    """A group of duplicates, by their rows, most likely wrong first."""

    rows: tuple[int, ...]
    disagreeing: frozenset[int]  # its likely errors; without any, those whose label is not the most frequent


def conflicts_of(verdicts: Verdicts, groups: Sequence[DuplicateGroup[str]]) -> list[Conflict]:
    """The groups whose members show one thing under different labels, in the order of their first rows."""
    found, taken = [], set[int]()
    for group in groups:
        rows = sorted({verdicts.place[own] for own in group.members if own in verdicts.place} - taken)
        counts = Counter(int(verdicts.given_N[row]) for row in rows)
        if group.is_evidence and len(counts) > 1:
            taken.update(rows)
            errors = frozenset(row for row in rows if verdicts.suspect_N[row])
            found.append(Conflict(tuple(rows), errors or _minority(verdicts, rows, counts)))
    return sorted(found, key=lambda own: own.rows)


def _minority(verdicts: Verdicts, rows: Sequence[int], counts: Counter[int]) -> frozenset[int]:
    """Rows whose label is not the most frequent; of equally frequent ones that of the last row is trusted most."""
    trusted = max(reversed(rows), key=lambda row: counts[int(verdicts.given_N[row])])
    return frozenset(row for row in rows if verdicts.given_N[row] != verdicts.given_N[trusted])
