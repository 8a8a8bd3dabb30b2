"""The bench of a run: named trainings, each with checkpoints of its own, for whatever a method asks for.

The training called `main` is the run's own: its checkpoints are the run's, and its metrics go into metrics.jsonl. Any
other has its checkpoints in trainings/NAME; it is loaded if it was finished before, and resumed if it was begun.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.core.rng import seeded
from selfadapt.data.splits import split_off
from selfadapt.engine.fit import Training, fit
from selfadapt.evaluation.classification import UNKNOWN, accuracy, outputs, predict, predicted_classes
from selfadapt.evaluation.selective.risk_coverage import aurc
from selfadapt.objectives.method import Trained, Vectors
from selfadapt.objectives.objective import Metrics, Objective
from selfadapt.runs.inspect.abstention import answers
from selfadapt.runs.lifecycle.lifecycle import Run, TrainingCallback, build_training, list_unreadable, restore
from selfadapt.targets.store import Storage

Measure = Callable[[Run], Metrics]


class RunBench:
    def __init__(self, run: Run, measure: Measure, on_step: TrainingCallback) -> None:
        """`measure` gives the metrics of an epoch of the main training; `on_step` is called after each step of any."""
        self.run, self.measure, self.on_step = run, measure, on_step
        self.has_validation = run.data.validation is not None
        self._clock = time.monotonic()

    def fit(self, name: str, objective: Objective, *, begin: Callable[[nn.Module], None] | None = None) -> Trained:
        return self._fit_main(objective, begin) if name == "main" else self._fit_other(name, objective, begin)

    def settle(self, solve: Callable[[Vectors, nn.Module, ProgressCallback], Tensor]) -> Trained:
        run, training = self.run, self.run.training
        if training.epoch == training.settings.epochs:
            return training
        train, everyone_N = run.data.train, torch.arange(len(run.data.train))
        codes = {group: number for number, group in enumerate(dict.fromkeys(train.groups or ()))}
        groups_N = None if train.groups is None else torch.tensor([codes[group] for group in train.groups])
        steps = training.loader.steps_per_epoch

        def on_progress(done: int, total: int) -> None:  # as a part of the one epoch
            training.step = done * steps // total
            self.on_step(training)

        vectors = Vectors(train.inputs.read(everyone_N), train.labels, groups_N)
        predicted_NK = solve(vectors, training.model, on_progress)
        assert training.targets is not None
        training.targets.update(everyone_N, predicted_NK, momentum=0.0)
        training.accumulator.predicted_N.copy_(predicted_NK.argmax(1))
        losses_N = -predicted_NK.gather(1, train.labels.unsqueeze(1)).clamp_min(1e-12).log()
        training.accumulator.add_loss(torch.tensor([[losses_N.sum().item(), len(train)]]))
        training.end_epoch(self._record(training))
        training.save(run.folder.checkpoints)
        return training

    def predict(self, trained: Trained, part: Literal["train", "validation"]) -> Tensor:
        samples, run = getattr(self.run.data, part), self.run
        found_NK = predict(trained.model, samples.inputs, run.data.num_classes, run.training.device)
        return found_NK[found_NK.isfinite().all(1)]

    def holding_out(self, share: float) -> "RunBench":
        run = self.run
        share = min(0.5, max(share, run.data.num_classes / len(run.data.train)))  # about one of each class
        try:
            learn, judge = split_off(run.data.train, share, seeded(run.settings.seed, "held out"))
        except UserError:
            raise UserError(
                f"{len(run.data.train)} training samples are too few to hold {share:.0%} of each class out, by which "
                f"{run.settings.method_name} chooses what it was not told; tell it, or add samples"
            ) from None
        return RunBench(replace(run, data=replace(run.data, train=learn, validation=judge)), self.measure, self.on_step)

    def area_under_risk(self, trained: Trained, objective: Objective) -> float:
        run, samples = self.run, self.run.data.validation
        assert samples is not None
        said_NO = outputs(trained.model, samples.inputs, run.training.device)
        fine_N = ~said_NO.isnan().any(1)
        own, *_ = answers(said_NO[fine_N], objective, run.data.num_classes).values()
        return aurc(own.confidence_N, own.wrong(samples.labels[fine_N]))

    def note(self, **chosen: float) -> None:
        content = self.run.folder.read_run()
        self.run.folder.write_run({**content, "chosen": {**content.get("chosen", {}), **chosen}})

    def _fit_main(self, objective: Objective, begin: Callable[[nn.Module], None] | None) -> Training:
        training, folder = self.run.training, self.run.folder
        training.objective = objective
        if begin is not None and (training.epoch, training.step) == (0, 0):
            begin(training.model)
        self._clock = time.monotonic()
        fit(
            training,
            folder.checkpoints,
            after_epoch=self._record,
            after_step=self.on_step,
            before_save=self._list_broken,
        )
        distributed.barrier()
        return training

    def _record(self, training: Training) -> Metrics:
        """Measure an epoch of the main training, and write its metrics down."""
        folder, metrics, now = self.run.folder, self.measure(self.run), time.monotonic()
        seconds, self._clock = now - self._clock, now
        folder.forget_metrics_after(training.epoch)
        folder.append_metrics({**metrics, "seconds": round(seconds, 3)})
        self._note_start([*training.history, metrics])
        return metrics

    def _note_start(self, history: list[Metrics]) -> None:
        """Write down when the targets begin to move, once that is known."""
        run = self.run
        start_epoch = run.training.objective.started(history, run.settings.epochs)
        content = run.folder.read_run()
        if content["start_epoch"] != start_epoch:
            run.folder.write_run({**content, "start_epoch": start_epoch})

    def _fit_other(self, name: str, objective: Objective, begin: Callable[[nn.Module], None] | None) -> Training:
        run = self.run
        checkpoints = run.folder.trainings / name
        training = build_training(run.settings, run.data, objective, Storage(), goes_on=checkpoints.exists())
        restore(training, checkpoints)
        if begin is not None and (training.epoch, training.step) == (0, 0):
            begin(training.model)
        began = time.monotonic() - (training.history[-1]["seconds"] if training.history else 0.0)

        def measure(training: Training) -> Metrics:
            metrics = {"seconds": time.monotonic() - began}
            if run.data.validation is not None:
                predicted_N = predict_validation(run, training)
                metrics["validation_accuracy_given"] = accuracy(predicted_N, run.data.validation.labels) or 0.0
            return metrics

        fit(training, checkpoints, after_epoch=measure, after_step=self.on_step, before_save=self._list_broken)
        content = run.folder.read_run()
        seconds = {**content.get("other_trainings_seconds", {}), name: round(training.history[-1]["seconds"], 3)}
        run.folder.write_run({**content, "other_trainings_seconds": seconds})
        return training

    def _list_broken(self, training: Training) -> None:
        list_unreadable(self.run.folder, self.run.data)


def predict_validation(run: Run, training: Training) -> Tensor:
    """The classes of the validation part, of which something must be left to go by."""
    samples = run.data.validation
    assert samples is not None
    predicted_N = predicted_classes(predict(training.model, samples.inputs, training.num_classes, training.device))
    if bool((predicted_N == UNKNOWN).all()):
        sample_id, reason = next(iter(samples.broken.items()), (samples.ids[0], "another process could not read it"))
        raise UserError(f"no validation image can be read, such as {sample_id}: {reason}; are the data still there?")
    return predicted_N
