"""`audit` of a run, of features in shards, and of data: the same figures for each."""

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score

from cli.program import process, run, run_json
from selfadapt import find_label_errors
from selfadapt.data.shards.manifest import Manifest, write_shard
from selfadapt.runs.inspect.audit import feature_audit

KEYS = {
    "suspects", "estimated_noise_rate", "estimated_noise_rate_low", "estimated_noise_rate_high", "expected_precision",
    "expected_recall", "duplicates", "labels",
}  # fmt: skip
TRUTH = {"precision", "recall", "recovery", "average_precision"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 digits as vectors, a tenth of whose labels are wrong: as a file of data, and in three shards."""
    path = tmp_path_factory.mktemp("audited")
    digits, truth = load_digits(return_X_y=True)
    features, truth = digits[:200].astype(np.float32), truth[:200]
    wrong = np.random.default_rng(0).choice(200, 20, replace=False)
    given = truth.copy()
    given[wrong] = (given[wrong] + 1) % 10
    ids = np.array([f"digit-{i}" for i in range(200)])
    np.save(path / "given.npy", given)
    np.save(path / "features.npy", features)
    np.savez(path / "data.npz", x_train=features, y_train=given)
    with open(path / "given.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *reversed(list(zip(ids, given, strict=True)))])
    for name, labels in (("true", truth), ("unlabelled", None)):
        entries = [
            write_shard(
                path / name, number, features[own], ids=ids[own], labels=None if labels is None else labels[own]
            )
            for number, own in enumerate((slice(0, 80), slice(80, 81), slice(81, 200)))
        ]
        Manifest(64, "float32", tuple(entries)).write(path / name)
    return path


def _table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_features_are_audited_as_find_label_errors_does(folder: Path) -> None:
    found = run_json("audit", "true", "--labels", "given.csv", "--out", "first", folder=folder)
    assert set(found) >= KEYS | TRUTH
    given = np.load(folder / "given.npy")
    report = find_label_errors(given, features=np.load(folder / "features.npy"))
    rows = _table(folder / "first/labels.csv")
    assert [row["id"] for row in rows] == [f"digit-{i}" for i in report.ranked_indices]
    assert [float(row["p_wrong"]) for row in rows] == pytest.approx(report.p_wrong[report.ranked_indices], abs=1e-5)
    assert found["suspects"] == report.is_error.sum() == sum(row["suspect"] == "1" for row in rows)
    caught = sum(row["suspect"] == "1" and row["given"] != row["truth"] for row in rows)
    assert (found["precision"], found["recall"]) == (caught / found["suspects"], caught / 20)
    places = [len(rows) - place for place in range(len(rows))]
    expected = average_precision_score([row["given"] != row["truth"] for row in rows], places)
    assert found["average_precision"] == pytest.approx(expected)
    assert found["labels"] == "first/labels.csv"
    assert (folder / "first/transition.csv").exists()


def test_labels_in_order_or_by_id_and_one_file_or_many_are_the_same(folder: Path) -> None:
    tables = []
    for out, arguments in (
        ("order", ("unlabelled", "--labels", "given.npy")),
        ("by-id", ("unlabelled", "--labels", "given.csv")),
        ("single", ("features.npy", "--labels", "given.npy")),
    ):
        found = run_json("audit", *arguments, "--out", out, folder=folder)
        assert set(found) >= KEYS
        assert not TRUTH & set(found)
        rows = _table(folder / out / "labels.csv")
        tables.append([{**row, "id": row["id"].removeprefix("digit-")} for row in rows])
    assert tables[0] == tables[1] == tables[2]


def test_two_processes(folder: Path) -> None:
    arguments = ("audit", "true", "--labels", "given.csv")
    one = run_json(*arguments, "--out", "one", folder=folder)
    two = run_json(*arguments, "--out", "two", "--devices", "2", folder=folder, program=process)
    for own in (one, two):
        del own["labels"], own["transition"]
    assert two == one
    rows = [_table(folder / name / "labels.csv") for name in ("one", "two")]
    assert rows[0] == rows[1]


def test_data_are_trained_on_first(folder: Path) -> None:
    found = run_json("audit", "data.npz", "--out", "run", folder=folder)
    assert KEYS | {"run"} <= set(found)
    again = run_json("audit", "run", folder=folder)
    assert {**again, "run": "run"} == found
    repeated = run_json("audit", "data.npz", "--out", "run", folder=folder)
    assert repeated == found
    text = run("audit", "run", folder=folder)
    assert "likely errors" in text.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("unlabelled",), "unlabelled has no labels; give them with --labels", id="no labels"),
        pytest.param(("unlabelled", "--labels", "none.npy"), "there is no file none.npy", id="no such file"),
        pytest.param(("unlabelled", "--labels", "few.npy"), "there are 200 samples", id="another number"),
        pytest.param(("unlabelled", "--labels", "few.csv"), "lacks the labels of 198 of 200 samples", id="ids missing"),
        pytest.param(("unlabelled", "--labels", "same.npy"), "all labels are", id="one class"),
        pytest.param(("nowhere",), "there is no data set or path 'nowhere'", id="no such path"),
    ],
)
def test_what_cannot_be_audited(arguments: tuple[str, ...], message: str, folder: Path) -> None:
    np.save(folder / "few.npy", np.zeros(3, np.int64))
    np.save(folder / "same.npy", np.zeros(200, np.int64))
    (folder / "few.csv").write_text("id,label\ndigit-1,3\ndigit-2,4\n")
    result = run("audit", *arguments, "--out", "refused", folder=folder)
    assert result.returncode == 2
    assert message in result.stderr
    assert not (folder / "refused").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_the_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(feature_audit, "find_label_errors")
    result = run("audit", "true", "--out", "given.csv/out", folder=folder)
    assert result.returncode == 2
    assert "given.csv is not a writable folder" in result.stderr


def test_a_run_keeps_its_labels(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for option in (("--labels", "given.npy"), ("--out", "elsewhere")):
        result = run("audit", tmp_path, *option, folder=folder)
        assert result.returncode == 2
        assert "leave out --labels and --out" in result.stderr
