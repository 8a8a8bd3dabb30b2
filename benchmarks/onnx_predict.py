"""Start of `selfadapt predict`: an exported ONNX file with onnxruntime, against the run with torch.

A head on ImageNet features, one photo, a fresh process for each measurement, interleaved, median of five. The ratio is
of processor time, user and system, from start to exit; of wall time it depends on what else the machine does.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

_ROUNDS = 5


def run() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random = np.random.default_rng(0)
        for number in range(24):
            path = folder / "photos" / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 120 + 90 * (number % 2), (64, 64, 3), np.uint8)).save(path)
        _selfadapt(folder, "train", "photos", "--image-size", "96", "--validation", "0", "--out", "run")
        _selfadapt(folder, "export", "run", "--format", "onnx", "--out", "model.onnx")
        taken: dict[str, list[float]] = {"model.onnx": [], "run": []}
        for _ in range(_ROUNDS + 1):
            for model, times in taken.items():
                times.append(_selfadapt(folder, "predict", model, "photos/a/0.png"))
        onnx, with_torch = (median(times[1:]) for times in taken.values())
        return {"start and one photo: ONNX / torch": onnx / with_torch}


def _selfadapt(folder: Path, *arguments: str) -> float:
    """Run a command; return its processor time in seconds."""
    before = os.times()
    command = [sys.executable, "-m", "selfadapt", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
