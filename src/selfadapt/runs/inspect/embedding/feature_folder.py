"""Write the features of a pretrained network as shards, each by one process.

    features/manifest.json, features/00000.npz, …   the training split
    features/val/…, features/test/…                 the other splits, if there are any

Finished shards are kept, so the same command resumes. Until the last one is written, the manifest says so.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.core.errors import Interrupted, UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.data.dataset import Samples
from selfadapt.data.shards.manifest import Manifest, ShardEntry, read_manifest, write_shard
from selfadapt.data.sources.shard_folder import OTHER_SPLITS
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import Pretrained


@dataclass(frozen=True)
class FolderWriter:
    """Computes features shard by shard."""

    network: Pretrained
    device: torch.device
    classes: Sequence[str]
    shard_size: int

    def write(self, folder: Path, samples: Samples, on_progress: ProgressCallback) -> tuple[Manifest, int]:
        """Write what is missing in the folder of a split.

        A collective call: processes take turns with the shards.

        Returns:
            The manifest, and the number of images whose features were computed.

        Raises:
            UserError: If the folder holds something else, or cannot be written.
            Interrupted: On Ctrl-C. Finished shards are kept.
        """
        manifest = self._started(folder, samples)
        shards = torch.arange(len(samples)).split(self.shard_size)
        entries = {int(Path(entry.file).stem): entry for entry in manifest.shards}
        missing = [number for number in range(len(shards)) if number not in entries]
        unreadable, processes = dict(manifest.source["unreadable"]), distributed.world_size()
        before = done = len(samples) - sum(len(shards[number]) for number in missing)
        try:
            for start in range(0, len(missing), processes):
                turn = missing[start : start + processes]
                count = _Count(on_progress, done, len(samples), len(turn))
                own = turn[distributed.rank() : distributed.rank() + 1]
                written = [self._write_shard(folder, number, samples, shards[number], count) for number in own]
                for others in distributed.all_gather_objects(written):
                    for entry, broken in others:
                        unreadable |= broken
                        if entry is not None:
                            entries[int(Path(entry.file).stem)] = entry
                done += sum(len(shards[number]) for number in turn)
                manifest = replace(
                    manifest,
                    shards=tuple(entries[number] for number in sorted(entries)),
                    source={**manifest.source, "unreadable": list(unreadable.items())},
                )
                manifest.write(folder)
        except Interrupted as interruption:
            raise Interrupted(f"{interruption}; finished shards are kept, and the same command resumes") from None
        manifest = replace(manifest, source={**manifest.source, "unfinished": False})
        manifest.write(folder)
        on_progress(done, len(samples))
        return manifest, done - before

    def _write_shard(
        self, folder: Path, number: int, samples: Samples, index_n: Tensor, on_progress: ProgressCallback
    ) -> tuple[ShardEntry | None, dict[str, str]]:
        """Write a shard, unless none of its images can be read; return its entry, and the reasons by id."""
        with distributed.alone():
            found = features_of(
                samples.inputs.take(index_n), self.network, device=self.device, keep=False, on_progress=on_progress
            )
        broken = dict(found.broken)
        places = index_n.tolist()
        readable = [i for i in range(len(places)) if i not in broken]
        entry = None
        if readable:
            entry = write_shard(
                folder,
                number,
                found.values_NF[readable].numpy(),
                ids=np.array([samples.ids[places[i]] for i in readable]),
                labels=np.array([self.classes[int(samples.labels[places[i]])] for i in readable]),
            )
        return entry, {samples.ids[places[i]]: reason for i, reason in broken.items()}

    def _started(self, folder: Path, samples: Samples) -> Manifest:
        """The manifest of an interrupted call without its damaged shards, or that of a new folder."""
        labelled = repr((list(samples.ids), samples.labels.tolist(), list(self.classes))).encode()
        images = hashlib.sha256(samples.inputs.signature() + labelled).hexdigest()
        source: dict[str, Any] = {**self.network.about(), "images": images, "shard_size": self.shard_size}
        found = read_manifest(folder)
        if found is None:
            if folder.exists() and not _is_free(folder):
                raise UserError(f"{folder} is not empty, or not a folder; give another --out")
            folder.mkdir(parents=True, exist_ok=True)
            distributed.barrier()
            started = {**source, "unreadable": [], "unfinished": True}
            manifest = Manifest(self.network.backbone.num_features, "float32", (), started)
            manifest.write(folder)
            return manifest
        if any(found.source.get(name) != value for name, value in source.items()):
            raise UserError(
                f"{folder} holds features of other images, labels or another network, or shards of another size; give "
                "another --out"
            )
        own = found.shards[distributed.rank() :: distributed.world_size()]
        damaged = {
            name
            for names in distributed.all_gather_objects([entry.file for entry in own if not entry.is_intact(folder)])
            for name in names
        }
        if damaged:
            warnings.warn(
                f"{len(damaged)} shards of {folder} are damaged and are computed again, such as {min(damaged)}",
                stacklevel=2,
            )
        return replace(found, shards=tuple(entry for entry in found.shards if entry.file not in damaged))


@dataclass(frozen=True)
class _Count:
    """Progress over all samples from that of a shard, several of which are computed at once."""

    on_progress: ProgressCallback
    before: int
    total: int
    at_once: int

    def __call__(self, done: int, _: int) -> None:
        self.on_progress(min(self.before + done * self.at_once, self.total), self.total)


def _is_free(folder: Path) -> bool:
    """Whether the folder holds at most other splits."""
    return folder.is_dir() and all(own.name in OTHER_SPLITS or own.name.startswith(".") for own in folder.iterdir())
