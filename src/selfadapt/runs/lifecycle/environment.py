"""What a run depends on besides its plan: versions, threads, and the data as they were."""

import platform
import subprocess
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch

from selfadapt import __version__
from selfadapt.core import distributed
from selfadapt.data.dataset import Data
from selfadapt.run_folder.labels_file import SPLITS


def versions() -> dict[str, str]:
    return {
        "selfadapt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


@cache
def commit() -> str | None:
    """The commit of this code, with a plus if the code was changed since; None outside a repository."""
    folder = Path(__file__).parents[2]

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("log", "-1", "--format=%h", "--abbrev=12", "--", ".")  # nothing where the folder is not its own
    return (found + ("+" if git("status", "--porcelain", "--", ".") else "")) or None


def warn_of_versions(content: Mapping[str, Any]) -> None:
    """Warn if a run was started with other versions."""
    now = versions()
    changed = [f"{name} {old} → {now[name]}" for name, old in content["versions"].items() if now.get(name) != old]
    if changed:
        warnings.warn(
            f"the run was started with other versions, so results may differ slightly: {', '.join(changed)}",
            stacklevel=2,
        )


def take_threads(content: Mapping[str, Any]) -> None:
    """Use the number of threads that a run was started with, on which the last bits of sums depend."""
    torch.set_num_threads(content["threads"])
    before, now = content["processes"], distributed.world_size()
    if before != now:
        warnings.warn(
            f"the run was started with {before} processes, so results may differ slightly with {now}", stacklevel=2
        )


def describe(data: Data) -> dict[str, Any]:
    """The data and the machine, for run.json."""
    sizes = {split: len(data.splits[split]) if split in data.splits else None for split in SPLITS}
    return {
        "data": {
            "name": data.name,
            "classes": data.classes,
            "fingerprint": data.fingerprint,
            "shape": data.train.inputs.shape,
            "white": data.white,
            "reader": None if data.reader is None else data.reader.state_dict(),
            "samples": sizes,
            "unreadable": len(data.unreadable),
        },
        "threads": torch.get_num_threads(),
        "processes": distributed.world_size(),
        "versions": versions(),
        "commit": commit(),
    }
