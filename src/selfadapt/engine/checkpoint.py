"""Checkpoints: everything needed to resume a training bit-identically, written atomically.

    checkpoint/00012-0000000/        12 finished epochs, 0 steps into the next
        model.safetensors            the weights
        targets.safetensors          the target store, if any; targets-R-of-P if sharded over processes
        state.safetensors            optimiser, random generators, position, metrics (nested_tensors.py)
        manifest.json                version of the format, and the SHA-256 of each file above

A checkpoint is written under a temporary name, flushed to disk and renamed. The newest two are kept. If a process finds
one damaged, all load the one before it, with a warning. It contains no pickle, and loading never executes code.

If all processes hold the same state, the first writes it, and training waits. Targets that are sharded, and state on a
GPU, go through torch.distributed.checkpoint, which writes them in the background (distributed_checkpoint.py).
"""

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.core.atomic_files import fsync_path
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular, sha256_of
from selfadapt.core.typed_json import check, parse
from selfadapt.engine.nested_tensors import flatten, unflatten

FORMAT = 3
_READABLE = (2, 3)  # format 2 has state.pt in place of state.safetensors; format 1 had no version
_NUM_KEPT = 2

Files = Mapping[str, Mapping[str, Tensor]]  # tensors by name, by file


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of a checkpoint."""

    epoch: int
    step: int
    model: dict[str, Tensor]
    targets: dict[str, Tensor] | None
    state: dict[str, Any]


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being written."""

    final: Path

    @property
    def path(self) -> Path:
        return self.final.with_name(f".draft-{self.final.name}")

    def create(self) -> None:
        """Create the folder, and remove those of saves that were killed."""
        self.final.parent.mkdir(parents=True, exist_ok=True)
        for stale in self.final.parent.glob(".draft-*"):
            shutil.rmtree(stale)
        self.path.mkdir()

    def write(self, files: Files) -> dict[str, str]:
        """Write files to disk, and return the SHA-256 of each."""
        for name, tensors in files.items():
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, self.path / name)
            fsync_path(self.path / name)
        return {name: sha256_of(self.path / name) for name in files}

    def publish(self, sums: Mapping[str, str]) -> None:
        """Write the manifest, rename the folder, and delete all but the newest two checkpoints."""
        manifest = self.path / "manifest.json"
        manifest.write_text(json.dumps({"format": FORMAT, "sha256": dict(sorted(sums.items()))}, indent=2))
        fsync_path(manifest)
        fsync_path(self.path)
        shutil.rmtree(self.final, ignore_errors=True)
        self.path.rename(self.final)
        fsync_path(self.final.parent)
        for old in _newest_first(self.final.parent)[_NUM_KEPT:]:
            shutil.rmtree(old)

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Raise a UserError for what can go wrong while the files are written."""
        try:
            yield
        except (OSError, SafetensorError, RuntimeError) as error:  # torch raises the last on a full disk
            shutil.rmtree(self.path, ignore_errors=True)
            raise UserError(
                f"cannot write checkpoint {self.final}: {error}; free some space or fix the folder, then resume from "
                "the previous checkpoint with --resume"
            ) from error


def save(
    folder: Path, checkpoint: Checkpoint, *, sharded: bool = False, in_background: bool = False
) -> Callable[[], None]:
    """Write a checkpoint below `folder`, all processes together, and delete all but the newest two.

    Args:
        folder: Where checkpoints are kept.
        checkpoint: What to save. Rank 0 writes it; if the targets are `sharded`, each process writes its own rows.
        sharded: Whether `targets` are those of this process alone.
        in_background: Whether to copy the state and return, while it is being written.

    Returns:
        A function that waits until the checkpoint is complete, and must be called before the next save.

    Raises:
        UserError: If it cannot be written. In the background, the returned function raises it.
    """
    draft = Draft(folder / f"{checkpoint.epoch:05d}-{checkpoint.step:07d}")
    files: dict[str, Mapping[str, Tensor]] = {}
    if distributed.rank() == 0:
        files = {"model.safetensors": checkpoint.model, "state.safetensors": flatten(checkpoint.state)}
    if checkpoint.targets is not None and (sharded or distributed.rank() == 0):
        name = f"targets-{distributed.rank():05d}-of-{distributed.world_size():05d}" if sharded else "targets"
        files[f"{name}.safetensors"] = checkpoint.targets
    if sharded or in_background:
        from selfadapt.engine.distributed_checkpoint import save_distributed  # takes a moment to import

        return save_distributed(draft, files, in_background=in_background)
    if distributed.rank() == 0:
        with draft.reported():
            draft.create()
            draft.publish(draft.write(files))
    distributed.wait_for_all()
    return lambda: None


def load_newest(folder: Path, device: torch.device | str = "cpu") -> Checkpoint | None:
    """Load the newest checkpoint that no process finds damaged; None without a checkpoint.

    Rank 0 lists the checkpoints for all. Each process verifies the checksums of a share of the files.

    Raises:
        UserError: If all checkpoints are damaged, or one was written by another version.
    """
    checkpoints = distributed.from_first(_newest_first(folder))
    for path in checkpoints:
        loaded, fault = _loaded(path, device)
        faults = [found for found in distributed.all_gather_objects(fault) if found is not None]
        if not faults:
            return loaded
        warnings.warn(f"checkpoint {path} is damaged ({faults[0]}); trying the previous one", stacklevel=2)
    if checkpoints:
        raise UserError(f"all checkpoints in {folder} are damaged; restart the run in another folder")
    return None


def _loaded(path: Path, device: torch.device | str) -> tuple[Checkpoint | None, str | None]:
    """Verify a share of the files and load those of this process; otherwise say what is wrong with the checkpoint."""
    epoch, step = path.name.split("-")
    try:
        manifest = parse(read_regular(path / "manifest.json"))
        version = manifest.get("format", 1)
        if version not in _READABLE:
            raise UserError(
                f"{path} was written by another version of selfadapt (format {version}, this one reads "
                f"{_READABLE[0]} to {_READABLE[-1]}); restart in another folder, or use that version"
            )
        check(manifest["sha256"], dict[str, str])
        files = {own.name for own in path.iterdir()} - {"manifest.json"}
        if set(manifest["sha256"]) != files:
            return None, f"its manifest does not list its files, {', '.join(sorted(files))}"
        sums = sorted(manifest["sha256"].items())
        for name, expected in sums[distributed.rank() :: distributed.world_size()]:
            if sha256_of(path / name) != expected:
                return None, f"checksum of {name} does not match"
        state = _state(path, version)
        check(state, dict[str, Any])
        loaded = Checkpoint(
            epoch=int(epoch),
            step=int(step),
            model=load_file(path / "model.safetensors", device=str(device)),
            targets=_targets(path),
            state=state,
        )
    except (UserError, MemoryError):
        raise
    except Exception as error:  # the readers raise many types of errors on wrong content
        return None, next(iter(str(error).splitlines()), type(error).__name__)
    return loaded, None


def _state(path: Path, version: int) -> Any:
    if version == 2:
        return torch.load(path / "state.pt", weights_only=True, map_location="cpu")
    return unflatten(load_file(path / "state.safetensors"))


def _targets(path: Path) -> dict[str, Tensor] | None:
    """Load the targets of this process: all, or its shard, also if they were saved in another number of shards."""
    if (path / "targets.safetensors").exists():
        return load_file(path / "targets.safetensors")
    shards = sorted(path.glob("targets-*-of-*.safetensors"))
    if not shards:
        return None
    rank, world_size = distributed.rank(), distributed.world_size()
    parts: dict[str, list[Tensor]] = {}
    positions = []
    for number, shard in enumerate(shards):
        if (number - rank) % math.gcd(len(shards), world_size):
            continue  # it has no row of this process
        content = load_file(shard)
        rows_n = torch.arange(number, number + len(shards) * len(content["rows"]), len(shards))
        here_n = rows_n % world_size == rank
        positions.append(rows_n[here_n])
        for name, tensor in content.items():
            parts.setdefault(name, []).append(tensor[here_n] if tensor.ndim else tensor)
    order = torch.cat(positions).argsort()
    return {name: torch.cat(found)[order] if found[0].ndim else found[0] for name, found in parts.items()}


def _newest_first(folder: Path) -> list[Path]:
    named = [path for path in folder.glob("*-*") if re.fullmatch(r"[0-9]+-[0-9]+", path.name)]
    return sorted(named, key=lambda path: [int(number) for number in path.name.split("-")], reverse=True)
