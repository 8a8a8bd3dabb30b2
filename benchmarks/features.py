"""The speed of feature extraction.

5,000 JPEGs of mixed size (cut from two photographs, longer side 320 to 1,280 pixels) through the default network,
EfficientNet-Lite0 at 224 pixels, from files to features, in five rounds of 1,000. Ours folds batch normalisation into
the convolutions, decodes JPEGs at reduced scale if possible, runs one process per core, and hashes and caches all
features; start-up of the processes is included. Theirs is the loader of timm (two workers, batches of 32) and its model
in evaluation mode with torch's default number of threads. Images per second, ours over theirs, median over rounds; both
sides alternate in one process. The second ratio uses CPU time, so that other programs on the machine change little.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from timm.data import create_dataset, create_loader, resolve_data_config

from selfadapt.data.images.storage import ImageFiles
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import Pretrained, pretrained
from selfadapt.models.pretrained.weights import DEFAULT, shipped_weights

ROUNDS, COUNT = 5, 1000


def _photos(folder: Path, seed: int) -> None:
    """Random crops of real photographs, resized at random."""
    generator = np.random.default_rng(seed)
    originals = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    for position in range(COUNT):
        original = originals[position % 2]
        width, height = (int(generator.integers(side // 3, side)) for side in original.size)
        left, top = (
            int(generator.integers(0, whole - part)) for whole, part in zip(original.size, (width, height), strict=True)
        )
        scale = generator.uniform(320, 1280) / max(width, height)
        picture = original.crop((left, top, left + width, top + height))
        path = folder / str(position % 2) / f"{position}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC).save(path, quality=90)


def _theirs(folder: Path, network: torch.nn.Module) -> None:
    config = resolve_data_config(model=network)
    loader = create_loader(
        create_dataset("", root=str(folder)), config["input_size"], 32, use_prefetcher=False, num_workers=2,
        interpolation=config["interpolation"], mean=config["mean"], std=config["std"], crop_pct=config["crop_pct"],
        device=torch.device("cpu"),
    )  # fmt: skip
    with torch.inference_mode():
        torch.cat([network(images) for images, _ in loader])


def _ours(folder: Path, network: Pretrained) -> None:
    taken = features_of(ImageFiles(sorted(folder.rglob("*.jpg")), network.shape), network).taken
    assert taken == COUNT


def _spent(side: Callable[[], None]) -> tuple[float, float]:
    """Wall seconds and CPU seconds, including child processes."""
    began, before = time.perf_counter(), os.times()
    side()
    after = os.times()
    return time.perf_counter() - began, sum(after[:4]) - sum(before[:4])


def run() -> dict[str, float]:
    tensors = shipped_weights(DEFAULT)
    assert tensors is not None
    plain = timm.create_model(DEFAULT)
    plain.load_state_dict(tensors)
    plain.reset_classifier(0)
    plain.eval()
    network = pretrained(DEFAULT)
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        os.environ["SELFADAPT_HOME"] = f"{name}/home"
        for turn in range(ROUNDS):
            folder = Path(name) / str(turn)
            _photos(folder, turn)
            sides = [lambda: _ours(folder, network), lambda: _theirs(folder, plain)]  # noqa: B023
            spent = [_spent(side) for side in (sides if turn % 2 else reversed(sides))]
            ours, theirs = spent if turn % 2 else reversed(spent)
            for side, (passed, worked) in (("ours", ours), ("theirs", theirs)):
                print(
                    f"round {turn}, {side}: {COUNT / passed:.1f} images per second, {worked:.1f} s of CPU time",
                    flush=True,
                )
            rounds.append((theirs[0] / ours[0], theirs[1] / ours[1]))
    return {
        "images per second, ours / timm in evaluation mode": statistics.median(ratio for ratio, _ in rounds),
        "images per second of CPU time, ours / timm": statistics.median(ratio for _, ratio in rounds),
    }
