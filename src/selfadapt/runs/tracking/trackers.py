"""TensorBoard, MLflow and Weights & Biases, each as a small class that sends what metrics.jsonl holds.

Their own environment variables decide where things go: MLFLOW_TRACKING_URI, WANDB_MODE, WANDB_PROJECT and so on.
"""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from selfadapt.core.errors import UserError


class Tracker(Protocol):
    """An experiment tracker."""

    @property
    def run_id(self) -> str | None:
        """What the tracker calls the run, to continue it; None if the run folder is enough."""
        ...

    def log(self, values: Mapping[str, float], epoch: int) -> None: ...

    def finish(self, results: Mapping[str, float]) -> None: ...


class _TensorBoard:
    """Writes event files into RUN/tensorboard."""

    run_id = None

    def __init__(self, folder: Path, settings: Mapping[str, Any], run_id: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._epoch = 0
        if not (folder / "tracking.json").exists():
            lines = "\n".join(f"    {name}: {value}" for name, value in settings.items())
            self._writer.add_text("settings", lines)

    def log(self, values: Mapping[str, float], epoch: int) -> None:
        self._epoch = epoch
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def finish(self, results: Mapping[str, float]) -> None:
        self.log({f"result/{name}": value for name, value in results.items()}, self._epoch)
        self._writer.close()


class _MLflow:
    """A run in the experiment of MLFLOW_EXPERIMENT_NAME, or "selfadapt"."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], run_id: str | None) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        if run_id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "selfadapt")
            known = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if known is None else known.experiment_id
            run_id = str(self._client.create_run(experiment, run_name=folder.name).info.run_id)
            for name, value in settings.items():
                self._client.log_param(run_id, name, str(value)[:250])
        self.run_id: str | None = run_id

    def log(self, values: Mapping[str, float], epoch: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self.run_id, name, value, step=epoch)

    def finish(self, results: Mapping[str, float]) -> None:
        for name, value in results.items():
            self._client.log_metric(self.run_id, f"result/{name}", value)
        self._client.set_terminated(self.run_id)


class _WeightsAndBiases:
    """A run in the project of WANDB_PROJECT, or "selfadapt"."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], run_id: str | None) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "selfadapt")
        self._run = wandb.init(
            project=project, name=folder.name, id=run_id, resume="allow", config=dict(settings), reinit="create_new"
        )
        self.run_id: str | None = str(self._run.id)

    def log(self, values: Mapping[str, float], epoch: int) -> None:
        self._run.log(dict(values), step=epoch)

    def finish(self, results: Mapping[str, float]) -> None:
        self._run.summary.update(dict(results))
        self._run.finish()


TRACKERS: Mapping[str, Callable[[Path, Mapping[str, Any], str | None], Tracker]] = {
    "tensorboard": _TensorBoard, "mlflow": _MLflow, "wandb": _WeightsAndBiases,
}  # fmt: skip


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def check_trackers(names: str | None) -> tuple[str, ...]:
    """Return the trackers in a comma-separated list.

    Raises:
        UserError: If one is unknown, or its package is missing.
    """
    chosen = tuple(name.strip() for name in (names or "").split(",") if name.strip())
    for name in chosen:
        if name not in TRACKERS:
            raise UserError(f"--log-to {name!r} is not known; choose from {', '.join(TRACKERS)}, separated by commas")
        if not is_installed(name):
            raise UserError(f"--log-to {name} needs an extra: pip install 'selfadapt[{name}]'")
    return chosen
