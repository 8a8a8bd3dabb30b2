"""The training loop. It knows no method, no data set and no file but its checkpoints.

Shapes: B samples of a batch, N samples in all, K classes.
"""

import inspect
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from selfadapt import processes
from selfadapt.data.loader import Batch, Loader
from selfadapt.engine import checkpoint
from selfadapt.engine.checkpoint import Checkpoint
from selfadapt.engine.interrupt import stop_on_signal
from selfadapt.engine.optim import OptimizerSettings, learning_rate, make_optimizer
from selfadapt.errors import Interrupted, NonFinitePrediction, TrainingError, UserError
from selfadapt.objectives.objective import Figures, Loss, Objective, Progress
from selfadapt.targets.shared import ShardedRows
from selfadapt.targets.store import TargetStore

Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How long and in which steps to train."""

    epochs: int = 200
    pieces: int = 1  # a batch is forwarded in so many pieces before one step of the optimiser
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    precision: Precision = "float32"
    compile: bool = False
    checkpoint_minutes: float = 10.0  # within an epoch; the end of an epoch is always saved


class Tally:
    """The running figures of an epoch: the loss, the class last predicted for each training sample, and means."""

    def __init__(self, num_samples: int, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64)
        self.weight = torch.zeros((), dtype=torch.float64)
        self.predicted_N = torch.full((num_samples,), -1, dtype=torch.int32, device=device)
        self.moments: dict[str, list[float]] = {}  # of what a method measures: count, sum, sum of squares

    @property
    def loss(self) -> float:
        return (self.total / self.weight).item()

    @property
    def figures(self) -> dict[str, float]:
        """The mean of each quantity that the method measured, its standard error and its number of samples."""
        figures = {}
        for name, (count, total, squares) in self.moments.items():
            if count:
                mean = total / count
                figures[name] = mean
                figures[f"{name}_error"] = math.sqrt(max(0.0, squares / count - mean**2) / count)
                figures[f"{name}_count"] = count
        return figures

    def merged(self) -> "Tally":
        """The figures of all processes together. The loss is so already."""
        if processes.count() == 1:
            return self
        whole = Tally(len(self.predicted_N), self.predicted_N.device)
        whole.total, whole.weight = self.total, self.weight
        whole.predicted_N = processes.largest_of_all(self.predicted_N.clone())
        for moments in processes.objects_of_all(self.moments):
            whole.add(cast(dict[str, list[float]], moments))
        return whole

    def measure(self, name: str, values: Tensor) -> None:
        values = values.double()
        self.add({name: [len(values), *torch.stack([values.sum(), values.square().sum()]).tolist()]})

    def add(self, moments: Mapping[str, Sequence[float]]) -> None:
        for name, values in moments.items():
            before = self.moments.get(name, [0.0] * len(values))
            self.moments[name] = [old + new for old, new in zip(before, values, strict=True)]

    def state_dict(self) -> dict[str, Tensor]:
        return {"total": self.total, "weight": self.weight, "predicted": self.predicted_N}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.total, self.weight = state["total"], state["weight"]
        self.predicted_N = state["predicted"].to(self.predicted_N.device)


class Training:
    """A model, its method and its data in the middle of being trained."""

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
        shared = _data_parallel(self.model) if processes.count() > 1 else self.model
        self.forward_model = cast(nn.Module, torch.compile(shared, dynamic=False)) if settings.compile else shared
        self.running = [b for name, b in self.model.named_buffers() if name.endswith(("running_mean", "running_var"))]
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        scaled = settings.precision == "float16"
        self.optimizer = make_optimizer(
            settings.optimizer, objective.parameter_groups(self.model), device, scaled=scaled
        )
        self.scaler = GradScaler(device.type, enabled=scaled)
        self.epoch = self.step = 0
        self.tally = Tally(loader.num_samples, device)
        self.history: list[Figures] = []
        self.kept: dict[str, Tensor] | None = None  # the network to be the result, if the method keeps one

    @property
    def progress(self) -> Progress:
        steps, epochs = self.loader.steps_per_epoch, self.settings.epochs
        return Progress(self.epoch, (self.epoch * steps + self.step) / (epochs * steps), epochs, self.history)

    def take_step(self, batch: Batch) -> None:
        """One step of the optimiser on one batch."""
        progress = self.progress
        rate = learning_rate(self.settings.optimizer, progress.fraction * self.settings.epochs, self.settings.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("pace", 1.0)
        size = batch.whole or len(batch)
        sums = torch.zeros(2, device=self.device)  # of total and weight
        pieces = batch.split(self.settings.pieces)
        for piece in pieces:
            with self._gradients_stay_here() if piece is not pieces[-1] else nullcontext():
                loss = self._loss(piece, progress)
                self.scaler.scale(loss.total / size).backward()
            sums += torch.stack([loss.total.detach(), loss.weight])
            if loss.logits_BK is not None:
                predicted_B = loss.logits_BK[:, : self.num_classes].argmax(1)
                self.tally.predicted_N[piece.index] = predicted_B.int()
            for name, values in loss.measured.items():
                self.tally.measure(name, values)
        # Each piece was divided by the batch's size, and processes take the mean of their gradients. What is wanted is
        # the mean over the weights of the whole step, pieces and processes, which are known only now. So the
        # gradients are put right here, in one place.
        total, weight = processes.sum_over_all(sums)
        self.scaler.unscale_(self.optimizer)
        correction = size * processes.count() / weight
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(correction)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._average_running_statistics()
        self.objective.after_step(self.model, progress)
        self.tally.total += total.cpu().double()
        self.tally.weight += weight.cpu().double()

    def _gradients_stay_here(self) -> AbstractContextManager[Any]:
        """Let a piece that is not the last add to the gradients without telling the other processes."""
        shared = self.forward_model
        return shared.no_sync() if isinstance(shared, DistributedDataParallel) else nullcontext()

    @torch.no_grad()
    def _average_running_statistics(self) -> None:
        """Those of batch normalisation, which each process takes from its own part of the batch."""
        if processes.count() > 1 and self.running:
            mean = processes.sum_over_all(parameters_to_vector(self.running)) / processes.count()
            vector_to_parameters(mean, self.running)

    def _loss(self, batch: Batch, progress: Progress) -> Loss:
        try:
            with self._autocast():
                loss = self.objective.loss(self.forward_model, batch, self.targets, progress)
        except NonFinitePrediction as error:
            raise self._not_finite(list(error.samples)) from error
        if not torch.isfinite(loss.total):
            logits_BK = loss.logits_BK
            broken_B = None if logits_BK is None else ~logits_BK.isfinite().all(1)
            culprits = batch.index[broken_B] if broken_B is not None and broken_B.any() else batch.index
            raise self._not_finite(culprits.tolist())
        return loss

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.settings.precision))

    def _not_finite(self, samples: list[int]) -> TrainingError:
        ids = ", ".join(self.loader.ids[i] for i in samples[:5])
        more = f" and {len(samples) - 5} more" if len(samples) > 5 else ""
        return TrainingError(
            f"the loss is not finite in epoch {self.epoch + 1}, step {self.step + 1}, at the samples {ids}{more}; "
            "lower the learning rate or look at these samples"
        )

    def end_epoch(self, figures: Figures) -> None:
        """Close an epoch with what was measured after it."""
        self.history.append(figures)
        if self.objective.keeps(self.history):
            self.kept = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.epoch, self.step = self.epoch + 1, 0
        self.tally = Tally(self.loader.num_samples, self.device)
        if self.epoch == self.settings.epochs and self.kept is not None:
            self.model.load_state_dict(self.kept)

    def save(self, folder: Path) -> None:
        """Write a checkpoint, all processes together."""
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        state = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": processes.objects_of_all(random),
            "tally": self.tally.merged().state_dict(),
            # As text, which is the same bytes whether the run was resumed or not.
            "moments": json.dumps(processes.objects_of_all(self.tally.moments)),
            "history": json.dumps([dict(figures) for figures in self.history]),
            "kept": self.kept,
        }
        checkpoint.save(
            folder,
            Checkpoint(
                epoch=self.epoch,
                step=self.step,
                model=self.model.state_dict(),
                targets=None if self.targets is None else self.targets.state_dict(),
                state=state,
            ),
            sharded=self.targets is not None and isinstance(self.targets.rows, ShardedRows),
        )

    def restore(self, saved: Checkpoint) -> None:
        if "moments" not in saved.state or (saved.targets is not None and "rows" not in saved.targets):
            raise UserError("the checkpoint was written by an older version; start the run anew in another folder")
        self.model.load_state_dict(saved.model)
        if self.targets is not None and saved.targets is not None:
            self.targets.load_state_dict(saved.targets)
        self.optimizer.load_state_dict(saved.state["optimizer"])
        self.scaler.load_state_dict(saved.state["scaler"])
        self.tally.load_state_dict(saved.state["tally"])
        moments = json.loads(saved.state["moments"])
        if len(moments) == processes.count():
            self.tally.add(moments[processes.rank()])
        elif processes.rank() == 0:  # saved by another number of processes: the first brings what all had measured
            for own in moments:
                self.tally.add(own)
        self.history, self.kept = json.loads(saved.state["history"]), saved.state["kept"]
        self.epoch, self.step = saved.epoch, saved.step
        states = saved.state["random"]
        random = states[processes.rank() if len(states) == processes.count() else 0]
        torch.set_rng_state(random["cpu"])
        if "cuda" in random and self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)


def _data_parallel(model: nn.Module) -> nn.Module:
    """The model as one of several. Buffers, such as running means, are averaged after each step instead of copied."""
    known = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return DistributedDataParallel(model, **{option: False})  # type: ignore[arg-type]


def fit(
    training: Training,
    folder: Path | None = None,
    *,
    after_epoch: Callable[[Training], Figures | None] = lambda training: None,
    after_step: Callable[[Training], None] = lambda training: None,
) -> None:
    """Train to the last epoch, with checkpoints in `folder` if there is one.

    `after_epoch` measures an epoch before it is saved, so it may see an epoch again on resume. What it returns is the
    history that a method can decide by.
    """
    with stop_on_signal() as stop:
        saved_at = time.monotonic()
        while training.epoch < training.settings.epochs:
            training.model.train()
            for batch in training.loader.epoch(training.epoch, start=training.step):
                training.take_step(batch)
                training.step += 1
                after_step(training)
                due = time.monotonic() - saved_at > 60 * training.settings.checkpoint_minutes
                stopped, due = _agreed(bool(stop), due, training.device)
                if folder is not None and (stopped or due):
                    training.save(folder)
                    saved_at = time.monotonic()
                if stopped:
                    raise Interrupted(f"stopped in epoch {training.epoch + 1} of {training.settings.epochs}")
            training.tally = training.tally.merged()
            training.end_epoch({**training.tally.figures, **(after_epoch(training) or {})})
            if folder is not None:
                training.save(folder)
                saved_at = time.monotonic()


def _agreed(stop: bool, due: bool, device: torch.device) -> tuple[bool, bool]:
    """Whether any process is to stop, or finds a checkpoint due: all do the same at the same step."""
    if processes.count() == 1:
        return stop, due
    stop, due = processes.largest_of_all(torch.tensor([stop, due], dtype=torch.int32, device=device)).bool().tolist()
    return stop, due
