"""What onnxruntime says of an exported file is what the program predicts."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cli.photographs import KINDS, write_photo
from cli.program import run, run_json

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def _session(path: Path) -> tuple[Any, dict[str, str]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, session.get_modelmeta().custom_metadata_map


def _predicted(run_folder: str, *paths: Path, folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("predict", run_folder, *paths, folder=folder).stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sat", "selective"])
def test_a_network_from_scratch(method: str, npz_file: Path, tmp_path: Path) -> None:
    options = ("--method", method, "--model", "resnet-small", "--width", "4", "--epochs", "2", "--mirror")
    run_json("train", npz_file, *options, "--out", "run", folder=tmp_path)
    path = tmp_path / run_json("export", "run", "--format", "onnx", folder=tmp_path)["path"]
    session, about = _session(path)
    assert json.loads(about["classes"]) == ["cat", "dog", "emu"]
    pixels = np.load(npz_file)["x_test"][:5]
    files = [tmp_path / f"{n}.png" for n in range(5)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    inputs = np.moveaxis(pixels, 3, 1).astype(np.float32) / 255
    (found,) = session.run(None, {"inputs": inputs})
    assert found.shape == (5, 3)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    answers = _predicted("run", *files, folder=tmp_path)
    assert [("cat", "dog", "emu")[k] for k in found.argmax(1)] == [answer["guess"] for answer in answers]
    if method == "sat":
        assert list(found.max(1)) == pytest.approx([answer["confidence"] for answer in answers], abs=1e-4)


@pytest.mark.slow
def test_a_head_on_features_begins_with_the_picture(tmp_path: Path) -> None:
    for number in range(30):
        kind = KINDS[number % len(KINDS)]
        write_photo(tmp_path / "photos" / kind / f"{number}.png", kind, number)
    run_json("train", "photos", "--image-size", "32", "--out", "run", folder=tmp_path)
    session, _ = _session(tmp_path / run_json("export", "run", "--format", "onnx", folder=tmp_path)["path"])
    assert session.get_inputs()[0].shape[1:] == [3, 32, 32]
    inputs = np.random.default_rng(0).random((4, 3, 32, 32), dtype=np.float32)
    pixels = (inputs * 255).round().astype(np.uint8)
    files = [tmp_path / f"{n}.png" for n in range(4)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(np.moveaxis(image, 0, 2)).save(file)
    (found,) = session.run(None, {"inputs": pixels.astype(np.float32) / 255})
    confidences = [answer["confidence"] for answer in _predicted("run", *files, folder=tmp_path)]
    assert list(found.max(1)) == pytest.approx(confidences, abs=0.02)  # a file of 32 pixels is framed anew


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--model", "mlp", "--limit", "60", "--epochs", "1")
    run_json("pretrain", "digits", *options, "--hidden", "8", "--dimensions", "4", "--out", "blind", folder=tmp_path)
    without = run("export", "blind", "--format", "onnx", folder=tmp_path)
    assert without.returncode == 2
    assert "lacks classes; export as safetensors" in without.stderr
    run_json("train", "digits", *options, "--out", "run", folder=tmp_path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    missing = run("export", "run", "--format", "onnx", folder=tmp_path)
    assert missing.returncode == 2
    assert "pip install 'selfadapt[onnx]'" in missing.stderr
    assert not list((tmp_path / "run").glob("*.onnx"))
