"""What experiment trackers hold is what metrics.jsonl holds, also after a resume and after a failure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.program import run, run_json, signal_after
from selfadapt.runs import tracking as trackers

TRAIN = (
    "train",
    "digits",
    "--method",
    "erm",
    "--model",
    "mlp",
    "--limit",
    "100",
    "--test-limit",
    "20",
    "--epochs",
    "3",
)


class Recorder:
    """A tracker that records what it gets."""

    def __init__(self, received: list[tuple[int, dict[str, float]]], run_id: str | None) -> None:
        self.received, self.run_id, self.results = received, run_id or "first", dict[str, float]()

    def log(self, values: Mapping[str, float], epoch: int) -> None:
        self.received.append((epoch, dict(values)))

    def finish(self, results: Mapping[str, float]) -> None:
        self.results.update(results)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    made: list[Recorder] = []

    def make(folder: Path, settings: Mapping[str, Any], run_id: str | None) -> Recorder:
        made.append(Recorder(made[0].received if made else [], run_id))
        return made[-1]

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", make)
    monkeypatch.setattr(trackers, "is_installed", lambda name: True)
    return made


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_line_is_sent_once_also_over_a_resume(recorders: list[Recorder], tmp_path: Path) -> None:
    arguments = (*TRAIN, "--out", "run", "--log-to", "tensorboard")
    with signal_after(2):
        assert run(*arguments, folder=tmp_path).returncode == 130
    result = run_json(*arguments, "--resume", folder=tmp_path)
    lines = _lines(tmp_path / "run")
    received = recorders[0].received
    assert [epoch for epoch, _ in received] == [line["epoch"] for line in lines] == [1, 2, 3]
    for (_, values), line in zip(received, lines, strict=True):
        assert values == {
            name: value for name, value in line.items() if name not in ("epoch", "crc32") and value is not None
        }
    assert recorders[-1].run_id == "first"
    assert recorders[-1].results["test_accuracy"] == result["test_accuracy"]
    assert not recorders[0].results


@pytest.mark.filterwarnings("always:.*does not receive the metrics")
def test_a_tracker_that_fails_does_not_stop_training(
    recorders: list[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Recorder, values: Mapping[str, float], epoch: int) -> None:
        raise OSError("no network")

    monkeypatch.setattr(Recorder, "log", fail)
    done = run(*TRAIN, "--out", "run", "--log-to", "tensorboard", folder=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("does not receive the metrics: no network") == 1
    assert len(_lines(tmp_path / "run")) == 3


def test_unknown_and_missing_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = run(*TRAIN, "--log-to", "paper", folder=tmp_path)
    assert unknown.returncode == 2
    assert "choose from tensorboard, mlflow, wandb" in unknown.stderr
    monkeypatch.setattr(trackers, "is_installed", lambda name: False)
    missing = run(*TRAIN, "--log-to", "wandb", folder=tmp_path)
    assert missing.returncode == 2
    assert "pip install 'selfadapt[wandb]'" in missing.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.door
def test_tensorboard_holds_the_lines(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_json(*TRAIN, "--out", "run", "--log-to", "tensorboard", folder=tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("validation_accuracy_given")}
    lines = _lines(tmp_path / "run")
    assert found == pytest.approx({line["epoch"]: line["validation_accuracy_given"] for line in lines})
    assert run("report", "run", folder=tmp_path).returncode == 0  # its files are regular ones


@pytest.mark.door
def test_mlflow_holds_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    result = run_json(*TRAIN, "--out", "run", "--log-to", "mlflow", folder=tmp_path)
    client = tracking.MlflowClient()
    own_id = json.loads((tmp_path / "run" / "tracking.json").read_text())["mlflow"]["run_id"]
    found = {own.step: own.value for own in client.get_metric_history(own_id, "train_loss")}
    assert found == pytest.approx({line["epoch"]: line["train_loss"] for line in _lines(tmp_path / "run")})
    own = client.get_run(own_id)
    assert own.data.params["epochs"] == "3"
    assert own.data.metrics["result/test_accuracy"] == result["test_accuracy"]
    assert own.info.status == "FINISHED"


@pytest.mark.door
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    done = run(*TRAIN, "--out", "run", "--log-to", "wandb", folder=tmp_path)
    assert done.returncode == 0
    assert "does not receive" not in done.stderr
    wandb.teardown()  # waits until everything is written
    own_id = json.loads((tmp_path / "run" / "tracking.json").read_text())["wandb"]["run_id"]
    (stored,) = tmp_path.rglob(f"run-{own_id}.wandb")
    content = stored.read_bytes()
    for line in _lines(tmp_path / "run"):
        assert str(line["train_loss"])[:8].encode() in content
    assert run("report", "run", folder=tmp_path).returncode == 0
