"""Labels that cannot be audited are refused in one line that names the alternative."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.program import run
from selfadapt.run_folder.csv_tables import write_table

ONE_COLUMN = "multi-label data are not supported; audit one binary column per label"
VALUES = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
CLASSES = np.array(["cat", "dog", "owl"])[np.arange(60) % 3]


def _npz(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "data.npz", **{"x_train": VALUES, "y_train": CLASSES, **arrays})
    return "data.npz"


def _table(folder: Path, labels: Sequence[str], splits: Sequence[str] | None = None) -> str:
    rows = [[str(value) for value in own] for own in VALUES.tolist()]
    splits = splits or ["train"] * 60
    cells = [[*row, label, split] for row, label, split in zip(rows, labels, splits, strict=True)]
    write_table(folder / "data.csv", ("a", "b", "c", "label", "split"), cells)
    return "data.csv"


def _parquet(folder: Path) -> str:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    lists = [["cat"], ["cat", "dog"]] * 30
    pandas.DataFrame({"a": VALUES[:, 0], "b": VALUES[:, 1], "label": lists}).to_parquet(folder / "data.parquet")
    return "data.parquet"


def _with(place: int, value: str) -> list[str]:
    return [value if i in (place, 40) else own for i, own in enumerate(CLASSES.tolist())]


SPLITS = ["test" if i >= 50 else "train" for i in range(60)]
REFUSED: dict[str, tuple[Callable[[Path], str], str]] = {
    "an array of flags": (lambda own: _npz(own, y_train=np.eye(3, dtype=int)[np.arange(60) % 3]), ONE_COLUMN),
    "flags of the test split": (
        lambda own: _npz(own, x_test=VALUES[:9], y_test=np.ones((9, 3), int)),
        f"y_test has shape (9, 3); {ONE_COLUMN}",
    ),
    "lists in a word": (lambda own: _table(own, _with(7, "cat;dog")), f"'cat;dog' lists several classes; {ONE_COLUMN}"),
    "lists in a parquet": (_parquet, f"row 2: label contains ['cat']; {ONE_COLUMN}"),
    "NaN among numbers": (
        lambda own: _npz(own, y_train=np.where(np.arange(60) % 20 == 3, np.nan, np.arange(60.0) % 3)),
        "y_train[3] is missing, as are 3 of 60 labels; leave those samples out",
    ),
    "empty words": (
        lambda own: _npz(own, y_train=np.array(_with(3, " "))),
        "y_train[3] is missing, as are 2 of 60 labels; leave those samples out",
    ),
    "empty cells": (
        lambda own: _table(own, _with(3, "")),
        "row 5: label is empty, as in 2 of 60 rows; leave those samples out",
    ),
    "NaN in a table": (lambda own: _table(own, _with(3, "nan")), "as in 2 of 60 rows; leave those samples out"),
    "one class to train on": (
        lambda own: _table(own, ["cat"] * 60),
        "the train split of data has one class only, 'cat'; training needs two: add samples",
    ),
    "one class to test": (
        lambda own: _table(own, [*CLASSES[:50], *["owl"] * 10], SPLITS),
        "the test split of data has one class only, 'owl'; it measures nothing: leave it out, or add",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_labels_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    result = run("train", make(tmp_path), "--out", "run", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_file_of_labels_is_refused_likewise(tmp_path: Path) -> None:
    _npz(tmp_path)
    np.save(tmp_path / "flags.npy", np.ones((60, 2), int))
    write_table(tmp_path / "some.csv", ("id", "label"), [("a", "cat"), ("b", "")])
    for name, message in (("flags.npy", ONE_COLUMN), ("some.csv", "row 3 (b): label is empty, as in 1 of 2 rows")):
        result = run("train", "data.npz", "--labels", name, "--out", "run", folder=tmp_path)
        assert (result.returncode, message in result.stderr) == (2, True), result.stderr


def test_names_of_levels_are_no_lists(tmp_path: Path) -> None:
    names = [f"{own};{('young', 'old')[i % 2]}" for i, own in enumerate(CLASSES.tolist())]
    assert run("train", _table(tmp_path, names), "--validation", "0", "--out", "run", folder=tmp_path).returncode == 0
