"""Write the features of a pretrained network as a file or a folder of vectors, which `train` accepts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from selfadapt.core import distributed
from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.device import choose_device
from selfadapt.core.errors import UserError, check_least
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data
from selfadapt.data.sources.catalog import check_available, kind_of, open_data
from selfadapt.data.sources.shard_folder import SPLIT_NAMES, folder_of_split, has_shards
from selfadapt.data.tabular.table_file import TableColumns
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import Pretrained, pretrained, timm_name
from selfadapt.runs.inspect.embedding.feature_folder import FolderWriter


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The network, how it reads images, and the number of images of a shard."""

    model: str
    weights: str = "pretrained"
    image_size: int | None = None
    device: str = "auto"
    shard_size: int = 8192


def embed(source: str, out: Path, settings: Embedding, on_progress: ProgressCallback = no_progress) -> dict[str, Any]:
    """Write the features of all images: as an .npz with x_train, y_train and so on, or as a folder of shards.

    Returns:
        Path, number of samples and dimensions, images per second, and the files that cannot be read.
    """
    if out.suffix not in (".npz", ""):
        raise UserError(f"--out {out} must end with .npz for a file, or have no suffix for a folder of shards")
    check_least({"--shard-size": settings.shard_size})
    network, data = _opened(source, settings)
    start = monotonic()
    write = _write_file if out.suffix == ".npz" else _write_folder
    written = write(out, data, network, settings, on_progress)
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


def _opened(source: str, settings: Embedding) -> tuple[Pretrained, Data]:
    name = timm_name(settings.model)
    if name is None:
        raise UserError(f"--model {settings.model} comes without pretrained weights; name a timm model")
    check_available(source)
    if kind_of(source, TableColumns()) == "vectors":
        raise UserError(_no_images(source))
    network = pretrained(name, weights=settings.weights, size=settings.image_size)
    return network, open_data(source, resize=network.frame.size)


@dataclass(frozen=True)
class _Written:
    samples: int
    computed: int  # images whose features were not in the cache or in a finished shard
    broken: Sequence[tuple[str, str]]  # id, reason


def _write_file(
    out: Path, data: Data, network: Pretrained, settings: Embedding, on_progress: ProgressCallback
) -> _Written:
    device, computed = choose_device(settings.device), 0
    arrays: dict[str, Any] = {}
    broken: list[tuple[str, str]] = []
    for split, samples in data.splits.items():
        found = features_of(samples.inputs, network, device=device, on_progress=on_progress)
        unreadable = {position for position, _ in found.broken}
        broken += [(samples.ids[position], reason) for position, reason in found.broken]
        readable = [position for position in range(len(samples)) if position not in unreadable]
        arrays[f"x_{SPLIT_NAMES[split]}"] = found.values_NF[readable].numpy()
        arrays[f"y_{SPLIT_NAMES[split]}"] = np.array([data.classes[int(samples.labels[i])] for i in readable])
        arrays[f"id_{SPLIT_NAMES[split]}"] = np.array([samples.ids[i] for i in readable])
        computed += found.taken
    count = sum(len(array) for name, array in arrays.items() if name.startswith("x_"))
    if len(arrays["x_train"]) and distributed.rank() == 0:
        with atomic_path(out) as draft:
            np.savez(draft, **arrays)
    return _Written(count if len(arrays["x_train"]) else 0, computed, broken)


def _write_folder(
    out: Path, data: Data, network: Pretrained, settings: Embedding, on_progress: ProgressCallback
) -> _Written:
    writer = FolderWriter(network, choose_device(settings.device), data.classes, settings.shard_size)
    count = computed = 0
    broken: list[tuple[str, str]] = []
    for split, samples in reversed(data.splits.items()):  # the training split last, so that no other one is missing
        manifest, taken = writer.write(folder_of_split(out, split), samples, on_progress)
        broken += manifest.source["unreadable"]
        computed, count = computed + taken, count + sum(entry.samples for entry in manifest.shards)
    return _Written(count if manifest.shards else 0, computed, broken)


def _no_images(source: str) -> str:
    """The error for a source without images, which `train` reads directly."""
    if source.endswith(".npz") or has_shards(Path(source)):
        return f"{source} already has vectors, which need no embedding; train on them with: selfadapt train {source}"
    return (
        f"{source} is a table without a column `path`, so it lists no images and needs no embedding; train on its "
        f"numbers, categories or text with: selfadapt train {source} (--label-column and --text-column name columns)"
    )
