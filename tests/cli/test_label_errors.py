"""The list of wrong labels on vectors: every part judged, duplicates, outsiders, what the list is worth."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from cli.program import run, run_json
from selfadapt import find_label_errors
from selfadapt.core.errors import UserError
from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.recovery import average_precision
from selfadapt.objectives.cross_fitting.cross_fit import cross_fit, deal_assignments
from selfadapt.run_folder.folder import RunFolder

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
    for name, told in (
        ("narrow.npy", "the run was trained on 64"),
        ("other.npz", "name the array to read x"),
        ("new.txt", "does not exist"),
    ):
        result = run("predict", "run", name, folder=folder)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert told in result.stderr


def test_the_run_and_the_call_find_the_same(trained: tuple[Path, Array]) -> None:
    folder, _ = trained
    with np.load(folder / "digits.npz") as arrays:
        report = find_label_errors(arrays["y_train"], features=arrays["x_train"])
    rows = [row for row in _labels(folder / "run") if row["part"] == "train"]
    assert [row["path"] for row in rows] == [f"x_train[{place}]" for place in report.ranked_indices]
    assert [row["suspect"] == "1" for row in rows] == report.is_error[report.ranked_indices].tolist()
    audit = run_json("audit", "run", folder=folder)
    assert audit["estimated_noise_rate"] == pytest.approx(report.summary.error_rate.value, abs=1e-6)
    assert audit["suspects"] == report.summary.errors


@pytest.mark.parametrize("agree", [False, True], ids=["labelled apart", "labelled alike"])
def test_the_delivered_list_is_as_good_as_the_ranking_inside(agree: bool, tmp_path: Path) -> None:
    """A tenth of the labels are wrong, and 30 samples occur twice, labelled each by itself or both alike.

    The ranking inside knows nothing of duplicates but has them in one fold: else one of them predicts the other.
    """
    values, truth = load_digits().data.astype(np.float32), load_digits().target
    generator = np.random.default_rng(3)
    order = generator.permutation(1797)[:600]
    order = np.concatenate([order, order[:30]])
    like = {3: 8, 8: 3, 1: 7, 7: 1, 9: 5, 5: 9, 4: 6, 6: 4, 0: 2, 2: 0}
    wrong_N = generator.random(len(order)) < 0.1
    if agree:
        wrong_N[600:] = wrong_N[:30]
    given = np.where(wrong_N, [like[k] for k in truth[order]], truth[order])
    rest = np.setdiff1d(np.arange(1797), order)[:200]
    np.savez(
        tmp_path / "digits.npz",
        x_train=values[order],
        y_train=given,
        x_val=values[rest[:100]],
        y_val=truth[rest[:100]],
        x_test=values[rest[100:]],
        y_test=truth[rest[100:]],
    )
    run_json("train", "digits.npz", "--out", "run", folder=tmp_path)
    rows = [row for row in _labels(tmp_path / "run") if row["part"] == "train"]
    places = torch.tensor([int(row["path"].split("[")[1].rstrip("]")) for row in rows])
    features_NF, labels_N = torch.from_numpy(values[order]), torch.from_numpy(given)
    twins_N = torch.cat([torch.arange(600), torch.arange(30)])
    fitted = cross_fit(features_NF, labels_N, deal_assignments(features_NF, labels_N, 0, twins_N), 10)
    inside = torch.from_numpy(judge_out_of_sample(fitted.predicted_NK, labels_N, fitted.noise.matrix_KK).ranked_indices)
    delivered, internal = (average_precision(ranked, torch.from_numpy(wrong_N)) for ranked in (places, inside))
    assert delivered is not None
    assert internal is not None
    assert internal > 0.9
    assert delivered > internal - 0.005


def test_duplicates_stay_together_and_the_one_that_disagrees_comes_first(tmp_path: Path) -> None:
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
    assert {row["kind"] for row in copies} == {"same file"}
    part = {row["id"]: row["part"] for row in _labels(tmp_path / "run")}
    for group in {row["group"] for row in copies}:
        assert len({part[row["id"]] for row in copies if row["group"] == group}) == 1, "on one side of the split"
    rows = _labels(tmp_path / "run")
    place = {row["path"]: position for position, row in enumerate(rows)}
    wrong, right = ([place[f"x_train[{own}]"] for own in own_copies] for own_copies in ((1204, 1205), (4, 5)))
    assert max(wrong) < 10, "the members that disagree with the prediction and with their duplicates"
    assert min(right) > len(rows) // 2, "those that agree fall"


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_vector_that_is_trained_on_and_tested_with_is_warned_of(tmp_path: Path) -> None:
    path, _ = _digits(tmp_path, wrong=0.0)
    with np.load(path) as arrays:
        content = {name: arrays[name] for name in arrays.files}
    assert "inflates" not in run("train", path, "--out", "clean", folder=tmp_path).stderr
    content["x_test"][3] = content["x_train"][70]
    np.savez(path, **content)
    told = run("train", path, "--out", "run", folder=tmp_path).stderr
    assert "samples of the test split that are also in the training split: 1, first" in told
    assert "inflates" in told


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
    assert "classes with too few samples  3" in run("audit", "run", folder=tmp_path).stdout


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
        (("train", "digits.npz", "--width", "8"), "--width 8 would do nothing: the width of linear is fixed"),
        (("train", "digits.npz", "--head", "mlp"), "for vectors, choose --model mlp"),
        (("train", "digits.npz", "--group-column", "person"), "--group-column is for tables"),
        (("train", "digits.npz", "--noise", "gaussian:0.3"), "--noise gaussian:0.3 is for images"),
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
        (12, 4, 1.0, "no class has 5 samples, so none can be judged; are these ids instead of labels?"),
        (9, 1, 1.0, "9 samples are too few to judge labels; pass at least 10"),
        (60, 2, 1e20, "features of magnitude 3e+20 over- or underflow in float32; scale them to about 1"),
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


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_class_of_duplicates_is_left_unjudged_with_a_warning(tmp_path: Path) -> None:
    path, _ = _digits(tmp_path, wrong=0.0)
    with np.load(path) as arrays:
        content = {name: arrays[name] for name in arrays.files}
    threes = np.flatnonzero(content["y_train"] == 3)
    content["x_train"][threes] = content["x_train"][threes[0]]
    np.savez(path, **content)
    result = run("train", path, "--out", "run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "all samples of a class are duplicates of one, so their labels are not judged: 3;" in result.stderr
    audit = run_json("audit", "run", folder=tmp_path)
    assert [row["class"] for row in audit["classes"] if row["too_few"]] == ["3"]
    assert not [row for row in _labels(tmp_path / "run") if row["given"] == "3" and row["suspect"] == "1"]
    with pytest.warns(UserWarning, match="not judged: 3;"):
        found = find_label_errors(content["y_train"], features=content["x_train"])
    assert [row.name for row in found.summary.classes if row.too_few] == ["3"]


@pytest.mark.filterwarnings("default::UserWarning")
def test_too_few_samples_besides_duplicates_are_a_warning(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    values = np.concatenate([values[:8], values[:8], values[8:]])[:20]
    np.savez(tmp_path / "few.npz", x_train=values, y_train=np.arange(20) % 4 % 2)
    result = run("train", "few.npz", "--validation", "0.04", "--out", "run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "training without a validation split, as duplicates stay together" in result.stderr


def test_duplicates_of_an_older_run_are_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.duplicates_file.write_text("group,id,path,part,given\n1,a,,train,cat\n1,b,,test,dog\n")
    assert folder.read_duplicates() == [DuplicateGroup(("a", "b"), "same image")]
    folder.write_duplicates([("1", "a", "", "train", "cat", "same scene"), ("1", "b", "", "test", "dog", "same scene")])
    assert folder.read_duplicates() == [DuplicateGroup(("a", "b"), "same scene")]
    folder.write_duplicates([("1", "a", "", "train", "cat", "cousins")])
    with pytest.raises(UserError, match="'cousins' is not a kind of duplicate"):
        folder.read_duplicates()
