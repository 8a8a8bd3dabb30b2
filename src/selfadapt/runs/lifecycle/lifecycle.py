"""What a run goes through, with labels or without: it is begun, gone on with and brought to its end, in its folder."""

import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import draw
from selfadapt.data.dataset import Data
from selfadapt.data.images.augment import named_augment, smallest_area
from selfadapt.data.images.storage import ImageFiles
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.data.labels.noise import Noise, actual_rate
from selfadapt.data.loader import SampleLoader
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training
from selfadapt.models.batch_norm.sync_batch_norm import sync_batch_norms
from selfadapt.models.registry import FIXED_SIZE
from selfadapt.objectives.objective import Objective
from selfadapt.report.page import write_run_page
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.run_settings import Kind, RunSettings, normal_form, option_of
from selfadapt.runs.config.sections import parse_progressive
from selfadapt.runs.export.network_files import write_tensors
from selfadapt.runs.lifecycle.environment import choose_device, described, device_name, repeatable, take_environment
from selfadapt.runs.lifecycle.network import begin_with, build_model, check_images, load_pretrained
from selfadapt.runs.lifecycle.prepare_data import duplicate_rows, prepared, recall, sample_rows
from selfadapt.runs.lifecycle.threads import take_useful_threads
from selfadapt.targets.store import Storage

TrainingCallback = Callable[[Training], None]  # called after each step, to show progress


@dataclass(frozen=True)
class Run:
    """A run folder with its settings, its data as training sees them, and the model in training."""

    folder: RunFolder
    settings: RunSettings
    data: Data
    training: Training


def start(settings: RunSettings, folder: RunFolder, on_progress: ProgressCallback = no_progress) -> Run:
    """A new run: draw the noise, write down everything that decides the outcome, build the model."""
    with folder.locked():
        folder.check_free()
        data = prepared(settings, on_progress)
        settings = settings.resolved(data)
        take_useful_threads(settings, data.train.inputs.shape, choose_device(settings.device))
        training = build_training(settings, data, settings.method, _storage(settings, folder))
        _begin(folder, settings, data, training)
    return Run(folder, settings, data, training)


def reopen(
    folder: RunFolder,
    kind: Kind = "labels",
    given: Mapping[str, Any] | None = None,
    on_progress: ProgressCallback = no_progress,
    *,
    device: str = "auto",
    to_train: bool = True,
) -> Run:
    """A run as its newest checkpoint has it.

    `given` are settings that the user repeats; one that differs from the run's own is an error. With `to_train` off,
    the run is only looked at, on any `device`: its files stay as they are, and targets are read into memory.
    """
    settings = settings_of(folder, kind, given or {})
    if not to_train:
        settings = replace(settings, device=device_name(device))
    data = recall(settings, folder, on_progress)
    settings = settings.resolved(data)
    take_environment(folder.read_run(), to_train=to_train)
    if not to_train:
        take_useful_threads(settings, data.train.inputs.shape, choose_device(settings.device))
    storage = _storage(settings, folder if to_train else None)
    training = build_training(settings, data, settings.method, storage, goes_on=folder.has_checkpoint)
    restore(training, folder.checkpoints)
    return Run(folder, settings, data, training)


def settings_of(folder: RunFolder, kind: Kind, given: Mapping[str, Any]) -> RunSettings:
    """The settings of a run, which must be as given; the device alone may be another one."""
    settings, given = RunSettings.from_json(folder.read_run()["settings"], kind), normal_form(given)
    device = device_name(given.pop("device")) if "device" in given else settings.device
    if device != settings.device:
        warnings.warn(f"the run was begun on {settings.device}, so bits may differ on {device}", stacklevel=2)
        settings = replace(settings, device=device)
    word = settings.differs(given)
    if word is not None:
        raise UserError(
            f"{folder.path} was started with {option_of(word)} {settings.flat()[word]}, not {given[word]}; "
            "resume it with its own settings or start a new run in another --out"
        )
    return settings


def build_training(
    settings: RunSettings, data: Data, objective: Objective, storage: Storage, *, goes_on: bool = False
) -> Training:
    """A training by this objective, with its first targets. One that goes on gets its weights from a checkpoint."""
    device = choose_device(settings.device)
    repeatable(device)
    torch.manual_seed(settings.seed)
    inputs = data.train.inputs
    statistics = channel_statistics(inputs)
    begins_with = None if goes_on else inputs
    check_images(settings, inputs.shape)
    model = build_model(settings, objective, inputs.shape, statistics, data.num_classes, begins_with=begins_with)
    if settings.model.pretrained is not None and not goes_on:
        begin_with(RunFolder(Path(settings.model.pretrained)), model)
    if settings.fit.sync_bn and distributed.world_size() > 1:
        sync_batch_norms(model)
    loader = _loader(settings, data, device)
    targets = objective.initial_targets(data.train.labels, data.num_classes, storage)
    if distributed.rank():  # else all would draw the same dropout masks; the first draws as one alone does
        torch.manual_seed(draw(settings.seed, "process", distributed.rank()))
    fit = settings.fit_settings()
    return Training(objective, model, targets, loader, fit, num_classes=data.num_classes, device=device)


def _loader(settings: RunSettings, data: Data, device: torch.device) -> SampleLoader:
    augment, batch_size, micro_batches = settings.data.augment, settings.fit.batch_size, settings.fit.micro_batches
    assert augment is not None
    assert batch_size is not None
    vectors, fixed = data.train.inputs.kind == "vectors", settings.model.name in FIXED_SIZE
    cropped = settings.data.crops == "original"
    if cropped and data.train.corrupted is not None:
        raise UserError("--crops original cannot be combined with --noise in the pixels; leave one out")
    if cropped and not isinstance(data.train.inputs, ImageFiles):
        raise UserError(f"--crops original needs image files, and {data.name} has none; leave it out")
    loader = SampleLoader(
        data.train,
        batch_size=batch_size,
        seed=settings.seed,
        device=device,
        augment=None
        if vectors
        else named_augment(augment, data.train.inputs.shape[1], keep_size=fixed, cropped=cropped),
        part=(distributed.rank(), distributed.world_size()),
        views=settings.views,
        size_in=_size_in(settings),
        crop_area=smallest_area(augment) if cropped else None,
    )
    if loader.num_samples // loader.steps_per_epoch // micro_batches // distributed.world_size() < 2:
        shared = f", {distributed.world_size()} processes" if distributed.world_size() > 1 else ""
        cut = f" and {micro_batches} micro-batches" if micro_batches > 1 else ""
        raise UserError(
            f"{loader.num_samples} samples in batches of {batch_size}{shared}{cut} leave less than two to a "
            "forward pass, too few for batch normalisation; use larger batches, fewer micro-batches or more samples"
        )
    return loader


def _size_in(settings: RunSettings) -> Callable[[int], int | None]:
    """The size that images of an epoch are brought to, if any."""
    steps = parse_progressive(settings.data.progressive)
    return lambda epoch: next((size for size, share in steps if epoch < share * settings.epochs), None)


def _storage(settings: RunSettings, folder: RunFolder | None) -> Storage:
    """Where targets are kept; without a folder, in memory."""
    file = None if folder is None else folder.targets_file
    return Storage.parse(settings.fit.targets, device=choose_device(settings.device), file=file)


def _begin(folder: RunFolder, settings: RunSettings, data: Data, training: Training) -> None:
    """Write down everything that decides the outcome, before the first step."""
    if settings.on_features and distributed.rank() == 0:
        network = load_pretrained(settings.model, settings.data.image_size)
        write_tensors(folder.backbone_file, network.weights())
    folder.write_samples(sample_rows(data))
    if data.duplicates:
        folder.write_duplicates(duplicate_rows(data))
    if settings.data.corrected is not None and distributed.rank() == 0:
        shutil.copyfile(settings.data.corrected, folder.trained_on_file)
    folder.forget_unreadable()  # of a start that was broken off
    list_unreadable(folder, data)
    distributed.barrier()
    content = {
        "settings": settings.to_json(),
        "method": ", ".join(filter(None, (settings.method.description, settings.method.summary()))),
        "seed": settings.seed,
        "start_epoch": settings.method.started((), settings.epochs),
        "noise": _noise(settings, data),
        "device": settings.device,
        **described(data),
        "parameters": sum(parameter.numel() for parameter in training.model.parameters() if parameter.requires_grad),
    }
    content["data"]["samples_sha256"] = folder.samples_sha256()
    folder.write_run(content)
    distributed.barrier()


def _noise(settings: RunSettings, data: Data) -> dict[str, Any] | None:
    if settings.data.noise is None and settings.data.labels is None:
        return None
    parsed = None if settings.data.noise is None else Noise.parse(settings.data.noise)
    return {
        "kind": "labels file" if parsed is None else parsed.kind,
        "nominal": None if parsed is None or parsed.file is not None else parsed.rate,
        "actual": actual_rate(data.train),
    }


def restore(training: Training, checkpoints: Path) -> None:
    """Put the training where the newest checkpoint has it."""
    saved = checkpoint.load_newest(checkpoints, training.device)
    if saved is not None:
        training.restore(saved)


def check_trained(run: Run) -> None:
    """Raise a UserError unless the run was trained to its end."""
    if run.training.epoch < run.settings.epochs:
        raise UserError(
            f"{run.folder.path} is not trained to its end: {run.training.epoch} of {run.settings.epochs} epochs "
            f"are done; go on with: selfadapt train --resume --out {run.folder.path}"
        )


def whole_metrics(folder: RunFolder, epochs: int) -> list[dict[str, Any]]:
    """The metrics of all epochs."""
    metrics = folder.read_metrics()
    if len(metrics) != epochs:
        raise UserError(f"{folder.metrics_file} holds {len(metrics)} of {epochs} epochs; was it changed?")
    return metrics


def list_unreadable(folder: RunFolder, data: Data) -> int:
    """List in the folder every file that any process could not read, and return how many they are.

    All processes call it together, and afterwards all know of the same files. What was listed before stays listed, so
    a resumed run forgets none.
    """
    found: dict[str, str] = {}
    for broken in distributed.all_gather_objects(data.broken):
        found |= cast(dict[str, str], broken)
    listed = folder.read_unreadable()
    every = {**dict(data.unreadable), **listed, **found}
    if every != listed:
        folder.write_unreadable(every.items())
    distributed.barrier()
    data.note_broken(found)
    return len(every)


def conclude(folder: RunFolder, result: Mapping[str, Any]) -> None:
    distributed.barrier()
    folder.write_run({**folder.read_run(), "result": result})
    if distributed.rank() == 0:
        write_run_page(folder)
    distributed.barrier()
