"""Vectors of a user's own: arrays of floats, and tables."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from data.tables import write_table
from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.data.inputs import InputSpec
from selfadapt.data.sources.arrays import npz_data
from selfadapt.data.tabular.column_encoder import ColumnEncoder, fit_columns
from selfadapt.data.tabular.row_encoder import Table, row_encoder_from_state
from selfadapt.data.tabular.table_data import table_data
from selfadapt.data.tabular.table_file import TableColumns
from selfadapt.data.tabular.vectors import VectorInputs

X = np.random.default_rng(0).normal(size=(20, 3))
Y = np.arange(20) % 2


def _save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_vectors_come_with_their_parts(tmp_path: Path) -> None:
    data = npz_data(_save(tmp_path / "v.npz", x_train=X, y_train=Y, x_test=X[:5], y_test=Y[:5]))
    inputs = data.train.inputs
    assert isinstance(inputs, VectorInputs)
    np.testing.assert_array_equal(inputs.read(torch.arange(20)).numpy(), X.astype(np.float32))
    assert InputSpec.of(inputs.shape) == InputSpec(inputs.kind, (3,)) == InputSpec("vectors", (3,))
    assert data.test is not None
    assert (len(data.test), data.validation) == (5, None)
    assert data.train.labels.tolist() == Y.tolist()
    reordered = npz_data(_save(tmp_path / "r.npz", x_train=X[::-1], y_train=Y[::-1]))
    assert list(reordered.train.ids) == list(data.train.ids)[::-1]


def test_vector_inputs_are_taken_and_signed() -> None:
    values = torch.from_numpy(X).float()
    inputs = VectorInputs(values)
    chosen = torch.tensor([7, 2, 2])
    assert torch.equal(inputs.take(chosen).read(torch.tensor([0, 2])), values[[7, 2]])
    assert len(inputs.take(chosen)) == 3
    assert inputs.signature() == VectorInputs(values.clone()).signature()
    changed = values.clone()
    changed[3, 1] += 1e-6
    assert VectorInputs(changed).signature() != inputs.signature()


def test_vectors_of_one_unit_share_a_deviation() -> None:
    """So that a feature that hardly ever stirs is not blown up; where units differ, each value has its own."""
    values = np.random.default_rng(0).normal(size=(200, 6)) * [1, 2, 3, 4, 0.001, 0] + [0, 5, 0, 0, 0, 7]
    mean, std = channel_statistics(VectorInputs(torch.from_numpy(values).float()))
    np.testing.assert_allclose(mean, values.mean(0), atol=1e-5)
    np.testing.assert_allclose(std, np.sqrt(values.var(0).mean()), rtol=1e-4)
    values[:, 3] *= 1000
    _, std = channel_statistics(VectorInputs(torch.from_numpy(values).float()))
    np.testing.assert_allclose(std, [*values.std(0)[:5], 1], rtol=1e-4)


def _with(value: float) -> Any:
    changed = X.copy()
    changed[4, 2] = changed[9, 0] = value
    return changed


BAD_VECTORS: dict[str, dict[str, Any]] = {
    r"v.npz: x_train\[4, 2\] is nan, which is not a finite float32; 2 rows have": {
        "x_train": _with(np.nan),
        "y_train": Y,
    },
    r"x_train\[4, 2\] is inf": {"x_train": _with(np.inf), "y_train": Y},
    r"x_train\[4, 2\] is 1e\+300": {"x_train": _with(1e300), "y_train": Y},
    r"x_test\[4, 2\] is nan": {"x_train": X, "y_train": Y, "x_test": _with(np.nan), "y_test": Y},
    r"x_test contains vectors of shape \(2,\), but x_train of \(3,\)": {
        "x_train": X,
        "y_train": Y,
        "x_test": X[:, :2],
        "y_test": Y,
    },
    "vectors float of shape N×D": {"x_train": X.astype(int), "y_train": Y},
    "x_train is empty": {"x_train": X[:, :0], "y_train": Y},
    "y_train has shape .19,., but x_train contains 20": {"x_train": X, "y_train": Y[:19]},
}


@pytest.mark.parametrize("message", BAD_VECTORS)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_vectors_are_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        npz_data(_save(tmp_path / "v.npz", **BAD_VECTORS[message]))


COLOURS = ["red", "green", "blue", ""]


def _rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """A number, a number that is sometimes missing, a category that is, a constant, and a label."""
    generator = np.random.default_rng(seed)
    return [
        {
            "size": repr(float(generator.normal(50, 20))),
            "age": "" if i % 7 == 0 else str(int(generator.integers(1, 90))),
            "colour": COLOURS[int(generator.integers(4))],
            "unit": "cm",
            "kind": "cat" if i % 2 else "dog",
        }
        for i in range(count)
    ]


def _open(path: Path, rows: list[dict[str, str]], **options: Any) -> Data:
    return table_data(write_table(path, rows), fit_columns, TableColumns(label="kind", **options))


def test_columns_are_read_as_scikit_learn_does(tmp_path: Path) -> None:
    rows, new = _rows(50), _rows(9, seed=1)
    found = _open(
        tmp_path / "t.csv", [{**row, "split": "train"} for row in rows] + [{**r, "split": "test"} for r in new]
    )

    def plain(table: list[dict[str, str]]) -> Any:
        numbers = [[float(row["size"]), float(row["age"] or "nan")] for row in table]
        return np.array([[*n, row["colour"]] for n, row in zip(numbers, table, strict=True)], dtype=object)

    number = make_pipeline(SimpleImputer(), StandardScaler())
    theirs = make_column_transformer((number, [0, 1]), (OneHotEncoder(handle_unknown="ignore"), [2]))
    expected = theirs.fit_transform(plain(rows))
    assert isinstance(found.train.inputs, VectorInputs)
    ours = found.train.inputs.values.numpy()
    missing = np.array([[float(row["age"] == "")] for row in rows])
    # scikit-learn scales after it fills in, we before: the deviation of the numbers that are there
    ages = np.array([float(row["age"]) for row in rows if row["age"]])
    filled = ages.std() * math.sqrt(len(ages) / len(rows))
    np.testing.assert_allclose(ours[:, 0], expected[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[:, 1], expected[:, 1] * filled / ages.std(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ours[:, 2:3], missing)
    one_hot = expected[:, 2:][:, [1, 2, 3, 0]]  # missing, "", comes first there and last here
    np.testing.assert_array_equal(ours[:, 3:], one_hot)
    assert found.test is not None
    assert isinstance(found.test.inputs, VectorInputs)
    tested = theirs.transform(plain(new))
    np.testing.assert_allclose(found.test.inputs.values[:, 0], tested[:, 0], rtol=1e-5, atol=1e-6)
    assert [found.classes[k] for k in found.test.labels] == [row["kind"] for row in new]


def test_an_encoder_is_restored_from_its_state(tmp_path: Path) -> None:
    rows = _rows(30)
    found = _open(tmp_path / "t.csv", rows)
    assert found.reader is not None
    encoder = row_encoder_from_state(json.loads(json.dumps(found.reader.state_dict())))
    assert isinstance(found.train.inputs, VectorInputs)

    def encode(row: dict[str, str]) -> torch.Tensor:
        return encoder.encode(Table(rows=[row], location=lambda i: "new.csv, row 2"))[0]

    for row, vector in zip(rows, found.train.inputs.values, strict=True):
        assert torch.equal(encode(row), vector)
    with pytest.warns(UserWarning, match="'colour' has 1 values that do not occur in the training rows, such as 'mau"):
        strange = encode({**rows[1], "colour": "mauve", "size": "", "extra": "1"})
    assert strange[0] == 0
    assert strange[3:].sum() == 0
    with pytest.raises(UserError, match=r"new.csv, row 2, column 'age': 'old' is not a finite number"):
        encode({**rows[0], "age": "old"})
    with pytest.raises(UserError, match=r"new.csv, row 2 has no column 'age'"):
        encode({"size": "1", "colour": "red"})


def test_ids_and_groups_of_rows(tmp_path: Path) -> None:
    rows = [{**row, "owner": f"p{i % 3}"} for i, row in enumerate(_rows(12))]
    found = _open(tmp_path / "t.csv", rows, group="owner")
    assert found.train.groups == [row["owner"] for row in rows]
    corrected = [{**row, "kind": "cat"} for row in rows[:4]] + rows[4:]
    again = _open(tmp_path / "u.csv", corrected[::-1], group="owner")
    assert list(again.train.ids)[::-1] == list(found.train.ids)  # neither order nor label counts
    assert isinstance(found.reader, ColumnEncoder)
    assert [column.name for column in found.reader.columns] == ["size", "age", "colour"]
    named = _open(tmp_path / "n.csv", [{"id": f"a{i}", **row} for i, row in enumerate(_rows(12))])
    assert list(named.train.ids) == [f"a{i}" for i in range(12)]


def test_texts_that_hardly_repeat_are_ignored() -> None:
    rows = [{**row, "name": f"number {i}"} for i, row in enumerate(_rows(12))]
    with pytest.warns(UserWarning, match="'name' is ignored: it has 12 different texts in 12 rows"):
        encoder = fit_columns(Table(rows=rows, location=str))
    assert "name" not in [column.name for column in encoder.columns]


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = _rows(20)
    typed = [{**r, "size": float(r["size"]), "age": int(r["age"]) if r["age"] else None} for r in rows]
    parquet.write_table(pyarrow.Table.from_pylist(typed), tmp_path / "t.parquet")
    found = table_data(tmp_path / "t.parquet", fit_columns, TableColumns(label="kind")).train
    expected = _open(tmp_path / "t.csv", rows).train
    assert found.inputs.signature() == expected.inputs.signature()


def _changed(column: str, value: str, row: int = 13) -> list[dict[str, str]]:
    rows = _rows(20)
    rows[row][column] = value
    return rows


BAD_TABLES: dict[str, list[dict[str, str]]] = {
    "t.csv, row 15, column 'age': 'seven' is not a finite number, unlike the other": _changed("age", "seven"),
    "t.csv, row 15, column 'size': 'inf' is not a finite number": _changed("size", "inf"),
    "t.csv, row 15: kind is empty": _changed("kind", " "),
    "t.csv has no column 'kind'; it has a, b. Name others with --label-column": [{"a": "1", "b": "2"}],
    "t.csv, row 3: split is 'dev'": [{**row, "split": s} for row, s in zip(_rows(2), ("train", "dev"), strict=True)],
    "t.csv has no training rows": [{**row, "split": "test"} for row in _rows(2)],
    "the id 'a' is used in rows 2 and 4; make ids unique": [
        {**row, "id": i} for row, i in zip(_rows(3), "aba", strict=True)
    ],
    "t.csv, row 4 has the label 'emu', which no training": [
        {**row, "kind": k, "split": s}
        for row, k, s in zip(_rows(3), ("cat", "dog", "emu"), ("train", "train", "test"), strict=True)
    ],
    "t.csv, row 2: no column distinguishes samples": [{"a": "1", "kind": "cat"}, {"a": "1", "kind": "dog"}],
}


@pytest.mark.parametrize("message", BAD_TABLES)
def test_bad_tables_are_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        _open(tmp_path / "t.csv", BAD_TABLES[message])


def test_a_number_that_is_text_in_a_later_part_is_refused(tmp_path: Path) -> None:
    rows = [{**row, "split": "train" if i < 15 else "test"} for i, row in enumerate(_changed("age", "seven", 18))]
    with pytest.raises(UserError, match=r"t.csv, row 20, column 'age': 'seven' is not a finite number"):
        _open(tmp_path / "t.csv", rows)


def test_rows_longer_than_the_head_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,kind\n1,cat\n2,dog,3\n")
    with pytest.raises(UserError, match="row 3 has more values than the 2 columns"):
        table_data(tmp_path / "t.csv", fit_columns, TableColumns(label="kind"))
    (tmp_path / "t.csv").write_text("a,kind\n")
    with pytest.raises(UserError, match="has no rows"):
        table_data(tmp_path / "t.csv", fit_columns, TableColumns(label="kind"))
