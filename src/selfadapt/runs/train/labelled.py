"""A training run on labelled data, from the first step to the finished run folder.

Shapes: N samples of the training set, K classes.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

from torch import Tensor

from selfadapt.core import distributed
from selfadapt.data.dataset import Samples
from selfadapt.data.inputs import Inputs
from selfadapt.engine.fit import Training
from selfadapt.engine.optim import learning_rate
from selfadapt.evaluation.classification import accuracy, balanced_accuracy, predict, predicted_classes
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.run_settings import Kind, RunSettings
from selfadapt.runs.inspect.abstention import measure_coverage
from selfadapt.runs.inspect.label_audit import audit_training
from selfadapt.runs.inspect.label_sheets import draw_label_sheets
from selfadapt.runs.inspect.robust_accuracy import accuracy_after_epoch
from selfadapt.runs.lifecycle.lifecycle import (
    Run,
    TrainingCallback,
    conclude,
    list_unreadable,
    reopen,
    settings_of,
    start,
    whole_metrics,
)
from selfadapt.runs.train.bench import RunBench, predict_validation

ProgressBar = Callable[[str], AbstractContextManager[TrainingCallback]]  # under these words; gives its callback


def finished_run(
    folder: RunFolder,
    given: Mapping[str, Any],
    progress_bar: ProgressBar,
    words: str,
) -> dict[str, Any]:
    """The result of a run with these settings: from the folder if it is finished there, else trained now."""
    return finished(folder, "labels", train, given, progress_bar, words)


def finished(
    folder: RunFolder,
    kind: Kind,
    to_the_end: Callable[[Run, TrainingCallback], dict[str, Any]],
    given: Mapping[str, Any],
    progress_bar: ProgressBar,
    words: str,
) -> dict[str, Any]:
    """The same for runs of any kind; `to_the_end` trains one."""
    settings = RunSettings.given(kind, **given)
    with folder.locked():
        if folder.exists:
            settings_of(folder, kind, settings.asked_for())
            content = folder.read_run()
            if "result" in content:
                return dict(content["result"])
        run = reopen(folder, kind) if folder.exists else start(settings, folder)
        with progress_bar(words) as on_step:
            return to_the_end(run, on_step)


def train(run: Run, on_step: TrainingCallback = lambda training: None) -> dict[str, Any]:
    """Train to the end, evaluate, write the run folder, and return the result."""
    with run.folder.locked():
        run.settings.method.train(RunBench(run, _measure, on_step))
        result = _result(run)
        if run.settings.method.abstains and run.data.test is not None:
            measure_coverage(run, passes=0)
        conclude(run.folder, result)
    return result


def _measure(run: Run) -> dict[str, Any]:
    """The metrics of an epoch. Test data are left for the end, but for a curve that a method or the user asks for."""
    training, train_part, validation = run.training, run.data.train, run.data.validation
    tested = run.settings.fit.curves == "tested"
    predicted_N = _predict(training, train_part.inputs) if tested else training.accumulator.predicted_N.cpu().long()
    epoch = training.epoch + 1
    metrics: dict[str, Any] = {
        "epoch": epoch,
        "train_loss": training.accumulator.loss,
        "lr": learning_rate(training.settings.optimizer, epoch, training.settings.epochs),
        "train_accuracy_given": accuracy(predicted_N, train_part.labels),
        **training.accumulator.metrics,
    }
    corrupted_N = _corrupted(train_part)
    if train_part.truth is not None and corrupted_N is not None:
        if train_part.corrupted is None:
            metrics["train_accuracy_true"] = accuracy(predicted_N, train_part.truth)
        elif tested and train_part.clean_inputs is not None:
            clean_N = _predict(training, train_part.clean_inputs)
            metrics["train_accuracy_true"] = accuracy(clean_N, train_part.truth)
        for name, chosen_N in (("clean", ~corrupted_N), ("corrupted", corrupted_N)):
            metrics[f"{name}_accuracy_true"] = accuracy(predicted_N[chosen_N], train_part.truth[chosen_N])
    if validation is not None:
        predicted_N = predict_validation(run, training)
        metrics["validation_accuracy_given"] = accuracy(predicted_N, validation.labels)
        if validation.truth is not None:
            if validation.clean_inputs is not None:
                predicted_N = _predict(training, validation.clean_inputs)
            metrics["validation_accuracy_true"] = accuracy(predicted_N, validation.truth)
    if run.settings.fit.test_curve and run.data.test is not None:
        test = run.data.test
        metrics["test_accuracy_after_epoch"] = accuracy(_predict(training, test.inputs), test.labels)
    return metrics | accuracy_after_epoch(run, metrics)


def _corrupted(samples: Samples) -> Tensor | None:
    """Which samples noise changed, where that is known."""
    if samples.corrupted is not None:
        return samples.corrupted
    return None if samples.truth is None else samples.labels != samples.truth


def _predict(training: Training, inputs: Inputs) -> Tensor:
    return predicted_classes(predict(training.model, inputs, training.num_classes, training.device))


def _result(run: Run) -> dict[str, Any]:
    """The result is the last epoch's. The best validation accuracy is by the labels as given: there are no others."""
    metrics = whole_metrics(run.folder, run.settings.epochs)
    test, validation_part = run.data.test, run.data.validation
    content = run.folder.read_run()
    list_unreadable(run.folder, run.data)  # the audit must know of them
    audit = audit_training(run.folder, run.data, run.training)
    if distributed.rank() == 0:
        draw_label_sheets(run.folder, run.data, audit)
    validation = [record["validation_accuracy_given"] for record in metrics if "validation_accuracy_given" in record]
    kept = [epoch for epoch in range(1, len(metrics) + 1) if run.training.objective.keeps(metrics[:epoch])]
    others = sum(content.get("other_trainings_seconds", {}).values())
    predicted_N = None if test is None else _predict(run.training, test.inputs)
    return {
        "run": str(run.folder.path),
        "method": run.settings.method_name,
        "told": run.settings.method.summary() or None,
        "epochs": run.settings.epochs,
        "network": run.settings.method.result,
        "result_epoch": kept[-1] if kept else len(metrics),
        "test_accuracy": None if test is None or predicted_N is None else accuracy(predicted_N, test.labels),
        "test_balanced_accuracy": None
        if test is None or predicted_N is None
        else balanced_accuracy(predicted_N, test.labels),
        "validation_accuracy": None
        if validation_part is None
        else accuracy(_predict(run.training, validation_part.inputs), validation_part.labels),
        "best_validation_accuracy": max(validation, default=None),
        "label_recovery": audit.summary.get("recovery"),
        "noise": content["noise"],
        "start_epoch": content["start_epoch"],
        "seconds": round(sum(record["seconds"] for record in metrics) + others, 3),
        "images_per_second": round(len(run.data.train) / median(record["seconds"] for record in metrics), 1),
        "unreadable": list_unreadable(run.folder, run.data),
        "audit": audit.summary,
    }
