"""Checkpoints: everything a run needs to go on to the same bits, written whole or not at all.

    checkpoint/00012-0000000/        12 finished epochs, 0 steps into the next
        model.safetensors            the weights, for anyone
        targets.safetensors          the target store, if the method has one; targets-R-of-P where processes share it
        state.pt                     optimiser, random numbers, position, running metrics; plain tensors and numbers
        manifest.json                the format's number, and the SHA-256 of each file above

A checkpoint is written under another name, flushed to the disk and then renamed. The newest two are kept. One
that fails its checksums is passed over for the one before it, with a warning. Nothing in it can run code.
"""

import hashlib
import json
import os
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
from selfadapt.core.errors import UserError

FORMAT = 2  # 1 had no number
_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is saved and loaded."""

    epoch: int
    step: int
    model: dict[str, Tensor]
    targets: dict[str, Tensor] | None
    state: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint, *, sharded: bool = False) -> None:
    """Write the checkpoint below `folder` and drop all but the newest two.

    Of several processes the first writes; where each keeps a part of the targets (`sharded`), each writes its own.
    """
    final = folder / f"{checkpoint.epoch:05d}-{checkpoint.step:07d}"
    draft = folder / f".draft-{final.name}"
    first = distributed.rank() == 0
    try:
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(".draft-*"):  # by a save that was killed
                shutil.rmtree(left)
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
    except (OSError, SafetensorError, RuntimeError) as error:  # the last is what torch makes of a full disk
        shutil.rmtree(draft, ignore_errors=True)
        raise UserError(
            f"the checkpoint {final} cannot be written: {error}; free some space or mend the folder, and go on with "
            "--resume from the one before it"
        ) from error
    distributed.barrier()


def _finish(draft: Path, final: Path) -> None:
    sums = {path.name: _sha256(path) for path in sorted(draft.iterdir())}
    (draft / "manifest.json").write_text(json.dumps({"format": FORMAT, "sha256": sums}, indent=2))
    for path in draft.iterdir():
        _flush(path)
    _flush(draft)
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)
    _flush(final.parent)
    for old in _newest_first(final.parent)[_KEPT:]:
        shutil.rmtree(old)


def load_newest(folder: Path, device: torch.device | str = "cpu") -> Checkpoint | None:
    """The newest checkpoint that is whole, or None if there is none at all."""
    found = _newest_first(folder)
    for path in found:
        fault = _fault(path)
        if fault is None:
            return _load(path, device)
        warnings.warn(f"checkpoint {path} is damaged ({fault}); trying the one before it", stacklevel=2)
    if found:
        raise UserError(f"every checkpoint in {folder} is damaged; start the run anew in another folder")
    return None


def _load(path: Path, device: torch.device | str) -> Checkpoint:
    epoch, step = path.name.split("-")
    return Checkpoint(
        epoch=int(epoch),
        step=int(step),
        model=load_file(path / "model.safetensors", device=str(device)),
        targets=_targets(path),
        state=torch.load(path / "state.pt", weights_only=True, map_location="cpu"),
    )


def _targets(path: Path) -> dict[str, Tensor] | None:
    """The targets as this process keeps them: all, or its own share, also if they were saved in other shares."""
    if (path / "targets.safetensors").exists():
        return load_file(path / "targets.safetensors")
    shards = sorted(path.glob("targets-*-of-*.safetensors"))
    if not shards:
        return None
    own, parts = distributed.rank(), distributed.world_size()
    pieces: dict[str, list[Tensor]] = {}
    places = []
    for number, shard in enumerate(shards):
        content = load_file(shard)
        rows_n = torch.arange(number, number + len(shards) * len(content["rows"]), len(shards))
        mine = rows_n % parts == own
        places.append(rows_n[mine])
        for name, tensor in content.items():
            pieces.setdefault(name, []).append(tensor[mine] if tensor.ndim else tensor)
    order = torch.cat(places).argsort()
    return {name: torch.cat(found)[order] if found[0].ndim else found[0] for name, found in pieces.items()}


def _newest_first(folder: Path) -> list[Path]:
    named = [path for path in folder.glob("*-*") if re.fullmatch(r"[0-9]+-[0-9]+", path.name)]
    return sorted(named, key=lambda path: [int(number) for number in path.name.split("-")], reverse=True)


def _fault(path: Path) -> str | None:
    """What is wrong with the checkpoint's files, if anything is."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest.get("format", 1) != FORMAT:
            raise UserError(
                f"{path} was written by another version of selfadapt (format {manifest.get('format', 1)}, this one "
                f"reads {FORMAT}); train anew in another folder, or use that version"
            )
        for name, expected in manifest["sha256"].items():
            if _sha256(path / name) != expected:
                return f"{name} has another checksum than when it was written"
    except (OSError, ValueError, AttributeError, KeyError) as error:
        return str(error)
    return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
