"""Start, resume and finish runs in their folders, with labels or without."""

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from selfadapt.core import distributed
from selfadapt.core.device import choose_device, device_name
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data
from selfadapt.data.labels.noise import Noise, actual_rate
from selfadapt.report.page import write_run_page
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.facts import inspect_data, inspect_source
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.planning import plan as plan_run
from selfadapt.runs.config.planning import plan_reading
from selfadapt.runs.config.request import Kind, Request, option_of
from selfadapt.runs.lifecycle.environment import describe, take_threads, warn_of_versions
from selfadapt.runs.lifecycle.network import load_pretrained, new_model
from selfadapt.runs.lifecycle.prepare_data import duplicate_rows, prepare, recall, sample_rows
from selfadapt.runs.lifecycle.threads import set_useful_threads
from selfadapt.targets.store import TargetStore


@dataclass(frozen=True)
class Run:
    """A run that is about to be trained, from its first step or from a checkpoint."""

    folder: RunFolder
    plan: Plan
    data: Data
    model: nn.Module  # initialised; the weights of a resumed run come from its checkpoint when it trains
    targets: TargetStore | None  # None for a method without targets


def open_and_plan(request: Request, on_progress: ProgressCallback = no_progress) -> tuple[Plan, Data]:
    """Open the data of a request and plan its run.

    Raises:
        UserError: if the data cannot be read, or do not suit the settings.
    """
    source = inspect_source(request)
    reading = plan_reading(request, source)
    data = prepare(reading, on_progress)
    return plan_run(request, inspect_data(source, reading, data)), data


def start(request: Request, folder: RunFolder, on_progress: ProgressCallback = no_progress) -> Run:
    """Start a run: plan it, draw the noise, build the model, and write down everything that decides the outcome."""
    with folder.locked():
        folder.check_free()
        plan, data = open_and_plan(request, on_progress)
        set_useful_threads(plan, data.train.inputs.shape, choose_device(plan.device))
        run = _with_model(folder, plan, data, resumed=False)
        _write_start(run)
    return run


def resume(
    folder: RunFolder,
    kind: Kind = "labels",
    given: Mapping[str, Any] | None = None,
    on_progress: ProgressCallback = no_progress,
) -> Run:
    """Open a run to train on from its newest checkpoint.

    `given` are settings that the user repeats. A different one is an error, except for the device.
    """
    plan = check_same(folder, kind, given or {})
    data = recall(plan, folder, on_progress)
    warn_of_versions(folder.read_run())
    take_threads(folder.read_run())
    return _with_model(folder, plan, data, resumed=folder.has_checkpoint)


def _with_model(folder: RunFolder, plan: Plan, data: Data, *, resumed: bool) -> Run:
    storage = plan.storage(choose_device(plan.device), folder.targets_file)
    model = new_model(plan, data, plan.method, resumed=resumed)
    targets = plan.method.initial_targets(data.train.labels, data.num_classes, storage)
    return Run(folder, plan, data, model, targets)


def check_same(folder: RunFolder, kind: Kind, given: Mapping[str, Any]) -> Plan:
    """The plan of a run, which must have the given settings; only the device may differ.

    Raises:
        UserError: if the run was started with another value of a given setting.
    """
    plan = Plan.of(folder, kind)
    device = device_name(given.get("device", plan.device))
    if device != plan.device:
        warnings.warn(f"the run was started on {plan.device}, so results may differ slightly on {device}", stacklevel=2)
        plan = replace(plan, device=device)
    request = Request.of(kind, **{"data": plan.data.source, "method": plan.method_name, **given})
    own, asked = plan.values(), request.values()
    chosen = {"device", *(["precision"] if asked["precision"] == "auto" else [])}
    if asked["shuffle"] == "shards" and own["shuffle"] != "global":
        chosen.add("shuffle")
    word = next((word for word in given if word not in chosen and own[word] != asked[word]), None)
    if word is not None:
        raise UserError(
            f"{folder.path} was started with {option_of(word)} {own[word]}, not {asked[word]}; "
            "resume it with its own settings or start a new run in another --out"
        )
    return plan


def _write_start(run: Run) -> None:
    """Write down everything that decides the outcome, before the first step."""
    folder, plan, data = run.folder, run.plan, run.data
    if plan.on_features and distributed.rank() == 0:
        network = load_pretrained(plan.model, plan.data.image_size)
        folder.write_tensors(folder.backbone_file, network.weights())
    folder.write_samples(sample_rows(data))
    if data.duplicates:
        folder.write_duplicates(duplicate_rows(data))
    if plan.data.corrected is not None and distributed.rank() == 0:
        with folder.recorded(folder.trained_on_file) as draft:
            shutil.copyfile(plan.data.corrected, draft)
    folder.forget_unreadable()  # of a start that was interrupted
    list_unreadable(folder, data)
    distributed.barrier()
    content = {
        "settings": plan.to_json(),
        "method": ", ".join(filter(None, (plan.method.description, plan.method.summary()))),
        "seed": plan.seed,
        "start_epoch": plan.method.started((), plan.epochs),
        "noise": _noise(plan, data),
        "device": plan.device,
        **describe(data),
        "parameters": sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad),
    }
    content["data"]["samples_sha256"] = folder.samples_sha256()
    folder.write_run(content)
    distributed.barrier()


def _noise(plan: Plan, data: Data) -> dict[str, Any] | None:
    if plan.data.noise is None and plan.data.labels is None:
        return None
    parsed = None if plan.data.noise is None else Noise.parse(plan.data.noise)
    return {
        "kind": "labels file" if parsed is None else parsed.kind,
        "nominal": None if parsed is None or parsed.file is not None else parsed.rate,
        "actual": actual_rate(data.train),
    }


def all_metrics(folder: RunFolder, epochs: int) -> list[dict[str, Any]]:
    """The metrics of all epochs, none of which may be missing."""
    metrics = folder.read_metrics()
    if len(metrics) != epochs:
        raise UserError(f"{folder.metrics_file} holds {len(metrics)} of {epochs} epochs; was it changed?")
    return metrics


def list_unreadable(folder: RunFolder, data: Data) -> int:
    """List in the folder every file that any process could not read, and return their number.

    A collective call, after which all processes know of the same files. What was listed before stays listed, so a
    resumed run forgets none.
    """
    found: dict[str, str] = {}
    for broken in distributed.all_gather_objects(data.broken):
        found |= broken
    listed = folder.read_unreadable()
    every = {**dict(data.unreadable), **listed, **found}
    if every != listed:
        folder.write_unreadable(every.items())
    distributed.barrier()
    data.note_broken(found)
    return len(every)


def finish(folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Write the result and the report of a run."""
    distributed.barrier()
    folder.write_run({**folder.read_run(), "result": result})
    if distributed.rank() == 0:
        write_run_page(folder)
    distributed.barrier()
