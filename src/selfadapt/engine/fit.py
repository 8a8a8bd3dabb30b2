"""The training loop. It is independent of the method and the data, and writes nothing but checkpoints.

Shapes: B samples of a batch, N samples in total, K classes, T terms of the loss.
"""

import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from selfadapt.core import distributed
from selfadapt.core.device import autocast, random_states, set_random_states
from selfadapt.core.errors import Interrupted, NonFinitePrediction, TrainingError
from selfadapt.core.rng import draw
from selfadapt.data.batch import Batch
from selfadapt.data.loader import Loader
from selfadapt.engine import checkpoint
from selfadapt.engine.accumulator import Accumulator
from selfadapt.engine.checkpoint import Checkpoint
from selfadapt.engine.interrupt import Agreement, stop_on_signal
from selfadapt.engine.optim import OptimizerSettings, learning_rate, make_optimizer
from selfadapt.engine.step_report import StepReport, not_finite
from selfadapt.models.batch_norm.sync_batch_norm import SyncBatchNorm
from selfadapt.objectives.objective import Loss, Metrics, Objective, Progress
from selfadapt.targets.sharded import ShardedRows
from selfadapt.targets.store import TargetStore

Precision = Literal["float32", "bfloat16", "float16"]
CompileMode = Literal["none", "default", "reduce-overhead", "max-autotune"]


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """The length of training and how a step is computed."""

    epochs: int = 200
    micro_batches: int = 1  # gradient accumulation: forward passes per step of the optimiser
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    precision: Precision = "float32"
    compile: CompileMode = "none"  # the mode of torch.compile
    checkpoint_minutes: float = 10.0  # between checkpoints within an epoch; the end of an epoch is always saved


class Training:
    """The state of a training run: model, method, targets, optimiser and position."""

    def __init__(
        self,
        objective: Objective,
        model: nn.Module,
        targets: TargetStore | None,
        loader: Loader,
        settings: FitSettings,
        *,
        num_classes: int,
        device: torch.device,
    ) -> None:
        self.objective, self.targets, self.loader, self.settings = objective, targets, loader, settings
        self.num_classes, self.device = num_classes, device
        self.model = model.to(device)
        if settings.compile != "none":  # in place: attacks and evaluation call the compiled network, too
            self.model.compile(mode=settings.compile, dynamic=False)
        self.forward_model = _data_parallel(self.model) if distributed.world_size() > 1 else self.model
        self.running = _running_statistics(self.model)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        scaled = settings.precision == "float16"
        self.optimizer = make_optimizer(
            settings.optimizer, objective.parameter_groups(self.model, settings.optimizer.lr), device, scaled=scaled
        )
        self.scaler = GradScaler(device.type, enabled=scaled)
        self.epoch = self.step = 0
        self.accumulator = Accumulator(loader.num_samples, device)
        self.history: list[Metrics] = []
        self.kept: dict[str, Tensor] | None = None  # weights of the last epoch that the method selected, if it selects
        self.finish_saving: Callable[[], None] = lambda: None
        self._unread: StepReport | None = None  # report of the last step, not yet read from the device

    @property
    def progress(self) -> Progress:
        steps, epochs = self.loader.steps_per_epoch, self.settings.epochs
        return Progress(self.epoch, (self.epoch * steps + self.step) / (epochs * steps), epochs, self.history)

    def start_epoch(self) -> None:
        """Let the method prepare the epoch."""
        self.model.train()
        if self.step == 0:
            with autocast(self.device, self.settings.precision):
                self.objective.before_epoch(self.model, self.loader.plain(), self.targets, self.progress)

    def take_step(self, batch: Batch) -> None:
        """Take a step of the optimiser on a batch. On an accelerator, its report is read during the next step."""
        progress, report = self.progress, StepReport(self.epoch, self.step)
        rate = learning_rate(self.settings.optimizer, progress.fraction * self.settings.epochs, self.settings.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("lr_scale", 1.0)
        micro_batches = batch.split(self.settings.micro_batches)
        sums_T2 = self._gradient(micro_batches, batch.whole or len(batch), progress, report)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.objective.after_step(self.model, progress)
        report.send(sums_T2)
        self.settle()
        self._unread = report
        if self.device.type == "cpu":
            self.settle()

    def settle(self) -> None:
        """Read the report of the last step, if that has not been done.

        Raises:
            TrainingError: If the loss of that step was not finite.
        """
        report, self._unread = self._unread, None
        if report is None:
            return
        sums_T2, measured, samples = report.read()
        if samples is not None:
            raise self._not_finite(samples, report)
        self.accumulator.add_loss(sums_T2)
        for name, values in measured:
            self.accumulator.measure(name, values)

    def _gradient(self, micro_batches: Sequence[Batch], size: int, progress: Progress, report: StepReport) -> Tensor:
        """Compute the gradient of the step's loss, and return the sums of its terms over the whole step (T×2).

        The loss is the sum over its terms of total / weight, both summed over micro-batches and processes. The weights
        are known only after the last micro-batch. With one term, each micro-batch is divided by the batch size, and the
        gradient is rescaled at the end. With several terms and one micro-batch, the weights are summed before the
        backward pass. With several terms and micro-batches, the gradients of the terms are kept separate until the end.
        """
        sums_T2 = torch.zeros(0)
        statistics: list[
            Tensor
        ] = []  # averages over processes, set after the backward pass, which needs the local ones
        by_term: list[list[Tensor]] = []
        for micro_batch in micro_batches:
            one_pass = micro_batch is micro_batches[-1] and not by_term
            with nullcontext() if one_pass else self._without_gradient_sync():
                loss = self._loss(micro_batch, progress, report)
                micro_T2 = torch.stack([torch.stack([term.total.detach(), term.weight]) for term in loss.terms])
                if len(loss.terms) == 1:
                    self.scaler.scale(loss.terms[0].total / size).backward()
                elif len(micro_batches) == 1:
                    micro_T2, statistics = self._summed(micro_T2)
                    totals = torch.stack([term.total for term in loss.terms])
                    self.scaler.scale((totals * (distributed.world_size() / micro_T2[:, 1])).sum()).backward()
                else:
                    self._add_gradients(by_term, loss, size)
            sums_T2 = sums_T2 + micro_T2 if len(sums_T2) else micro_T2
            self._record(micro_batch, loss, report)
        if len(sums_T2) == 1 or by_term:
            sums_T2, statistics = self._summed(sums_T2)
        if by_term:
            self._join_gradients(by_term, size / sums_T2[:, 1])
        self.scaler.unscale_(self.optimizer)
        if len(sums_T2) == 1:
            correction = size * distributed.world_size() / sums_T2[0, 1]
            gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            torch._foreach_mul_(gradients, correction)
        if statistics:
            torch._foreach_copy_(self.running, statistics)
        return sums_T2

    def _record(self, micro_batch: Batch, loss: Loss, report: StepReport) -> None:
        if loss.logits_BK is not None:
            predicted_B = loss.logits_BK[:, : self.num_classes].argmax(1)
            self.accumulator.predicted_N.index_copy_(0, micro_batch.index, predicted_B.int())
        report.measure(loss.measured)

    def _add_gradients(self, by_term: list[list[Tensor]], loss: Loss, size: int) -> None:
        """Add the gradients of each term of a micro-batch to those of earlier micro-batches."""
        for number, term in enumerate(loss.terms):
            gradients = torch.autograd.grad(
                self.scaler.scale(term.total / size),
                self.parameters,
                retain_graph=number < len(loss.terms) - 1,
                materialize_grads=True,
            )
            if number == len(by_term):
                by_term.append(list(gradients))
            else:
                torch._foreach_add_(by_term[number], gradients)

    def _join_gradients(self, by_term: list[list[Tensor]], share_T: Tensor) -> None:
        """Set the gradients of the parameters to the weighted sum over terms, summed over processes."""
        for parameter, *gradients in zip(self.parameters, *by_term, strict=True):
            gradient = (torch.stack(gradients, -1) @ share_T).contiguous()
            parameter.grad = distributed.all_reduce_sum(gradient)

    def _without_gradient_sync(self) -> AbstractContextManager[Any]:
        """Accumulate gradients without communication, for all micro-batches but the last."""
        model = self.forward_model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    @torch.no_grad()
    def _summed(self, sums_T2: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Sum over the processes, and average the running statistics of batch normalisation in the same collective.

        Returns:
            The sums, and the averaged statistics, which each process has updated with its share of the batch only.
        """
        processes = distributed.world_size()
        if processes == 1:
            return sums_T2, []
        tensors = [sums_T2, *self.running]
        total = distributed.all_reduce_sum(torch.cat([tensor.flatten() for tensor in tensors]))
        sums, *statistics = total.split([tensor.numel() for tensor in tensors])
        averages = [summed.view_as(local) / processes for summed, local in zip(statistics, self.running, strict=True)]
        return sums.view_as(sums_T2), averages

    def _loss(self, batch: Batch, progress: Progress, report: StepReport) -> Loss:
        try:
            precise = autocast(self.device, self.settings.precision)
            with precise, nullcontext() if self.targets is None else self.targets.step(batch.dealt):
                loss = self.objective.loss(self.forward_model, batch, self.targets, progress)
        except NonFinitePrediction as error:
            raise self._not_finite(list(error.samples), report) from error
        if self.device.type != "cpu":
            report.add(loss, batch.index)
        elif not all(bool(torch.isfinite(term.total)) for term in loss.terms):
            broken_B = not_finite(loss, batch.index)
            samples = batch.index[broken_B] if broken_B.any() else batch.index
            raise self._not_finite(samples.tolist(), report)
        return loss

    def _not_finite(self, samples: list[int], report: StepReport) -> TrainingError:
        ids = ", ".join(self.loader.ids[i] for i in samples[:5])
        more = f" and {len(samples) - 5} more" if len(samples) > 5 else ""
        return TrainingError(
            f"the loss is not finite in epoch {report.epoch + 1}, step {report.step + 1}, at the samples {ids}{more}; "
            "lower the learning rate or check these samples"
        )

    def end_epoch(self, metrics: Metrics) -> None:
        """Finish an epoch with its measurements."""
        self.history.append(metrics)
        if self.objective.keeps(self.history):
            self.kept = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.epoch, self.step = self.epoch + 1, 0
        self.accumulator = Accumulator(self.loader.num_samples, self.device)
        if self.epoch == self.settings.epochs and self.kept is not None:
            self.model.load_state_dict(self.kept)

    def save(self, folder: Path) -> None:
        """Write a checkpoint, in all processes. Sharded targets and state of a GPU are saved in the background."""
        self.settle()
        self.close()
        rows = None if self.targets is None else self.targets.rows
        sharded = isinstance(rows, ShardedRows)
        state = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": distributed.all_gather_objects(random_states(self.device)),
            "accumulator": self.accumulator.merged().state_dict(),
            # As JSON text, so that a resumed run writes the same bytes.
            "moments": json.dumps(distributed.all_gather_objects(self.accumulator.moments)),
            "history": json.dumps([dict(metrics) for metrics in self.history]),
            "kept": self.kept,
        }
        self.finish_saving = checkpoint.save(
            folder,
            Checkpoint(
                epoch=self.epoch,
                step=self.step,
                model=self.model.state_dict(),
                # Only the rows: file names give their owners, and loading redistributes them.
                targets=None if rows is None else rows.state_dict(),
                state=state,
            ),
            sharded=sharded,
            # A background save copies to memory, which rows in a file may not fit.
            in_background=(sharded or self.device.type != "cpu") and not (rows is not None and rows.in_file),
        )

    def close(self) -> None:
        """Wait for the checkpoint that is being written."""
        self.finish_saving()

    def restore(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint, in all processes."""
        self.model.load_state_dict(saved.model)
        if self.targets is not None and saved.targets is not None:
            self.targets.rows.load_state_dict(saved.targets)
        self.optimizer.load_state_dict(saved.state["optimizer"])
        self.scaler.load_state_dict(saved.state["scaler"])
        self.accumulator.load_state_dict(saved.state["accumulator"])
        moments = json.loads(saved.state["moments"])
        if len(moments) == distributed.world_size():
            self.accumulator.add(moments[distributed.rank()])
        elif distributed.rank() == 0:  # saved by another number of processes: rank 0 takes the measurements of all
            for measured in moments:
                self.accumulator.add(measured)
        self.history, self.kept = json.loads(saved.state["history"]), saved.state["kept"]
        self.epoch, self.step = saved.epoch, saved.step
        self._restore_random(saved.state["random"])

    def _restore_random(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Restore the random state of this rank. If the number of processes has changed, only rank 0 can."""
        same, rank = len(states) == distributed.world_size(), distributed.rank()
        set_random_states(states[rank if same else 0], self.device)
        if rank and not same:  # otherwise all ranks would draw the same dropout masks
            torch.manual_seed(draw(torch.initial_seed(), "process", rank, self.epoch, self.step))


def _running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running statistics that differ between processes: not those of synchronised batch normalisation."""
    names = ("running_mean", "running_var")
    modules = [module for module in model.modules() if not isinstance(module, SyncBatchNorm | nn.SyncBatchNorm)]
    return [buffer for module in modules for name, buffer in module.named_buffers(recurse=False) if name in names]


def _data_parallel(model: nn.Module) -> nn.Module:
    """Wrap the model. Buffers such as running means are averaged after each step instead of broadcast."""
    supported = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in supported else "broadcast_buffers"
    return DistributedDataParallel(model, **{option: False})  # type: ignore[arg-type]


def fit(
    training: Training,
    folder: Path | None = None,
    *,
    after_epoch: Callable[[Training], Metrics | None] = lambda training: None,
    after_step: Callable[[Training], None] = lambda training: None,
    before_save: Callable[[Training], None] = lambda training: None,
) -> None:
    """Train to the last epoch.

    Args:
        training: The training run, new or restored.
        folder: Folder for checkpoints. None writes no checkpoints.
        after_epoch: Returns measurements of a finished epoch, which are added to the history that methods read. It
            runs before the checkpoint is written, so a resumed run may call it again for the same epoch.
        after_step: Called after each step.
        before_save: Called in all processes before each checkpoint.

    Raises:
        Interrupted: On SIGINT or SIGTERM, after a checkpoint.
        TrainingError: If the loss is not finite.
    """
    agreement = Agreement()
    with stop_on_signal() as stop, closing(training):
        saved_at = time.monotonic()
        while training.epoch < training.settings.epochs:
            training.start_epoch()
            for batch in training.loader.epoch(training.epoch, start=training.step):
                training.take_step(batch)
                training.step += 1
                after_step(training)
                due = time.monotonic() - saved_at > 60 * training.settings.checkpoint_minutes
                stopped, due = agreement.reached(bool(stop), due)
                if folder is not None and (stopped or due):
                    before_save(training)
                    training.save(folder)
                    saved_at = time.monotonic()
                if stopped:
                    raise Interrupted(f"stopped in epoch {training.epoch + 1} of {training.settings.epochs}")
            training.settle()
            training.accumulator = training.accumulator.merged()
            training.end_epoch({**training.accumulator.metrics, **(after_epoch(training) or {})})
            if folder is not None:
                before_save(training)
                training.save(folder)
                saved_at = time.monotonic()
        agreement.end()
