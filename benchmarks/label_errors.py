"""The table of docs/results/label-errors.md: the list of wrong labels, against cleanlab's.

    python -m benchmarks.label_errors         about an hour on one core; needs `pip install cleanlab`

Ours comes from one self-adaptive training. cleanlab is given out-of-sample predictions from five trainings of the same
network, each on four fifths of the same samples, with the same settings: once as they are at the end, once as they
were in the epoch that was best on noisy validation labels. Of its rankings (its issues first and then the label
quality scores, or the scores alone by self-confidence or by normalised margin) the best one counts, which takes the
truth to know. Both sides train in this process, one after the other. By construction the time is about a quarter: five
trainings on four fifths of the samples are four.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from torch import Tensor

from benchmarks.grid import shown, table, work_through
from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.inputs import Inputs
from selfadapt.engine.fit import Training, fit
from selfadapt.evaluation.classification import accuracy, predict
from selfadapt.evaluation.label_errors.recovery import average_precision
from selfadapt.objectives.objective import Metrics
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.request import Request
from selfadapt.runs.inspect.label_audit import judge_labels
from selfadapt.runs.lifecycle.lifecycle import open_and_plan
from selfadapt.runs.lifecycle.opened_run import TrainedState
from selfadapt.runs.train.build_training import build_training
from selfadapt.targets.store import Storage

HOME = Path("runs/label-errors")
PAGE = Path("docs/results/label-errors.md")
FOLDS = 5
CIFAR: dict[str, Any] = {"limit": 5000, "width": 8, "augment": "none", "batch_size": 128, "epochs": 20}
CELLS: tuple[tuple[str, str, dict[str, Any], int], ...] = (  # data, noise, options, seeds
    ("digits", "symmetric:0.4", {}, 3),
    ("digits", "asymmetric:0.4", {}, 3),
    ("cifar10", "symmetric:0.4", CIFAR, 3),
    ("cifar10", "asymmetric:0.4", CIFAR, 3),
)
Job = tuple[str, str, dict[str, Any], int]  # data, noise, options, seed


@dataclass(frozen=True)
class OutOfSample:
    """Out-of-sample predictions for each training sample, and the time that they took."""

    last_NK: Tensor
    early_NK: Tensor
    seconds: float


def _seconds_to_fit(training: Training, validation: Samples, when_best: Callable[[], None]) -> float:
    """Train to the end, with an evaluation on the validation split after each epoch, as for both methods."""
    best, aside = -1.0, 0.0

    def measure(training: Training) -> Metrics:
        nonlocal best, aside
        classes = training.num_classes
        predicted = predict(training.model, validation.inputs, classes, training.device).argmax(1)
        found = accuracy(predicted, validation.labels) or 0.0
        if found > best:
            best, start = found, time.monotonic()
            when_best()
            aside += time.monotonic() - start
        return {"validation_accuracy_given": found}

    start = time.monotonic()
    fit(training, after_epoch=measure)
    return time.monotonic() - start - aside


def _out_of_sample(plan: Plan, data: Data) -> OutOfSample:
    size, classes = len(data.train), data.num_classes
    last_NK, early_NK = torch.zeros(size, classes), torch.zeros(size, classes)
    order_N = torch.randperm(size, generator=seeded(plan.seed, "folds"))
    seconds = 0.0
    assert data.validation is not None
    for held_out in order_N.tensor_split(FOLDS):
        seen = torch.ones(size, dtype=torch.bool)
        seen[held_out] = False
        subset = replace(data, train=data.train.take(seen.nonzero().flatten()))
        training = build_training(plan, subset, plan.method, Storage())
        images = data.train.inputs.take(held_out)

        def keep(
            table_NK: Tensor, training: Training = training, images: Inputs = images, rows: Tensor = held_out
        ) -> None:
            table_NK[rows] = predict(training.model, images, classes, training.device)

        seconds += _seconds_to_fit(training, data.validation, partial(keep, early_NK))
        keep(last_NK)
    return OutOfSample(last_NK, early_NK, seconds)


def _cleanlab(predicted_NK: Tensor, labels_N: Tensor, wrong_N: Tensor) -> float:
    """The best average precision among cleanlab's rankings."""
    labels, predicted = labels_N.numpy(), predicted_NK.double().numpy()
    predicted = predicted / predicted.sum(1, keepdims=True)
    precisions = []
    for method in ("self_confidence", "normalized_margin"):
        scores = get_label_quality_scores(labels, predicted, method=method)
        by_score = torch.from_numpy(scores.argsort(kind="stable"))
        issues = find_label_issues(labels, predicted, return_indices_ranked_by=method, n_jobs=1).tolist()
        known = set(issues)
        issues_first = torch.tensor(issues + [i for i in by_score.tolist() if i not in known])
        precisions += [average_precision(by_score, wrong_N), average_precision(issues_first, wrong_N)]
    return max(precision for precision in precisions if precision is not None)


def _row_file(data_name: str, noise: str, seed: int) -> Path:
    return HOME / f"{data_name}-{noise.replace(':', '-')}-{seed}" / "row.json"


def _measure(job: Job) -> None:
    data_name, noise, options, seed = job
    done = _row_file(data_name, noise, seed)
    if done.exists():
        return
    given = {"data": data_name, "noise": noise, "seed": seed, **options}
    plan, data = open_and_plan(Request.of(**given))
    assert data.train.truth is not None
    assert data.validation is not None
    wrong_N = data.train.labels != data.train.truth
    own = build_training(plan, data, plan.method, Storage())
    seconds = _seconds_to_fit(own, data.validation, lambda: None)
    baseline = _out_of_sample(open_and_plan(Request.of(**given, method="erm"))[0], data)
    ranked_N = torch.from_numpy(judge_labels(data, TrainedState.of(own)).ranked_indices)
    row = {
        "ours": average_precision(ranked_N, wrong_N) or 0.0,
        "cleanlab, trained to the end": _cleanlab(baseline.last_NK, data.train.labels, wrong_N),
        "cleanlab, stopped early": _cleanlab(baseline.early_NK, data.train.labels, wrong_N),
        "our time / cleanlab's": seconds / baseline.seconds,
    }
    done.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(done) as file:
        json.dump(row, file)
    print(done.parent, flush=True)


def _jobs(only: str) -> list[Job]:
    return [
        (data_name, noise, options, seed)
        for data_name, noise, options, seeds in CELLS
        if data_name.startswith(only)
        for seed in range(seeds)
    ]


def _write_page() -> None:
    header, lines = [], []
    for data_name, noise, _, seeds in CELLS:
        files = [_row_file(data_name, noise, seed) for seed in range(seeds)]
        rows = [json.loads(file.read_text()) for file in files if file.exists()]
        if rows:
            header = ["cell", "seeds", *rows[0]]
            cells = [shown([row[key] for row in rows], 3) for key in rows[0]]
            lines.append([f"{data_name} {noise.replace(':', ' ')}", str(len(rows)), *cells])
    words = (__doc__ or "").split("\n\n", 2)[2].strip()
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(
        "# The list of wrong labels, against cleanlab\n\nAverage precision of the ranking, 1 being every wrong label "
        "before every right one; mean ± standard deviation over seeds. Made by\n`python -m benchmarks.label_errors`."
        f"\n\n{words}\n\n" + "\n".join(table(header, lines))
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    work_through(_jobs, _measure, _write_page)
