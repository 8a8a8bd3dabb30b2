"""The ablation of the default method, docs/results/default-method.md: variants of `sat`, judged on noisy validation.

    python -m benchmarks.default_method                                     what is missing, then the page
    python -m benchmarks.default_method --only "fashion-mnist symmetric:0.4" the runs whose name starts like this

Of the training images of Fashion-MNIST and CIFAR10, 5,000 train and 45,000 are a noisy validation split, so that small
differences show; digits have 100 validation images and ten seeds. CIFAR10 confirms what the others select. Trains in
this process, with one thread. Variants that the program does not offer are defined here.
"""

import copy
import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.grid import put_between, shown, table, work_through
from benchmarks.noisy_labels import CELLS as EARLIER_CELLS
from benchmarks.noisy_labels import LEDGER as EARLIER
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Data
from selfadapt.engine.fit import Training, fit
from selfadapt.evaluation.classification import classify
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.objectives.baselines.selection.label_filtering import StudentAndTeacher
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.noisy_labels import SelfAdaptive, SelfAdaptiveSymmetric
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.objectives.self_adaptive_loss import target_loss
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import open_and_plan
from selfadapt.runs.lifecycle.network import new_model
from selfadapt.runs.train.build_training import training_of
from selfadapt.targets.store import Storage, TargetStore

PAGE = Path("docs/results/default-method.md")
LEDGER = Path("benchmarks/results/default-method.json")
AVERAGED = "sat, weights averaged (0.99)"  # a second result of `sat`: the average of its weights over about 100 steps


@dataclass(frozen=True, kw_only=True)
class Scaled(SelfAdaptive):
    """The loss with moving targets times a constant: a control for the larger gradients of the symmetric loss."""

    scale: float = 5.0

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        loss = super().loss_with_targets(logits_BK, batch, targets, progress)
        start = self.started(progress.history, progress.epochs)
        if start is None or progress.epoch < start:
            return loss
        return replace(loss, terms=tuple(replace(term, total=self.scale * term.total) for term in loss.terms))


@dataclass(frozen=True, kw_only=True)
class TaughtTargets(SelfAdaptive):
    """Targets move towards the predictions of a mean teacher, which is also the result."""

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return StudentAndTeacher(backbone, num_classes)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        assert targets is not None
        student_BK, teacher_BK = model(batch.input).float().chunk(2, 1)
        start = self.started(progress.history, progress.epochs)
        if start is None or progress.epoch < start:
            return self.loss_with_targets(student_BK, batch, targets, progress)
        initial_BK = self._initial_rows(batch, targets, start, progress)
        rows_BK = targets.move(batch.index, teacher_BK.detach().softmax(1), rows=initial_BK)
        return target_loss(student_BK, rows_BK, reweight=self.reweight)

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        cast(StudentAndTeacher, unwrapped(model)).move_teacher(0.99)


METHODS: dict[str, ERM] = {
    "erm": ERM(),
    "sat": SelfAdaptive(),
    "sat-sce, w2 = 0.1": SelfAdaptiveSymmetric(),
    "sat-sce, w2 = 0.3": SelfAdaptiveSymmetric(reverse_weight=0.3),
    "sat-sce, w2 = 1": SelfAdaptiveSymmetric(reverse_weight=1.0),
    "sat, loss times 5": Scaled(),
    "sat, targets from a mean teacher": TaughtTargets(),
}


@dataclass(frozen=True)
class Setting:
    """Data and a network, with the methods and the number of seeds that are run."""

    request: Mapping[str, Any]
    methods: tuple[str, ...] = tuple(METHODS)
    seeds: int = 3


_FASHION: Mapping[str, Any] = {
    "data": "fashion-mnist", "limit": 5_000, "validation": 0.9, "model": "mlp", "augment": "none",
}  # fmt: skip
_CIFAR10: Mapping[str, Any] = {
    "data": "cifar10", "limit": 5_000, "validation": 0.9, "model": "resnet-small", "augment": "none", "epochs": 30,
}  # fmt: skip
_CANDIDATES = ("sat", "sat-sce, w2 = 0.3", "sat-sce, w2 = 1")
SETTINGS: dict[str, Setting] = {
    "fashion-mnist": Setting(_FASHION),
    "fashion-mnist at 14 pixels": Setting({**_FASHION, "image_size": 14, "width": 128}),
    "digits": Setting({"data": "digits"}, _CANDIDATES, seeds=10),
    "cifar10": Setting(_CIFAR10, _CANDIDATES),
}
NOISES = ("symmetric:0.4", "asymmetric:0.4", "none")
Job = tuple[str, str, str, int]  # setting, noise, method, seed


def _name(setting: str, noise: str, method: str, seed: int) -> str:
    return f"{setting} {noise}/{method}/{seed}"


def _jobs(only: str) -> Iterator[Job]:
    for name, setting in SETTINGS.items():
        for noise in NOISES:
            for seed in range(setting.seeds):
                for method in setting.methods:
                    if _name(name, noise, method, seed).startswith(only):
                        yield name, noise, method, seed


@lru_cache(maxsize=1)
def _opened(setting: str, noise: str, seed: int) -> tuple[Plan, Data]:
    noisy = None if noise == "none" else noise
    return open_and_plan(Request.of(seed=seed, noise=noisy, **SETTINGS[setting].request))


def _train(job: Job) -> None:
    setting, noise, name, seed = job
    ledger = _ledger()
    if _name(*job) in ledger:
        return
    torch.set_num_threads(1)
    plan, data = _opened(setting, noise, seed)
    task = Task(num_classes=data.num_classes, num_samples=len(data.train), epochs=plan.epochs, seed=seed)
    method = METHODS[name].suited(task)
    model = new_model(plan, data, method, resumed=False)
    targets = method.initial_targets(data.train.labels, data.num_classes, Storage())
    training = training_of(plan, data, method, model, targets)
    results = {name: model, **({AVERAGED: copy.deepcopy(model)} if name == "sat" else {})}

    @torch.no_grad()
    def average(training: Training) -> None:
        if AVERAGED in results:
            for mean, value in zip(results[AVERAGED].state_dict().values(), model.state_dict().values(), strict=True):
                if mean.is_floating_point():
                    mean.lerp_(value, 0.01)

    fit(training, after_step=average)
    for row, result in results.items():
        ledger[_name(setting, noise, row, seed)] = {
            "start_epoch": method.started(training.history, plan.epochs),
            **{split: _accuracy(result, data, split) for split in ("validation", "test")},
        }
    LEDGER.write_text(json.dumps(ledger, indent=0, sort_keys=True) + "\n")


def _accuracy(network: nn.Module, data: Data, split: str) -> float:
    """The agreement with the given labels of a split, which are noisy in `validation`."""
    samples = data.splits[split]
    predicted_N = classify(network, samples.inputs, data.num_classes, torch.device("cpu"))
    return float((predicted_N == samples.labels).double().mean())


def _ledger() -> dict[str, dict[str, Any]]:
    return dict(json.loads(LEDGER.read_text())) if LEDGER.exists() else {}


def _difference(values: list[float]) -> str:
    """The mean and its standard error."""
    if not values:
        return "–"
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):+.2f}{error}"


def _ablation() -> list[str]:
    ledger, lines = _ledger(), []
    for name, setting in SETTINGS.items():
        for noise in NOISES:
            lines += _cell(ledger, name, noise, setting.seeds)
    return lines


def _cell(ledger: Mapping[str, Any], setting: str, noise: str, seeds: int) -> list[str]:
    def runs(method: str) -> dict[int, dict[str, Any]]:
        names = {seed: _name(setting, noise, method, seed) for seed in range(seeds)}
        return {seed: ledger[name] for seed, name in names.items() if name in ledger}

    rows, base = [], runs("sat")
    for method in (*METHODS, AVERAGED):
        if own := runs(method):
            validation, test = ([100 * run[split] for run in own.values()] for split in ("validation", "test"))
            paired = [100 * (own[seed]["validation"] - base[seed]["validation"]) for seed in own if seed in base]
            difference = "" if method == "sat" else _difference(paired)
            rows.append([method, str(len(own)), shown(validation, 2), difference, shown(test, 2)])
    header = ["method", "seeds", "noisy validation", "difference to `sat`", "test"]
    return [f"### {setting} {noise.replace(':', ' ')}", "", *table(header, rows)] if rows else []


def _earlier() -> list[str]:
    """Methods of the program against `sat` in the runs of docs/results/noisy-labels.md, paired by seed."""
    ledger = json.loads(EARLIER.read_text())
    compared = ("sat-sce", "sat-no-weights", "elr", "gce-truncated", "mixup")
    rows = []
    for cell in EARLIER_CELLS:
        row = [f"{cell.data} {cell.noise.replace(':', ' ')}"]
        for method in compared:
            pairs = [
                [ledger.get(f"{cell.name}/methods/{name}-{seed}") for name in (method, "sat")]
                for seed in range(cell.seeds)
            ]
            key = "validation_accuracy_given"
            row.append(_difference([100 * (own[key] - base[key]) for own, base in pairs if own and base]))
        rows.append(row)
    return table(["cell", *(f"`{method}`" for method in compared)], rows)


def _write_page() -> None:
    put_between(PAGE, "ablation", _ablation())
    put_between(PAGE, "earlier", _earlier())


if __name__ == "__main__":
    work_through(_jobs, _train, _write_page)
