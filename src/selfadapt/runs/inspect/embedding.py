"""Features of a pretrained network for images, written as a file or as shards, which `train` accepts.

    features.npz                                    x_train, y_train, id_train, and so on for the other splits

    features/manifest.json, features/00000.npz, …   the training split, each shard by one process
    features/val/…, features/test/…                 the other splits, if there are any

Finished shards are kept, so the same command resumes. Until the last one is written, the manifest says so.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.core.array_files import Array
from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.device import choose_device
from selfadapt.core.errors import Interrupted, UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.shards.manifest import Manifest, ShardEntry, read_manifest, write_shard
from selfadapt.data.sources.catalog import check_available, kind_of, open_data
from selfadapt.data.sources.shard_folder import OTHER_SPLITS, SPLIT_NAMES, folder_of_split, has_shards
from selfadapt.data.tabular.table_file import TableColumns
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import Pretrained, pretrained, timm_name
from selfadapt.runs.inspect.inspection_settings import EmbedSettings


def embed(
    source: str, out: Path, settings: EmbedSettings, device: str = "auto", on_progress: ProgressCallback = no_progress
) -> dict[str, Any]:
    """Write the features of all images: as an .npz with x_train, y_train and so on, or as a folder of shards.

    Returns:
        Path, number of samples and dimensions, images per second, and the files that cannot be read.
    """
    if out.suffix not in (".npz", ""):
        raise UserError(f"--out {out} must end with .npz for a file, or have no suffix for a folder of shards")
    network, data = _opened(source, settings)
    start = monotonic()
    encoder = _Encoder(network, choose_device(device), data.classes)
    if out.suffix == ".npz":
        written = _write_file(out, data, encoder, on_progress)
    else:
        written = _write_folder(out, data, FolderWriter(encoder, settings.shard_size), on_progress)
    broken, seconds = [*data.unreadable, *written.broken], monotonic() - start
    if not written.samples:
        raise UserError(f"{source}: no image can be read, such as {broken[0][0]}: {broken[0][1]}")
    return {
        "path": str(out),
        "samples": written.samples,
        "dimensions": network.backbone.num_features,
        "images_per_second": round(written.computed / seconds, 1) if written.computed else None,
        "unreadable": [{"id": sample_id, "reason": reason} for sample_id, reason in broken],
    }


def _opened(source: str, settings: EmbedSettings) -> tuple[Pretrained, Data]:
    name = timm_name(settings.model)
    if name is None:
        raise UserError(f"--model {settings.model} comes without pretrained weights; name a timm model")
    check_available(source)
    if kind_of(source, TableColumns()) == "vectors":
        raise UserError(_no_images(source))
    network = pretrained(name, weights=settings.weights, size=settings.image_size)
    return network, open_data(source, resize=network.frame.size)


@dataclass(frozen=True)
class _Encoded:
    """The images that can be read, and the reasons of the others by id."""

    features: Array
    labels: Array
    ids: Array
    broken: dict[str, str]
    computed: int  # images whose features were not in the cache


@dataclass(frozen=True)
class _Encoder:
    """The network, and the classes of the data by their names."""

    network: Pretrained
    device: torch.device
    classes: Sequence[str]

    def encode(self, samples: Samples, on_progress: ProgressCallback, *, keep: bool = True) -> _Encoded:
        found = features_of(samples.inputs, self.network, device=self.device, keep=keep, on_progress=on_progress)
        broken = dict(found.broken)
        readable = [i for i in range(len(samples)) if i not in broken]
        return _Encoded(
            features=found.values_NF[readable].numpy(),
            labels=np.array([self.classes[int(samples.labels[i])] for i in readable]),
            ids=np.array([samples.ids[i] for i in readable]),
            broken={samples.ids[i]: reason for i, reason in broken.items()},
            computed=found.taken,
        )


@dataclass(frozen=True)
class _Written:
    samples: int
    computed: int  # images whose features were not in the cache or in a finished shard
    broken: Sequence[tuple[str, str]]  # id, reason


def _write_file(out: Path, data: Data, encoder: _Encoder, on_progress: ProgressCallback) -> _Written:
    found = {SPLIT_NAMES[split]: encoder.encode(own, on_progress) for split, own in data.splits.items()}
    splits = found.values()
    samples = sum(len(own.ids) for own in splits) if len(found["train"].ids) else 0
    if samples and distributed.rank() == 0:
        arrays: dict[str, Any] = {}
        for name, own in found.items():
            arrays |= {f"x_{name}": own.features, f"y_{name}": own.labels, f"id_{name}": own.ids}
        with atomic_path(out) as draft:
            np.savez(draft, **arrays)
    return _Written(
        samples, sum(own.computed for own in splits), [pair for own in splits for pair in own.broken.items()]
    )


@dataclass(frozen=True)
class FolderWriter:
    """Computes features shard by shard."""

    encoder: _Encoder
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
            found = self.encoder.encode(samples.take(index_n), on_progress, keep=False)
        entry = None
        if len(found.ids):
            entry = write_shard(folder, number, found.features, ids=found.ids, labels=found.labels)
        return entry, found.broken

    def _started(self, folder: Path, samples: Samples) -> Manifest:
        """The manifest of an interrupted call without its damaged shards, or that of a new folder."""
        labelled = repr((list(samples.ids), samples.labels.tolist(), list(self.encoder.classes))).encode()
        images = hashlib.sha256(samples.inputs.signature() + labelled).hexdigest()
        source: dict[str, Any] = {**self.encoder.network.about(), "images": images, "shard_size": self.shard_size}
        found = read_manifest(folder)
        if found is None:
            if folder.exists() and not _is_free(folder):
                raise UserError(f"{folder} is not empty, or not a folder; give another --out")
            folder.mkdir(parents=True, exist_ok=True)
            distributed.barrier()
            started = {**source, "unreadable": [], "unfinished": True}
            manifest = Manifest(self.encoder.network.backbone.num_features, "float32", (), started)
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


def _write_folder(out: Path, data: Data, writer: FolderWriter, on_progress: ProgressCallback) -> _Written:
    count = computed = 0
    broken: list[tuple[str, str]] = []
    for split, samples in reversed(data.splits.items()):  # the training split last, so that no other one is missing
        manifest, taken = writer.write(folder_of_split(out, split), samples, on_progress)
        broken += manifest.source["unreadable"]
        computed, count = computed + taken, count + sum(entry.samples for entry in manifest.shards)
    return _Written(count if manifest.shards else 0, computed, broken)


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


def _no_images(source: str) -> str:
    """The error for a source without images, which `train` reads directly."""
    if source.endswith(".npz") or has_shards(Path(source)):
        return f"{source} already has vectors, which need no embedding; train on them with: selfadapt train {source}"
    return (
        f"{source} is a table without a column `path`, so it lists no images and needs no embedding; train on its "
        f"numbers, categories or text with: selfadapt train {source} (--label-column and --text-column name columns)"
    )
