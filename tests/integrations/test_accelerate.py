"""The loss in a loop of Accelerate: two processes train as one, and a checkpoint of Accelerate holds the targets."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from distributed.group import in_processes
from selfadapt import SelfAdaptiveLoss, with_index
from selfadapt.core import distributed

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.door

EPOCHS = 4
INPUTS = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(48) % 4


def _made() -> tuple[Any, Any, Any, Any, SelfAdaptiveLoss]:
    if distributed.world_size() > 1:  # as its launcher would set them
        os.environ.update(WORLD_SIZE="2", RANK=str(distributed.rank()), LOCAL_RANK=str(distributed.rank()))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    loader = DataLoader(with_index(TensorDataset(INPUTS)), batch_size=12 // distributed.world_size())
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.3), loader)
    criterion = SelfAdaptiveLoss(LABELS, epochs=EPOCHS, start_epoch=1)
    accelerator.register_for_checkpointing(criterion)
    return accelerator, model, optimizer, loader, criterion


def _train(accelerator: Any, model: Any, optimizer: Any, loader: Any, criterion: SelfAdaptiveLoss, last: int) -> None:
    while criterion.epoch < last:
        for inputs, index in loader:
            optimizer.zero_grad()
            accelerator.backward(criterion(model(inputs), index))
            optimizer.step()
        criterion.end_epoch()


def _result(folder: Path, name: str) -> None:
    accelerator, model, optimizer, loader, criterion = _made()
    assert accelerator.num_processes == distributed.world_size()
    if name == "resumed":
        accelerator.load_state(str(folder / "checkpoint"))
        assert criterion.epoch == 2
    _train(accelerator, model, optimizer, loader, criterion, 2 if name == "first" else EPOCHS)
    if name == "first":
        accelerator.save_state(str(folder / "checkpoint"))
    elif distributed.rank() == 0:
        weight = accelerator.unwrap_model(model).weight.detach()
        torch.save([weight, criterion.targets.read(torch.arange(48))], folder / f"{name}-{distributed.world_size()}")
    distributed.barrier()
    os._exit(0)  # Accelerate keeps the group for as long as the process lives


@pytest.mark.distributed
def test_two_processes_are_as_one_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    in_processes(1, _result, tmp_path, "whole")
    for name in ("whole", "first", "resumed"):
        in_processes(2, _result, tmp_path, name)
    names = ("whole-1", "whole-2", "resumed-2")
    one, two, resumed = (torch.load(tmp_path / name, weights_only=True) for name in names)
    for found, expected, again in zip(two, one, resumed, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert torch.equal(again, found)
