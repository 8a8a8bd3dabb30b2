"""The callback for Lightning: a module as it is trains self-adaptively, alone, resumed and in two processes."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distributed.group import in_processes
from selfadapt import SelfAdaptiveLoss, with_index
from selfadapt.core import distributed

pytest.importorskip("lightning")

from lightning.pytorch.callbacks import ModelCheckpoint

from integrations.lightning_module import DigitsModule, trainer
from selfadapt.integrations.lightning_callback import SelfAdaptiveCallback

EPOCHS = 4
INPUTS = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(48) % 10
SAMPLES = torch.arange(48)


class Small(DigitsModule):
    """Without batch normalisation, so that half a batch sees what the whole would."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(64, 10)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        self.log("validation_loss", cross_entropy(self(images), labels), sync_dist=True)


def _loader() -> DataLoader[Any]:
    """Batches of 12 over all processes, in one order."""
    dataset, count = with_index(TensorDataset(INPUTS, LABELS)), distributed.world_size()
    sampler: Any = DistributedSampler(dataset, count, distributed.rank(), shuffle=False) if count > 1 else None
    return DataLoader(dataset, batch_size=12 // count, sampler=sampler)


def _callback(**settings: Any) -> SelfAdaptiveCallback:
    return SelfAdaptiveCallback(LABELS, **{"start_epoch": 1, "num_classes": 10, **settings})


def _trained(folder: Path, module: Any = None, **settings: Any) -> tuple[Any, SelfAdaptiveCallback]:
    callback, module = _callback(), module or Small()
    trainer(folder, max_epochs=EPOCHS, callbacks=[callback], **settings).fit(module, _loader())
    return module, callback


def _own_loop(accumulate: int = 1) -> tuple[nn.Module, SelfAdaptiveLoss]:
    """The same by hand."""
    module = Small()
    optimizer: Any = module.configure_optimizers()
    criterion = SelfAdaptiveLoss(LABELS, epochs=EPOCHS, start_epoch=1, num_classes=10)
    for _ in range(EPOCHS):
        for step, (images, _, index) in enumerate(_loader()):
            (criterion(module(images), index) / accumulate).backward()
            if (step + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        criterion.end_epoch()
    return module, criterion


def _assert_same(module: nn.Module, criterion: Any, expected: tuple[nn.Module, SelfAdaptiveLoss]) -> None:
    for found, wanted in zip(module.parameters(), expected[0].parameters(), strict=True):
        assert torch.equal(found, wanted)
    assert torch.equal(criterion.targets.read(SAMPLES), expected[1].targets.read(SAMPLES))
    assert criterion.label_errors().p_wrong.tolist() == expected[1].label_errors().p_wrong.tolist()


def test_smoke(tmp_path: Path) -> None:
    """To the last bit what the loss does in a loop of one's own."""
    module, callback = _trained(tmp_path)
    _assert_same(module, callback.criterion, _own_loop())
    assert len(callback.label_errors().p_wrong) == 48


@pytest.mark.door
def test_gradient_accumulation(tmp_path: Path) -> None:
    module, callback = _trained(tmp_path, accumulate_grad_batches=2)
    _assert_same(module, callback.criterion, _own_loop(accumulate=2))


class Composed(Small):
    """The logits come from a part of it, and the step returns more than a loss."""

    def forward(self, images: Tensor) -> Tensor:
        raise AssertionError("not called in training")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels = batch
        return {"loss": cross_entropy(self.net(images), labels), "labels": labels}


@pytest.mark.door
def test_logits_of_a_submodule(tmp_path: Path) -> None:
    module, callback = Composed(), _callback(logits="net")
    trainer(tmp_path, max_epochs=EPOCHS, callbacks=[callback]).fit(module, _loader())
    _assert_same(module, callback.criterion, _own_loop())
    assert module.training_step([INPUTS, LABELS], 0).keys() == {"loss", "labels"}  # as before
    for logits, error, message in (
        ("forward", RuntimeError, "called 'forward' 0 times"),
        ("body", ValueError, "lacks a submodule 'body'; its children are net"),
    ):
        with pytest.raises(error, match=message):
            trainer(tmp_path, max_epochs=2, callbacks=[_callback(logits=logits)]).fit(Composed(), _loader())


class ByHand(Small):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.door
def test_mistakes(tmp_path: Path) -> None:
    plain = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=12)
    with pytest.raises(ValueError, match="does not support manual optimisation"):
        trainer(tmp_path, callbacks=[_callback()]).fit(ByHand(), _loader())
    with pytest.raises(ValueError, match="has no max_epochs"):
        trainer(tmp_path, max_epochs=-1, callbacks=[_callback()]).fit(Small(), _loader())
    with pytest.raises(ValueError, match="the training samples have no index; wrap them"):
        trainer(tmp_path, callbacks=[_callback()]).fit(Small(), plain)
    with pytest.raises(RuntimeError, match="nothing is trained yet"):
        _callback().label_errors()


def _fit_in_parts(folder: Path, **settings: Any) -> tuple[Any, SelfAdaptiveCallback]:
    """Stopped after two epochs and resumed from Lightning's own checkpoint."""
    validation = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=48)

    def fit(module: Any, callback: SelfAdaptiveCallback, last: int, checkpoint: str | None) -> None:
        kept = ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)  # saves after validation
        callbacks = [callback, kept]
        own = trainer(folder, max_epochs=last, callbacks=callbacks, enable_checkpointing=True, **settings)
        own.fit(module, _loader(), validation, ckpt_path=checkpoint)

    fit(Small(), _callback(epochs=EPOCHS), 2, None)
    module, callback = Small(), _callback(epochs=EPOCHS)
    fit(module, callback, EPOCHS, str(folder / "epoch=1.ckpt"))
    return module, callback


@pytest.mark.door
def test_resumes_from_a_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    module, callback = _fit_in_parts(tmp_path)
    _assert_same(module, callback.criterion, _own_loop())


@pytest.mark.door
def test_a_checkpoint_within_an_epoch(tmp_path: Path) -> None:
    """Lightning starts the loader from the front again, so samples differ, but no epoch is lost or counted twice."""
    kept = ModelCheckpoint(dirpath=tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=6)
    settings: dict[str, Any] = {"max_epochs": EPOCHS, "enable_checkpointing": True}
    trainer(tmp_path, callbacks=[_callback(), kept], **settings).fit(Small(), _loader())
    saved = torch.load(tmp_path / "step=6.ckpt", weights_only=False)["callbacks"]["SelfAdaptiveCallback"]
    (state,) = saved["processes"]
    assert (state["epoch"], state["visited"].tolist()) == (1, list(range(24)))
    callback = _callback()
    own = trainer(tmp_path, callbacks=[callback], max_epochs=EPOCHS)
    own.fit(Small(), _loader(), ckpt_path=str(tmp_path / "step=6.ckpt"))
    assert callback.criterion is not None
    assert (callback.criterion.epoch, callback.criterion.seen) == (EPOCHS, 0)


def _in_a_group(folder: Path) -> None:
    own = str(distributed.rank())
    os.environ.update(TORCHELASTIC_RUN_ID="test", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", RANK=own, LOCAL_RANK=own)
    os.environ.update(GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    module, callback = _fit_in_parts(folder, strategy="ddp", devices=2, use_distributed_sampler=False)
    criterion = callback.criterion
    assert criterion is not None
    if own == "0":
        torch.save([*(p.detach() for p in module.parameters()), criterion.targets.read(SAMPLES)], folder / "two.pt")
        assert len(callback.label_errors().p_wrong) == 48
    distributed.barrier()
    os._exit(0)  # Lightning keeps the group for as long as the process lives


@pytest.mark.door
@pytest.mark.distributed
def test_two_processes_are_as_one(tmp_path: Path) -> None:
    """Also resumed, from a checkpoint that one of them wrote after a validation."""
    in_processes(2, _in_a_group, tmp_path)
    module, criterion = _own_loop()
    found = torch.load(tmp_path / "two.pt", weights_only=True)
    for one, two in zip([*module.parameters(), criterion.targets.read(SAMPLES)], found, strict=True):
        torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-4)
