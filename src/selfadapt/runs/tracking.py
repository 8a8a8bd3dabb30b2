"""Sending the metrics of a run to experiment trackers while it trains: TensorBoard, MLflow, Weights & Biases.

metrics.jsonl is the source, and tracking.json records how many of its lines each tracker has received. So a resumed run
continues the same run of the tracker and sends what an interruption left unsent. A tracker that fails, for example
without a network, gives a warning and is left out; training goes on. The trackers' own environment variables decide
where things go: MLFLOW_TRACKING_URI, WANDB_MODE, WANDB_PROJECT and so on.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from selfadapt.core.errors import UserError
from selfadapt.core.progress import StageProgress
from selfadapt.run_folder.contents import Tracked
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan


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


class MetricsSender:
    """Sends new lines of metrics.jsonl to trackers. Without trackers it does nothing."""

    def __init__(self, folder: RunFolder, plan: Plan, names: Sequence[str]) -> None:
        self._folder, self._seen = folder, -1
        stored = folder.read_json(folder.tracking_file, dict[str, Tracked]) if names else None
        self._state: dict[str, Tracked] = stored or {}
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            known = self._state.setdefault(name, {"sent": 0, "run_id": None})
            try:
                self._trackers[name] = TRACKERS[name](folder.path, plan.values(), known["run_id"])
                known["run_id"] = self._trackers[name].run_id
            except Exception as error:
                _warn(name, error)
        self._save()

    def sending(self, on_stage: StageProgress) -> StageProgress:
        """The callback, which also sends what was written since its last call."""
        if not self._trackers:
            return on_stage

        def progress(stage: str, done: int, total: int) -> None:
            on_stage(stage, done, total)
            self.send()

        return progress

    def send(self) -> None:
        """Send the lines that a tracker has not received."""
        path = self._folder.metrics_file
        size = path.stat().st_size if self._trackers and path.exists() else -1
        if size == self._seen:
            return
        self._seen = size
        records = self._folder.read_metrics()
        for name, tracker in list(self._trackers.items()):
            for number, record in enumerate(records[self._state[name]["sent"] :], start=self._state[name]["sent"] + 1):
                try:
                    tracker.log(_numbers(record), int(record.get("epoch", number)))
                except Exception as error:
                    _warn(name, error)
                    del self._trackers[name]
                    break
                self._state[name]["sent"] = number
        self._save()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Send the rest and the result, and close the trackers."""
        self.send()
        for name, tracker in self._trackers.items():
            try:
                tracker.finish(_numbers(result))
            except Exception as error:
                _warn(name, error)

    def _save(self) -> None:
        if self._trackers:
            self._folder.write_json(self._folder.tracking_file, self._state)


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "epoch"
    }


def _warn(name: str, error: Exception) -> None:
    lines = str(error).splitlines()
    reason = lines[0] if lines else type(error).__name__
    warnings.warn(f"{name} does not receive the metrics: {reason}; they are in metrics.jsonl", stacklevel=3)
