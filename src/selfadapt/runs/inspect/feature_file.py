"""Write the features of a pretrained network as a file of vectors, which `train` accepts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from selfadapt.core import distributed
from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.sources.catalog import check_available, kind_of, open_data
from selfadapt.data.tabular.table_file import TableColumns
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import pretrained, timm_name
from selfadapt.runs.lifecycle.environment import choose_device

_SUFFIXES = {"train": "train", "validation": "val", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The network, and how it reads images."""

    model: str
    weights: str = "pretrained"
    image_size: int | None = None
    device: str = "auto"


def embed(source: str, out: Path, settings: Embedding, on_progress: ProgressCallback = no_progress) -> dict[str, Any]:
    """Write the features of all images as an .npz with x_train, y_train and so on.

    Returns:
        Path, number of samples and dimensions, images per second, and the files that cannot be read.
    """
    name = timm_name(settings.model)
    if name is None:
        raise UserError(f"--model {settings.model} comes without pretrained weights; name a timm model")
    if out.suffix != ".npz":
        raise UserError(f"--out {out} must end with .npz")
    check_available(source)
    if kind_of(source, TableColumns()) == "vectors":
        raise UserError(_no_images(source))
    network = pretrained(name, weights=settings.weights, size=settings.image_size)
    data = open_data(source, resize=network.frame.size)
    device, start, computed = choose_device(settings.device), monotonic(), 0
    arrays: dict[str, Any] = {}
    broken: list[tuple[str, str]] = list(data.unreadable)
    for split, samples in data.splits.items():
        found = features_of(samples.inputs, network, device=device, on_progress=on_progress)
        unreadable = {position for position, _ in found.broken}
        broken += [(samples.ids[position], reason) for position, reason in found.broken]
        readable = [position for position in range(len(samples)) if position not in unreadable]
        arrays[f"x_{_SUFFIXES[split]}"] = found.values_NF[readable].numpy()
        arrays[f"y_{_SUFFIXES[split]}"] = np.array([data.classes[int(samples.labels[i])] for i in readable])
        arrays[f"id_{_SUFFIXES[split]}"] = np.array([samples.ids[i] for i in readable])
        computed += found.taken
    if not len(arrays["x_train"]):
        raise UserError(f"{source}: no image can be read, such as {broken[0][0]}: {broken[0][1]}")
    seconds = monotonic() - start
    if distributed.rank() == 0:
        _write(out, arrays)
    return {
        "path": str(out),
        "samples": sum(len(array) for name, array in arrays.items() if name.startswith("x_")),
        "dimensions": arrays["x_train"].shape[1],
        "images_per_second": round(computed / seconds, 1) if computed else None,
        "unreadable": [{"id": sample_id, "reason": reason} for sample_id, reason in broken],
    }


def _write(out: Path, arrays: Mapping[str, Any]) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(out) as draft:
            np.savez(draft, **arrays)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from error


def _no_images(source: str) -> str:
    """The error for a source without images, which `train` reads directly."""
    if source.endswith(".npz"):
        return f"{source} already has vectors, which need no embedding; train on them with: selfadapt train {source}"
    return (
        f"{source} is a table without a column `path`, so it lists no images and needs no embedding; train on its "
        f"numbers, categories or text with: selfadapt train {source} (--label-column and --text-column name columns)"
    )
