"""A solve on the bench: done once, by one process, remembered by its name, and recorded as what it is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from distributed.group import in_processes
from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.engine.nested_tensors import unflatten
from selfadapt.objectives.cross_fitting.cross_fitted_head import SelfAdaptiveFolds
from selfadapt.objectives.method import Vectors
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import Run, resume, start
from selfadapt.runs.lifecycle.opened_run import open_folder
from selfadapt.runs.train.bench import Measures, RunBench
from selfadapt.runs.train.train_or_load import train


def _data(folder: Path) -> str:
    generator = np.random.default_rng(0)
    labels = np.arange(90) % 3
    values = generator.normal(size=(90, 5)).astype(np.float32) + 2 * labels[:, None]
    np.savez(folder / "data.npz", x_train=values, y_train=labels)
    return str(folder / "data.npz")


def _start(folder: Path, name: str) -> Run:
    return start(Request.of(data=str(folder / "data.npz")), RunFolder(folder / name))


class Counted(SelfAdaptiveFolds):
    """The same, which counts how often it solves."""

    solved = 0

    def solve(self, samples: Vectors, model: nn.Module, on_progress: Any) -> Tensor:
        Counted.solved += 1
        return super().solve(samples, model, on_progress)


def test_a_solve_is_recorded_without_loss_rate_or_steps(tmp_path: Path) -> None:
    _data(tmp_path)
    run = _start(tmp_path, "run")
    stages: list[tuple[str, int, int]] = []
    result = train(run, lambda *stage: stages.append(stage))
    (record,) = run.folder.read_metrics()
    assert (record["solve"], record["epoch"]) == ("main", 1)
    assert not {"train_loss", "lr"} & set(record)
    assert {"train_accuracy_given", "validation_accuracy_given", "seconds"} <= set(record)
    assert stages[-1][1] == stages[-1][2]
    assert {stage for stage, *_ in stages} == {"solving"}
    (saved,) = run.folder.checkpoints.iterdir()
    assert set(unflatten(load_file(saved / "state.safetensors"))) == {"history"}
    opened = open_folder(run.folder)
    assert opened.state.targets is not None
    targets_NK = opened.state.targets.read(torch.arange(len(run.data.train)))
    accuracy = (targets_NK.argmax(1) == run.data.train.labels).double().mean().item()
    assert record["train_accuracy_given"] == pytest.approx(accuracy)
    assert train(resume(run.folder))["test_accuracy"] == result["test_accuracy"]


def test_a_solve_is_remembered_by_its_name(tmp_path: Path) -> None:
    _data(tmp_path)
    run = _start(tmp_path, "run")
    Counted.solved = 0
    for _ in range(2):
        bench = RunBench(resume(run.folder), Measures())
        first, second = bench.solve("main", Counted()), bench.solve("other", Counted(rounds=1))
    assert Counted.solved == 2
    weights = load_file(max(run.folder.checkpoints.iterdir()) / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in first.model.state_dict().items())
    others = load_file(max((run.folder.trainings / "other").iterdir()) / "model.safetensors")
    assert all(torch.equal(value, others[name]) for name, value in second.model.state_dict().items())
    assert not torch.equal(weights["head.weight"], others["head.weight"])


def _solved_together(folder: Path) -> None:
    run = _start(folder, "together")
    Counted.solved = 0
    trained = RunBench(run, Measures()).solve("main", Counted())
    assert Counted.solved == (1 if distributed.rank() == 0 else 0)
    assert run.targets is not None
    rows_NK = run.targets.read(torch.arange(len(run.data.train)))
    state = {**trained.model.state_dict(), "targets": rows_NK}
    torch.save(state, folder / f"{distributed.rank()}.pt")


@pytest.mark.distributed
def test_one_process_solves_for_all(tmp_path: Path) -> None:
    _data(tmp_path)
    in_processes(2, _solved_together, tmp_path)
    run = _start(tmp_path, "alone")
    alone = RunBench(run, Measures()).solve("main", SelfAdaptiveFolds()).model.state_dict()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
        assert name == "targets" or torch.equal(value, alone[name]), name


def _fail_together(folder: Path) -> None:
    class Impossible(SelfAdaptiveFolds):
        def solve(self, samples: Vectors, model: nn.Module, on_progress: Any) -> Tensor:
            raise UserError("this cannot be solved")

    with pytest.raises(UserError, match="this cannot be solved"):
        RunBench(_start(folder, "run"), Measures()).solve("main", Impossible())


@pytest.mark.distributed
def test_an_error_reaches_all_processes(tmp_path: Path) -> None:
    _data(tmp_path)
    in_processes(2, _fail_together, tmp_path)
    assert not json.loads((tmp_path / "run" / "run.json").read_text()).get("result")
