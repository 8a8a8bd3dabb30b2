"""Writing data again with corrected labels, in the form in which they came.

Nothing but labels changes: ids, order and everything else are those of the source. A sample that the corrections do not
name, such as an unreadable file, keeps its label.
"""

import os
import shutil
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfadapt.core.atomic_files import atomic_folder, atomic_path
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import copy_regular
from selfadapt.data.forms.form import Changes, Form
from selfadapt.data.forms.known_forms import form_of
from selfadapt.data.sources.arrays import ARRAY_NAMES, npz_data, read_npz
from selfadapt.data.sources.builtin import SOURCES
from selfadapt.data.sources.image_folder import folder_data
from selfadapt.data.tabular.table_file import TableColumns, read_sample_rows


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """Labels by sample id, and the ids of samples to remove."""

    labels: Mapping[str, str]
    removed: Set[str] = frozenset()

    def label(self, sample_id: str, given: str) -> str | None:
        """Return the label of a sample, or None to remove it."""
        return None if sample_id in self.removed else self.labels.get(sample_id, given)


def check_out(source: str, out: Path) -> None:
    """Check that the data of `source` can be written to `out`.

    Raises:
        UserError: If the source is a named data set, or `out` exists or does not suit the form.
    """
    path = Path(source)
    if source in SOURCES:
        raise UserError(f"{source} is a named data set, which is not written again; use the table of corrected labels")
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists; give a new name, and replace your data yourself when you have looked at it")
    if not path.is_dir() and out.suffix != path.suffix:
        raise UserError(f"{out} should end in {path.suffix}, as {path} does: the data are written in the same form")
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        raise UserError(f"{out} is inside {path}; give a folder outside the data")


def write_back(source: str, columns: TableColumns, corrections: Corrections, out: Path) -> None:
    """Write the data of `source` to `out` with corrected labels, in the same form.

    Raises:
        UserError: If `check_out` raises one, or the data cannot be read any more.
    """
    check_out(source, out)
    path = Path(source)
    try:
        form = form_of(path)
        if form is not None:
            form.write(path, out, columns.label, rows_and_changes(path, form, columns, corrections)[1])
        elif path.is_dir():
            _write_class_folders(path, out, corrections)
        else:
            _write_npz(path, out, corrections)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from error


def rows_and_changes(
    path: Path, form: Form, columns: TableColumns, corrections: Corrections
) -> tuple[dict[int, str], Changes]:
    """The given labels by the positions of their rows, and the corrections that differ from them."""
    images = columns.text is None and "path" in form.column_names(path)
    rows = read_sample_rows(path, columns, images=images)
    given = {row.number - 2: row.label for row in rows}
    new = {row.number - 2: corrections.label(row.id, row.label) for row in rows}
    return given, {position: label for position, label in new.items() if label != given[position]}


def _write_class_folders(path: Path, out: Path, corrections: Corrections) -> None:
    """Copy the folder; an image with another label goes to the folder of that class, under a name that is free."""
    data = folder_data(path)
    with atomic_folder(out) as draft:
        shutil.copytree(path, draft, dirs_exist_ok=True, copy_function=copy_regular)
        for samples in data.splits.values():
            for sample_id, code in zip(samples.ids, samples.labels.tolist(), strict=True):
                given = data.classes[code]
                label = corrections.label(sample_id, given)
                if label is None:
                    (draft / sample_id).unlink()
                elif label not in data.classes:  # a stranger's run may name any path as a class
                    raise UserError(f"{label!r} is not a class of {path}; is the run about other data?")
                elif label != given:
                    _move(draft, Path(sample_id), given, label)


def _move(root: Path, file: Path, given: str, label: str) -> None:
    parts = list(file.parts)
    parts[parts.index(given)] = label
    target = root.joinpath(*parts)
    if target.exists():
        target = target.with_name(f"{target.stem}-from-{given}{target.suffix}")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(root / file, target)


def _write_npz(path: Path, out: Path, corrections: Corrections) -> None:
    data, arrays = npz_data(path), read_npz(path)
    for split, samples in data.splits.items():
        name = ARRAY_NAMES[split]
        labels = arrays[f"y_{name}"]
        typed = {str(value): value for value in np.unique(arrays["y_train"])}
        pairs = zip(samples.ids, labels.tolist(), strict=True)
        new = [corrections.label(sample_id, str(value)) for sample_id, value in pairs]
        kept = np.array([label is not None for label in new])
        corrected = np.array([typed.get(label, label) for label in new if label is not None])
        count = len(labels)
        for key in [key for key in arrays if key.endswith(f"_{name}") and len(arrays[key]) == count]:
            arrays[key] = arrays[key][kept]
        arrays[f"y_{name}"] = corrected.astype(np.result_type(labels.dtype, corrected.dtype))
    with atomic_path(out) as draft, open(draft, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
