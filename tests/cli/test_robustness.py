"""Attack and shift as a user runs them, and training against attacks."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cli.photographs import write_photos
from cli.program import Result, run, run_json
from selfadapt.attacks.attack import ROBUST
from selfadapt.attacks.pgd import PGD, fgsm
from selfadapt.core.errors import Interrupted
from selfadapt.core.rng import seeded
from selfadapt.data.imagenet_c.corruptions import KINDS, ShiftedImages, corrupted
from selfadapt.data.images.storage import ImageFiles
from selfadapt.evaluation.robustness import stratified_subset
from selfadapt.models.pretrained.timm_models import pretrained
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.robust_accuracy import load_moment
from selfadapt.runs.lifecycle.opened_run import OpenedRun, open_folder

QUICK = ("--model", "mlp", "--epochs", "4", "--batch-size", "64")
RADIUS = ("--eps", "0.1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on digits: one of ordinary training, and one against attacks."""
    path = tmp_path_factory.mktemp("robust")
    run_json("train", "digits", "--method", "erm", *QUICK, "--out", "plain", folder=path)
    options = (*RADIUS, "--step", "0.025", "--curve-images", "60", "--start-epoch", "2")
    run_json("train", "digits", "--method", "trades-sat", *QUICK, *options, "--out", "robust", folder=path)
    return path


def _opened(path: Path) -> OpenedRun:
    return open_folder(RunFolder(path))


def _pixels(opened: OpenedRun) -> tuple[torch.Tensor, torch.Tensor]:
    assert opened.data.test is not None
    return opened.data.test.inputs.read(torch.arange(len(opened.data.test))), opened.data.test.labels


def test_robust_accuracy_is_what_the_attack_itself_gives(folder: Path) -> None:
    found = run_json("attack", "plain", "--with", "fgsm", *RADIUS, "--no-checks", folder=folder)
    keys = {"clean_accuracy", "robust_accuracy", "attack", "eps", "images", "by_attack", "by_class", "warnings"}
    assert keys <= set(found)
    opened = _opened(folder / "plain")
    model = opened.model.eval()
    pixels, labels = _pixels(opened)
    right = model(pixels.float() / 255).argmax(1) == labels
    assert found["clean_accuracy"] == right.double().mean().item()
    images = (pixels.float() / 255).requires_grad_()
    torch.nn.functional.cross_entropy(model(images), labels, reduction="sum").backward()
    assert images.grad is not None
    moved = (images + 0.1 * images.grad.sign()).clamp(0, 1)
    stands = right & (model(moved).argmax(1) == labels)
    assert found["robust_accuracy"] == pytest.approx(stands.double().mean().item(), abs=1 / len(labels))
    assert found["images"] == len(labels) == sum(row["images"] for row in found["by_class"].values())
    for k, row in enumerate(found["by_class"].values()):
        own = stands[labels == k].double().mean().item()
        assert row["robust_accuracy"] == pytest.approx(own, abs=1.01 / row["images"])
    assert "a single step is a weak attack" in found["notes"][0]
    assert model(pixels.float() / 255).shape[1] == 10
    outcome = fgsm(0.1).outcome(model, pixels.float() / 255, labels, torch.Generator())
    assert found["robust_accuracy"] == (outcome == ROBUST).double().mean().item()


def test_an_attack_goes_on_where_it_was_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("attack", "plain", "--with", "pgd5", *RADIUS, "--batch-size", "50", "--no-checks")
    outcome, calls = PGD.outcome, []

    def stopped(self: PGD, *given: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise Interrupted("stopped by a signal")
        return outcome(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(PGD, "outcome", stopped)
    interrupted = run(*arguments, folder=folder)
    assert interrupted.returncode == 130
    assert "run the same command again to resume" in interrupted.stderr
    first = run_json(*arguments, folder=folder)
    assert len(calls) == 3 + 4  # two of six batches were kept
    again = run_json(*arguments, folder=folder)
    assert len(calls) == 7
    assert again == first
    for path in (folder / "plain/attacks").iterdir():
        path.unlink()
    assert run_json(*arguments, folder=folder) == first
    other = run_json(*arguments, "--seed", "1", folder=folder)
    assert len(calls) == 19
    assert other["clean_accuracy"] == first["clean_accuracy"]


def test_training_against_attacks_holds_better(folder: Path) -> None:
    arguments = ("--with", "pgd20", *RADIUS)
    plain, robust = (run_json("attack", name, *arguments, folder=folder) for name in ("plain", "robust"))
    assert robust["robust_accuracy"] > plain["robust_accuracy"] + 0.1
    assert plain["warnings"] == robust["warnings"] == []
    assert "Adversarial attacks" in (folder / "plain/report.html").read_text()


def test_the_curve_is_measured_on_the_same_test_images(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "robust/metrics.jsonl").read_text().splitlines()]
    assert ["robust_accuracy" in line for line in lines] == [False, False, True, True]
    assert {line["robust_images"] for line in lines[2:]} == {60}
    last = run_json("attack", "robust", *RADIUS, "--step", "0.025", "--images", "60", "--no-checks", folder=folder)
    assert (last["clean_accuracy"], last["robust_accuracy"], last["epoch"]) == (
        lines[-1]["robust_clean_accuracy"], lines[-1]["robust_accuracy"], 4,
    )  # fmt: skip
    first = run_json(
        "attack", "robust", *RADIUS, "--step", "0.025", "--images", "60", "--no-checks", "--at", "first", folder=folder
    )
    assert (first["robust_accuracy"], first["epoch"]) == (lines[2]["robust_accuracy"], 3)
    best = max(lines[2:], key=lambda line: line["robust_validation_accuracy"])
    found = run_json(
        "attack", "robust", *RADIUS, "--step", "0.025", "--images", "60", "--no-checks", "--at", "best", folder=folder
    )
    assert (found["robust_accuracy"], found["epoch"]) == (best["robust_accuracy"], best["epoch"])
    assert "Robust accuracy during training" in (folder / "robust/report.html").read_text()
    opened = _opened(folder / "robust")
    load_moment(opened, "best")
    assert opened.data.validation is not None
    model, samples = opened.model.eval(), opened.data.validation
    chosen = stratified_subset(samples.labels, 60)
    images = samples.inputs.read(chosen).float() / 255
    outcome = PGD(eps=0.1, step=0.025).outcome(model, images, samples.labels[chosen], seeded(0, "attack", 0))
    assert best["robust_validation_accuracy"] == pytest.approx((outcome == ROBUST).double().mean().item())


def test_images_moved_against_another_run(folder: Path) -> None:
    """Harmless to a network that was trained against attacks, and no sign that its gradients are masked."""
    arguments = ("attack", "robust", "--with", "pgd10", *RADIUS, "--images", "100", "--transfer", "plain")
    found = run_json(*arguments, folder=folder)
    assert found["transfer"]["run"] == "plain"
    assert found["transfer"]["images"] == 100
    assert found["robust_accuracy"] < found["transfer"]["robust_accuracy"] <= found["clean_accuracy"]
    assert found["warnings"] == []
    assert "robust accuracy, examples of plain" in run(*arguments, folder=folder).stdout


def test_the_attack_is_called_by_the_steps_that_it_took(folder: Path) -> None:
    found = run_json("attack", "plain", "--steps", "3", "--no-checks", folder=folder)
    assert found["attack"] == "pgd3"


def test_the_audit_reads_the_targets_of_trades_sat(folder: Path) -> None:
    result = json.loads((folder / "robust/run.json").read_text())["result"]
    assert result["start_epoch"] == 2
    assert run_json("audit", "robust", folder=folder)["recovery"] == result["label_recovery"] > 0.6


def test_autoattack_and_its_parts(folder: Path) -> None:
    small = ("--images", "20", "--steps", "5", *RADIUS)
    found = run_json("attack", "plain", "--with", "autoattack", *small, "--queries", "20", folder=folder)
    assert list(found["by_attack"]) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert found["robust_accuracy"] == min(found["by_attack"].values())
    assert "not the standard AutoAttack" in found["notes"][0]
    part = run_json("attack", "plain", "--with", "apgd-ce", *small, folder=folder)
    assert part["robust_accuracy"] == found["by_attack"]["apgd-ce"]
    words = run("attack", "plain", "--with", "apgd-ce", *small, folder=folder).stdout
    assert "robust accuracy, apgd-ce" in words
    assert "note: not the standard AutoAttack" in words
    refused = run("attack", "plain", "--with", "square", *small, folder=folder)
    assert (refused.returncode, "square has no --steps" in refused.stderr) == (2, True)


def test_a_table_of_corruptions(folder: Path) -> None:
    found = run_json("shift", "plain", folder=folder)
    assert {"clean_accuracy", "levels", "mean", "by_kind"} <= set(found)
    assert list(found["levels"]) == ["1", "2", "3", "4", "5"]
    assert tuple(found["by_kind"]) == KINDS
    opened = _opened(folder / "plain")
    model = opened.model.eval()
    pixels, labels = _pixels(opened)
    # All of them, by the operators and the network alone, where nothing is drawn at random.
    for kind in ("contrast", "jpeg_compression", "zoom_blur"):
        for level in (1, 5):
            predicted = model(corrupted(pixels, kind, level).float() / 255).argmax(1)
            expected = (predicted == labels).double().mean().item()
            assert found["by_kind"][kind][str(level)] == pytest.approx(expected)
    values = np.array([list(row.values()) for row in found["by_kind"].values()])
    assert list(found["levels"].values()) == pytest.approx(values.mean(0).tolist())
    assert found["mean"] == pytest.approx(values.mean())
    assert "not the published files" in found["notes"][0]
    assert "Corruptions" in (folder / "plain/report.html").read_text()
    against = run_json("shift", "robust", "--against", "plain", folder=folder)
    own = np.array([list(row.values()) for row in against["by_kind"].values()])
    assert against["mean_corruption_error"] == pytest.approx(((1 - own).sum(1) / (1 - values).sum(1)).mean())
    words = run("shift", "robust", "--against", "plain", folder=folder).stdout
    assert f"{against['mean_corruption_error']:.3f}" in words
    assert "mean_corruption_error" not in run_json("shift", "robust", folder=folder)


def test_shift_goes_on_where_it_was_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("shift", "plain", "--images", "40")
    read, kinds = ShiftedImages.read, []

    def stopped(self: ShiftedImages, index: torch.Tensor) -> torch.Tensor:
        kinds.append((self.corruption, self.level))
        if len(kinds) == 8:
            raise Interrupted("stopped by a signal")
        return read(self, index)

    monkeypatch.setattr(ShiftedImages, "read", stopped)
    interrupted = run(*arguments, folder=folder)
    assert interrupted.returncode == 130
    assert "run the same command again to resume" in interrupted.stderr
    first = run_json(*arguments, folder=folder)
    assert len(kinds) == 7 + 1 + (75 - 7)
    assert run_json(*arguments, folder=folder) == first
    assert len(kinds) == 76
    for path in (folder / "plain/shifts").iterdir():
        path.unlink()
    assert run_json(*arguments, folder=folder) == first


def test_published_arrays(tmp_path: Path) -> None:
    """A folder as published: 5 levels one below the other, labels likewise, and kinds that do not count."""
    random = np.random.default_rng(0)
    labels = np.arange(30) % 3
    x = (labels[:, None, None, None] * 80 + random.integers(0, 60, (30, 8, 8, 3))).astype(np.uint8)
    np.savez(tmp_path / "set.npz", x_train=x, y_train=labels, x_test=x[:12], y_test=labels[:12])
    options = ("--epochs", "3", "--model", "mlp", "--batch-size", "16", "--validation", "0", "--out", "run")
    run_json("train", "set.npz", "--method", "erm", *options, folder=tmp_path)
    (tmp_path / "published").mkdir()
    levels = [np.clip(x[:12].astype(int) // level, 0, 255).astype(np.uint8) for level in range(1, 6)]
    for kind in (*KINDS, "saturate"):
        np.save(tmp_path / "published" / f"{kind}.npy", np.concatenate(levels))
    np.save(tmp_path / "published/labels.npy", np.tile(labels[:12], 5))
    found = run_json("shift", "run", "--data", "published", folder=tmp_path)
    model = _opened(tmp_path / "run").model.eval()
    for level, pixels in enumerate(levels, start=1):
        images = torch.tensor(pixels).permute(0, 3, 1, 2).float() / 255
        expected = (model(images).argmax(1).numpy() == labels[:12]).mean()
        assert found["levels"][str(level)] == pytest.approx(expected)
    assert "saturate" not in found["by_kind"]
    assert found["levels"]["1"] == pytest.approx(found["clean_accuracy"])
    np.save(tmp_path / "published/labels.npy", np.tile((labels[:12] + 1) % 3, 5))
    _refused(run("shift", "run", "--data", "published", folder=tmp_path), "not those of the test split")
    _refused(
        run("shift", "run", "--data", "nowhere", folder=tmp_path), "must contain gaussian_noise.npy and labels.npy"
    )


def test_a_head_on_features_is_tried_through_the_network_that_took_them(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", train=6, test=3)
    result = run_json("train", "photos", "--image-size", "64", "--method", "erm", "--out", "head", folder=tmp_path)
    found = run_json("attack", "head", "--with", "pgd3", "--eps", "0.03", "--no-checks", folder=tmp_path)
    opened = _opened(tmp_path / "head")
    assert opened.data.test is not None
    files, labels = opened.data.test.paths, opened.data.test.labels
    assert files is not None
    # The head that was trained, behind timm's own network with the weights of the package, on files read by hand.
    network = pretrained("tf_efficientnet_lite0", size=64)
    pixels = ImageFiles([Path(file) for file in files], network.shape, network.frame).read(torch.arange(len(files)))
    images = pixels.float() / 255
    whole = torch.nn.Sequential(network.backbone, opened.model).eval()
    right = whole(images).argmax(1) == labels
    assert found["clean_accuracy"] == right.double().mean().item() == result["test_accuracy"]
    outcome = PGD(eps=0.03, step=0.03 / 3, steps=3).outcome(whole, images, labels, seeded(0, "attack", 0))
    assert found["robust_accuracy"] == (outcome == ROBUST).double().mean().item() < found["clean_accuracy"]
    shifted = run_json("shift", "head", folder=tmp_path)
    assert shifted["clean_accuracy"] == result["test_accuracy"]
    predicted = whole(corrupted(pixels, "contrast", 5).float() / 255).argmax(1)
    assert shifted["by_kind"]["contrast"]["5"] == pytest.approx((predicted == labels).double().mean().item())


def _refused(result: Result, message: str) -> None:
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("attack", "plain", "--eps", "-1"), "eps -1 is not a radius"),
        (("attack", "plain", "--eps", "nan"), "eps nan is not a radius"),
        (("attack", "plain", "--images", "0"), "0 images cannot be attacked"),
        (("attack", "plain", "--batch-size", "0"), "--batch-size 0 must be at least 1"),
        (("attack", "plain", "--with", "pgd-20"), "--with 'pgd-20' is not known; choose one of fgsm"),
        (("attack", "plain", "--norm", "l1"), "--norm 'l1' is not known"),
        (("attack", "plain", "--steps", "-3"), "-3 steps"),
        (("attack", "plain", "--restarts", "0"), "0 restarts"),
        (("attack", "plain", "--loss", "kl"), "--loss 'kl' is not known"),
        (("attack", "plain", "--with", "autoattack", "--restarts", "3"), "autoattack has no --restarts"),
        (("attack", "plain", "--with", "fgsm", "--steps", "3"), "fgsm has no --steps"),
        (("attack", "plain", "--at", "best"), "has no best network; only adversarial training"),
        (("attack", "plain", "--at", "worst"), "--at 'worst' is not known"),
        (("attack", "nowhere"), "nowhere is not a run folder"),
        (("attack", "plain", "--transfer", "nowhere"), "nowhere is not a run folder"),
        (("attack", "plain", "--transfer", "robust", "--no-checks"), "cannot be combined with --no-checks"),
        (("attack", "plain", "--transfer", "robust", "--with", "square"), "square uses no gradients"),
        (("shift", "plain", "--levels", "mnist"), "--levels 'mnist' is not known"),
        (("shift", "plain", "--images", "0"), "0 images cannot"),
        (("shift", "plain", "--data", ".", "--images", "5"), "published arrays are used as they are"),
        (("train", "digits", "--method", "trades", "--eps", "-1"), "--eps -1"),
        (("train", "digits", "--method", "erm", "--eps", "0.1"), "--eps is an option of trades-sat, trades"),
    ],
)
def test_a_foolish_call_gets_one_line(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    _refused(run(*arguments, folder=folder), message)


def test_runs_that_cannot_be_attacked(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_json(
        "pretrain", "digits", "--model", "mlp", "--limit", "100", "--epochs", "1", "--out", "none", folder=tmp_path
    )
    _refused(run("attack", "none", folder=tmp_path), "run without labels")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 5)).astype(np.float32), np.arange(60) % 2
    np.savez(tmp_path / "vectors.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    run_json("train", "vectors.npz", "--epochs", "2", "--method", "erm", "--out", "vectors", folder=tmp_path)
    for command in ("attack", "shift"):
        _refused(run(command, "vectors", folder=tmp_path), "was trained on vectors")
    _refused(run("train", "vectors.npz", "--method", "trades", "--epochs", "2", folder=tmp_path), "takes images")
    np.savez(tmp_path / "bare.npz", x_train=random.integers(0, 255, (40, 8, 8)).astype(np.uint8), y_train=y[:40])
    run_json("train", "bare.npz", *QUICK, "--batch-size", "8", "--method", "erm", "--out", "bare", folder=tmp_path)
    _refused(run("attack", "bare", folder=tmp_path), "lacks a test split")
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    _refused(run("attack", "plain", "--with", "autoattack", folder=folder), "pip install 'selfadapt[attack]'")
