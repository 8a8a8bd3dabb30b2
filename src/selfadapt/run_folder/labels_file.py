"""labels.csv by columns: what the audit says of every label, in its order.

A row is known by its place in that order. Columns of small numbers keep hundreds of thousands of labels small.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from selfadapt.core.errors import UserError
from selfadapt.run_folder.folder import RunFolder

Column = np.ndarray[tuple[int], np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """N labels, most suspicious first."""

    classes: Sequence[str]
    parts: Sequence[str]  # names, training first
    ids: Sequence[str]
    paths: Sequence[str]
    part_N: Column  # places in `parts`
    given_N: Column  # places in `classes`
    suggested_N: Column
    predicted_N: Column  # by the network, for parts that it was not trained on; -1 where nothing is known
    confidence_N: Column
    outsider_N: Column  # NaN where nothing is known
    p_wrong_N: Column  # NaN where nothing is known, as in older files
    suspect_N: Column

    @classmethod
    def of(cls, folder: RunFolder) -> "Verdicts":
        """The labels of a run that was audited."""
        run = folder.read_run()
        if run["settings"]["kind"] != "labels":
            raise UserError(f"{folder.path} is a run without labels; there is nothing to decide about")
        if not folder.labels_file.exists():
            raise UserError(f"{folder.path} was not audited yet; do that first: selfadapt audit {folder.path}")
        classes, parts = run["data"]["classes"], ("train", "validation", "test")
        number = {name: k for k, name in enumerate(classes)} | {"": -1}
        columns: dict[str, list[Any]] = {name: [] for name in ("id", "path", *_NUMBERS)}
        first: dict[str, int] = {}
        for line, row in enumerate(folder.read_labels(), start=2):
            try:
                if first.setdefault(row["id"], line) != line:
                    raise ValueError(f"{row['id']!r} stands in line {first[row['id']]} already")
                if row["part"] not in parts:
                    raise ValueError(f"part {row['part']!r} is none of {', '.join(parts)}")
                for name in ("given", "suggested"):
                    if not row[name]:
                        raise ValueError(f"there is no class under {name}")
                columns["id"].append(row["id"])
                columns["path"].append(row["path"])
                columns["part"].append(parts.index(row["part"]))
                columns["given"].append(number[row["given"]])
                columns["suggested"].append(number[row["suggested"]])
                columns["predicted"].append(number[row["predicted"]])
                columns["confidence"].append(_number(row["confidence"]))
                columns["outsider"].append(_number(row["outsider"] or "nan"))
                columns["p_wrong"].append(_number(row["p_wrong"] or "nan"))
                columns["suspect"].append(row["suspect"] == "1")
            except (ValueError, KeyError) as error:
                reason = f"{error} is no class of the data" if isinstance(error, KeyError) else error
                raise UserError(
                    f"{folder.labels_file}, line {line}: {reason}; make it anew with: selfadapt audit {folder.path}"
                ) from None
        arrays: dict[str, Column] = {f"{name}_N": np.array(columns[name], kind) for name, kind in _NUMBERS.items()}
        return cls(classes=classes, parts=parts, ids=columns["id"], paths=columns["path"], **arrays)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def place(self) -> dict[str, int]:
        """The row of each id."""
        return {sample_id: row for row, sample_id in enumerate(self.ids)}

    @property
    def calibrated(self) -> bool:
        """Whether P(wrong) is a probability: labels were judged out of sample, which is where outliers are known."""
        return bool(np.isfinite(self.outsider_N).any() and np.isfinite(self.p_wrong_N).any())

    def rows_of(self, part: str) -> Column:
        return np.flatnonzero(self.part_N == self.parts.index(part))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


_NUMBERS = {
    "part": np.int8,
    "given": np.int32,
    "suggested": np.int32,
    "predicted": np.int32,
    "confidence": np.float32,
    "outsider": np.float32,
    "p_wrong": np.float64,
    "suspect": np.bool_,
}
