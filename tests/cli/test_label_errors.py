"""The list of wrong labels on vectors: every part judged, duplicates, outsiders, what the list is worth."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cli.program import run, run_json
from selfadapt import find_label_errors

Array = np.ndarray[Any, np.dtype[Any]]


def _digits(folder: Path, *, wrong: float = 0.2, seed: int = 0) -> tuple[Path, Array]:
    """Digits as vectors in three parts, some labels of each moved on by one, and which those are."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(1797)
    values, truth = load_digits().data[order].astype(np.float32), load_digits().target[order]
    wrong_N = generator.random(1797) < wrong
    given = np.where(wrong_N, (truth + 1) % 10, truth)
    arrays: dict[str, Any] = {}
    for name, part in {"train": slice(0, 1200), "val": slice(1200, 1400), "test": slice(1400, 1797)}.items():
        arrays[f"x_{name}"], arrays[f"y_{name}"] = values[part], given[part]
    np.savez(folder / "digits.npz", **arrays)
    return folder / "digits.npz", wrong_N


def _labels(run_folder: Path) -> list[dict[str, str]]:
    with open(run_folder / "labels.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array]:
    folder = tmp_path_factory.mktemp("vectors")
    path, wrong_N = _digits(folder)
    result = run_json("train", path, "--out", "run", folder=folder)
    assert result["method"] == "sat-folds"
    assert result["test_accuracy"] > 0.7, "labels of the test part are wrong too"
    return folder, wrong_N


def test_every_label_of_every_part_is_judged_on_one_scale(trained: tuple[Path, Array]) -> None:
    folder, wrong_N = trained
    rows = _labels(folder / "run")
    first = {"train": 0, "validation": 1200, "test": 1400}
    assert [sum(row["part"] == part for row in rows) for part in first] == [1200, 200, 397]
    places = [first[row["part"]] + int(row["path"].split("[")[1].rstrip("]")) for row in rows]
    wrong = wrong_N[places]
    depth = int(wrong_N.sum())
    assert wrong[:depth].mean() > 0.93, "the most suspicious are wrong"
    for part in first:
        assert np.mean([w for w, row in zip(wrong[:depth], rows, strict=False) if row["part"] == part]) > 0.85
    audit = run_json("audit", "run", folder=folder)
    share = wrong_N[:1200].mean()
    assert audit["estimated_noise_rate_low"] <= share <= audit["estimated_noise_rate_high"]
    assert audit["estimated_noise_rate"] == pytest.approx(share, abs=0.04)
    caught = [w for w, row in zip(wrong, rows, strict=True) if row["suspect"] == "1" and row["part"] == "train"]
    assert audit["expected_precision_low"] <= np.mean(caught) <= audit["expected_precision_high"]
    assert audit["expected_recall_low"] <= np.sum(caught) / wrong_N[:1200].sum() <= audit["expected_recall_high"]
    assert len(audit["classes"]) == 10


def test_vectors_are_predicted_from_a_file_of_them(trained: tuple[Path, Array]) -> None:
    folder, _ = trained
    with np.load(folder / "digits.npz") as arrays:
        values, labels = arrays["x_test"], arrays["y_test"]
    np.save(folder / "new.npy", values)
    np.savez(folder / "new.npz", x=values)
    first, second = (run("predict", "run", f"new.{kind}", folder=folder).stdout.splitlines() for kind in ("npy", "npz"))
    answers = [json.loads(line) for line in first]
    right = np.mean([int(answer["guess"]) == label for answer, label in zip(answers, labels, strict=True)])
    assert right == json.loads((folder / "run" / "run.json").read_text())["result"]["test_accuracy"]
    assert answers[3]["path"] == "new.npy[3]"
    assert [line.replace("new.npz", "new.npy") for line in second] == first
    np.save(folder / "narrow.npy", values[:, :3])
    np.savez(folder / "other.npz", values=values)
    for name, told in (("narrow.npy", "x_train had 64"), ("other.npz", "must be called x"), ("new.txt", "no file")):
        result = run("predict", "run", name, folder=folder)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert told in result.stderr


def test_the_run_and_the_call_find_the_same(trained: tuple[Path, Array]) -> None:
    folder, _ = trained
    with np.load(folder / "digits.npz") as arrays:
        found = find_label_errors(arrays["y_train"], features=arrays["x_train"])
    suspects = {row["path"] for row in _labels(folder / "run") if row["part"] == "train" and row["suspect"] == "1"}
    called = {f"x_train[{place}]" for place, suspect in zip(found.order, found.suspect, strict=True) if suspect}
    assert len(suspects & called) / len(suspects | called) > 0.97  # folds are dealt alike, but parts differ in number


def test_copies_stay_together_and_those_with_two_labels_come_first(tmp_path: Path) -> None:
    path, _ = _digits(tmp_path, wrong=0.0)
    with np.load(path) as arrays:
        content = {name: arrays[name] for name in arrays.files}
    for name in ("x_val", "y_val"):
        del content[name]
    content["x_train"] = np.concatenate([content["x_train"], content["x_train"][:6]])
    moved = np.array([0, 0, 0, 0, 1, 1])
    content["y_train"] = np.concatenate([content["y_train"], (content["y_train"][:6] + moved) % 10])
    np.savez(path, **content)
    run_json("train", path, "--out", "run", folder=tmp_path)
    with open(tmp_path / "run" / "duplicates.csv", newline="") as file:
        copies = list(csv.DictReader(file))
    assert len({row["group"] for row in copies}) == 6
    part = {row["id"]: row["part"] for row in _labels(tmp_path / "run")}
    for group in {row["group"] for row in copies}:
        assert len({part[row["id"]] for row in copies if row["group"] == group}) == 1, "on one side of the split"
    first = _labels(tmp_path / "run")[:4]
    assert {row["id"] for row in first} <= {row["id"] for row in copies}
    assert sum(row["suspect"] == "1" for row in first) == 2


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_vector_that_is_trained_on_and_tested_with_is_warned_of(tmp_path: Path) -> None:
    path, _ = _digits(tmp_path, wrong=0.0)
    with np.load(path) as arrays:
        content = {name: arrays[name] for name in arrays.files}
    assert "flatters" not in run("train", path, "--out", "clean", folder=tmp_path).stderr
    content["x_test"][3] = content["x_train"][70]
    np.savez(path, **content)
    told = run("train", path, "--out", "run", folder=tmp_path).stderr
    assert "samples of the test part that are in the training part too: 1, first" in told
    assert "flatters" in told


def test_tiny_classes_are_told_and_not_judged(tmp_path: Path) -> None:
    path, _ = _digits(tmp_path, wrong=0.1)
    with np.load(path) as arrays:
        content = {name: arrays[name] for name in arrays.files}
    for part, most in (("train", 2), ("val", 0), ("test", 0)):
        threes = content[f"y_{part}"] == 3
        keep = ~threes | (threes.cumsum() <= most)
        content[f"x_{part}"], content[f"y_{part}"] = content[f"x_{part}"][keep], content[f"y_{part}"][keep]
    np.savez(path, **content)
    run_json("train", path, "--out", "run", folder=tmp_path)
    audit = run_json("audit", "run", folder=tmp_path)
    assert [row["class"] for row in audit["classes"] if row["too_few"]] == ["3"]
    assert not [row for row in _labels(tmp_path / "run") if row["given"] == "3" and row["suspect"] == "1"]
    assert "too few to judge    3" in run("audit", "run", folder=tmp_path).stdout


def test_little_is_found_where_little_is_wrong(tmp_path: Path) -> None:
    path, _ = _digits(tmp_path, wrong=0.0)
    audit = run_json("train", path, "--out", "run", folder=tmp_path)["audit"]
    assert audit["suspects"] <= 0.02 * audit["parts"]["train"]["labels"]
    assert audit["estimated_noise_rate"] < 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "digits", "--method", "sat-folds"), "--method sat-folds fits a linear head"),
        (("train", "digits.npz", "--epochs", "4"), "--method sat-folds has no epochs"),
        (("train", "digits.npz", "--lr", "9"), "--method sat-folds takes no steps, so --lr would do nothing"),
        (("train", "digits.npz", "--optimizer", "adam"), "so --optimizer would do nothing"),
        (("train", "digits.npz", "--dropout", "0.5"), "so --dropout would do nothing"),
        (("train", "digits.npz", "--width", "8"), "--width 8 would do nothing: linear has its own"),
        (("train", "digits.npz", "--head", "mlp"), "for vectors, choose --model mlp"),
        (("train", "digits.npz", "--group-column", "person"), "--group-column is for tables"),
        (("train", "digits.npz", "--noise", "gaussian:0.3"), "--noise gaussian:0.3 is of images"),
        (("train", "digits.npz", "--folds", "2"), "--folds is an option of sat-folds, not of sat"),
        (("train", "digits.npz", "--method", "sat-folds", "--folds", "2"), "--folds 2 must be at least 3"),
    ],
)
def test_what_does_not_suit_the_method_is_told(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    _digits(tmp_path)
    result = run(*arguments, "--out", "run", folder=tmp_path)
    assert (result.returncode, message in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("samples", "classes", "scale", "message"),
    [
        (12, 4, 1.0, "no class has 5 samples, so none can be judged; are these labels, not ids?"),
        (9, 1, 1.0, "9 samples are too few to judge labels; pass at least 10"),
        (60, 2, 1e20, "features are of a size (3e+20) that float32 cannot compute with; bring them near 1"),
    ],
)
def test_vectors_that_no_label_can_be_judged_by_are_told(
    samples: int, classes: int, scale: float, message: str, tmp_path: Path
) -> None:
    labels = np.arange(samples) % classes
    values = np.random.default_rng(0).normal(size=(samples, 3)).clip(-3, 3)
    values[0, 0] = 3
    if classes == 1:
        labels[0] = 1
    np.savez(tmp_path / "few.npz", x_train=(values * scale).astype(np.float32), y_train=labels)
    result = run("train", "few.npz", "--validation", "0", "--out", "run", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert message in result.stderr


def test_groups_too_large_to_hold_one_out_are_told(tmp_path: Path) -> None:
    rows = [f"{i % 7}.{i},p{i % 2},{'xyz'[i % 3]}" for i in range(60)]
    (tmp_path / "two.csv").write_text("\n".join(["a,g,label", *rows]))
    result = run("train", "two.csv", "--group-column", "g", "--out", "run", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "--validation 0" in result.stderr
    result = run("train", "two.csv", "--group-column", "g", "--validation", "0", "--out", "run", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "at least 3" in result.stderr
