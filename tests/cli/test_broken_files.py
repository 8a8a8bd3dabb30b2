"""Files that break after the data were opened: left out of every measure, counted, listed, also across a resume."""

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.program import process, run, run_json, stopped_after
from selfadapt.core import distributed
from selfadapt.data.sources.catalog import open_data

OPTIONS = ("--model", "mlp", "--width", "8", "--batch-size", "12", "--augment", "none", "--stream")


def _save(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 24, 3), np.uint8)).save(path)


def _cut(path: Path) -> None:
    """Leave the head of a picture and some of its pixels."""
    content = path.read_bytes()
    path.write_bytes(content[: -len(content) // 4])


def _spoil(path: Path) -> None:
    """The same to a .png, but for the size of the file, by which a run knows its data again."""
    content = path.read_bytes()
    path.write_bytes(content[:400].ljust(len(content), b"\0"))


def _part(root: Path, part: str, count: int, suffix: str) -> list[Path]:
    """So many pictures of each of two classes that nothing tells apart."""
    paths = [root / part / kind / f"{number}.{suffix}" for kind in ("a", "b") for number in range(count)]
    for seed, path in enumerate(paths):
        _save(path, seed + 1000 * len(part))
    return paths


@pytest.fixture
def suffix() -> str:
    return "jpg"


@pytest.fixture
def noise(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pure noise in two classes: 40 to train on, 16 for validation, 12 to test; five of the six of class a are cut."""
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(distributed, "usable_cores", lambda: 1)  # one process decodes, for each start of one takes time
    root = tmp_path / "noise"
    _part(root, "train", 20, suffix)
    _part(root, "val", 8, suffix)
    for path in _part(root, "test", 6, suffix)[:5]:
        _cut(path)
    return root


def _listed(folder: Path) -> set[str]:
    with open(folder / "unreadable.csv", newline="") as file:
        return {row["id"] for row in csv.DictReader(file)}


def _labels(folder: Path) -> dict[str, dict[str, str]]:
    with open(folder / "labels.csv", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file) if row["part"] == "train"}


@pytest.mark.parametrize("method", ["forward", "sat", "selective"])
def test_broken_files_count_in_no_measure(method: str, noise: Path, tmp_path: Path) -> None:
    """The same as without them, but for what was never read."""
    cut = [noise / f"val/a/{number}.jpg" for number in range(4)] + [noise / "train/b/3.jpg"]
    for path in cut:
        _cut(path)
    assert not open_data(str(noise)).unreadable, "they break when they are read, not when they are opened"
    options = (*OPTIONS, "--method", method, "--epochs", "2")
    result = run_json("train", "noise", *options, "--out", "run", folder=tmp_path)
    names = {str(path.relative_to(noise)) for path in cut} | {f"test/a/{number}.jpg" for number in range(5)}
    assert result["unreadable"] == len(names) == 10
    assert _listed(tmp_path / "run") == names
    labels = _labels(tmp_path / "run")
    assert labels["train/b/3.jpg"]["suspect"] == "0"
    assert result["audit"]["not_judged"] == 1
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for parts in (1, 2):  # of 39 training and 12 validation images
        assert (39 * metrics[parts - 1]["train_accuracy_given"]) % 1 == pytest.approx(0, abs=1e-9)
        assert (12 * metrics[parts - 1]["validation_accuracy_given"]) % 1 == pytest.approx(0, abs=1e-9)
    if method == "selective":
        coverage = run_json("coverage", "run", folder=tmp_path)["selectors"]["softmax-response"]
        assert coverage["coverage"]["1.00"] == pytest.approx(1 - result["test_accuracy"])
    for number in range(5):
        (noise / f"test/a/{number}.jpg").unlink()
    without = run_json("train", "noise", *options, "--out", "without", folder=tmp_path)
    for key in ("test_accuracy", "validation_accuracy", "best_validation_accuracy"):
        assert result[key] == without[key], key


@pytest.mark.parametrize("suffix", ["png"])
def test_the_audit_does_without_what_it_cannot_read(noise: Path, tmp_path: Path) -> None:
    """Files that break after training: by its predictions a run knows nothing of them, and draws what is left."""
    options = (*OPTIONS, "--method", "erm", "--epochs", "1", "--noise", "symmetric:0.3")
    run_json("train", "noise", *options, "--out", "run", folder=tmp_path)
    before = _labels(tmp_path / "run")
    suspects = [name for name, row in before.items() if row["suspect"] == "1"][:2]
    assert suspects
    for name in suspects:
        _spoil(noise / name)
    found = run_json("audit", "run", folder=tmp_path)
    after = _labels(tmp_path / "run")
    assert found["not_judged"] == len(suspects)
    assert [after[name]["suspect"] for name in suspects] == ["0"] * len(suspects)
    judged = [row for name, row in after.items() if name not in suspects]
    assert found["recovery"] == np.mean([row["suggested"] == row["truth"] for row in judged])
    assert found["estimated_noise_rate"] == np.mean([row["suspect"] == "1" for row in judged])
    assert set(suspects) <= _listed(tmp_path / "run")


def test_streaming_stopped_anywhere_is_the_run_in_memory_to_the_bit(
    noise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout and mixup draw from the global generator, which decoding must leave alone."""
    shutil.rmtree(noise / "test")
    options = ("--model", "resnet-small", "--width", "4", "--batch-size", "12", "--augment", "none", "--epochs", "2")
    arguments = ("train", "noise", *options, "--dropout", "0.3", "--method", "mixup")
    run_json(*arguments, "--out", "memory", folder=tmp_path)
    run_json(*arguments, "--stream", "--out", "streamed", folder=tmp_path)
    command = (*arguments, "--stream", "--out", "stopped")
    stopped_after(2, monkeypatch, lambda: run(*command, folder=tmp_path))
    stopped_after(3, monkeypatch, lambda: run(*command, "--resume", folder=tmp_path))
    run_json(*command, "--resume", folder=tmp_path)
    for name in ("streamed", "stopped"):
        assert _bytes(tmp_path / name) == _bytes(tmp_path / "memory"), name


def _bytes(folder: Path) -> list[bytes]:
    newest = max((folder / "checkpoint").iterdir())
    return [(newest / "model.safetensors").read_bytes(), (folder / "labels.csv").read_bytes()]


@pytest.mark.parametrize("suffix", ["png"])
def test_a_resumed_run_still_knows_what_it_could_not_read(
    noise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that cannot be read for a part of the last epoch only are listed all the same, and judged."""
    paths = sorted((noise / "train").rglob("*.png"))[::2]
    kept = {path: path.read_bytes() for path in paths}

    def spoil() -> None:
        for path in paths:
            _spoil(path)

    options = (*OPTIONS, "--method", "sat", "--start-epoch", "0", "--epochs", "2", "--out", "run")
    stopped_after(7, monkeypatch, lambda: run("train", "noise", *options, folder=tmp_path), {4: spoil})
    seen = _listed(tmp_path / "run")
    assert 5 < len(seen) < len(paths), "those of three steps of four"
    for path, content in kept.items():
        path.write_bytes(content)
    result = run_json("train", "--resume", "--out", "run", folder=tmp_path)
    assert _listed(tmp_path / "run") == seen | {f"test/a/{number}.png" for number in range(5)}
    assert result["unreadable"] == len(_listed(tmp_path / "run"))
    assert result["audit"]["not_judged"] == 0, "the first epoch has seen them"


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_list_what_each_could_not_read(noise: Path, tmp_path: Path) -> None:
    """The first of them can read no validation image at all, which must not come out as class a."""
    for path in [noise / "train/a/1.jpg", noise / "train/b/2.jpg", *(noise / "val/a").iterdir()]:
        _cut(path)
    options = (*OPTIONS, "--method", "sat", "--epochs", "1", "--devices", "2")
    result = run_json("train", "noise", *options, "--out", "run", folder=tmp_path, program=process)
    assert result["unreadable"] == len(_listed(tmp_path / "run")) == 15
    assert result["audit"]["not_judged"] == 2
    lines = run("predict", "run", *(noise / "val/b").iterdir(), folder=tmp_path).stdout.splitlines()
    assert result["validation_accuracy"] == np.mean([json.loads(line)["class"] == "b" for line in lines])


@pytest.mark.parametrize("kind", ["gaussian:0.5", "random-pixels:0.5", "shuffled-pixels:0.5", "instance:0.4"])
def test_noise_in_streamed_files(kind: str, noise: Path, tmp_path: Path) -> None:
    for path in ("train/a/1.jpg", "val/b/0.jpg"):
        _cut(noise / path)
    options = (*OPTIONS, "--method", "erm", "--epochs", "1", "--noise", kind)
    result = run_json("train", "noise", *options, "--out", "run", folder=tmp_path)
    assert result["unreadable"] == 7
    again = run("train", "noise", *options, "--out", "run", "--resume", folder=tmp_path)
    assert again.returncode == 0, again.stderr


def test_a_class_that_breaks_altogether_is_named(noise: Path, tmp_path: Path) -> None:
    for path in (noise / "train/b").iterdir():
        _cut(path)
    words = "none of the 20 training files of the class 'b' can be read, such as train/b/0.jpg: "
    for options in (OPTIONS, OPTIONS[:-1]):  # streamed, and decoded first
        result = run("train", "noise", *options, "--epochs", "1", "--out", "run", folder=tmp_path)
        assert result.returncode == 2
        assert words in result.stderr
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_nothing_to_validate_on_is_an_error(noise: Path, tmp_path: Path) -> None:
    for path in (noise / "val").rglob("*.jpg"):
        _cut(path)
    result = run("train", "noise", *OPTIONS, "--method", "erm", "--epochs", "1", "--out", "run", folder=tmp_path)
    assert result.returncode == 2
    assert "no validation image can be read, such as val/a/0.jpg" in result.stderr


def test_pretraining_leaves_them_out(noise: Path, tmp_path: Path) -> None:
    for path in (noise / "val/a").iterdir():
        _cut(path)
    options = (*OPTIONS[:-3], "--hidden", "8", "--dimensions", "4", "--epochs", "1", "--stream")
    result = run_json("pretrain", "noise", *options, "--out", "run", folder=tmp_path)
    assert result["unreadable"] == 13
    (metrics,) = (json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert (8 * metrics["online_probe_held_out"]) % 1 == 0
    assert (7 * result["online_probe_accuracy"]) % 1 == pytest.approx(0, abs=1e-9)
    found = run_json("probe", "run", "--epochs", "2", folder=tmp_path)
    assert (7 * found["test_accuracy"]) % 1 == pytest.approx(0, abs=1e-9)


def test_a_file_that_heals_is_probed(noise: Path, tmp_path: Path) -> None:
    """Features of a set with broken files are not kept: its size and names tell nothing of what can be read."""
    options = (*OPTIONS[:-3], "--hidden", "8", "--dimensions", "4", "--epochs", "1", "--stream")
    run_json("pretrain", "noise", *options, "--out", "run", folder=tmp_path)
    run_json("probe", "run", "--epochs", "1", folder=tmp_path)
    assert len(list((tmp_path / "run/features").iterdir())) == 2, "those of the training images, by two networks"


ODD = (
    "line\nbreak",
    "carriage\rreturn",
    "both\r\n",
    'tab\t"quote", comma',
    "form\x0cfeed",
    " blank ",
    "separator\u2028",
)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text of fewer signs")
def test_odd_names_are_the_same_to_training_tables_and_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with line breaks are names; one that is no text is skipped, and not answered, with the same words."""
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    classes = ("a", "c")
    names = {f"{kind}/{name}.png" for kind in classes for name in ODD}
    for seed, name in enumerate(sorted(names)):
        _save(tmp_path / "odd" / name, seed)
    (tmp_path / "odd" / "c" / os.fsdecode(b"\xff.png")).write_bytes(
        (tmp_path / "odd" / "c" / "line\nbreak.png").read_bytes()
    )
    options = ("--epochs", "1", "--validation", "0.3", "--out", "run", *OPTIONS)
    assert run_json("train", "odd", *options, folder=tmp_path)["unreadable"] == 1
    run_json("labels", "run", "--confidence", "0", folder=tmp_path)
    for table in ("samples.csv", "labels.csv", "corrected.csv"):
        with open(tmp_path / "run" / table, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["id"] for row in rows} == names, table
        assert {row["given"] for row in rows} == set(classes), table
        assert {row["path"] for row in rows} == {str(tmp_path / "odd" / name) for name in names}, table
    assert run("audit", "run", folder=tmp_path).returncode == 0  # finds its samples by id again
    run_json(
        "train", "odd", "--corrected", "run/corrected.csv", "--epochs", "1", "--out", "again", *OPTIONS, folder=tmp_path
    )
    answered = [json.loads(line) for line in run("predict", "run", "odd", folder=tmp_path).stdout.split("\n") if line]
    errors = {record["path"]: record["error"] for record in answered if "error" in record}
    assert {record["path"] for record in answered} - set(errors) == {f"odd/{name}" for name in names}
    with open(tmp_path / "run" / "unreadable.csv", encoding="utf-8", newline="") as file:
        assert {f"odd/{row['id']}": row["reason"] for row in csv.DictReader(file)} == errors
    assert {record["class"] for record in answered if "class" in record} <= set(classes)


def test_an_error_that_names_such_a_file_is_one_line(tmp_path: Path) -> None:
    result = run("train", "gone\naway", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert r"gone\naway" in result.stderr
