"""What a run of any kind goes through: it is begun, gone on with and brought to its end, in its folder."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch

from selfadapt import processes
from selfadapt.data.augment import named_augment
from selfadapt.data.loader import SampleLoader
from selfadapt.data.samples import Data
from selfadapt.data.seeds import draw
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training, fit
from selfadapt.errors import UserError
from selfadapt.models.named import FIXED_SIZE
from selfadapt.objectives.objective import Figures, Objective
from selfadapt.recipes.prepare import sample_rows
from selfadapt.recipes.settings import Settings, choose_device, device_name, normal_form, option
from selfadapt.recipes.surroundings import described
from selfadapt.report.page import write_run_page
from selfadapt.report.results import RunFolder
from selfadapt.targets.store import Storage

StepWatch = Callable[[Training], None]  # called after each step, to show progress
Kind = TypeVar("Kind", bound=Settings)


def assemble(
    settings: Settings,
    data: Data,
    objective: Objective,
    model: torch.nn.Module,
    storage: Storage,
    *,
    views: int = 1,
    pieces: int = 1,
) -> Training:
    """The training, with its first targets."""
    device = choose_device(settings.device)
    assert settings.augment is not None
    assert settings.batch_size is not None
    loader = SampleLoader(
        data.train,
        batch_size=settings.batch_size,
        seed=settings.seed,
        device=device,
        augment=named_augment(settings.augment, data.train.images.shape[1], keep_size=settings.model in FIXED_SIZE),
        part=(processes.rank(), processes.count()),
        views=views,
    )
    if loader.num_samples // loader.steps_per_epoch // pieces // processes.count() < 2:
        shared = f", {processes.count()} processes" if processes.count() > 1 else ""
        cut = f" and {pieces} pieces" if pieces > 1 else ""
        raise UserError(
            f"{loader.num_samples} samples in batches of {settings.batch_size}{shared}{cut} leave less than two to a "
            "forward pass, too few for batch normalisation; use larger batches, fewer pieces or more samples"
        )
    targets = objective.initial_targets(data.train.labels, data.num_classes, storage)
    if processes.rank():  # else all would draw the same dropout masks; the first draws as one alone does
        torch.manual_seed(draw(settings.seed, "process", processes.rank()))
    return Training(objective, model, targets, loader, settings.fit(), num_classes=data.num_classes, device=device)


def begin(folder: RunFolder, data: Data, training: Training, description: Mapping[str, Any]) -> None:
    """Write down everything that decides the outcome, before the first step."""
    folder.write_samples(sample_rows(data))
    folder.forget_unreadable()  # of a start that was broken off
    list_unreadable(folder, data)
    processes.wait_for_all()
    content = {
        **description,
        **described(data),
        "parameters": sum(parameter.numel() for parameter in training.model.parameters() if parameter.requires_grad),
    }
    content["data"]["samples_sha256"] = folder.samples_sha256()
    folder.write_run(content)
    processes.wait_for_all()


def settings_of(folder: RunFolder, kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """The settings of a run, which must be as given; the device alone may be another one."""
    settings, given = kind.from_json(folder.read_run()["settings"]), normal_form(given)
    device = device_name(given.pop("device")) if "device" in given else settings.device
    if device != settings.device:
        warnings.warn(f"the run was begun on {settings.device}, so bits may differ on {device}", stacklevel=2)
        settings = replace(settings, device=device)
    name = settings.differs(given)
    if name is not None:
        raise UserError(
            f"{folder.path} was started with {option(name)} {getattr(settings, name)}, not {given[name]}; "
            "resume it with its own settings or start a new run in another --out"
        )
    return settings


def restore(training: Training, folder: RunFolder) -> None:
    """Put the training where the newest checkpoint of the folder has it."""
    saved = checkpoint.load_newest(folder.checkpoints, training.device)
    if saved is not None:
        training.restore(saved)


def carry_out(
    training: Training,
    folder: RunFolder,
    data: Data,
    measure: Callable[[], Figures],
    watch: StepWatch,
    noted: Callable[[Sequence[Figures]], None] = lambda history: None,
) -> None:
    """Train to the end. The figures of each epoch go into the metrics and then, with those before, to `noted`."""
    folder.forget_metrics_after(training.epoch)
    clock = time.monotonic()

    def record(training: Training) -> Figures:
        nonlocal clock
        figures = measure()
        now = time.monotonic()
        seconds, clock = now - clock, now
        folder.append_metrics({**figures, "seconds": round(seconds, 3)})
        noted([*training.history, figures])
        return figures

    def listed(training: Training) -> None:
        list_unreadable(folder, data)

    fit(training, folder.checkpoints, after_epoch=record, after_step=watch, before_save=listed)
    processes.wait_for_all()


def whole_metrics(folder: RunFolder, epochs: int) -> list[dict[str, Any]]:
    """The figures of all epochs."""
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
    for broken in processes.objects_of_all(data.broken):
        found |= cast(dict[str, str], broken)
    listed = folder.read_unreadable()
    every = {**dict(data.unreadable), **listed, **found}
    if every != listed:
        folder.write_unreadable(every.items())
    processes.wait_for_all()
    data.note_broken(found)
    return len(every)


def conclude(folder: RunFolder, result: Mapping[str, Any]) -> None:
    processes.wait_for_all()
    folder.write_run({**folder.read_run(), "result": result})
    if processes.rank() == 0:
        write_run_page(folder)
    processes.wait_for_all()
