"""Coverage, calibration and prediction as a user runs them."""

import io
import json
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from cli.program import run, run_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `selective` on digits with noisy labels, and pictures to answer."""
    path = tmp_path_factory.mktemp("selective")
    options = ("--method", "selective", "--noise", "symmetric:0.2", "--epochs", "8", "--validation", "0.3")
    data = load_digits()
    x, y = (16 * data.images).clip(0, 255).astype(np.uint8), data.target
    np.savez(path / "digits.npz", x_train=x[:900], y_train=y[:900], x_test=x[900:1400], y_test=y[900:1400])
    result = run_json("train", "digits.npz", *options, "--out", "run", folder=path)
    assert result["start_epoch"] == 0
    assert result["label_recovery"] > 0.8
    (path / "new").mkdir()
    for i in range(20):
        Image.fromarray(x[1400 + i]).save(path / "new" / f"{i:02}.png")
    return path


def test_coverage_by_every_selector(folder: Path) -> None:
    result = run_json("coverage", "run", folder=folder)
    assert set(result["selectors"]) == {"abstain", "softmax-response", "entropy", "margin"}
    accuracy = json.loads((folder / "run/run.json").read_text())["result"]["test_accuracy"]
    for own in result["selectors"].values():
        assert list(own["coverage"]) == ["1.00", "0.95", "0.90", "0.85", "0.80", "0.75", "0.70"]
        assert own["coverage"]["1.00"] == pytest.approx(1 - accuracy)
        assert own["actual_coverage"]["1.00"] == 1
        assert own["coverage"]["0.70"] < own["coverage"]["1.00"]
        assert 0 < own["aurc"] < own["coverage"]["1.00"]
    page = (folder / "run/report.html").read_text()
    assert "Risk and coverage" in page
    words = run("coverage", "run", folder=folder)
    assert "softmax-response" in words.stdout


def test_selective_net_is_shown_at_the_coverage_it_was_trained_for(tmp_path: Path) -> None:
    options = ("--epochs", "2", "--limit", "200", "--model", "mlp", "--width", "16", "--method", "selective-net")
    run_json("train", "digits", *options, "--coverage", "0.6", "--out", "run", folder=tmp_path)
    found = run_json("coverage", "run", folder=tmp_path)["selectors"]
    assert [found[name]["trained_for"] for name in ("selection", "softmax-response")] == ["0.60", None]
    assert all("0.60" in own["coverage"] for own in found.values())
    words = run("coverage", "run", folder=tmp_path).stdout
    (row,) = (line for line in words.splitlines() if line.startswith("selection  "))
    assert row.count("–") == 8, "all but one coverage, and the area under the curve"
    assert "selection was trained for a coverage of 60.0 %" in words.replace("\n", " ")


def test_a_guarantee_and_predictions_that_go_by_it(folder: Path) -> None:
    found = run_json("calibrate", "run", "--risk", "0.12", "--true-labels", folder=folder)
    assert set(found) >= {"threshold", "guaranteed_risk", "validation_coverage", "test_risk", "test_coverage"}
    assert found["guaranteed_risk"] <= 0.12
    assert found["test_risk"] <= 0.12
    assert "of its answers are wrong" in (folder / "run/report.html").read_text()
    lines = _predicted(run("predict", "run", "new", "--batch-size", "7", folder=folder).stdout)
    assert [Path(line["path"]).name for line in lines] == [f"{i:02}.png" for i in range(20)]
    for line in lines:
        assert line["abstained"] == (line["confidence"] <= found["threshold"]) == (line["class"] is None)
    truth = load_digits().target[1400:1420]
    answered = [(line["class"], str(label)) for line, label in zip(lines, truth, strict=True) if not line["abstained"]]
    assert np.mean([guess == label for guess, label in answered]) > 0.7
    everything = _predicted(run("predict", "run", "new", "--all", folder=folder).stdout)
    assert [line["guess"] for line in everything] == [line["class"] for line in everything]
    assert [line["guess"] for line in everything] == [line["guess"] for line in lines]


def test_a_guarantee_that_cannot_hold_is_none(folder: Path) -> None:
    run_json("calibrate", "run", "--risk", "0.5", folder=folder)
    assert (folder / "run/calibration.json").exists()
    result = run("calibrate", "run", "--risk", "0.001", "--json", folder=folder)
    assert result.returncode == 1
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["threshold"] is None
    least = found["guaranteed_risk"]
    assert 0 <= found["suggested_risk"] - least < 0.001
    suggestion = f"selfadapt calibrate run --risk {found['suggested_risk']:g}"
    assert suggestion in run("calibrate", "run", "--risk", "0.001", folder=folder).stdout
    assert run(*suggestion.split()[1:], folder=folder).returncode == 0
    assert run_json("calibrate", "run", "--risk", f"{least + 1e-6}", folder=folder)["threshold"] is not None
    assert run("calibrate", "run", "--risk", "0.001", folder=folder).returncode == 1
    assert found["guaranteed_risk"] > 0.001
    assert not (folder / "run/calibration.json").exists()
    words = run("calibrate", "run", "--risk", "0.001", folder=folder)
    assert "no threshold guarantees" in words.stdout


def test_paths_from_standard_input_and_files_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "broken.png").write_bytes(b"no image")
    Image.new("RGB", (40, 60), "white").save(folder / "large.png")
    monkeypatch.setattr("sys.stdin", io.StringIO("new/03.png\nbroken.png\nlarge.png\ngone.png\n"))
    result = run("predict", "run", "-", folder=folder)
    lines = _predicted(result.stdout)
    assert [line["path"] for line in lines] == ["new/03.png", "broken.png", "large.png", "gone.png"]
    assert ["error" in line for line in lines] == [False, True, False, True]
    assert "no prediction for 2 of 4 inputs" in result.stderr
    result = run("predict", "run", "broken.png", folder=folder)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "no prediction for any of 1 inputs" in result.stderr


def test_arrays_of_images_are_answered_as_their_files_are(folder: Path) -> None:
    images = np.stack([np.array(Image.open(path)) for path in sorted((folder / "new").iterdir())])
    np.save(folder / "new.npy", images)
    np.savez(folder / "twice.npz", x=images.repeat(2, 1).repeat(2, 2)[..., None])
    by_file = _predicted(run("predict", "run", "new", "--all", folder=folder).stdout)
    both = run("predict", "run", "new/00.png", "new.npy", "new/01.png", "twice.npz", "--all", folder=folder)
    first, *lines = _predicted(both.stdout)
    assert [line["path"] for line in (first, *lines[:2], lines[20])] == [
        "new/00.png", "new.npy[0]", "new.npy[1]", "new/01.png",
    ]  # fmt: skip
    for line, other in zip((first, *lines[:21]), (by_file[0], *by_file, by_file[1]), strict=True):
        assert line["guess"] == other["guess"]
        assert line["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
    larger = [line["guess"] == other["guess"] for line, other in zip(lines[21:], by_file, strict=True)]
    assert np.mean(larger) > 0.5, "resized to the size of the network"
    np.save(folder / "colour.npy", np.zeros((2, 8, 8, 3), np.uint8))
    np.save(folder / "floats.npy", images / 255)
    np.save(folder / "none.npy", images[:0])
    for name, words in (
        ("colour", "x has images of C×H×W (3, 8, 8), but the network takes (1, 8, 8)"),
        ("floats", "images must be uint8"),
        ("none", "no prediction for any of 1 inputs"),
    ):
        refused = run("predict", "run", f"{name}.npy", folder=folder)
        assert (refused.returncode, refused.stderr.count("\n"), words in refused.stderr) == (2, 1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("calibrate", "run", "--risk", "1.5"), "--risk 1.5 must be between 0 and 1"),
        (("calibrate", "run", "--risk", "0.1", "--selector", "mc-dropout"), "is not available for this run"),
        (("coverage", "run", "--passes", "-1"), "--passes -1 must be at least 0"),
        (("calibrate", "run", "--risk", "0.1", "--selector", "mc-dropout", "--passes", "0"), "needs --passes above 0"),
        (("predict", "run", "nowhere.png"), "nowhere.png does not exist"),
        (("predict", "new", "new"), "is not a run folder"),
        (("predict", "run", "new", "--batch-size", "0"), "must be at least 1"),
        (("coverage", "new"), "is not a run folder"),
        (("train", "digits", "--method", "selective", "--start-epoch", "auto", "--out", "x"), "valid integer"),
        (("train", "digits", "--method", "deep-gamblers", "--reward", "1", "--out", "x"), "--reward 1.0 must be above"),
        (("train", "digits", "--schedule", "step:no", "--out", "x"), "--schedule 'step:no' is not known"),
    ],
)
def test_mistakes(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments, folder=folder)
    assert result.returncode == 2
    assert words in result.stderr
    assert not (folder / "x").exists()


def test_a_run_that_is_not_finished_or_chose_by_validation_gives_no_guarantee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from selfadapt.core.errors import Interrupted
    from selfadapt.engine.fit import Training

    options = ("--epochs", "3", "--limit", "64", "--model", "mlp", "--width", "8")

    def interrupt(self: Training, metrics: object) -> None:
        raise Interrupted("stopped")

    for method in ("early-stopping", "forward"):  # the second chooses its first training that way
        run_json("train", "digits", *options, "--method", method, "--out", method, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "end_epoch", interrupt)
        assert run("train", "digits", *options, "--out", "half", folder=tmp_path).returncode == 130
    used_up = "selected a model on the validation split"
    for folder, words in (("early-stopping", used_up), ("forward", used_up), ("half", "is not trained")):
        result = run("calibrate", folder, "--risk", "0.5", folder=tmp_path)
        assert result.returncode == 2
        assert words in result.stderr
    assert run("coverage", "half", folder=tmp_path).returncode == 2


def test_deep_gamblers_chooses_its_reward_on_training_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with the least area under the curve, written out in numpy; broken off and resumed it is the same run."""
    from selfadapt.core.errors import Interrupted
    from selfadapt.engine.fit import Training
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.lifecycle.lifecycle import resume
    from selfadapt.runs.lifecycle.opened_run import open_folder
    from selfadapt.runs.train.bench import Measures, RunBench

    options = ("--epochs", "3", "--limit", "300", "--model", "mlp", "--width", "16", "--method", "deep-gamblers")
    run_json("train", "digits", *options, "--out", "whole", folder=tmp_path)
    content = json.loads((tmp_path / "whole/run.json").read_text())
    chosen = content["chosen"]["reward"]
    assert "reward, chosen during training" in (tmp_path / "whole/report.html").read_text()
    assert set(content["other_trainings_seconds"]) == {"reward-2.2", "reward-3.0", "reward-4.5", "reward-6.0"}
    again = open_folder(RunFolder(tmp_path / "whole"))
    part = RunBench(resume(again.folder), Measures()).holding_out(0.1)
    held_out = part.run.data.validation
    assert held_out is not None
    assert again.data.validation is not None
    assert not set(held_out.ids) & (set(part.run.data.train.ids) | set(again.data.validation.ids))
    areas = {}
    for reward in (2.2, 3.0, 4.5, 6.0):
        trained = part.fit(f"reward-{reward}", again.objective)
        trained.model.eval()
        outputs = (
            trained.model(held_out.inputs.read(torch.arange(len(held_out))).float() / 255).detach().double().numpy()
        )
        wrong = outputs[:, :10].argmax(1) != held_out.labels.numpy()
        abstain = outputs[:, 10] - np.log(np.exp(outputs).sum(1))
        areas[reward] = np.mean(np.cumsum(wrong[abstain.argsort()]) / np.arange(1, len(wrong) + 1))
    assert areas[chosen] == pytest.approx(min(areas.values()))
    run_json("coverage", "whole", folder=tmp_path)
    assert "would not hold" not in run("calibrate", "whole", "--risk", "0.5", folder=tmp_path).stderr

    ends, end_epoch = iter(range(100)), Training.end_epoch

    def interrupt(self: Training, metrics: Any) -> None:
        if next(ends) == 4:
            raise Interrupted("stopped")
        end_epoch(self, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "end_epoch", interrupt)
        assert run("train", "digits", *options, "--out", "parted", folder=tmp_path).returncode == 130
    run_json("train", "--resume", "--out", "parted", folder=tmp_path)
    parted = open_folder(RunFolder(tmp_path / "parted"))
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, parted.model.state_dict()[name]), name


def test_deep_gamblers_needs_no_option_for_two_classes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 90, (80, 4, 4), dtype=np.uint8)
    images[1::2, 0] += 150
    np.savez(tmp_path / "two.npz", x_train=images, y_train=np.arange(80) % 2)
    options = ("--epochs", "2", "--model", "mlp", "--width", "8", "--method", "deep-gamblers")
    run_json("train", "two.npz", *options, "--out", "two", folder=tmp_path)
    assert json.loads((tmp_path / "two/run.json").read_text())["chosen"]["reward"] in (1.3, 1.6, 2.0)


def test_a_run_on_all_samples_has_the_error_at_exact_coverage_of_the_test(folder: Path, tmp_path: Path) -> None:
    options = ("--method", "selective", "--epochs", "1", "--limit", "200", "--model", "mlp", "--width", "16")
    run_json("train", folder / "digits.npz", *options, "--validation", "0", "--out", "run", folder=tmp_path)
    for own in run_json("coverage", "run", folder=tmp_path)["selectors"].values():
        assert set(own["coverage"].values()) == {None}
        coverage, risk = own["curve"]
        whole = dict(zip(coverage, risk, strict=True))[1.0]
        assert own["exact_coverage"]["1.00"] == pytest.approx(whole)
        assert own["exact_coverage"]["0.70"] == pytest.approx(np.interp(0.7, coverage, risk), abs=0.01)
    assert "at each coverage of the test data" in run("coverage", "run", folder=tmp_path).stdout
    held_out = run_json("coverage", folder / "run", folder=tmp_path)["selectors"]["abstain"]
    assert held_out["exact_coverage"]["1.00"] == held_out["coverage"]["1.00"]


def test_a_run_without_validation_has_no_threshold(tmp_path: Path) -> None:
    options = ("--epochs", "1", "--limit", "64", "--model", "mlp", "--width", "8")
    np.savez(tmp_path / "d.npz", x_train=np.zeros((64, 4, 4), np.uint8), y_train=np.arange(64) % 2)
    run_json(
        "train", "d.npz", *options, "--validation", "0", "--method", "selective-net", "--out", "r", folder=tmp_path
    )
    for arguments, lacking in ((("coverage", "r"), "test"), (("calibrate", "r", "--risk", "0.1"), "validation")):
        result = run(*arguments, folder=tmp_path)
        assert result.returncode == 2
        assert f"lacks a {lacking} split" in result.stderr


def test_a_test_error_above_the_guarantee_is_remarked_on(tmp_path: Path) -> None:
    """Test labels of which a share is wrong, which validation labels are not; the p-value by an exact sum."""
    generator = np.random.default_rng(0)
    y = np.arange(600) % 2
    x = (generator.normal(size=(600, 2)) + 8 * y[:, None]).astype(np.float32)
    for name, wrong in (("same", 0), ("little", 4), ("much", 30)):
        given = y[400:].copy()
        given[:wrong] = 1 - given[:wrong]
        np.savez(tmp_path / f"{name}.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=given)
        run_json("train", f"{name}.npz", "--method", "erm", "--validation", "0.5", "--out", name, folder=tmp_path)
        found = run_json("calibrate", name, "--risk", "0.2", folder=tmp_path)
        printed = run("calibrate", name, "--risk", "0.2", folder=tmp_path).stdout
        page = (tmp_path / name / "report.html").read_text(encoding="utf-8")
        bound, errors = found["guaranteed_risk"], round(found["test_risk"] * found["test_coverage"] * 200)
        assert errors == wrong
        exact = sum(comb(200, k) * bound**k * (1 - bound) ** (200 - k) for k in range(errors, 201))
        if found["test_risk"] <= bound:
            assert name != "much"
            assert found["test_p_value"] is None
            assert "exceeds" not in printed
        else:
            assert name != "same"
            assert found["test_p_value"] == pytest.approx(exact)
            assert "the test error exceeds the guaranteed error" in printed
            assert "above the guaranteed error (p = " in page
            assert ("may be chance" in printed) == (exact >= 0.05) == (name == "little")


def test_of_samples_that_belong_together_one_counts_for_the_guarantee(tmp_path: Path) -> None:
    """A hundred answers of ten people are no hundred witnesses."""
    generator = np.random.default_rng(0)
    people = np.arange(400) // 20
    values = generator.normal(size=(400, 2)) + 3 * (people % 2)[:, None]
    rows = (f"{a},{b},{p % 2},{p}" for (a, b), p in zip(values.round(6).tolist(), people, strict=True))
    (tmp_path / "people.csv").write_text("\n".join(["a,b,label,person", *rows]) + "\n")
    for name, options in (("together", ("--group-column", "person")), ("apart", ())):
        table = tmp_path / f"{name}.csv"
        lines = (tmp_path / "people.csv").read_text().splitlines()
        table.write_text("\n".join(line if options else line.rpartition(",")[0] for line in lines) + "\n")
        run_json("train", table, *options, "--method", "erm", "--epochs", "2", "--validation", "0.5", "--out", name,
                 folder=tmp_path)  # fmt: skip
    together, apart = (
        json.loads(run("calibrate", name, "--risk", "0.3", "--json", folder=tmp_path).stdout.splitlines()[-1])
        for name in ("together", "apart")
    )
    assert (together["samples"], together["left_out"]) == (10, 190)
    assert (apart["samples"], apart["left_out"]) == (200, 0)
    assert together["guaranteed_risk"] > apart["guaranteed_risk"]
    assert (
        "one sample per group or set of duplicates counts"
        in run("calibrate", "together", "--risk", "0.9", folder=tmp_path).stdout
    )


@pytest.mark.filterwarnings("default::UserWarning")
def test_groups_of_the_training_split_are_excluded(tmp_path: Path) -> None:
    """Of people who are in both parts no sample counts; a threshold that goes is told of."""
    values = np.random.default_rng(0).normal(size=(200, 2)) + 4 * (np.arange(200) % 2)[:, None]
    rows = [f"{a},{b},{i % 2},{i // 4},{'val' if i % 4 > 1 else 'train'}" for i, (a, b) in enumerate(values.tolist())]
    few = [row.replace(f",{i // 4},", f",new{i},") if i > 140 else row for i, row in enumerate(rows)]
    for name, lines in (("all", rows), ("some", few)):
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,label,person,split", *lines]) + "\n")
        options = ("--group-column", "person", "--method", "erm", "--epochs", "20", "--out", name)
        told = run("train", f"{name}.csv", *options, folder=tmp_path).stderr
        assert "groups that are in both the training and the validation split" in told
    refused = run("calibrate", "all", "--risk", "0.3", folder=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "so a bound on them would not hold" in refused.stderr
    found = run_json("calibrate", "some", "--risk", "0.3", folder=tmp_path)
    assert found["samples"] == sum(",new" in row and row.endswith("val") for row in few)
    assert "the earlier threshold was removed" in run("calibrate", "some", "--risk", "0.0001", folder=tmp_path).stdout
    assert "removed" not in run("calibrate", "some", "--risk", "0.0001", folder=tmp_path).stdout


def test_files_without_rows_are_no_answers(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, 2)).round(4).tolist()
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *(f"{a},{b},{i % 2}" for i, (a, b) in enumerate(values))]))
    run_json("train", "t.csv", "--method", "erm", "--epochs", "1", "--out", "run", folder=tmp_path)
    (tmp_path / "empty.csv").write_text("a,b\n")
    (tmp_path / "short.csv").write_text("a,b\n1\n")
    (tmp_path / "twice.csv").write_text("a,b,a\n1,2,3\n")
    empty = run("predict", "run", "empty.csv", folder=tmp_path)
    assert (empty.returncode, _predicted(empty.stdout)) == (2, [{"path": "empty.csv", "error": "it is empty"}])
    for name, words in (
        ("short", "row 2 has fewer values than the 2 columns"),
        ("twice", "2 columns named 'a'"),
    ):
        refused = run("predict", "run", f"{name}.csv", folder=tmp_path)
        assert (refused.returncode, words in refused.stderr) == (2, True)
    np.savez(tmp_path / "v.npz", x_train=np.float32(values), y_train=np.arange(40) % 2)
    run_json("train", "v.npz", "--method", "erm", "--epochs", "1", "--out", "vectors", folder=tmp_path)
    np.save(tmp_path / "empty.npy", np.zeros((0, 2), np.float32))
    assert "it is empty" in run("predict", "vectors", "empty.npy", folder=tmp_path).stdout


def test_what_is_not_a_number_is_no_answer(tmp_path: Path) -> None:
    """Values that overflow in the network: neither a class nor a confidence that is not JSON."""
    values = np.random.default_rng(0).normal(scale=0.01, size=(40, 3)).astype(np.float32)
    np.savez(tmp_path / "v.npz", x_train=values, y_train=np.arange(40) % 2)
    run_json("train", "v.npz", "--method", "erm", "--epochs", "1", "--out", "run", folder=tmp_path)
    np.save(tmp_path / "new.npy", np.array([[0, 0, 0], [3e38, -3e38, 3e38]], np.float32))
    result = run("predict", "run", "new.npy", folder=tmp_path)
    fine, odd = _predicted(result.stdout)
    assert fine["class"] in ("0", "1")
    assert "is NaN" in odd["error"]
    assert (result.returncode, "no prediction for 1 of 2 inputs" in result.stderr) == (0, True)


def _predicted(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
