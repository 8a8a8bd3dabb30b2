"""The device of a computation: which one a name stands for, and what is asked of it."""

import os
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist

from selfadapt.core import device as module
from selfadapt.core import distributed
from selfadapt.core.device import (
    Arriving,
    autocast,
    choose_device,
    device_name,
    has_native_bfloat16,
    make_deterministic,
    prefers_channels_last,
    random_states,
    set_random_states,
    to_device,
)
from selfadapt.core.errors import UserError

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def _with_accelerator(monkeypatch: pytest.MonkeyPatch, kind: str, count: int = 2) -> list[torch.device]:
    """Pretend that there are accelerators, and return the list of those that become the current one."""
    current = list[torch.device]()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # what tries whether the device is there
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    return current


@pytest.mark.parametrize(
    ("jobs", "place", "visible", "gpu"),
    [
        pytest.param("4", 1, 2, 1, id="a job takes the GPU of its place"),
        pytest.param("4", 3, 2, 1, id="and shares one where there are more jobs than GPUs"),
        pytest.param(None, 3, 2, 3, id="processes of one training never share one"),
        pytest.param(None, 3, 1, 0, id="a scheduler may show each process its GPU alone"),
    ],
)
def test_gpu_of_a_process(
    monkeypatch: pytest.MonkeyPatch, jobs: str | None, place: int, visible: int, gpu: int
) -> None:
    current = _with_accelerator(monkeypatch, "cuda", visible)
    monkeypatch.setenv("LOCAL_RANK", str(place))
    if jobs:
        monkeypatch.setenv("SELFADAPT_JOBS", jobs)
    assert choose_device("auto") == torch.device("cuda", gpu)
    assert current == [torch.device("cuda", gpu)]


@pytest.mark.parametrize(("name", "kind"), [("auto", "mps"), ("rocm", "cuda"), ("xpu", "xpu"), ("cpu", "cpu")])
def test_names(monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    _with_accelerator(monkeypatch, "mps")
    assert choose_device(name).type == kind
    assert device_name(name) == kind


def test_a_device_that_is_not_here_is_refused() -> None:
    for name in ("nonsense", "meta", "xpu"):
        with pytest.raises(UserError, match=f"--device '{name}' cannot be used here; choose auto or cpu"):
            choose_device(name)


def test_a_gpu_repeats_matrix_products_only_with_workspaces_of_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on, **_: asked.append(on))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "before")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    make_deterministic(CPU)
    make_deterministic(GPU, deterministic=False)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert torch.backends.cudnn.benchmark
    make_deterministic(GPU)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert asked == [False, True]


def test_a_cpu_computes_in_float32_and_channels_last() -> None:
    assert not has_native_bfloat16(CPU)
    assert isinstance(autocast(CPU, "float32"), nullcontext)
    layouts = {(name, precision): prefers_channels_last(name, precision) for name in ("cpu", "cuda", "mps")
               for precision in ("float32", "bfloat16")}  # fmt: skip
    assert [key for key, prefers in layouts.items() if prefers] == [
        ("cpu", "float32"), ("cpu", "bfloat16"), ("cuda", "bfloat16"),
    ]  # fmt: skip


def test_on_the_cpu_nothing_is_copied() -> None:
    values = torch.ones(2)
    assert to_device(values, CPU) is values
    arriving = Arriving([values])
    assert arriving.arrived
    assert arriving.wait()[0] is values
    assert module.copies_from_pinned(GPU)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_a_resumed_run_draws_the_numbers_of_its_device(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Or those of the CPU alone, if it was saved on another kind of device."""
    device, states = torch.device(kind, 0), {torch.device(kind, 0): torch.tensor([5])}
    accelerator = torch.get_device_module(device)
    monkeypatch.setattr(accelerator, "get_rng_state", lambda device: states[device].clone())
    monkeypatch.setattr(accelerator, "set_rng_state", lambda state, device: states.update({device: state}))
    saved, drawn = random_states(device), torch.rand(3)
    states[device] = torch.tensor([6])
    set_random_states({"cpu": saved["cpu"]}, device)
    assert states[device].item() == 6
    assert torch.equal(torch.rand(3), drawn)
    set_random_states(saved, CPU)
    assert states[device].item() == 6
    set_random_states(saved, device)
    assert states[device].item() == 5


def test_a_group_that_cannot_exchange_tensors_on_the_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: str(dist.BackendConfig(dist.Backend("nccl"))))
    with pytest.raises(UserError, match=r"backend cuda:nccl, .* create it with .*cpu:gloo,cuda:nccl"):
        distributed.init(CPU)
    monkeypatch.setattr(dist, "get_backend_config", lambda: str(dist.BackendConfig(dist.Backend("gloo"))))
    distributed.init(CPU)
