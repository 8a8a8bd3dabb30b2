"""Tables of samples, in any form that `data/forms` reads, and the columns that have a special meaning.

    path    image file, relative to the folder of the table; only in tables of images
    label   class; --label-column names another column
    id      unique name of the sample; by default the path, or a hash of the row
    split   train, val or test; train by default
    group   named by --group-column: samples that stay together in every split
    text    named by --text-column: the text to encode

Row 1 of a table is its header.
"""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from selfadapt.core.errors import UserError
from selfadapt.data.forms.known_forms import form_of, read_table
from selfadapt.data.labels.class_names import UNLABELLED, check_labels, is_missing
from selfadapt.data.sample_ids import content_ids
from selfadapt.data.tabular.row_encoder import Row

SPLIT_NAMES = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """Names of the columns that users may choose."""

    label: str = "label"
    text: str | None = None
    group: str | None = None

    def check_unused(self, source: str) -> None:
        """Raise a UserError if a column is named although `source` is not a table."""
        for name, value in asdict(self).items():
            if value not in (None, "label"):
                raise UserError(
                    f"--{name}-column is for tables (.csv, .parquet), but {source} is not one; leave it out"
                )


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """A sample in a table."""

    location: str  # file, row and id, for error messages
    number: int
    id: str
    label: str
    split: str
    group: str | None
    values: Row  # all columns


def read_sample_rows(
    path: Path, columns: TableColumns, *, images: bool = False, unlabelled: bool = False
) -> list[SampleRow]:
    """Read a table of samples.

    Args:
        path: A table in one of the known forms.
        columns: Names of the label and group columns.
        images: Whether the table lists image files in the column `path`.
        unlabelled: Accept a table without labels; then only its training rows are returned.

    Raises:
        UserError: A column, label, id, path or group is missing, an id occurs twice, or a split is unknown.
    """
    rows = read_table(path)
    if not rows:
        raise UserError(f"{path} has no rows; add one for each sample")
    unlabelled = unlabelled and all(row.get(columns.label) in (None, "") for row in rows)
    positions = list(range(len(rows))) if unlabelled else _labelled(path, rows, columns.label)
    rows = [rows[position] for position in positions]
    wanted = ("path" if images else None, None if unlabelled else columns.label, columns.group)
    required = [name for name in wanted if name is not None]
    if missing := [name for name in required if name not in rows[0]]:
        raise UserError(
            f"{path} has no column {' and '.join(map(repr, missing))}; it has {', '.join(map(str, rows[0]))}. "
            "Name others with --label-column and --group-column"
        )
    numbers = [position + 2 for position in positions]
    splits = [_split(path, number, row) for number, row in zip(numbers, rows, strict=True)]
    if not images and "id" not in rows[0]:
        ids = _hashed_ids(rows, splits, {columns.label, columns.group, "split"})
        locations = [f"{path}, row {number}" for number in numbers]
    else:
        ids = [str(row.get("id") or row["path"] if images else row["id"]) for row in rows]
        locations = [f"{path}, row {n} ({sample_id})" for n, sample_id in zip(numbers, ids, strict=True)]
    if not unlabelled:
        check_labels([row[columns.label] for row in rows], columns.label, locations.__getitem__)
    _check_filled(path, rows, required if images or "id" not in rows[0] else [*required, "id"])
    _check_unique(path, ids)
    return [
        SampleRow(
            location=location,
            number=number,
            id=sample_id,
            label=UNLABELLED if unlabelled else str(row[columns.label]),
            split=split,
            group=None if columns.group is None else str(row[columns.group]),
            values=row,
        )
        for number, row, sample_id, split, location in zip(numbers, rows, ids, splits, locations, strict=True)
        if split == "train" or not unlabelled
    ]


def _labelled(path: Path, rows: Sequence[Row], label: str) -> list[int]:
    """Positions of the rows to use: all but the unlabelled items of a form in which these are usual."""
    form = form_of(path)
    if form is None or not form.may_lack_labels or label not in rows[0]:
        return list(range(len(rows)))
    labelled = [position for position, row in enumerate(rows) if not is_missing(row[label])]
    if not labelled:
        raise UserError(f"{path}: none of its {len(rows)} items has a label; label some, or name --label-column")
    if len(labelled) < len(rows):
        warnings.warn(f"{path}: {len(rows) - len(labelled)} items without a label are left out", stacklevel=2)
    return labelled


def _split(path: Path, number: int, row: Row) -> str:
    name = str(row.get("split") or "train").lower()
    if name not in SPLIT_NAMES:
        raise UserError(f"{path}, row {number}: split is {name!r}; write train, val or test")
    return SPLIT_NAMES[name]


def _hashed_ids(rows: Sequence[Row], splits: Sequence[str], ignored: set[str | None]) -> list[str]:
    """Ids that depend on the split and on the values, but neither on the label nor on the order of the rows."""
    contents = [repr(sorted((k, str(v)) for k, v in row.items() if k not in ignored)).encode() for row in rows]
    return [f"{split}{suffix}" for split, suffix in zip(splits, content_ids("", contents), strict=True)]


def _check_filled(path: Path, rows: Sequence[Row], names: Sequence[str]) -> None:
    for number, row in enumerate(rows, start=2):
        for name in names:
            if row[name] is None or not str(row[name]).strip():
                raise UserError(f"{path}, row {number}: {name} is empty; fill it in or remove the row")


def _check_unique(path: Path, ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for number, sample_id in enumerate(ids, start=2):
        if first.setdefault(sample_id, number) != number:
            raise UserError(
                f"{path}: the id {sample_id!r} is used in rows {first[sample_id]} and {number}; make ids unique"
            )
