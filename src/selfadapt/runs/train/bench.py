"""The bench of a run: named trainings and solves, each with its own checkpoints, for whatever a method asks for.

The one called `main` is the run's own: its checkpoints are the run's, and its metrics go into metrics.jsonl. Any other
has its checkpoints in trainings/NAME. Both are loaded if they were finished before; a training that was started is
resumed.
"""

import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.device import choose_device
from selfadapt.core.errors import UserError
from selfadapt.core.progress import StageProgress, no_stages
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.splits import split_off
from selfadapt.engine import checkpoint
from selfadapt.engine.checkpoint import Checkpoint
from selfadapt.engine.fit import Training, fit
from selfadapt.engine.optim import learning_rate
from selfadapt.evaluation.classification import UNKNOWN, accuracy, classify, outputs, predict
from selfadapt.evaluation.selective.risk_coverage import aurc
from selfadapt.objectives.method import Problem, Trained, Vectors
from selfadapt.objectives.objective import Metrics, Objective
from selfadapt.run_folder.metrics_file import append_record, rebuild_records
from selfadapt.runs.inspect.abstention import answers_on
from selfadapt.runs.lifecycle.lifecycle import Run, list_unreadable
from selfadapt.runs.lifecycle.network import new_model
from selfadapt.runs.lifecycle.opened_run import OpenedRun, TrainedState, state_from
from selfadapt.runs.lifecycle.saved_network import restoring
from selfadapt.runs.train.build_training import build_training, restore, training_of
from selfadapt.targets.sharded import ShardedRows
from selfadapt.targets.store import Storage, TargetStore

Initialise = Callable[[nn.Module], None]  # gets a new model before the first step


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What a kind of run measures, by the keys of its metrics and of its result."""

    after_epoch: Callable[[Run, Training], dict[str, Any]] = _nothing  # of the main training
    after_solve: Callable[[Run, nn.Module, Tensor], dict[str, Any]] = _nothing  # by the predicted classes of samples
    result: Callable[[OpenedRun], dict[str, Any]] = _nothing


class RunBench:
    def __init__(self, run: Run, measures: Measures, on_stage: StageProgress = no_stages) -> None:
        """Bench of a run.

        Args:
            run: the run to train.
            measures: gives the metrics to record after each epoch of the main training, or after the main solve.
            on_stage: called after each step of any training, and as a solve proceeds.
        """
        self.run, self.measures, self.on_stage = run, measures, on_stage
        self.device = choose_device(run.plan.device)
        self.has_validation = run.data.validation is not None
        self._clock = time.monotonic()
        self._main: TrainedState | None = None

    def finished(self) -> OpenedRun:
        """The run with its main training or solve done."""
        if self._main is None:
            raise RuntimeError(f"{self.run.plan.method_name} trained nothing called main")
        return OpenedRun(self.run.folder, self.run.plan, self.run.data, self._main)

    def fit(
        self, name: str, objective: Objective, *, initialise: Initialise | None = None, constant_rate: bool = False
    ) -> Trained:
        if name == "main":
            return self._fit_main(objective, initialise)
        return self._fit_other(name, objective, initialise, constant_rate)

    def solve(self, name: str, problem: Problem) -> Trained:
        run, main = self.run, name == "main"
        folder = run.folder.checkpoints if main else run.folder.trainings / name
        saved = checkpoint.load_newest(folder, self.device)
        if main:
            model, targets = run.model, run.targets
        else:
            model = new_model(run.plan, run.data, problem, resumed=saved is not None)
            targets = problem.initial_targets(run.data.train.labels, run.data.num_classes, Storage())
        if saved is None:
            self._lap()
            predicted_NK = self._solved(problem, model)
            if targets is not None:
                targets.update(torch.arange(len(predicted_NK)), predicted_NK, momentum=0.0)
            metrics: dict[str, Any] = {"solve": name, "epoch": 1}
            if main:
                metrics |= self.measures.after_solve(run, model, predicted_NK.argmax(1))
                self._record(metrics, [])
            else:
                self._note_seconds(name, self._lap())
            self._list_broken()
            saved = _solution(model, targets, metrics)
            checkpoint.save(folder, saved, sharded=targets is not None and isinstance(targets.rows, ShardedRows))()
        with restoring(folder, saved):
            state = state_from(saved, run.plan, problem, model, targets, len(run.data.train))
        if main:
            self._finish_main(state)
        return state

    def _solved(self, problem: Problem, model: nn.Module) -> Tensor:
        """Solve in the first process. All processes get its weights and its predictions, or its error."""
        train = self.run.data.train
        predicted_NK = torch.zeros(len(train), self.run.data.num_classes)
        failed: UserError | None = None
        if distributed.rank() == 0:
            try:
                predicted_NK = problem.solve(_vectors(train), model, partial(self.on_stage, "solving"))
            except UserError as error:
                failed = error
        distributed.wait_for_all()  # a solve may take hours
        for failure in distributed.all_gather_objects(failed):
            if failure is not None:
                raise failure
        if distributed.world_size() > 1:
            for tensor in model.state_dict().values():  # the sum of one solution and zeros is a broadcast
                distributed.all_reduce_sum(tensor if distributed.rank() == 0 else tensor.zero_())
        return distributed.all_reduce_sum(predicted_NK)

    def predict(self, trained: Trained, part: Literal["train", "validation"]) -> Tensor:
        samples, classes = getattr(self.run.data, part), self.run.data.num_classes
        found_NK = predict(trained.model, samples.inputs, classes, self.device, precision=self.run.plan.fit.precision)
        return found_NK[found_NK.isfinite().all(1)]

    def outputs(self, trained: Trained, part: Literal["train", "validation"]) -> Tensor:
        return outputs(trained.model, getattr(self.run.data, part).inputs, self.device)

    def holding_out(self, share: float) -> "RunBench":
        run = self.run
        share = min(0.5, max(share, run.data.num_classes / len(run.data.train)))  # about one of each class
        try:
            learn, judge = split_off(run.data.train, share, seeded(run.plan.seed, "held out"))
        except UserError:
            raise UserError(
                f"{len(run.data.train)} training samples are too few to hold out {share:.0%} of each class, on which "
                f"{run.plan.method_name} chooses its settings; give these settings, or add samples"
            ) from None
        held_out = replace(run, data=replace(run.data, train=learn, validation=judge))
        return RunBench(held_out, self.measures, self.on_stage)

    def area_under_risk(self, trained: Trained, objective: Objective) -> float:
        samples = _validation(self.run)
        plan, classes = self.run.plan, self.run.data.num_classes
        found, read_N = answers_on(
            trained.model, samples.inputs, objective, classes, self.device, precision=plan.fit.precision
        )
        own, *_ = found.values()
        return aurc(own.confidence_N, own.wrong(samples.labels[read_N]))

    def note(self, **chosen: float) -> None:
        self._note("chosen", {**self.run.folder.read_run().get("chosen", {}), **chosen})

    def _fit_main(self, objective: Objective, initialise: Initialise | None) -> Training:
        run = self.run
        training = training_of(run.plan, run.data, objective, run.model, run.targets)

        def after_epoch(training: Training) -> Metrics:
            epoch, running = training.epoch + 1, training.accumulator
            metrics = {
                "epoch": epoch,
                "train_loss": running.loss,
                "lr": learning_rate(training.settings.optimizer, epoch, training.settings.epochs),
                **running.metrics,
                **self.measures.after_epoch(run, training),
            }
            self._record(metrics, training.history)
            self._note("start_epoch", objective.started([*training.history, metrics], run.plan.epochs))
            return metrics

        self._fit(training, run.folder.checkpoints, initialise, after_epoch)
        self._finish_main(TrainedState.of(training))
        return training

    def _finish_main(self, state: TrainedState) -> None:
        self._rebuild_metrics(state.history)
        distributed.barrier()  # until then, the other processes must not read the metrics
        self._main = state

    def _fit_other(
        self, name: str, objective: Objective, initialise: Initialise | None, constant_rate: bool
    ) -> Training:
        run, checkpoints = self.run, self.run.folder.trainings / name
        plan = replace(run.plan, fit=replace(run.plan.fit, schedule="constant")) if constant_rate else run.plan
        storage = plan.storage(self.device, targets="float32")
        training = build_training(plan, run.data, objective, storage, resumed=checkpoints.exists())

        def after_epoch(training: Training) -> Metrics:
            before = training.history[-1]["seconds"] if training.history else 0.0
            metrics = {"seconds": before + self._lap()}
            if run.data.validation is not None:
                predicted_N = predict_validation(run, training.model)
                metrics["validation_accuracy_given"] = accuracy(predicted_N, run.data.validation.labels) or 0.0
            return metrics

        self._fit(training, checkpoints, initialise, after_epoch)
        self._note_seconds(name, training.history[-1]["seconds"])
        return training

    def _fit(
        self,
        training: Training,
        checkpoints: Path,
        initialise: Initialise | None,
        after_epoch: Callable[[Training], Metrics],
    ) -> None:
        """Train to the end, from the newest checkpoint if there is one."""

        def after_step(training: Training) -> None:
            steps, epochs = training.loader.steps_per_epoch, training.settings.epochs
            done = training.epoch * steps + training.step
            self.on_stage(f"epoch {training.epoch + 1}/{epochs}", done, epochs * steps)

        restore(training, checkpoints)
        if checkpoints == self.run.folder.checkpoints:
            self._rebuild_metrics(training.history)  # before a tracker reads them
        if initialise is not None and (training.epoch, training.step) == (0, 0):
            initialise(training.model)
        self._lap()
        fit(training, checkpoints, after_epoch=after_epoch, after_step=after_step, before_save=self._list_broken)

    def _lap(self) -> float:
        """The seconds since the last call."""
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        return seconds

    def _record(self, metrics: Metrics, history: Sequence[Metrics]) -> None:
        """Add the metrics of an epoch, or of a solve, to those of the epochs before."""
        self._rebuild_metrics(history)
        seconds = round(self._lap(), 3)
        if distributed.rank() == 0:
            append_record(self.run.folder.metrics_file, {**metrics, "seconds": seconds})

    def _rebuild_metrics(self, history: Sequence[Metrics]) -> None:
        """Make metrics.jsonl hold the epochs of the checkpoint, whatever happened to the file."""
        path = self.run.folder.metrics_file
        rebuilt = rebuild_records(path, history) if distributed.rank() == 0 else 0
        if rebuilt:
            warnings.warn(
                f"{path} was damaged; {rebuilt} of its epochs were rebuilt from the checkpoint, without their times",
                stacklevel=2,
            )

    def _note(self, key: str, value: Any) -> None:
        """Write a value into run.json, unless it is there."""
        content = self.run.folder.read_run()
        if key not in content or content[key] != value:
            self.run.folder.write_run({**content, key: value})

    def _note_seconds(self, name: str, seconds: float) -> None:
        others = self.run.folder.read_run().get("other_trainings_seconds", {})
        self._note("other_trainings_seconds", {**others, name: round(seconds, 3)})

    def _list_broken(self, training: Training | None = None) -> None:
        list_unreadable(self.run.folder, self.run.data)


def _vectors(samples: Samples) -> Vectors:
    codes = {group: number for number, group in enumerate(dict.fromkeys(samples.groups or ()))}
    groups_N = None if samples.groups is None else torch.tensor([codes[group] for group in samples.groups])
    return Vectors(samples.inputs.read(torch.arange(len(samples))), samples.labels, groups_N)


def _solution(model: nn.Module, targets: TargetStore | None, metrics: Metrics) -> Checkpoint:
    """A solve as a checkpoint: like a training of one epoch, without the state of an optimiser."""
    return Checkpoint(
        epoch=1,
        step=0,
        model=model.state_dict(),
        targets=None if targets is None else targets.rows.state_dict(),
        state={"history": json.dumps([dict(metrics)])},
    )


def _validation(run: Run) -> Samples:
    if run.data.validation is None:
        raise UserError(f"{run.data.name} has no validation split; give --validation a share")
    return run.data.validation


def predict_validation(run: Run, model: nn.Module) -> Tensor:
    """The predicted classes of the validation split, some of which must be readable."""
    samples, device = _validation(run), choose_device(run.plan.device)
    predicted_N = classify(model, samples.inputs, run.data.num_classes, device, precision=run.plan.fit.precision)
    if bool((predicted_N == UNKNOWN).all()):
        sample_id, reason = next(iter(samples.broken.items()), (samples.ids[0], "another process could not read it"))
        raise UserError(f"no validation image can be read, such as {sample_id}: {reason}; are the data still there?")
    return predicted_N
