"""What a run depends on besides its settings: versions, threads, the device's ways, and the data as they were."""

import platform
import warnings
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from selfadapt import __version__, processes
from selfadapt.data.samples import Data


def repeatable(device: torch.device) -> None:
    """The same bits from the same settings, as far as the device can."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


def versions() -> dict[str, str]:
    return {
        "selfadapt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def take_surroundings(content: Mapping[str, Any], *, to_train: bool) -> None:
    """To train, take the run's number of threads, on which sums depend. Tell if something else is another one."""
    if to_train:
        torch.set_num_threads(content["threads"])
    now = versions()
    changed = [f"{name} {old} → {now[name]}" for name, old in content["versions"].items() if now.get(name) != old]
    if changed:
        warnings.warn(f"the run was begun with other versions, so bits may differ: {', '.join(changed)}", stacklevel=2)
    if to_train and content["processes"] != processes.count():
        warnings.warn(
            f"the run was begun with {content['processes']} processes, so bits may differ with {processes.count()}",
            stacklevel=2,
        )


def described(data: Data) -> dict[str, Any]:
    """What run.json says of the data and the machine."""
    sizes = {
        part: None if samples is None else len(samples)
        for part, samples in (("train", data.train), ("validation", data.validation), ("test", data.test))
    }
    return {
        "data": {
            "name": data.name,
            "classes": data.classes,
            "fingerprint": data.fingerprint,
            "shape": data.train.images.shape,
            "white": data.white,
            "samples": sizes,
            "unreadable": len(data.unreadable),
        },
        "threads": torch.get_num_threads(),
        "processes": processes.count(),
        "versions": versions(),
    }
