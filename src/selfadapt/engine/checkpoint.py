"""Checkpoints: everything needed to resume a training bit-identically, written atomically.

    checkpoint/00012-0000000/        12 finished epochs, 0 steps into the next
        model.safetensors            the weights
        targets.safetensors          the target store, if any; targets-R-of-P if sharded over processes
        state.pt                     optimiser, random generators, position, metrics; plain tensors and numbers
        manifest.json                version of the format, and the SHA-256 of each file above

A checkpoint is written under a temporary name, flushed to disk and renamed. The newest two are kept. If the checksums
of one do not match, the one before it is loaded, with a warning. Loading never executes code.
"""

import hashlib
import json
import re
import shutil
import warnings
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
from selfadapt.core.regular_files import open_regular, read_regular
from selfadapt.core.typed_json import check, parse

FORMAT = 2  # format 1 had no version
_NUM_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of a checkpoint."""

    epoch: int
    step: int
    model: dict[str, Tensor]
    targets: dict[str, Tensor] | None
    state: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint, *, sharded: bool = False) -> None:
    """Write a checkpoint below `folder` and delete all but the newest two.

    Rank 0 writes; if the targets are `sharded`, each process writes its own rows.
    """
    final = folder / f"{checkpoint.epoch:05d}-{checkpoint.step:07d}"
    draft = folder / f".draft-{final.name}"
    first = distributed.rank() == 0
    try:
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            for stale in folder.glob(".draft-*"):  # of a save that was killed
                shutil.rmtree(stale)
            draft.mkdir()
            model = {name: tensor.contiguous() for name, tensor in checkpoint.model.items()}
            save_file(model, draft / "model.safetensors")
            torch.save(checkpoint.state, draft / "state.pt")
        distributed.barrier()
        if checkpoint.targets is not None and (sharded or first):
            name = f"targets-{distributed.rank():05d}-of-{distributed.world_size():05d}" if sharded else "targets"
            save_file(checkpoint.targets, draft / f"{name}.safetensors")
        distributed.barrier()
        if first:
            _finish(draft, final)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch raises the last on a full disk
        shutil.rmtree(draft, ignore_errors=True)
        raise UserError(
            f"cannot write checkpoint {final}: {error}; free some space or fix the folder, then resume from "
            "the previous checkpoint with --resume"
        ) from error
    distributed.barrier()


def _finish(draft: Path, final: Path) -> None:
    sums = {path.name: _sha256(path) for path in sorted(draft.iterdir())}
    (draft / "manifest.json").write_text(json.dumps({"format": FORMAT, "sha256": sums}, indent=2))
    for path in draft.iterdir():
        fsync_path(path)
    fsync_path(draft)
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)
    fsync_path(final.parent)
    for old in _newest_first(final.parent)[_NUM_KEPT:]:
        shutil.rmtree(old)


def load_newest(folder: Path, device: torch.device | str = "cpu") -> Checkpoint | None:
    """Load the newest intact checkpoint; None if there are no checkpoints.

    Raises:
        UserError: If all checkpoints are damaged, or one was written by another version.
    """
    checkpoints = _newest_first(folder)
    for path in checkpoints:
        fault = _fault(path)
        if fault is None:
            try:
                return _load(path, device)
            except MemoryError:
                raise
            except Exception as error:  # the readers raise many types of errors on wrong content
                fault = next(iter(str(error).splitlines()), type(error).__name__)
        warnings.warn(f"checkpoint {path} is damaged ({fault}); trying the previous one", stacklevel=2)
    if checkpoints:
        raise UserError(f"all checkpoints in {folder} are damaged; restart the run in another folder")
    return None


def _load(path: Path, device: torch.device | str) -> Checkpoint:
    epoch, step = path.name.split("-")
    state = torch.load(path / "state.pt", weights_only=True, map_location="cpu")
    check(state, dict[str, Any])
    return Checkpoint(
        epoch=int(epoch),
        step=int(step),
        model=load_file(path / "model.safetensors", device=str(device)),
        targets=_targets(path),
        state=state,
    )


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


def _fault(path: Path) -> str | None:
    """Describe what is wrong with a checkpoint; None if it is intact."""
    try:
        manifest = parse(read_regular(path / "manifest.json"))
        if manifest.get("format", 1) != FORMAT:
            raise UserError(
                f"{path} was written by another version of selfadapt (format {manifest.get('format', 1)}, this one "
                f"reads {FORMAT}); restart in another folder, or use that version"
            )
        check(manifest["sha256"], dict[str, str])
        files = {own.name for own in path.iterdir()} - {"manifest.json"}
        if set(manifest["sha256"]) != files:
            return f"its manifest does not list its files, {', '.join(sorted(files))}"
        for name, expected in manifest["sha256"].items():
            if _sha256(path / name) != expected:
                return f"checksum of {name} does not match"
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        return str(error)
    return None


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
