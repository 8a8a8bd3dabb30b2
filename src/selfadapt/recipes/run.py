"""A training run, from data to the finished run folder.

Shapes: N samples of the training set, K classes.
"""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from selfadapt import __version__
from selfadapt.data.augment import named_augment
from selfadapt.data.corruption import Noise, actual_rate, corrupt
from selfadapt.data.loader import MemoryLoader
from selfadapt.data.samples import Data, Samples, channel_statistics
from selfadapt.data.sources import open_data
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training, fit
from selfadapt.engine.optim import learning_rate
from selfadapt.errors import UserError
from selfadapt.evaluation.accuracy import accuracy, predict
from selfadapt.models.heads import Normalised
from selfadapt.models.named import backbone
from selfadapt.recipes.audit import audit_training
from selfadapt.recipes.settings import RunSettings, option
from selfadapt.report.page import write_run_page
from selfadapt.report.results import RunFolder
from selfadapt.targets.store import Storage

Watcher = Callable[[Training], None]  # called after each step, to show progress


@dataclass(frozen=True)
class Run:
    """A run folder with its settings, its data as training sees them, and the model in training."""

    folder: RunFolder
    settings: RunSettings
    data: Data
    training: Training


def start(settings: RunSettings, folder: RunFolder) -> Run:
    """A new run: draw the noise, write down everything that decides the outcome, build the model."""
    data = open_data(settings.data).limited(settings.limit, settings.test_limit)
    settings = settings.suited(len(data.train))
    noise = None
    if settings.noise is not None:
        noise = Noise.parse(settings.noise)
        data = corrupt(data, noise, settings.seed)
    training = _build(settings, data, folder, new=True)
    folder.write_samples(_sample_rows(data))
    folder.write_run(_description(settings, data, noise, training))
    return Run(folder, settings, data, training)


def reopen(folder: RunFolder, given: Mapping[str, Any] | None = None) -> Run:
    """A run as its newest checkpoint has it. Its labels are those it began with: noise is never drawn again.

    `given` are settings that the user repeats; one that differs from the run's own is an error.
    """
    content = folder.read_run()
    settings = RunSettings.from_json(content["settings"])
    for name, value in (given or {}).items():
        if getattr(settings, name) != value:
            raise UserError(
                f"{folder.path} was started with {option(name)} {getattr(settings, name)}, not {value}; "
                "resume it with its own settings or start a new run in another --out"
            )
    data = open_data(settings.data).limited(settings.limit, settings.test_limit)
    if data.fingerprint != content["data"]["fingerprint"]:
        raise UserError(
            f"the data {settings.data!r} have changed since {folder.path} was started; restore them or start anew"
        )
    data = _relabel(data, folder)
    training = _build(settings, data, folder, new=False)
    saved = checkpoint.load_newest(folder.checkpoints, training.device)
    if saved is not None:
        training.restore(saved)
    return Run(folder, settings, data, training)


def train(run: Run, watch: Watcher = lambda training: None) -> dict[str, Any]:
    """Train to the end, evaluate, write the run folder, and return the result."""
    run.folder.forget_metrics_after(run.training.epoch)
    clock = time.monotonic()

    def record(training: Training) -> None:
        nonlocal clock
        figures = _measure(run)
        now = time.monotonic()
        seconds, clock = now - clock, now
        run.folder.append_metrics({**figures, "seconds": round(seconds, 3)})

    fit(run.training, run.folder.checkpoints, after_epoch=record, after_step=watch)
    result = _result(run)
    run.folder.write_run({**run.folder.read_run(), "result": result})
    write_run_page(run.folder)
    return result


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name!r} cannot be used here; choose auto or cpu") from error
    return device


def _build(settings: RunSettings, data: Data, folder: RunFolder, *, new: bool) -> Training:
    device = choose_device(settings.device)
    _repeatable(device)
    torch.manual_seed(settings.seed)
    channels, height, width = data.train.images.shape[1:]
    network = backbone(settings.model, channels=channels, height=height, width_pixels=width, width=settings.width)
    augment = named_augment(settings.augment or data.augment, height)
    objective = settings.objective()
    model = objective.build(Normalised(network, *channel_statistics(data.train.images)), data.num_classes)
    if len(data.train) < 2:
        raise UserError(f"the training set holds {len(data.train)} sample; at least two are needed")
    assert settings.batch_size is not None
    storage = Storage.parse(settings.targets, device=device, file=folder.path / "targets.bin")
    if new:
        folder.create()
    return Training(
        objective,
        model,
        objective.initial_targets(data.train.labels, data.num_classes, storage),
        MemoryLoader(data.train, batch_size=settings.batch_size, seed=settings.seed, device=device, augment=augment),
        settings.fit(),
        num_classes=data.num_classes,
        device=device,
    )


def _repeatable(device: torch.device) -> None:
    """The same bits from the same settings, which a resumed run relies on."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True


def _sample_rows(data: Data) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for part, samples in (("train", data.train), ("validation", data.validation)):
        if samples is None:
            continue
        for i, sample_id in enumerate(samples.ids):
            path = "" if samples.paths is None else samples.paths[i]
            truth = "" if samples.truth is None else data.classes[int(samples.truth[i])]
            rows.append((sample_id, path, part, data.classes[int(samples.labels[i])], truth))
    return rows


def _relabel(data: Data, folder: RunFolder) -> Data:
    """The data under the labels that the run wrote down for each id."""
    number = {name: k for k, name in enumerate(data.classes)}
    rows = {(row["part"], row["id"]): row for row in folder.read_samples()}

    def labelled(part: str, samples: Samples) -> Samples:
        own = [rows[part, sample_id] for sample_id in samples.ids]
        labels = torch.tensor([number[row["given"]] for row in own])
        truth = torch.tensor([number[row["truth"]] for row in own]) if own and own[0]["truth"] else None
        return replace(samples, labels=labels, truth=truth)

    validation = None if data.validation is None else labelled("validation", data.validation)
    return replace(data, train=labelled("train", data.train), validation=validation)


def _description(settings: RunSettings, data: Data, noise: Noise | None, training: Training) -> dict[str, Any]:
    sizes = {
        part: None if samples is None else len(samples)
        for part, samples in (("train", data.train), ("validation", data.validation), ("test", data.test))
    }
    return {
        "settings": settings.to_json(),
        "seed": settings.seed,
        "start_epoch": settings.moving_from,
        "data": {"name": data.name, "classes": data.classes, "fingerprint": data.fingerprint, "samples": sizes},
        "noise": None
        if noise is None
        else {"kind": noise.kind, "nominal": noise.rate, "actual": actual_rate(data.train)},
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "device": str(training.device),
        "versions": {
            "selfadapt": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
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
        **_accuracies("train", predicted_N, train_part),
    }
    if train_part.truth is not None:
        untouched_N = train_part.labels == train_part.truth
        for name, chosen_N in (("untouched", untouched_N), ("corrupted", ~untouched_N)):
            figures[f"{name}_accuracy_true"] = accuracy(predicted_N[chosen_N], train_part.truth[chosen_N])
    if validation is not None:
        figures |= _accuracies("validation", _predict(training, run.data, validation).argmax(1), validation)
    return figures


def _accuracies(part: str, predicted_N: Tensor, samples: Samples) -> dict[str, float | None]:
    figures = {f"{part}_accuracy_given": accuracy(predicted_N, samples.labels)}
    if samples.truth is not None:
        figures[f"{part}_accuracy_true"] = accuracy(predicted_N, samples.truth)
    return figures


def _predict(training: Training, data: Data, samples: Samples) -> Tensor:
    model: nn.Module = training.model
    return predict(model, samples.images, data.num_classes, training.device)


def _result(run: Run) -> dict[str, Any]:
    """The result is the last epoch's. The best validation accuracy is by the labels as given: there are no others."""
    metrics = run.folder.read_metrics()
    last = metrics[-1]
    seconds = sum(record["seconds"] for record in metrics)
    test = run.data.test
    audit = audit_training(run.folder, run.data, run.training)
    return {
        "run": str(run.folder.path),
        "method": run.settings.method,
        "epochs": run.settings.epochs,
        "test_accuracy": None
        if test is None
        else accuracy(_predict(run.training, run.data, test).argmax(1), test.labels),
        "validation_accuracy": last.get("validation_accuracy_given"),
        "best_validation_accuracy": max(
            (record["validation_accuracy_given"] for record in metrics if "validation_accuracy_given" in record),
            default=None,
        ),
        "label_recovery": audit.get("recovery"),
        "noise": run.folder.read_run()["noise"],
        "start_epoch": run.settings.moving_from,
        "seconds": round(seconds, 1),
        "images_per_second": round(len(run.data.train) * len(metrics) / seconds, 1),
        "audit": audit,
    }
