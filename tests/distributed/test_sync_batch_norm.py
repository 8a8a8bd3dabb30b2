"""Synchronised batch normalisation: two processes equal one with the whole batch."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from cli.program import process, run_json
from distributed.group import in_processes
from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.models.batch_norm.split_batch_norm import SplitBatchNorm
from selfadapt.models.batch_norm.sync_batch_norm import SyncBatchNorm, global_statistics, sync_batch_norms

pytestmark = pytest.mark.distributed
CPU = torch.device("cpu")


def _network() -> nn.Sequential:
    """Images and vectors are normalised, some of them twice."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 7), nn.BatchNorm1d(7), nn.Tanh()
    )
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return network.double()


def _images(step: int) -> Tensor:
    """The last is an odd one."""
    images_BCHW = torch.randn(7, 3, 6, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    images_BCHW[-1] += 3
    return images_BCHW


def _loss(outputs_BD: Tensor) -> Tensor:
    return (outputs_BD * torch.linspace(-1, 1, 7)).square().sum() + outputs_BD.sum()


def _step(network: nn.Module, images_BCHW: Tensor) -> dict[str, Tensor]:
    """The gradients of the input, then a step; sums over processes, as a sum over the batch."""
    images_BCHW = images_BCHW.clone().requires_grad_()
    network.zero_grad()
    _loss(network(images_BCHW)).backward()
    assert images_BCHW.grad is not None
    with torch.no_grad():
        for parameter in network.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.01 * distributed.all_reduce_sum(parameter.grad))
    return {"input": images_BCHW.grad}


def _in_two(folder: Path) -> None:
    network = _network()
    sync_batch_norms(network, CPU)
    assert sum(isinstance(module, SyncBatchNorm) for module in network.modules()) == 2
    own = slice(0, 5) if distributed.rank() == 0 else slice(5, 7)  # parts of 5 and 2
    for step in range(4):
        expected = torch.load(folder / f"{step}.pt")
        found = _step(network, _images(step)[own])
        torch.testing.assert_close(found["input"], expected["input"][own], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(network.state_dict(), expected["state"], rtol=1e-9, atol=1e-9)
    network.eval()
    torch.testing.assert_close(network(_images(9)[own]), expected["evaluated"][own], rtol=1e-9, atol=1e-9)
    _, variance_C, count = global_statistics(1000 + _images(0)[own].float())  # whose squares would round it away
    torch.testing.assert_close(variance_C, _images(0).var((0, 2, 3), correction=0).float(), rtol=1e-4, atol=0)
    assert count == 7 * 36
    with torch.autocast("cpu", torch.bfloat16):
        assert SyncBatchNorm(3)(_images(0)[own].bfloat16()).dtype == torch.bfloat16


def test_forward_backward_and_running_statistics_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    whole = _network()
    for step in range(4):
        found: dict[str, Any] = {**_step(whole, _images(step)), "state": copy.deepcopy(whole.state_dict())}
        if step == 3:
            found["evaluated"] = whole.eval()(_images(9)).detach()
        torch.save(found, tmp_path / f"{step}.pt")
    in_processes(2, _in_two, tmp_path)


def test_in_one_process_it_is_ordinary_batch_normalisation() -> None:
    network = _network()
    synchronised = copy.deepcopy(network)
    sync_batch_norms(synchronised, CPU)
    assert torch.equal(network(_images(0)), synchronised(_images(0)))
    assert list(network.state_dict()) == list(synchronised.state_dict())


def test_what_has_a_way_of_its_own_stays_or_is_refused() -> None:
    class WithActivation(nn.BatchNorm2d):
        """As timm has it."""

    network = nn.Sequential(SplitBatchNorm(3, 1e-5, 0.1, parts=2))
    sync_batch_norms(network, CPU)
    assert isinstance(network[0], SplitBatchNorm)
    with pytest.raises(UserError, match=r"--sync-bn does not support .* \(WithActivation\)"):
        sync_batch_norms(nn.Sequential(WithActivation(3)), CPU)


def _weights(folder: Path) -> dict[str, Tensor]:
    return load_file(max((folder / "checkpoint").iterdir()) / "model.safetensors")


SMALL = ("--limit", "200", "--epochs", "3", "--batch-size", "50", "--augment", "none")
TWO_VIEWS = ("--method", "byol", "--views", "2", "--hidden", "16", "--dimensions", "8")
COMMANDS = [
    ("train", "digits", *SMALL, "--model", "resnet-small", "--width", "2", "--method", "erm"),
    ("pretrain", "digits", *SMALL, *TWO_VIEWS, "--model", "mlp", "--width", "16"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=["train", "pretrain"])
def test_the_program_in_two_processes_is_the_program_in_one(command: tuple[str, ...], tmp_path: Path) -> None:
    together = (*command, "--devices", "2", "--sync-bn")
    run_json(*together, "--out", "two", folder=tmp_path, program=process)
    run_json(*command, "--sync-bn", "--out", "one", folder=tmp_path)
    run_json(*command, "--out", "plain", folder=tmp_path)
    found, expected, plain = (_weights(tmp_path / name) for name in ("two", "one", "plain"))
    assert all(torch.equal(expected[name], tensor) for name, tensor in plain.items())
    assert list(found) == list(expected)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-3, msg=name)


def test_on_a_gpu_it_is_torchs() -> None:
    network = _network()
    sync_batch_norms(network, torch.device("cuda:0"))
    expected = nn.SyncBatchNorm.convert_sync_batchnorm(_network())
    assert [type(module) for module in network.modules()] == [type(module) for module in expected.modules()]
    assert list(network.state_dict()) == list(expected.state_dict())
