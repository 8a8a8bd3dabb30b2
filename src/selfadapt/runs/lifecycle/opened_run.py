"""A run that is opened: its folder, plan, data and model. It is opened without an optimiser or a loader."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from selfadapt.core.device import choose_device, device_name, make_deterministic
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.engine.checkpoint import Checkpoint
from selfadapt.engine.fit import Training
from selfadapt.objectives.objective import Metrics, Objective, Progress
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.lifecycle.environment import warn_of_versions
from selfadapt.runs.lifecycle.network import build_model
from selfadapt.runs.lifecycle.prepare_data import recall
from selfadapt.runs.lifecycle.saved_network import newest_checkpoint, restoring
from selfadapt.runs.lifecycle.threads import set_useful_threads
from selfadapt.targets.store import TargetStore


@dataclass(frozen=True, kw_only=True)
class TrainedState:
    """What training has come to: the model, the targets, and how far it is."""

    objective: Objective
    model: nn.Module
    targets: TargetStore | None  # None for a method without targets
    device: torch.device
    epochs: int  # in all
    epoch: int  # finished
    step: int  # steps of the next epoch that are done
    history: Sequence[Metrics]  # of the finished epochs
    visited_N: Tensor  # whether a sample was seen in the epoch that is not finished

    @classmethod
    def of(cls, training: Training) -> "TrainedState":
        return cls(
            objective=training.objective,
            model=training.model,
            targets=training.targets,
            device=training.device,
            epochs=training.settings.epochs,
            epoch=training.epoch,
            step=training.step,
            history=training.history,
            visited_N=training.accumulator.predicted_N.cpu() >= 0,
        )

    @property
    def progress(self) -> Progress:
        return Progress(self.epoch, self.epoch / self.epochs, self.epochs, self.history)


@dataclass(frozen=True)
class OpenedRun:
    """A run to look at."""

    folder: RunFolder
    plan: Plan
    data: Data
    state: TrainedState

    @property
    def model(self) -> nn.Module:
        return self.state.model

    @property
    def device(self) -> torch.device:
        return self.state.device

    @property
    def objective(self) -> Objective:
        return self.state.objective


def open_folder(folder: RunFolder, on_progress: ProgressCallback = no_progress, *, device: str = "auto") -> OpenedRun:
    """Open a run as its newest checkpoint has it, on any device. Its files stay as they are.

    Raises:
        UserError: if the folder is not that of a run with labels, or has not been trained yet, or its data are gone.
    """
    plan = replace(Plan.of(folder, "labels"), device=device_name(device))
    data = recall(plan, folder, on_progress)
    warn_of_versions(folder.read_run())
    own = choose_device(plan.device)
    make_deterministic(own, plan.fit.deterministic)
    saved = newest_checkpoint(folder, own)
    inputs = data.train.inputs
    targets = plan.method.initial_targets(data.train.labels, data.num_classes, plan.storage(own))
    with restoring(folder.checkpoints, saved):
        set_useful_threads(plan, inputs.shape, own)
        model = build_model(plan, plan.method, inputs.shape, channel_statistics(inputs), data.num_classes).to(own)
        state = state_from(saved, plan, plan.method, model, targets, len(data.train))
    return OpenedRun(folder, plan, data, state)


def state_from(
    saved: Checkpoint, plan: Plan, objective: Objective, model: nn.Module, targets: TargetStore | None, samples: int
) -> TrainedState:
    """Load a checkpoint into a model and its targets."""
    model.load_state_dict(saved.model)
    if targets is not None and saved.targets is not None:
        targets.rows.load_state_dict(saved.targets)
    running = saved.state.get("accumulator")  # not in the checkpoint of a solve
    visited_N = torch.zeros(samples, dtype=torch.bool) if running is None else running["predicted"].cpu() >= 0
    if len(visited_N) != samples:
        raise ValueError(f"it is about {len(visited_N)} samples instead of {samples}")
    return TrainedState(
        objective=objective,
        model=model,
        targets=targets,
        device=choose_device(plan.device),
        epochs=plan.epochs,
        epoch=saved.epoch,
        step=saved.step,
        history=json.loads(saved.state["history"]),
        visited_N=visited_N,
    )


def check_trained(run: OpenedRun) -> None:
    """Raise a UserError unless the run was trained to its end."""
    if run.state.epoch < run.plan.epochs:
        raise UserError(
            f"{run.folder.path} is not trained to its end: {run.state.epoch} of {run.plan.epochs} epochs are done; "
            f"resume it with: selfadapt train --resume --out {run.folder.path}"
        )
