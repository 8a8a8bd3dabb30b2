"""Pre-training, probing, exporting and fine-tuning as a user runs them."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from cli.program import run, run_json
from selfadapt.core.errors import Interrupted
from selfadapt.data.images.augment import random_flip
from selfadapt.data.loader import SampleLoader
from selfadapt.data.sources.catalog import open_data
from selfadapt.run_folder.folder import RunFolder, write_tensors
from selfadapt.runs.train.unlabelled import load_backbone

SMALL = ("--model", "mlp", "--width", "32", "--hidden", "32", "--dimensions", "16", "--epochs", "4", "--limit", "400")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pretraining")
    result = run_json("pretrain", "digits", *SMALL, "--out", "run", folder=path)
    assert set(result) >= {
        "run", "method", "views", "online_probe_accuracy", "feature_std", "collapsed", "seconds", "seconds_per_epoch",
    }  # fmt: skip
    assert result["online_probe_accuracy"] > 0.15
    assert not result["collapsed"]
    assert "without labels" in (path / "run/report.html").read_text()
    return path


def _cached_features(run: Path) -> set[Path]:
    """Without the classifiers on augmented images."""
    return {*(run / "features").iterdir()} - {*(run / "features").glob("classifier-*")}


def test_a_probe_on_its_own_and_on_other_data(folder: Path) -> None:
    first = run_json("probe", "run", "--epochs", "20", folder=folder)
    assert set(first) >= {"test_accuracy", "knn_accuracy", "random_network_accuracy"}
    assert first["test_accuracy"] > 0.7
    kept = _cached_features(folder / "run")
    assert len(kept) == 4
    again = run_json("probe", "run", "--epochs", "20", folder=folder)
    assert again["test_accuracy"] == first["test_accuracy"]
    assert _cached_features(folder / "run") == kept
    data = load_digits()
    images = (16 * data.images[:300]).clip(0, 255).astype(np.uint8)
    parity = data.target[:300] % 2
    np.savez(folder / "other.npz", x_train=images[:200], y_train=parity[:200], x_test=images[200:], y_test=parity[200:])
    other = run_json("probe", "run", "--data", "other.npz", "--epochs", "20", folder=folder)
    assert other["test_accuracy"] > 0.7
    assert set(json.loads((folder / "run/probe.json").read_text())) == {"digits", "other"}
    assert "Linear evaluation" in (folder / "run/report.html").read_text()


@pytest.mark.filterwarnings("ignore:.*has no checksums")
@pytest.mark.parametrize("checked", [True, False])
def test_damaged_features_are_not_used(checked: bool, folder: Path, tmp_path: Path) -> None:
    run_json("probe", "run", "--epochs", "1", folder=folder)
    shutil.copytree(folder / "run", tmp_path / "run")
    if not checked:
        (tmp_path / "run/checksums.json").unlink()
    cached = sorted((tmp_path / "run/features").iterdir())
    whole = [path.read_bytes() for path in cached]
    for path, content in zip(cached, whole, strict=True):
        path.write_bytes(content[:-4] if not checked else content[:-1] + bytes([content[-1] ^ 1]))
    result = run("probe", "run", "--epochs", "1", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert any(path.name in result.stderr for path in cached)
    for path in cached:
        path.unlink()
    assert run("probe", "run", "--epochs", "1", folder=tmp_path).returncode == 0


def test_a_probe_on_augmented_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run_json("probe", "run", "--epochs", "6", "--lr", "1", folder=folder)
    options = ("probe", "run", "--epochs", "6", "--lr", "1", "--augment", "crop")
    with monkeypatch.context() as patch:
        patch.setattr("selfadapt.run_folder.folder.write_tensors", _written_but_once(write_tensors))
        assert run(*options, folder=folder).returncode == 130
    (kept,) = (folder / "run/features").glob("classifier-*")
    assert int(load_file(kept)["epochs"]) == 1
    found = run_json(*options, folder=folder)
    assert int(load_file(kept)["epochs"]) == 6
    assert found["augmented_accuracy"] > 0.4
    assert {name: found[name] for name in plain if name != "settings"} == {
        name: value for name, value in plain.items() if name != "settings"
    }
    assert "(crop)" in (folder / "run/report.html").read_text()
    written = kept.stat().st_mtime_ns
    assert "linear classifier, augmented" in run(*options, folder=folder).stdout
    assert kept.stat().st_mtime_ns == written, "what is done is not trained again"
    other = run_json(*options, "--seed", "1", folder=folder)
    assert other["settings"]["augment"] == "crop"
    assert len(list((folder / "run/features").glob("classifier-*"))) == 2


def _written_but_once(write: Callable[..., None]) -> Callable[..., None]:
    """Stops the program when it is about to write a classifier for the second time."""
    classifiers = []

    def stop(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        classifiers.extend([path] * ("classifier" in path.name))
        if len(classifiers) > 1:
            raise Interrupted("stopped")
        write(path, tensors)

    return stop


def test_a_probe_on_crops_that_are_cut_from_the_original_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 4)):
        for number, name in enumerate(("red", "green")):
            (tmp_path / "photos" / part / name).mkdir(parents=True)
            for place in range(count):
                pixels = rng.integers(0, 100, (*rng.integers(20, 60, 2), 3), np.uint8)
                pixels[..., number] += 120
                Image.fromarray(pixels).save(tmp_path / "photos" / part / name / f"{place}.png")
    options = ("--crops", "original", "--image-size", "16", "--model", "mlp", "--width", "8", "--hidden", "8")
    run_json("pretrain", "photos", *options, "--dimensions", "4", "--epochs", "1", "--out", "run", folder=tmp_path)
    found = run_json("probe", "run", "--epochs", "3", "--augment", "resized-crop", folder=tmp_path)
    assert found["augmented_accuracy"] is not None
    (kept,) = (tmp_path / "run/features").glob("classifier-*")
    network = load_backbone(RunFolder(tmp_path / "run"), torch.device("cpu")).eval()
    files = open_data(str(tmp_path / "photos"), resize=16).train
    cut = SampleLoader(
        files, batch_size=512, seed=0, device=torch.device("cpu"), augment=random_flip, crop_area=0.08, workers=0
    )
    layer = torch.nn.Linear(network.num_features, 2)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.4, momentum=0.9)
    for epoch, rate in enumerate((0.4, 0.4, 0.04)):
        optimizer.param_groups[0]["lr"] = rate
        for batch in cut.epoch(epoch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(network(batch.input).detach()), batch.label).backward()
            optimizer.step()
    torch.testing.assert_close(load_file(kept)["weight"], layer.weight.detach())


def test_a_probe_on_vectors(tmp_path: Path) -> None:
    data = load_digits()
    vectors = (data.data / 16).astype(np.float32)
    arrays = {"x_train": vectors[:300], "y_train": data.target[:300], "x_test": vectors[300:400]}
    np.savez(tmp_path / "vectors.npz", **arrays, y_test=data.target[300:400])
    options = ("--model", "mlp", "--width", "32", "--hidden", "16", "--dimensions", "8", "--epochs", "1")
    run_json("pretrain", "vectors.npz", *options, "--out", "run", folder=tmp_path)
    assert run_json("probe", "run", "--epochs", "20", folder=tmp_path)["test_accuracy"] > 0.6
    augmented = run("probe", "run", "--augment", "crop-flip", folder=tmp_path)
    assert augmented.returncode == 2
    assert "is for images, but the run was trained on vectors" in augmented.stderr


def test_fine_tuning_begins_with_the_features(folder: Path) -> None:
    options = ("--method", "erm", "--model", "mlp", "--width", "32", "--label-share", "0.1", "--batch-size", "16")
    run_json(
        "train",
        "digits",
        *options,
        "--epochs",
        "1",
        "--lr",
        "0",
        "--weights",
        "run",
        "--out",
        "tuned",
        folder=folder,
    )
    newest = max((folder / "tuned/checkpoint").iterdir()) / "model.safetensors"
    source = max((folder / "run/checkpoint").iterdir()) / "model.safetensors"
    ours, theirs = load_file(newest), load_file(source)
    name = "backbone.backbone.layers.0.weight"
    assert torch.equal(ours[name], theirs[name])
    assert json.loads((folder / "tuned/run.json").read_text())["data"]["samples"]["train"] == pytest.approx(140, abs=5)
    wrong = run("train", "digits", "--width", "8", "--model", "mlp", "--weights", "run", "--out", "no", folder=folder)
    assert wrong.returncode == 2
    assert "differs from this one" in wrong.stderr
    assert not (folder / "no").exists()


def test_images_without_classes_and_a_stopped_run(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(40):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "photos/broken.png").write_bytes(b"nothing")
    options = ("--model", "mlp", "--width", "8", "--hidden", "8", "--dimensions", "4", "--batch-size", "16")
    result = run_json("pretrain", "photos", *options, "--epochs", "3", "--out", "whole", folder=tmp_path)
    assert result["online_probe_accuracy"] is None
    assert result["unreadable"] == 1
    labelled = run("train", "photos", "--out", "no", folder=tmp_path)
    assert labelled.returncode == 2
    assert "class folders" in labelled.stderr
    blind = run("probe", "whole", folder=tmp_path)
    assert blind.returncode == 2
    for command in (("audit", "whole"), ("coverage", "whole"), ("predict", "whole", "photos"), ("labels", "whole")):
        other = run(*command, folder=tmp_path)
        assert other.returncode == 2, command
    page = (tmp_path / "whole/report.html").read_text()
    assert run("report", "whole", folder=tmp_path).returncode == 0
    assert (tmp_path / "whole/report.html").read_text() == page
    assert run("report", "whole", "whole", folder=tmp_path).returncode == 2


def test_resumed_equals_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from selfadapt.engine.fit import Training

    ordinary, seen = Training.end_epoch, 0

    def interrupt(self: Training, metrics: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise Interrupted("stopped")
        ordinary(self, metrics)  # type: ignore[arg-type]

    arguments = ("pretrain", "digits", *SMALL, "--method", "moco", "--views", "2", "--out")
    run_json(*arguments, "left", folder=folder)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "end_epoch", interrupt)
        assert run(*arguments, "stopped", folder=folder).returncode == 130
    run_json("pretrain", "--resume", "--out", "stopped", folder=folder)
    manifests = [
        json.loads((max((folder / name / "checkpoint").iterdir()) / "manifest.json").read_text())
        for name in ("left", "stopped")
    ]
    assert manifests[0] == manifests[1]
    wrong = run("pretrain", "--resume", "--lr", "3", "--out", "stopped", folder=folder)
    assert wrong.returncode == 2
    assert "was started with --lr" in wrong.stderr


def test_a_collapse_is_told_loudly(folder: Path) -> None:
    options = ("--views", "2", "--no-predictor", "--beta", "0", "--lr", "2", "--method", "byol")
    result = run("pretrain", "digits", *SMALL, *options, "--epochs", "12", "--out", "collapsed", folder=folder)
    assert result.returncode == 0
    assert "the features have collapsed" in result.stderr
    assert "The features have collapsed" in (folder / "collapsed/report.html").read_text()
    last = json.loads((folder / "collapsed/metrics.jsonl").read_text().splitlines()[-1])
    assert last["collapsed"] is True


@pytest.mark.slow
def test_torchvision_loads_what_is_exported(tmp_path: Path) -> None:
    from torchvision.models import resnet50

    rng = np.random.default_rng(0)
    np.savez(tmp_path / "large.npz", x_train=rng.integers(0, 256, (4, 96, 96, 3), np.uint8), y_train=np.arange(4) % 2)
    options = ("--model", "resnet50", "--hidden", "8", "--dimensions", "4", "--epochs", "1", "--batch-size", "4")
    run_json("pretrain", "large.npz", *options, "--out", "run", folder=tmp_path)
    path = tmp_path / run_json("export", "run", "--format", "torchvision", folder=tmp_path)["path"]
    theirs = resnet50(weights=None)
    theirs.load_state_dict(load_file(path), strict=True)
    from safetensors import safe_open

    ours = load_backbone(RunFolder(tmp_path / "run"), torch.device("cpu")).eval()
    with safe_open(path, "pt") as file:
        mean, std = (torch.tensor(json.loads(file.metadata()[part])).view(1, 3, 1, 1) for part in ("mean", "std"))
    theirs.fc = torch.nn.Identity()
    theirs.eval()
    images = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(theirs((images - mean) / std), ours(images), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", ["safetensors", "onnx"])
def test_where_exports_go(form: str, tmp_path: Path) -> None:
    """A link leads to its target; what is no ordinary file stays what it is."""
    run_json("train", "digits", "--model", "mlp", "--limit", "60", "--epochs", "1", "--out", "run", folder=tmp_path)
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    run_json("export", "run", "--format", form, "--out", "link", folder=tmp_path)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").stat().st_size > 1000
    assert (tmp_path / "target").stat().st_mode == (tmp_path / "run" / "run.json").stat().st_mode
    for out, message in (("pipe", "is not a regular file"), (".", "is a folder"), ("target/x", "cannot be written")):
        refused = run("export", "run", "--format", form, "--out", out, folder=tmp_path)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_weights_for_torch_load(folder: Path) -> None:
    path = folder / run_json("export", "run", "--out", "weights.pth", folder=folder)["path"]
    weights = torch.load(path, weights_only=True)
    assert torch.equal(
        weights["backbone.mean_C11"],
        load_file(folder / run_json("export", "run", folder=folder)["path"])["backbone.mean_C11"],
    )


@pytest.mark.parametrize("form", ["folder", "beside a folder", "under train", "table", "arrays"])
def test_no_labels_are_needed(form: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8)
    home = tmp_path / "data" / "train" if form == "under train" else tmp_path / "data"
    for number, image in enumerate(pixels):
        path = home / "extra" if form == "beside a folder" and number > 8 else home
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / f"{number}.png")
    if form == "under train":
        for name in ("cat", "dog"):
            (tmp_path / "data/test" / name).mkdir(parents=True)
            Image.fromarray(pixels[0]).save(tmp_path / "data/test" / name / "0.png")
    np.savez(tmp_path / "data.npz", x_train=pixels)
    (tmp_path / "data/all.csv").write_text("path\n" + "".join(f"{number}.png\n" for number in range(12)))
    source = {"table": "data/all.csv", "arrays": "data.npz"}.get(form, "data")
    options = ("--model", "mlp", "--hidden", "8", "--dimensions", "4", "--epochs", "1", "--batch-size", "6")
    result = run_json("pretrain", source, *options, "--out", "run", folder=tmp_path)
    assert result["online_probe_accuracy"] is None
    assert json.loads((tmp_path / "run/run.json").read_text())["data"]["samples"]["train"] == 12
    assert "no labels to evaluate it on" in (tmp_path / "run/report.html").read_text()


def test_a_validation_part_stands_in_for_a_test_part(tmp_path: Path) -> None:
    data = load_digits()
    images = (16 * data.images[:200]).clip(0, 255).astype(np.uint8)
    np.savez(
        tmp_path / "own.npz",
        x_train=images[:150],
        y_train=data.target[:150],
        x_val=images[150:],
        y_val=data.target[150:200],
    )
    result = run_json("pretrain", "own.npz", *SMALL, "--out", "run", folder=tmp_path)
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert result["online_probe_accuracy"] == metrics[-1]["online_probe_held_out"] is not None
    assert "validation accuracy" in (tmp_path / "run/report.html").read_text()


def test_files_that_break_while_they_are_streamed_are_counted_and_listed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(12):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(tmp_path / f"photos/{number}.png")
    cut = tmp_path / "photos/3.png"
    cut.write_bytes(cut.read_bytes()[:-4000])
    assert not open_data(str(tmp_path / "photos"), unlabelled=True).unreadable, "its head is fine"
    options = ("--model", "mlp", "--hidden", "8", "--dimensions", "4", "--epochs", "1", "--batch-size", "6", "--stream")
    result = run_json("pretrain", "photos", *options, "--out", "run", folder=tmp_path)
    assert result["unreadable"] == 1
    assert "3.png" in (tmp_path / "run/unreadable.csv").read_text()


def test_a_fine_tuned_run_does_without_its_features(folder: Path) -> None:
    shutil.copytree(folder / "run", folder / "moved")
    options = ("--method", "erm", "--model", "mlp", "--width", "32", "--limit", "400", "--label-share", "0.1")
    training = ("--batch-size", "16", "--epochs", "1", "--weights", "moved", "--out", "few")
    run_json("train", "digits", *options, *training, folder=folder)
    samples = json.loads((folder / "few/run.json").read_text())["data"]["samples"]
    assert samples["train"] == pytest.approx(40, abs=4), "a tenth of the first 400"
    kept = {path: (folder / "few" / path).read_bytes() for path in ("metrics.jsonl", "labels.csv")}
    shutil.rmtree(folder / "few/checkpoint")  # as if it had been stopped before its first one
    run_json("train", "--resume", "--out", "few", folder=folder)
    assert (folder / "few/labels.csv").read_bytes() == kept["labels.csv"], "it begins with the features again"
    shutil.rmtree(folder / "moved")
    assert run("audit", "few", folder=folder).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pretrain", "digits", "--method", "simclr", "--views", "1", "--out", "x"), "leave out --views 1"),
        (("pretrain", "digits", "--views", "3", "--out", "x"), "--views 3 must be at least 1 and at most 2"),
        (("pretrain", "digits", "--beta", "2", "--out", "x"), "--beta '2' must be a number within 0..1"),
        (
            ("pretrain", "digits", "--method", "simsiam", "--beta", "0.9", "--out", "x"),
            "--beta is an option of sat, byol, moco",
        ),
        (
            ("pretrain", "digits", "--method", "moco", "--predictor", "--out", "x"),
            "--predictor is an option of sat, byol, simsiam",
        ),
        (("pretrain", "digits", "--weight-decay", "-1", "--out", "x"), "--weight-decay -1.0 must be at least 0"),
        (("probe", "run", "--limit", "0"), "--limit 0 must be at least 1"),
        (("probe", "run", "--limit", "1"), "has only one class"),
        (("probe", "run", "--schedule", "stairs"), "choose step or cosine"),
        (("probe", "run", "--augment", "magic"), "--augment 'magic' is not known; choose one of none, crop, crop-flip"),
        (("probe", "run", "--augment", "crop-flip,no-flip"), "self-supervised accepts no-flip"),
        (("pretrain", "digits", "--queue", "9", "--out", "x"), "--queue is an option of moco, not of sat"),
        (("pretrain", "digits", "--targets", "topk:3", "--out", "x"), "stores probabilities"),
        (("pretrain", "digits", "--method", "magic", "--out", "x"), "is not known"),
        (("pretrain", "nowhere", "--out", "x"), "there is no data set or path"),
        (("probe", "run", "--data", "mismatch.npz"), "but the run takes"),
        (("export", "run", "--format", "torchvision"), "export as safetensors"),
        (("export", "run", "--format", "pickle"), "is not known"),
    ],
)
def test_mistakes(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    np.savez(folder / "mismatch.npz", x_train=np.zeros((4, 6, 6), np.uint8), y_train=np.arange(4) % 2)
    result = run(*arguments, folder=folder)
    assert result.returncode == 2, result.stdout
    assert words in result.stderr
    assert not (folder / "x").exists()
