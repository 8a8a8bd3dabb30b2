"""A training run, from data to the finished run folder.

Shapes: N samples of the training set, K classes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from selfadapt import processes
from selfadapt.data.corruption import Noise, actual_rate
from selfadapt.data.fetch import Watch, unwatched
from selfadapt.data.images import Images, Shape
from selfadapt.data.samples import Data, Samples, channel_statistics
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training, fit
from selfadapt.engine.optim import learning_rate
from selfadapt.errors import UserError
from selfadapt.evaluation.accuracy import UNKNOWN, accuracy, predict, predicted_classes
from selfadapt.models.heads import Normalised
from selfadapt.models.named import backbone
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Figures
from selfadapt.objectives.peers.forward_correction import ForwardCorrection, estimate_transition
from selfadapt.objectives.selective import Selective
from selfadapt.recipes import lifecycle
from selfadapt.recipes.abstention import measure_coverage
from selfadapt.recipes.audit import audit_training, draw_suspects
from selfadapt.recipes.lifecycle import StepWatch
from selfadapt.recipes.methods import METHODS
from selfadapt.recipes.prepare import open_for, prepare, recall
from selfadapt.recipes.settings import RunSettings, choose_device
from selfadapt.recipes.surroundings import repeatable, take_surroundings
from selfadapt.report.results import RunFolder
from selfadapt.targets.store import Storage


@dataclass(frozen=True)
class Run:
    """A run folder with its settings, its data as training sees them, and the model in training."""

    folder: RunFolder
    settings: RunSettings
    data: Data
    training: Training


def start(settings: RunSettings, folder: RunFolder, watch: Watch = unwatched) -> Run:
    """A new run: draw the noise, write down everything that decides the outcome, build the model."""
    data = prepared(settings, watch)
    settings = settings.resolved(data)
    description = _description(settings, data)
    training = build_training(settings, data, _storage(settings, folder), folder)
    lifecycle.begin(folder, data, training, description)
    return Run(folder, settings, data, training)


def prepared(settings: RunSettings, watch: Watch = unwatched) -> Data:
    """The data as training sees them, which must suit the method."""
    data = open_for(settings, watch)
    if data.num_classes < 2:
        raise UserError(f"{data.name} has one class only, {data.classes[0]!r}; telling classes apart needs two")
    data = prepare(data, settings)
    if settings.method == "early-stopping" and data.validation is None:
        raise UserError("early-stopping needs a validation part, and these data have none")
    if settings.method == "deep-gamblers" and settings.reward > data.num_classes:
        raise UserError(f"--reward {settings.reward} must be at most the number of classes, {data.num_classes}")
    return data


def reopen(
    folder: RunFolder,
    given: Mapping[str, Any] | None = None,
    watch: Watch = unwatched,
    *,
    to_train: bool = True,
) -> Run:
    """A run as its newest checkpoint has it.

    `given` are settings that the user repeats; one that differs from the run's own is an error. With `to_train` off,
    the run is only looked at: its files stay as they are, and targets are read into memory.
    """
    settings = lifecycle.settings_of(folder, RunSettings, given or {})
    if to_train:
        folder.check_unlocked()  # before the targets' file is touched
    data = recall(open_for(settings, watch, begun=folder), settings, folder)
    take_surroundings(folder.read_run(), to_train=to_train)
    storage = _storage(settings, folder if to_train else None)
    training = build_training(settings, data, storage, goes_on=folder.has_checkpoint)
    lifecycle.restore(training, folder)
    return Run(folder, settings, data, training)


def finished_run(
    folder: RunFolder, given: Mapping[str, Any], watcher: Callable[[str], AbstractContextManager[StepWatch]], words: str
) -> dict[str, Any]:
    """The result of a run with these settings: from the folder if it is finished there, else trained now."""
    settings = RunSettings.given(**given)
    if folder.exists:
        lifecycle.settings_of(folder, RunSettings, settings.whole())
        content = folder.read_run()
        if "result" in content:
            return dict(content["result"])
    run = reopen(folder) if folder.exists else start(settings, folder)
    with watcher(words) as watch:
        return train(run, watch)


def train(run: Run, watch: StepWatch = lambda training: None) -> dict[str, Any]:
    """Train to the end, evaluate, write the run folder, and return the result."""
    with run.folder.locked():
        if isinstance(run.training.objective, ForwardCorrection):
            _estimate_transition(run, watch)
        lifecycle.carry_out(
            run.training, run.folder, run.data, lambda: _measure(run), watch, lambda history: _note_start(run, history)
        )
        result = _result(run)
        if METHODS[run.settings.method].abstains and run.data.validation is not None and run.data.test is not None:
            measure_coverage(run, passes=0)
        lifecycle.conclude(run.folder, result)
    return result


def _note_start(run: Run, history: Sequence[Figures]) -> None:
    """Write down when the targets begin to move, once that is known."""
    if isinstance(run.training.objective, NoisyLabels | Selective):
        content = run.folder.read_run()
        start_epoch = run.training.objective.started(history, run.settings.epochs)
        if content["start_epoch"] != start_epoch:
            run.folder.write_run({**content, "start_epoch": start_epoch})


def _estimate_transition(run: Run, watch: StepWatch) -> None:
    """Train a first network, and read off it how labels go wrong. It is resumed like any other.

    It is the network of the epoch that was best on noisy validation labels, where there are any.
    """
    if (run.training.epoch, run.training.step) != (0, 0):
        return
    method = "erm" if run.data.validation is None else "early-stopping"
    first = build_training(replace(run.settings, method=method), run.data, Storage())
    checkpoints = run.folder.path / "first-stage"
    saved = checkpoint.load_newest(checkpoints, first.device)
    if saved is not None:
        first.restore(saved)
    began = time.monotonic() - (first.history[-1]["seconds"] if first.history else 0.0)

    def measure(training: Training) -> Figures:
        figures = {"seconds": time.monotonic() - began}
        if run.data.validation is not None:
            predicted = _predict_validation(first, run.data.validation)
            figures["validation_accuracy_given"] = accuracy(predicted, run.data.validation.labels) or 0.0
        return figures

    def listed(training: Training) -> None:
        lifecycle.list_unreadable(run.folder, run.data)

    fit(first, checkpoints, after_epoch=measure, after_step=watch, before_save=listed)
    predicted_NK = predict(first.model, run.data.train.images, run.data.num_classes, first.device)
    transition_KK = estimate_transition(predicted_NK[predicted_NK.isfinite().all(1)])
    run.training.model.get_buffer("transition_KK").copy_(transition_KK)
    seconds = first.history[-1]["seconds"]
    run.folder.write_run({**run.folder.read_run(), "first_stage_seconds": round(seconds, 3)})


def _storage(settings: RunSettings, folder: RunFolder | None) -> Storage:
    """Where targets are kept; without a folder, in memory."""
    return Storage.parse(
        settings.targets,
        device=choose_device(settings.device),
        file=None if folder is None else folder.targets_file,
    )


def build_training(
    settings: RunSettings, data: Data, storage: Storage, new_folder: RunFolder | None = None, *, goes_on: bool = False
) -> Training:
    """The training before its first step. One that goes on gets its weights from a checkpoint instead."""
    repeatable(choose_device(settings.device))
    torch.manual_seed(settings.seed)
    model = build_model(settings, data.train.images.shape, channel_statistics(data.train.images), data.num_classes)
    if settings.pretrained is not None and not goes_on:
        _begin_with(RunFolder(Path(settings.pretrained)), model)
    return lifecycle.assemble(settings, data, settings.objective(), model, storage, new_folder, pieces=settings.pieces)


def _begin_with(folder: RunFolder, model: torch.nn.Module) -> None:
    """Put the weights of a network that was trained without labels, and its normalisation, into a new model."""
    saved = checkpoint.load_newest(folder.checkpoints)
    folder.read_run()
    if saved is None:
        raise UserError(f"{folder.path} holds no trained network")
    learned = {name: value for name, value in saved.model.items() if name.startswith("backbone.")}
    own = {name: value for name, value in model.state_dict().items() if name.startswith("backbone.")}
    different = sorted(set(own) ^ set(learned)) or [n for n, value in own.items() if learned[n].shape != value.shape]
    if different or not own:
        raise UserError(
            f"the network in {folder.path} is another one than this ({different[0] if different else 'no backbone'} "
            "differs); give the same --model and --width, and images of the same kind"
        )
    model.load_state_dict({**model.state_dict(), **learned})


def build_model(
    settings: RunSettings, shape: Shape, statistics: tuple[Tensor, Tensor], num_classes: int
) -> torch.nn.Module:
    """The untrained network of a run, for images of this shape whose channels have these means and deviations."""
    channels, height, width = shape
    network = backbone(settings.model, channels=channels, height=height, width_pixels=width, width=settings.width)
    return settings.objective().build(Normalised(network, *statistics, dropout=settings.dropout), num_classes)


def _description(settings: RunSettings, data: Data) -> dict[str, Any]:
    noise = None
    if settings.noise is not None or settings.labels is not None:
        parsed = None if settings.noise is None else Noise.parse(settings.noise)
        noise = {
            "kind": "labels file" if parsed is None else parsed.kind,
            "nominal": None if parsed is None or parsed.file is not None else parsed.rate,
            "actual": actual_rate(data.train),
        }
    return {
        "settings": settings.to_json(),
        "method": METHODS[settings.method].words,
        "seed": settings.seed,
        "start_epoch": settings.start_epoch if isinstance(settings.start_epoch, int) else None,
        "noise": noise,
        "device": settings.device,
    }


def _measure(run: Run) -> dict[str, Any]:
    """The figures of an epoch. Test data are left for the end."""
    training, train_part, validation = run.training, run.data.train, run.data.validation
    predicted_N = training.tally.predicted_N.cpu().long()
    epoch = training.epoch + 1
    figures: dict[str, Any] = {
        "epoch": epoch,
        "train_loss": training.tally.loss,
        "lr": learning_rate(training.settings.optimizer, epoch, training.settings.epochs),
        "train_accuracy_given": accuracy(predicted_N, train_part.labels),
        **training.tally.figures,
    }
    touched_N = _touched(train_part)
    if train_part.truth is not None and touched_N is not None:
        if train_part.struck is None:
            figures["train_accuracy_true"] = accuracy(predicted_N, train_part.truth)
        for name, chosen_N in (("untouched", ~touched_N), ("corrupted", touched_N)):
            figures[f"{name}_accuracy_true"] = accuracy(predicted_N[chosen_N], train_part.truth[chosen_N])
    if validation is not None:
        predicted = _predict_validation(run.training, validation)
        figures["validation_accuracy_given"] = accuracy(predicted, validation.labels)
        if validation.truth is not None:
            if validation.clean_images is not None:
                predicted = _predict(run.training, validation.clean_images)
            figures["validation_accuracy_true"] = accuracy(predicted, validation.truth)
    return figures


def _touched(samples: Samples) -> Tensor | None:
    """Which samples noise changed, where that is known."""
    if samples.struck is not None:
        return samples.struck
    return None if samples.truth is None else samples.labels != samples.truth


def _predict(training: Training, images: Images) -> Tensor:
    return predicted_classes(predict(training.model, images, training.num_classes, training.device))


def _predict_validation(training: Training, samples: Samples) -> Tensor:
    """The classes of the validation part, of which something must be left to go by."""
    predicted_N = _predict(training, samples.images)
    if bool((predicted_N == UNKNOWN).all()):
        sample_id, reason = next(iter(samples.broken.items()), (samples.ids[0], "another process could not read it"))
        raise UserError(f"no validation image can be read, such as {sample_id}: {reason}; are the data still there?")
    return predicted_N


def _result(run: Run) -> dict[str, Any]:
    """The result is the last epoch's. The best validation accuracy is by the labels as given: there are no others."""
    metrics = lifecycle.whole_metrics(run.folder, run.settings.epochs)
    test, validation_part = run.data.test, run.data.validation
    content = run.folder.read_run()
    audit, verdicts = audit_training(run.folder, run.data, run.training)
    if processes.rank() == 0:
        draw_suspects(run.folder, run.data, verdicts)
    validation = [record["validation_accuracy_given"] for record in metrics if "validation_accuracy_given" in record]
    return {
        "run": str(run.folder.path),
        "method": run.settings.method,
        "epochs": run.settings.epochs,
        "test_accuracy": None if test is None else accuracy(_predict(run.training, test.images), test.labels),
        "validation_accuracy": None
        if validation_part is None
        else accuracy(_predict(run.training, validation_part.images), validation_part.labels),
        "best_validation_accuracy": max(validation, default=None),
        "label_recovery": audit.get("recovery"),
        "noise": content["noise"],
        "start_epoch": content["start_epoch"],
        "seconds": round(sum(record["seconds"] for record in metrics) + content.get("first_stage_seconds", 0), 3),
        "images_per_second": round(len(run.data.train) / median(record["seconds"] for record in metrics), 1),
        "unreadable": lifecycle.list_unreadable(run.folder, run.data),
        "audit": audit,
    }
