"""Curves in evaluation mode on all four sets, against predictions of the finished network."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.program import run_json
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.lifecycle.opened_run import open_folder

OPTIONS = ("--method", "erm", "--epochs", "2", "--limit", "300", "--model", "mlp", "--width", "32", "--augment", "crop")


def _train(folder: Path, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result, and the metrics of the last epoch."""
    result = run_json("train", "digits", *OPTIONS, *options, "--out", "run", folder=folder)
    return result, json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("noise", ["symmetric:0.4", "gaussian:0.4"])
def test_tested_curves_are_those_of_the_network_after_the_epoch(noise: str, tmp_path: Path) -> None:
    result, last = _train(tmp_path, "--noise", noise, "--curves", "tested", "--test-curve")
    run = open_folder(RunFolder(tmp_path / "run"))
    model = run.model.eval()

    def share_right(inputs: Any, labels: torch.Tensor) -> float:
        with torch.no_grad():
            said = model(inputs.read(torch.arange(len(labels))).float() / 255)
        return float((said.argmax(1) == labels).double().mean())

    train, validation = run.data.train, run.data.validation
    assert train.truth is not None
    assert validation is not None
    assert validation.truth is not None
    clean = train.inputs if train.clean_inputs is None else train.clean_inputs
    held_out = validation.inputs if validation.clean_inputs is None else validation.clean_inputs
    assert last["train_accuracy_given"] == pytest.approx(share_right(train.inputs, train.labels))
    assert last["train_accuracy_true"] == pytest.approx(share_right(clean, train.truth))
    assert last["validation_accuracy_given"] == pytest.approx(share_right(validation.inputs, validation.labels))
    assert last["validation_accuracy_true"] == pytest.approx(share_right(held_out, validation.truth))
    assert last["test_accuracy_after_epoch"] == result["test_accuracy"]


def test_how_curves_are_measured_changes_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    running, last_running = _train(tmp_path / "one", "--noise", "symmetric:0.4")
    tested, last_tested = _train(tmp_path / "two", "--noise", "symmetric:0.4", "--curves", "tested")
    assert tested["test_accuracy"] == running["test_accuracy"]
    assert last_tested["train_loss"] == last_running["train_loss"]
    assert last_tested["train_accuracy_given"] != last_running["train_accuracy_given"]
    assert "test_accuracy_after_epoch" not in last_tested


def test_a_warm_up_may_begin_above_zero(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    shared = ("--warmup-epochs", "1", "--lr", "0.1")
    _, from_zero = _train(tmp_path / "one", *shared)
    _, from_peak = _train(tmp_path / "two", *shared, "--warmup-from", "0.1")
    assert from_peak["train_loss"] != from_zero["train_loss"]
    settings = json.loads((tmp_path / "two/run/run.json").read_text())["settings"]["fit"]
    assert settings["warmup_from"] == 0.1
