"""What onnxruntime says of an exported file is what the program predicts."""

import json
import runpy
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cli.photographs import KINDS, write_photo
from cli.program import run, run_json
from forks import PATIENCE

ROOT = Path(__file__).parent.parent.parent
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def _session(path: Path) -> tuple[Any, dict[str, str]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, session.get_modelmeta().custom_metadata_map


def _predicted(run_folder: str | Path, *paths: str | Path, folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("predict", run_folder, *paths, folder=folder).stdout.splitlines()]


def _files_of(npz_file: Path, folder: Path) -> list[Path]:
    """The first five test images as files."""
    files = [folder / f"{n}.png" for n in range(5)]
    for file, image in zip(files, np.load(npz_file)["x_test"], strict=False):
        Image.fromarray(image).save(file)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sat", "selective"])
def test_a_network_from_scratch(method: str, npz_file: Path, tmp_path: Path) -> None:
    options = ("--method", method, "--model", "resnet-small", "--width", "4", "--epochs", "2", "--mirror")
    run_json("train", npz_file, *options, "--out", "run", folder=tmp_path)
    if method == "selective":  # whose confidence is an output of its own
        rule = {
            "selector": "abstain", "passes": 0, "confidence": 0.9, "threshold": 0.0, "guaranteed_risk": 0.5,
            "validation_coverage": 1.0, "test_risk": None, "test_coverage": None,
        }  # fmt: skip
        (tmp_path / "run" / "calibration.json").write_text(json.dumps(rule))
        confidences = [own["confidence"] for own in _predicted("run", *_files_of(npz_file, tmp_path), folder=tmp_path)]
        rule["threshold"] = float(np.median(confidences)) + 1e-4
        (tmp_path / "run" / "calibration.json").write_text(json.dumps(rule))
    path = tmp_path / run_json("export", "run", "--format", "onnx", folder=tmp_path)["path"]
    session, about = _session(path)
    assert json.loads(about["classes"]) == ["cat", "dog", "emu"]
    pixels, files = np.load(npz_file)["x_test"][:5], _files_of(npz_file, tmp_path)
    inputs = np.moveaxis(pixels, 3, 1).astype(np.float32) / 255
    found, _ = session.run(None, {"inputs": inputs})
    assert found.shape == (5, 3)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    answers = _predicted("run", *files, folder=tmp_path)
    _assert_same(_predicted(path, *files, folder=tmp_path), answers)
    if method == "selective":
        assert len({answer["confidence"] for answer in answers}) > 1
        assert any(answer["abstained"] for answer in answers)
        assert not any(own["abstained"] for own in _predicted(path, "--all", *files, folder=tmp_path))
    else:
        exported = run_json("export", "run", "--format", "torch-export", folder=tmp_path)["path"]
        by_torch, _ = torch.export.load(tmp_path / exported).module()(torch.from_numpy(inputs))
        np.testing.assert_allclose(found, by_torch.detach().numpy(), atol=1e-5)
    assert [("cat", "dog", "emu")[k] for k in found.argmax(1)] == [answer["guess"] for answer in answers]
    if method == "sat":
        assert list(found.max(1)) == pytest.approx([answer["confidence"] for answer in answers], abs=1e-5)


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
    found, _ = session.run(None, {"inputs": pixels.astype(np.float32) / 255})
    confidences = [answer["confidence"] for answer in _predicted("run", *files, folder=tmp_path)]
    assert list(found.max(1)) == pytest.approx(confidences, abs=0.02)  # a file of 32 pixels is framed anew
    photos = sorted((tmp_path / "photos").rglob("*.png"))[:6]
    (tmp_path / "broken.png").write_text("no image")
    model = next((tmp_path / "run").glob("*.onnx"))
    given = [*photos, tmp_path / "broken.png", *files]
    expected = _predicted("run", *given, folder=tmp_path)
    _assert_same(_predicted(model, *given, folder=tmp_path), expected)
    served = [_posted(model, path.read_bytes()) for path in (given[0], given[6])]
    assert [status for status, _ in served] == [200, 415]
    _assert_same(
        [{"path": own["path"], **answer} for own, (_, answer) in zip((expected[0],), served, strict=False)],
        expected[:1],
    )


def _posted(model: Path, body: bytes) -> tuple[int, dict[str, Any]]:
    """What examples/serve_onnx.py answers."""
    serve = runpy.run_path(str(ROOT / "examples" / "serve_onnx.py"))["server"]
    with serve(model, 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        connection = HTTPConnection("127.0.0.1", running.server_address[1], timeout=PATIENCE)
        connection.request("POST", "/", body)
        response = connection.getresponse()
        answer = json.loads(response.read())
        running.shutdown()
    return response.status, answer


def _assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Predictions of the file and of the run, equal but for rounding."""
    assert found
    rounded = [[{**own, "confidence": None} for own in answers] for answers in (found, expected)]
    assert rounded[0] == rounded[1]
    confidences = [[own.get("confidence", 0) for own in answers] for answers in (found, expected)]
    assert confidences[0] == pytest.approx(confidences[1], abs=1e-5)


@pytest.fixture(scope="module")
def table_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table of numbers and categories, beside its ONNX file."""
    folder = tmp_path_factory.mktemp("table")
    random = np.random.default_rng(0)
    codes = np.arange(60) % 2
    rows = [f"{'red' if k else 'blue'},{number:.4f},{k}" for k, number in zip(codes, random.normal(codes), strict=True)]
    (folder / "table.csv").write_text("\n".join(["colour,size,label", *rows, ",,1"]))
    run_json("train", "table.csv", "--method", "erm", "--epochs", "2", "--out", "run", folder=folder)
    run_json("export", "run", "--format", "onnx", "--out", "model.onnx", folder=folder)
    return folder


def test_rows_of_a_table(table_model: Path) -> None:
    expected = _predicted("run", "table.csv", folder=table_model)
    _assert_same(_predicted("model.onnx", "table.csv", folder=table_model), expected)


def test_no_torch_is_imported(table_model: Path) -> None:
    code = (
        "import sys; from selfadapt.cli.app import main\n"
        "sys.argv = ['selfadapt', 'predict', 'model.onnx', 'table.csv']\n"
        "try: main()\n"
        "except SystemExit as stop: print(stop.code, 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=table_model, capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["0", "False"]
    assert len(done.stdout.splitlines()) == 61


def test_files_that_cannot_be_used(table_model: Path) -> None:
    (table_model / "broken.onnx").write_text("no model")
    np.save(table_model / "wide.npy", np.zeros((2, 99), np.float32))
    for arguments, message in [
        (("broken.onnx", "table.csv"), "cannot be read as an ONNX file"),
        (("gone.onnx", "table.csv"), "does not exist; write it with"),
        (("model.onnx", "wide.npy"), "the model takes float vectors"),
        (("model.onnx", "broken.onnx"), "this model takes vectors"),
    ]:
        refused = run("predict", *arguments, folder=table_model)
        assert refused.returncode == 2
        assert message in refused.stderr


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
