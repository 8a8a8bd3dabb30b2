"""TRADES with self-adaptive targets in two processes equals one step of the formula over the whole batch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from distributed.group import in_processes
from networks import Smooth
from oracles.trades import TradesByHand
from selfadapt import Storage
from selfadapt.attacks.pgd import PGD
from selfadapt.core import distributed
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training, fit
from selfadapt.engine.optim import OptimizerSettings, learning_rate
from selfadapt.evaluation.robustness import robustness
from selfadapt.models.heads import Classifier
from selfadapt.objectives.adversarial import Trades, TradesSelfAdaptive

pytestmark = pytest.mark.distributed
CPU = torch.device("cpu")
CASES: list[tuple[int | None, int]] = [(None, 1), (1, 1), (1, 2)]  # E_s and micro-batches


def _samples() -> Samples:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(50) % 3
    images = labels.view(-1, 1, 1, 1) * 90 + torch.randint(0, 60, (50, 1, 4, 4), generator=generator)
    pixels = TensorImages(images.to(torch.uint8))
    return Samples(inputs=pixels, labels=labels, truth=None, ids=[str(i) for i in range(50)])


def _loader(part: tuple[int, int]) -> SampleLoader:
    return SampleLoader(_samples(), batch_size=17, seed=0, device=CPU, part=part)


def _network() -> Classifier:
    torch.manual_seed(0)
    return Classifier(Smooth(), 3)


def _train(folder: Path) -> None:
    for number, (start_epoch, micro_batches) in enumerate(CASES):
        method = Trades() if start_epoch is None else TradesSelfAdaptive(start_epoch=start_epoch)
        training = Training(
            method,
            _network(),
            method.initial_targets(_samples().labels, 3, Storage()),
            _loader((distributed.rank(), distributed.world_size())),
            FitSettings(epochs=3, micro_batches=micro_batches, optimizer=OptimizerSettings(lr=0.3)),
            num_classes=3,
            device=CPU,
        )
        torch.manual_seed(100 + distributed.rank())
        fit(training)
        rows = None if training.targets is None else training.targets.read(torch.arange(50))
        samples = _samples()
        measured = robustness(
            training.model.eval(), samples.inputs, samples.labels, PGD(), num_classes=3, device=CPU, batch_size=16
        )
        if distributed.rank() == 0:
            outcome = (training.model.state_dict(), rows, measured.outcome_N)
            torch.save(outcome, folder / f"outcome-{number}.pt")


def test_two_processes_equal_the_formula_written_out(tmp_path: Path) -> None:
    in_processes(2, _train, tmp_path)
    settings = OptimizerSettings(lr=0.3)
    for number, (start_epoch, micro_batches) in enumerate(CASES):
        model, loaders = _network(), [_loader((rank, 2)) for rank in range(2)]
        hand = TradesByHand(
            model,
            np.eye(3)[_samples().labels.numpy()],
            [torch.Generator().manual_seed(100 + rank) for rank in range(2)],
            start_epoch,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=5e-4)
        for epoch in range(3):
            batches = zip(*(loader.epoch(epoch) for loader in loaders), strict=True)
            for step, shared in enumerate(batches):
                rate = learning_rate(settings, epoch + step / loaders[0].steps_per_epoch, 3)
                optimizer.param_groups[0]["lr"] = rate
                parts = [
                    (rank, part.input, part.label, part.index)
                    for rank, batch in enumerate(shared)
                    for part in batch.split(micro_batches)
                ]
                optimizer.zero_grad()
                hand.loss(parts, epoch).backward()
                optimizer.step()
        weights, rows, outcome = torch.load(tmp_path / f"outcome-{number}.pt")
        for name, expected in model.state_dict().items():
            # An attack goes by signs: where a gradient is nearly 0, its last bit may move a pixel the other way.
            torch.testing.assert_close(weights[name], expected, rtol=0, atol=2e-3, msg=f"{number}: {name}")
        if rows is not None:
            np.testing.assert_allclose(rows.numpy(), hand.table, atol=1e-3)
        samples = _samples()
        alone = robustness(
            model.eval(), samples.inputs, samples.labels, PGD(), num_classes=3, device=CPU, batch_size=16
        )
        assert (alone.outcome_N != outcome).sum() <= 1  # processes share the batches, and draw as one alone
