"""As many threads as a network gains from; a run that goes on keeps its own number."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cli.program import fresh_process, run_json
from runs.config.stub_facts import planned_for
from selfadapt.data.inputs import InputSpec
from selfadapt.models.registry import backbone
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle import threads

TINY = ("digits", "--limit", "64", "--test-limit", "16", "--width", "4", "--quiet")


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("work", "cores", "expected"),
    [(0, 8, 1), (24e6, 8, 1), (49e6, 8, 1), (50e6, 8, 2), (110e6, 8, 4), (110e6, 2, 2), (1e12, 8, 8), (1e12, 1, 1)],
)
def test_each_thread_has_enough_to_do(work: float, cores: int, expected: int) -> None:
    assert threads.useful_threads(work, cores) == expected


@pytest.mark.parametrize("name", ["resnet-small", "resnet50", "vgg16", "alexnet", "mlp"])
def test_the_work_of_a_layer_is_what_torch_counts(name: str) -> None:
    network = backbone(name, InputSpec("images", (3, 32, 32)), width=8)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    found = threads.layer_work(network, (3, 32, 32))
    assert network.training
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(torch.zeros(1, 3, 32, 32))
    layers = sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in network.modules())
    assert found == counter.get_total_flops() / 2 / layers  # torch counts a multiplication and an addition as two


def test_the_demo_takes_one_thread_and_a_large_network_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_AVAILABLE", 2)
    cpu = torch.device("cpu")
    threads.set_useful_threads(planned_for(Request.of(data="digits", batch_size=64), (1, 8, 8)), (1, 8, 8), cpu)
    assert torch.get_num_threads() == 1
    large = planned_for(Request.of(data="cifar10", batch_size=256), (3, 32, 32))
    threads.set_useful_threads(large, (3, 32, 32), cpu)
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # two processes share the cores
    threads.set_useful_threads(large, (3, 32, 32), cpu)
    assert torch.get_num_threads() == 1


def test_omp_num_threads_is_honoured_and_waiting_threads_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_DISPLAY_ENV", "true")  # OpenMP says on standard error what it was told
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    result = fresh_process("train", *TINY, "--epochs", "1", "--out", "run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["threads"] == 2  # one, were it left to the rule
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in result.stderr


def test_only_a_run_that_goes_on_takes_its_own_number(tmp_path: Path) -> None:
    run_json("train", *TINY, "--epochs", "1", "--out", "run", folder=tmp_path)
    here = torch.get_num_threads()
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["threads"] == here
    RunFolder(tmp_path / "run").write_run({**content, "threads": here + 2})
    for command in ("audit", "coverage"):
        run_json(command, "run", folder=tmp_path)
        assert torch.get_num_threads() == here
    run_json("train", *TINY, "--epochs", "1", "--out", "run", "--resume", folder=tmp_path)
    assert torch.get_num_threads() == here + 2
