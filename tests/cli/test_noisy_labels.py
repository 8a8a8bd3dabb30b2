"""Noisy labels as a user meets them: comparing methods, correcting labels, odd data."""

import csv
import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from cli.program import process, run, run_json
from forks import PATIENCE, Program
from selfadapt.data.sources.catalog import open_data
from selfadapt.objectives.methods import NOISY_LABELS

SMALL = ("--limit", "300", "--model", "mlp", "--epochs", "4", "--noise", "symmetric:0.4")


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_compare_every_method(tmp_path: Path) -> None:
    result = run_json("compare", "digits", "--methods", "all", *SMALL, "--out", "all", folder=tmp_path)
    assert [row["method"] for row in result["rows"]] == list(NOISY_LABELS)
    for row in result["rows"]:
        expected = {"method", "test_accuracy_mean", "test_accuracy_std", "label_recovery", "seconds_relative_to_erm"}
        assert expected <= set(row)
        assert 0.1 < row["test_accuracy_mean"] <= 1, row["method"]
        assert row["test_accuracy_std"] is None, "one seed has no spread"
    times = {row["method"]: row["seconds_relative_to_erm"] for row in result["rows"]}
    assert times["erm"] == 1
    assert min(times.values()) > 0
    page = (tmp_path / result["report"]).read_text(encoding="utf-8")
    assert "early-learning regularisation" in page
    assert "Test accuracy" in page


def test_compare_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    arguments = ("compare", "digits", *SMALL, "--seeds", "2", "--out", "both")
    first = run_json(*arguments, "--methods", "erm", folder=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("both/erm-*/checkpoint/*/*")}
    assert before
    second = run_json(*arguments, "--methods", "erm,sat", folder=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert second["rows"][0] == first["rows"][0]
    ordinary, adaptive = second["rows"]
    assert ordinary["test_accuracy_std"] == pytest.approx(float(np.std(ordinary["test_accuracies"], ddof=1)))
    assert [start is None for start in ordinary["start_epochs"]] == [True, True]
    assert all(0 < start < 4 for start in adaptive["start_epochs"])
    other = run(*arguments, "--methods", "erm", "--lr", "0.01", folder=tmp_path)
    assert other.returncode == 2
    assert "--lr" in other.stderr
    fewer = run("compare", "digits", "--methods", "erm", "--out", "both", folder=tmp_path)
    assert fewer.returncode == 2, "settings that are left out are the defaults, not those of the runs there"


def test_compare_trains_several_methods_at_once(tmp_path: Path) -> None:
    arguments = ("compare", "digits", *SMALL, "--methods", "erm,sat,elr", "--target-momentum", "0.5")
    one = run_json(*arguments, "--out", "one", folder=tmp_path)
    two = run_json(*arguments, "--jobs", "2", "--out", "two", folder=tmp_path, program=process)
    assert [row["test_accuracies"] for row in two["rows"]] == [row["test_accuracies"] for row in one["rows"]]
    failed = process("compare", "digits", *SMALL, "--lr", "1e30", "--jobs", "2", "--out", "bad", folder=tmp_path)
    assert failed.returncode == 1
    assert "the loss is not finite" in failed.stderr
    assert "the training bad/" in failed.stderr.splitlines()[-1]
    assert "ended with the error above" in failed.stderr
    assert "interrupted" not in failed.stderr, "the other one was stopped, which is not worth a line"


def test_trainings_at_once_are_stopped_together_and_go_on(tmp_path: Path) -> None:
    arguments = (
        "compare",
        "digits",
        "--model",
        "mlp",
        "--epochs",
        "40",
        "--limit",
        "600",
        "--jobs",
        "2",
        "--out",
        "both",
    )
    program = Program(*arguments, folder=tmp_path)
    runs = [tmp_path / "both" / f"{method}-0" for method in ("erm", "sat")]
    deadline = time.monotonic() + PATIENCE
    while not all((run / "metrics.jsonl").exists() for run in runs) and time.monotonic() < deadline:
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate()
    assert program.returncode == 130
    assert errors.splitlines() == ["interrupted: resume with the same command and --out both"]
    begun = [len((run / "metrics.jsonl").read_text().splitlines()) for run in runs]
    assert min(begun) < 40, "the run must be long enough to be stopped"
    time.sleep(0.5)
    assert [len((run / "metrics.jsonl").read_text().splitlines()) for run in runs] == begun, "a process went on"
    assert len(run_json(*arguments, folder=tmp_path, program=process)["rows"]) == 2


def test_compare_goes_on_with_settings_that_only_some_methods_use(tmp_path: Path) -> None:
    options = ("--start-epoch", "2", "--noise-rate", "0.1")
    arguments = ("compare", "digits", *SMALL, "--methods", "erm,sat,co-teaching", *options)
    first = run_json(*arguments, "--out", "both", folder=tmp_path)
    assert run_json(*arguments, "--out", "both", folder=tmp_path)["rows"] == first["rows"]


def test_co_teaching_says_how_it_knows_the_noise_rate(tmp_path: Path) -> None:
    """Told where the noise is ours; estimated where labels come from a file, without the validation samples."""
    told = run_json("compare", "digits", *SMALL, "--methods", "erm,co-teaching", "--out", "told", folder=tmp_path)
    assert [row["told"] for row in told["rows"]] == [None, "given the noise rate"]
    assert "co-teaching, given the noise rate" in (tmp_path / told["report"]).read_text(encoding="utf-8")
    table = run("compare", "digits", *SMALL, "--methods", "erm,co-teaching", "--out", "told", folder=tmp_path).stdout
    assert "co-teaching: given the noise rate\n" in table
    given = json.loads((tmp_path / "told/co-teaching-0/run.json").read_text())["settings"]["method"]["noise_rate"]
    assert given == pytest.approx(0.36, abs=0.06)

    labels = open_data("digits").train.labels.numpy()
    generator = np.random.default_rng(0)
    wrong = generator.random(len(labels)) < 0.4
    np.save(
        tmp_path / "noisy.npy", np.where(wrong, (labels + 1 + generator.integers(9, size=len(labels))) % 10, labels)
    )
    arguments = ("digits", "--labels", "noisy.npy", "--model", "mlp", "--epochs", "8", "--method", "co-teaching")
    result = run_json("train", *arguments, "--out", "own", folder=tmp_path)
    assert result["told"] == "noise rate estimated"
    content = json.loads((tmp_path / "own/run.json").read_text())
    assert content["settings"]["method"]["noise_rate"] is None
    assert content["chosen"]["noise_rate"] == pytest.approx(0.4, abs=0.15)
    assert set(content["other_trainings_seconds"]) == {"noise-rate"}
    assert run("calibrate", "own", "--risk", "0.9", "--true-labels", folder=tmp_path).returncode == 0


def test_one_epoch(tmp_path: Path) -> None:
    arguments = ("--limit", "300", "--model", "mlp", "--epochs", "1")
    result = run_json("train", "digits", *arguments, "--out", "run", folder=tmp_path)
    assert result["start_epoch"] == 0


def test_compare_tells_mistakes_before_it_trains(tmp_path: Path) -> None:
    for arguments, words in (
        (("--methods", "erm,magic"), "'magic' is not known"),
        (("--methods", "erm,erm"), "twice"),
        (("--methods", "erm", "--seeds", "0"), "at least 1"),
        (("--methods", "erm,sat", "--start-epoch", "4"), "must be less than --epochs"),
        (("--methods", "sat", "--start-epoch", "soon"), "--start-epoch 'soon' must be auto or an integer"),
        (("--methods", "erm,early-stopping", "--labels", "gone.npy"), "there is no file"),
    ):
        result = run("compare", "digits", *SMALL, *arguments, "--out", "none", folder=tmp_path)
        assert result.returncode == 2, arguments
        assert words in result.stderr
        assert not (tmp_path / "none").exists()


def test_a_table_for_people(tmp_path: Path) -> None:
    result = run("compare", "digits", *SMALL, folder=tmp_path)
    assert result.returncode == 0
    assert "label recovery" in result.stdout
    assert "runs/compare-digits/report.html" in result.stdout


def test_forward_correction_keeps_its_matrix(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    result = run_json("train", "digits", "--method", "forward", *SMALL, "--out", "run", folder=tmp_path)
    (newest, *_) = sorted((tmp_path / "run" / "checkpoint").glob("*/model.safetensors"), reverse=True)
    odds = load_file(newest)["transition_KK"]
    assert odds.sum(1).tolist() == pytest.approx([1.0] * 10, abs=1e-5)
    assert float(odds.diag().mean()) < 0.999, "it was estimated"
    assert run_json("audit", "run", folder=tmp_path)["recovery"] == result["label_recovery"]


def test_from_noise_to_corrected_labels_and_back(tmp_path: Path) -> None:
    """Train, audit, correct, train on the corrections: the labels are better than they were."""
    settings = ("--noise", "symmetric:0.4", "--epochs", "30")
    result = run_json("train", "digits", *settings, "--out", "run", folder=tmp_path)
    assert result["audit"]["estimated_noise_rate"] == pytest.approx(result["noise"]["actual"], abs=0.03)
    verdicts = [row for row in _rows(tmp_path / "run" / "labels.csv") if row["part"] == "train"]
    assert len(verdicts) == len(open_data("digits").train)
    support = [row["suspect"] for row in verdicts]
    assert support == sorted(support, reverse=True), "suspects come first"

    corrected = run_json("labels", "run", "--confidence", "0.6", folder=tmp_path)
    table = _rows(tmp_path / corrected["labels"])
    assert all(row["label"] == row["given"] for row in table if row["part"] != "train"), "the yardstick stays"
    rows = [row for row in table if row["part"] == "train"]
    truth = {row["id"]: row["truth"] for row in verdicts}
    assert corrected["changed"] == sum(row["label"] != row["given"] for row in rows)
    before = sum(row["given"] == truth[row["id"]] for row in rows) / len(rows)
    after = sum(row["label"] == truth[row["id"]] for row in rows) / len(rows)
    assert before < 0.7
    assert after > 0.93

    again = run_json(
        "train", "digits", "--labels", corrected["labels"], "--method", "erm", "--epochs", "10", "--out", "two",
        folder=tmp_path,
    )  # fmt: skip
    assert again["noise"]["actual"] == pytest.approx(1 - after, abs=0.01)


def test_the_transition_is_estimated(tmp_path: Path) -> None:
    result = run_json("train", "digits", "--noise", "asymmetric:0.3", "--epochs", "30", "--out", "run", folder=tmp_path)
    with open(tmp_path / result["audit"]["transition"], newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["true", *(str(k) for k in range(10))]
    odds = np.array([[float(cell) for cell in row[1:]] for row in rows])
    np.testing.assert_allclose(odds.sum(1), 1, atol=1e-4)
    expected = 0.7 * np.eye(10) + 0.3 * np.roll(np.eye(10), 1, axis=1)
    assert np.abs(odds - expected).mean() < 0.03


def test_a_person_decides_first(tmp_path: Path) -> None:
    run_json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    verdicts = [row for row in _rows(tmp_path / "run" / "labels.csv") if row["part"] == "train"]
    first, second = verdicts[0], verdicts[-1]
    decisions = tmp_path / "run" / "decisions.csv"
    wanted = {first["id"]: first["given"], second["id"]: str((int(second["given"]) + 1) % 10)}
    decisions.write_text("id,label\n" + "".join(f"{key},{label}\n" for key, label in wanted.items()))
    path = run_json("labels", "run", "--confidence", "0", "--out", "mine.csv", folder=tmp_path)["labels"]
    labels = {row["id"]: row["label"] for row in _rows(tmp_path / path)}
    assert {key: labels[key] for key in wanted} == wanted
    others = [row for row in verdicts if row["id"] not in wanted]
    assert all(labels[row["id"]] == row["suggested"] for row in others)

    for content, words in (
        ("id,label\nnobody,1\n", "is not a sample of"),
        ("id,label\nx,eleven\n", "line 2"),
        ("a\nb\n", "columns"),
    ):
        decisions.write_text(content)
        result = run("labels", "run", folder=tmp_path)
        assert result.returncode == 2
        assert words in result.stderr
    decisions.unlink()
    assert run("labels", "run", "--confidence", "2", folder=tmp_path).returncode == 2
    assert "labels changed" in run("labels", "run", folder=tmp_path).stdout


def test_one_class_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x_train=np.zeros((20, 8, 8), np.uint8), y_train=np.array(["cat"] * 20))
    result = run("train", "one.npz", "--out", "run", folder=tmp_path)
    assert result.returncode == 2
    assert "one class only, 'cat'" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["sat", "co-teaching", "gce-truncated"])
def test_nothing_but_noise(method: str, tmp_path: Path) -> None:
    arguments = ("--limit", "300", "--model", "mlp", "--epochs", "4", "--noise", "symmetric:1.0")
    result = run_json("train", "digits", "--method", method, *arguments, "--out", "run", folder=tmp_path)
    assert 0 <= result["test_accuracy"] < 0.6
    assert result["noise"]["actual"] == pytest.approx(0.9, abs=0.05)


def test_fewer_samples_than_a_batch(tmp_path: Path) -> None:
    arguments = ("--limit", "30", "--batch-size", "64", "--model", "mlp", "--epochs", "3")
    for method in ("sat", "co-teaching"):
        result = run_json("train", "digits", "--method", method, *arguments, "--out", method, folder=tmp_path)
        assert result["epochs"] == 3


def test_two_classes_and_auto(tmp_path: Path) -> None:
    """The smallest number of classes: an injected label is then the other class."""
    data = open_data("digits").train
    few = [i for i, label in enumerate(data.labels.tolist()) if label < 2]
    images = data.inputs.read(data.labels.new_tensor(few)).squeeze(1).numpy()
    np.savez(
        tmp_path / "two.npz",
        x_train=images,
        y_train=data.labels[few].numpy(),
        x_test=images,
        y_test=data.labels[few].numpy(),
    )
    result = run_json("train", "two.npz", "--noise", "symmetric:0.4", "--epochs", "20", "--out", "run", folder=tmp_path)
    assert result["test_accuracy"] > 0.9
    assert 0 < result["start_epoch"] < 20


def test_the_start_is_written_down(tmp_path: Path) -> None:
    result = run_json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["settings"]["method"]["start_epoch"] == "auto"
    assert content["start_epoch"] == result["start_epoch"] == 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ["running_mean_agreement" in line for line in lines] == [True, True, True, False]
    fixed = run_json("train", "digits", *SMALL, "--start-epoch", "2", "--out", "fixed", folder=tmp_path)
    assert fixed["start_epoch"] == 2


def test_every_label_can_be_judged(tmp_path: Path) -> None:
    """Without a validation part no sample is set aside."""
    data = open_data("digits").train
    images = data.inputs.read(data.labels.new_tensor(range(300))).squeeze(1).numpy()
    np.savez(tmp_path / "own.npz", x_train=images, y_train=data.labels[:300].numpy())
    arguments = ("train", "own.npz", "--model", "mlp", "--epochs", "3")
    result = run_json(*arguments, "--validation", "0", "--out", "run", folder=tmp_path)
    assert result["validation_accuracy"] is None
    assert result["test_accuracy"] is None
    assert len(_rows(tmp_path / "run" / "labels.csv")) == 300
    assert run_json("audit", "run", folder=tmp_path)["suspects"] == result["audit"]["suspects"]
    run_json(*arguments, "--out", "held-out", folder=tmp_path)
    parts = [row["part"] for row in _rows(tmp_path / "held-out" / "labels.csv")]
    assert len(parts) == 300, "those that were held out are judged too"
    assert parts.count("train") == pytest.approx(270, abs=5)
    assert run(*arguments, "--method", "early-stopping", "--validation", "0", folder=tmp_path).returncode == 2
    assert run(*arguments, "--validation", "1.5", folder=tmp_path).returncode == 2


def test_a_method_that_does_not_suit_the_data_shows_before_training(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=images, y_train=np.arange(40) % 2)
    arguments = ("--methods", "erm,early-stopping", "--validation", "0", "--model", "mlp", "--out", "none")
    result = run("compare", "own.npz", *arguments, folder=tmp_path)
    assert result.returncode == 2
    assert "needs a validation split" in result.stderr
    assert not (tmp_path / "none").exists()
    np.savez(tmp_path / "one.npz", x_train=images, y_train=np.zeros(40, int))
    for noise in ("symmetric:0.4", "symmetric-other:0.4", "asymmetric:0.4"):
        one = run("train", "one.npz", "--noise", noise, folder=tmp_path)
        assert one.returncode == 2
        assert "has one class only" in one.stderr


def test_a_spreadsheet_may_have_saved_the_tables(tmp_path: Path) -> None:
    run_json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    path = tmp_path / "run/labels.csv"
    content = path.read_text(encoding="utf-8")
    path.write_text(content, encoding="utf-8-sig")
    assert run("labels", "run", folder=tmp_path).returncode == 0
    for broken, words in (
        (content.replace(",", ";"), "lacks the column id"),
        (content.replace(",0.", ",sure", 1), "is not a number"),
        (content + "digits/9\n", "has too few values"),
    ):
        path.write_text(broken, encoding="utf-8")
        result = run("labels", "run", "--confidence", "0", folder=tmp_path)
        assert result.returncode == 2, broken[:200]
        assert words in result.stderr
    path.write_text(content.replace("digits", "dígits"), encoding="latin-1")
    assert "in UTF-8" in run("labels", "run", folder=tmp_path).stderr


def test_labels_of_a_changed_run_are_refused(tmp_path: Path) -> None:
    run_json("train", "digits", "--model", "mlp", "--epochs", "2", "--limit", "60", "--out", "run", folder=tmp_path)
    samples, verdicts = tmp_path / "run" / "samples.csv", tmp_path / "run" / "labels.csv"
    for path, words in ((samples, "was changed after the run started"), (verdicts, "write it again with: selfadapt")):
        whole = path.read_text()
        path.write_text("".join(whole.splitlines(keepends=True)[:-1]))
        result = run("labels", "run", folder=tmp_path)
        assert (result.returncode, words in result.stderr) == (2, True), result
        path.write_text(whole)
    sample_id = verdicts.read_text().splitlines()[1].split(",")[0]
    (tmp_path / "run" / "decisions.csv").write_text(f"id,label\n{sample_id},3\n{sample_id},3\n{sample_id},4\n")
    result = run("labels", "run", folder=tmp_path)
    assert (result.returncode, "is '3' in line 2 but '4' in line 4" in result.stderr) == (2, True), result
