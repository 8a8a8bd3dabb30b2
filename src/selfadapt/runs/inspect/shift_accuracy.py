"""Accuracy of a run under shift: test images under 15 corruptions at 5 levels, generated or read from published files.

Each accuracy is cached in the run folder, keyed by everything that determines it, so a repeated command resumes or
returns at once.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import nn

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.typed_json import Share
from selfadapt.data.dataset import Samples
from selfadapt.data.imagenet_c.corruptions import KINDS, LEVELS, LevelsName, ShiftedImages, frost_textures, levels_for
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.inputs import Inputs
from selfadapt.data.sources.builtin import cifar10c
from selfadapt.evaluation.classification import accuracy, classify
from selfadapt.evaluation.corruption_accuracy import corruption_errors, corruption_table, mean_accuracy, mean_by_level
from selfadapt.evaluation.robustness import stratified_subset
from selfadapt.runs.inspect.image_view import ImageView, image_view, network_digest
from selfadapt.runs.inspect.inspection_settings import ShiftSettings
from selfadapt.runs.lifecycle.opened_run import OpenedRun, check_trained

_MOST_BYTES = 4 << 30
Corrupted = Callable[[str, int], Samples]  # kind, level -> corrupted test samples

GENERATED = "generated from the clean test images; not the published files, so not comparable with published results"


def shift_run(run: OpenedRun, settings: ShiftSettings, on_progress: ProgressCallback = no_progress) -> dict[str, Any]:
    """Measure the accuracy for each corruption and level, and write it to shift.json."""
    images, levels, seed = settings.images, settings.levels, settings.seed
    if levels is not None and levels not in get_args(LevelsName):
        raise UserError(f"--levels {levels!r} is not known; choose one of {', '.join(get_args(LevelsName))}")
    check_trained(run)
    own = image_view(run)
    test = own.test if images is None else own.test.take(stratified_subset(own.test.labels, images, seed))
    if settings.data is None:
        corrupted, about = _generated(test, cast(LevelsName, levels or levels_for(test.inputs.shape)), seed)
    else:
        if images is not None or levels is not None:
            raise UserError("--images and --levels are for generated images; published arrays are used as they are")
        corrupted, about = _published(run, test, Path(settings.data))
    about |= {"network": network_digest(own.model), "images": len(test)}
    accuracy_of = _cached_accuracy(run, own, about)
    clean = accuracy_of("clean", lambda: test)
    by_kind = corruption_table(
        lambda kind, level: accuracy_of(f"{kind} {level}", lambda: corrupted(kind, level)), on_progress=on_progress
    )
    result = {
        "clean_accuracy": clean,
        "levels": {str(level): value for level, value in mean_by_level(by_kind).items()},
        "mean": mean_accuracy(by_kind),
        "by_kind": {kind: {str(level): value for level, value in row.items()} for kind, row in by_kind.items()},
        "notes": about["notes"],
        "about": about,
    }
    run.folder.write_json(run.folder.shift_file, result)
    return result


def against(run: OpenedRun, found: Mapping[str, Any], other: OpenedRun, others: Mapping[str, Any]) -> dict[str, Any]:
    """Add the mean corruption error relative to another run, and write it to shift.json."""
    if found["about"]["data"] != others["about"]["data"]:
        raise UserError(
            f"{run.folder.path} and {other.folder.path} were not evaluated on the same images; give runs with the "
            "same test split"
        )
    errors = corruption_errors(found["by_kind"], others["by_kind"])
    result = {
        **found,
        "against": str(other.folder.path),
        "corruption_errors": errors,
        "mean_corruption_error": sum(errors.values()) / len(errors),
        "other": {key: others[key] for key in ("clean_accuracy", "levels", "mean")},
    }
    run.folder.write_json(run.folder.shift_file, result)
    return result


def _cached_accuracy(
    run: OpenedRun, own: ImageView, about: Mapping[str, Any]
) -> Callable[[str, Callable[[], Samples]], float]:
    """A function that returns the accuracy on samples by name, and caches it in the run folder."""
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
    found: dict[str, float] = run.folder.read_json(run.folder.shifts / f"{key}.json", dict[str, Share]) or {}
    known = distributed.from_first(found)  # the file may be older for another one

    def accuracy_of(name: str, samples: Callable[[], Samples]) -> float:
        if name not in known:
            known[name] = _accuracy(run, own.model, samples())
            run.folder.write_json(run.folder.shifts / f"{key}.json", known, indent=None)
        return known[name]

    return accuracy_of


def _accuracy(run: OpenedRun, model: nn.Module, samples: Samples) -> float:
    predicted_N = classify(model, samples.inputs, run.data.num_classes, run.device)
    found = accuracy(predicted_N, samples.labels)
    if found is None:
        raise UserError(f"no test image of {run.folder.path} can be read; check that the data still exist")
    return found


def _generated(test: Samples, levels: LevelsName, seed: int) -> tuple[Corrupted, dict[str, Any]]:
    frost, clean = frost_textures(), _decoded(test)

    def corrupted(kind: str, level: int) -> Samples:
        inputs = ShiftedImages(
            images=clean.inputs, corruption=kind, level=level, levels=levels, seed=seed,
            frost=frost if kind == "frost" else None,
        )  # fmt: skip
        return _with_inputs(clean, inputs)

    data = hashlib.sha256(test.inputs.signature() + repr((levels, seed, frost.origin, test.labels.tolist())).encode())
    notes = [GENERATED, f"frost: {frost.origin}", f"levels of {'CIFAR-10-C' if levels == 'cifar' else 'ImageNet-C'}"]
    return corrupted, {"notes": notes, "data": data.hexdigest()}


def _decoded(samples: Samples) -> Samples:
    """The samples with decoded images in memory, shared by all corruptions; unreadable files are skipped."""
    if isinstance(samples.inputs, TensorImages):
        return samples
    size = len(samples) * int(torch.tensor(samples.inputs.shape).prod())
    if size > _MOST_BYTES:
        raise UserError(f"{len(samples)} test images take {size >> 30} GB; try fewer with --images")
    own_n = torch.arange(len(samples)).tensor_split(distributed.world_size())[distributed.rank()]
    readable = [read for read in read_batches(samples.inputs, own_n.split(256)) if len(read.index_B)]
    none = torch.zeros(0, *samples.inputs.shape, dtype=torch.uint8)
    index_n = distributed.all_gather_rows(torch.cat([torch.arange(0), *(read.index_B for read in readable)]))
    images_nCHW = distributed.all_gather_rows(torch.cat([none, *(read.images_BCHW for read in readable)]))
    if not len(index_n):
        raise UserError(f"no test image can be read, such as {samples.ids[0]}; are the data still there?")
    return _with_inputs(samples.take(index_n), TensorImages(images_nCHW.contiguous()))


def _with_inputs(samples: Samples, inputs: Inputs) -> Samples:
    return Samples(inputs=inputs, labels=samples.labels, truth=None, ids=samples.ids)


def _published(run: OpenedRun, test: Samples, folder: Path) -> tuple[Corrupted, dict[str, Any]]:
    """The arrays of CIFAR-10-C, which must correspond to the test images of the run."""
    first = cifar10c(folder, KINDS[0], LEVELS[0])
    if first.inputs.shape != test.inputs.shape:
        raise UserError(f"{folder} has images of {first.inputs.shape}, but the run takes {test.inputs.shape}")
    if not torch.equal(first.labels[: len(test)], test.labels):
        raise UserError(
            f"the labels in {folder} are not those of the test split of {run.folder.path}; give arrays of the same data"
        )
    files = [(kind, (folder / f"{kind}.npy").stat().st_size) for kind in KINDS if (folder / f"{kind}.npy").exists()]
    data = hashlib.sha256(json.dumps([str(folder.resolve()), files]).encode()).hexdigest()
    about = {"notes": [f"the published arrays in {folder}"], "data": data}
    return lambda kind, level: cifar10c(folder, kind, level).first(len(test)), about
