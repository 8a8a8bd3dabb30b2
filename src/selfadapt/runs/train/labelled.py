"""What a run on labelled data measures: accuracies after each epoch, and the audit of its labels at the end.

Shapes: N samples of the training set, K classes.
"""

from statistics import median
from typing import Any

from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.device import choose_device
from selfadapt.data.dataset import Samples
from selfadapt.data.inputs import Inputs
from selfadapt.data.labels.overrides import suggestions_in
from selfadapt.engine.fit import Training
from selfadapt.evaluation.classification import accuracy, balanced_accuracy, classify
from selfadapt.run_folder.metrics_file import measured_seconds
from selfadapt.runs.inspect.abstention import measure_coverage
from selfadapt.runs.inspect.label_audit import audit_training
from selfadapt.runs.inspect.label_sheets import draw_label_sheets
from selfadapt.runs.inspect.robust_accuracy import accuracy_after_epoch
from selfadapt.runs.lifecycle.lifecycle import Run, all_metrics, list_unreadable
from selfadapt.runs.lifecycle.opened_run import OpenedRun
from selfadapt.runs.train.bench import Measures, predict_validation


def _after_epoch(run: Run, training: Training) -> dict[str, Any]:
    """The metrics of an epoch. Test data are left for the end, except for a curve that is asked for."""
    predicted_N = training.accumulator.predicted_N.cpu().long()
    return {**_accuracies(run, training.model, predicted_N), **accuracy_after_epoch(run, training)}


def _accuracies(run: Run, model: nn.Module, predicted_N: Tensor) -> dict[str, Any]:
    """Accuracies on each split, by given and by true labels. `predicted_N` are classes predicted while training."""
    train_split, validation, test = run.data.train, run.data.validation, run.data.test
    tested = run.plan.fit.curves == "tested"
    if tested:
        predicted_N = _predict(run, model, train_split.inputs)
    metrics: dict[str, Any] = {"train_accuracy_given": accuracy(predicted_N, train_split.labels)}
    corrupted_N = _corrupted(train_split)
    if train_split.truth is not None and corrupted_N is not None:
        if train_split.corrupted is None:
            metrics["train_accuracy_true"] = accuracy(predicted_N, train_split.truth)
        elif tested and train_split.clean_inputs is not None:
            clean_N = _predict(run, model, train_split.clean_inputs)
            metrics["train_accuracy_true"] = accuracy(clean_N, train_split.truth)
        for name, chosen_N in (("clean", ~corrupted_N), ("corrupted", corrupted_N)):
            metrics[f"{name}_accuracy_true"] = accuracy(predicted_N[chosen_N], train_split.truth[chosen_N])
    if validation is not None:
        predicted_N = predict_validation(run, model)
        metrics["validation_accuracy_given"] = accuracy(predicted_N, validation.labels)
        if validation.truth is not None:
            if validation.clean_inputs is not None:
                predicted_N = _predict(run, model, validation.clean_inputs)
            metrics["validation_accuracy_true"] = accuracy(predicted_N, validation.truth)
    if run.plan.fit.test_curve and test is not None:
        metrics["test_accuracy_after_epoch"] = accuracy(_predict(run, model, test.inputs), test.labels)
    return metrics


def _corrupted(samples: Samples) -> Tensor | None:
    """Which samples noise changed, where that is known."""
    if samples.corrupted is not None:
        return samples.corrupted
    return None if samples.truth is None else samples.labels != samples.truth


def _predict(run: Run | OpenedRun, model: nn.Module, inputs: Inputs) -> Tensor:
    device, precision = choose_device(run.plan.device), run.plan.fit.precision
    return classify(model, inputs, run.data.num_classes, device, precision=precision)


def _result(run: OpenedRun) -> dict[str, Any]:
    """The result of the last epoch. The best validation accuracy is by the labels as given, the only ones there are."""
    metrics = all_metrics(run.folder, run.plan.epochs)
    method, content = run.plan.method, run.folder.read_run()
    list_unreadable(run.folder, run.data)  # the audit must know of them
    audit = audit_training(run.folder, run.data, run.state)
    if distributed.rank() == 0:
        draw_label_sheets(run.folder, run.data, audit)
    validation = [record["validation_accuracy_given"] for record in metrics if "validation_accuracy_given" in record]
    kept = [epoch for epoch in range(1, len(metrics) + 1) if run.objective.keeps(metrics[:epoch])]
    others = sum(content.get("other_trainings_seconds", {}).values())
    seconds = measured_seconds(metrics)
    found = {
        "run": str(run.folder.path),
        "method": run.plan.method_name,
        "told": method.summary() or None,
        "epochs": run.plan.epochs,
        "network": method.result,
        "result_epoch": kept[-1] if kept else len(metrics),
        **_final_accuracies(run),
        **({} if run.plan.data.corrected is None else {"suggestions": _agreement_with_suggestions(run)}),
        "best_validation_accuracy": max(validation, default=None),
        "label_recovery": audit.summary.get("recovery"),
        "noise": content["noise"],
        "start_epoch": content["start_epoch"],
        "seconds": round(sum(seconds) + others, 3),
        "images_per_second": round(len(run.data.train) / median(seconds), 1) if seconds else None,
        "unreadable": list_unreadable(run.folder, run.data),
        "audit": audit.summary,
    }
    if method.abstains and run.data.test is not None:
        measure_coverage(run, passes=0)
    return found


def _final_accuracies(run: OpenedRun) -> dict[str, float | None]:
    """By the given labels of the held-out splits; None for a split that does not exist."""
    found: dict[str, float | None] = dict.fromkeys(("test_accuracy", "test_balanced_accuracy", "validation_accuracy"))
    if run.data.test is not None:
        predicted_N, labels_N = _predict(run, run.model, run.data.test.inputs), run.data.test.labels
        found["test_accuracy"] = accuracy(predicted_N, labels_N)
        found["test_balanced_accuracy"] = balanced_accuracy(predicted_N, labels_N)
    if run.data.validation is not None:
        predicted_N = _predict(run, run.model, run.data.validation.inputs)
        found["validation_accuracy"] = accuracy(predicted_N, run.data.validation.labels)
    return found


def _agreement_with_suggestions(run: OpenedRun) -> dict[str, dict[str, float | int | None]]:
    """Accuracies with the likely errors of a held-out split, which only people correct, replaced by the suggestions."""
    found = {}
    for name, samples in run.data.splits.items():
        suggested = None if name == "train" else suggestions_in(run.folder.trained_on_file, samples, run.data.classes)
        if suggested is not None:
            agreement = accuracy(_predict(run, run.model, samples.inputs), suggested.labels_N)
            found[name] = {"likely_errors": suggested.likely_errors, "accuracy": agreement}
    return found


MEASURES = Measures(after_epoch=_after_epoch, after_solve=_accuracies, result=_result)
