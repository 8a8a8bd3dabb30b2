"""The protocol carries the other three uses of the paper: their shape, through the real loop.

These are sketches for the protocol's sake. They show that a head with an extra output, a momentum encoder with a
predictor and several forwards in a step need nothing that the loop does not give.
"""

import copy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, normalize

from networks import small_training
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training, fit
from selfadapt.models.backbone import Backbone
from selfadapt.models.heads import Classifier
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Loss, Objective, Progress, Term, mean_of
from selfadapt.objectives.self_adaptive_loss import target_loss
from selfadapt.targets.store import Storage, TargetStore


@dataclass(frozen=True, kw_only=True)
class AbstainShape(NoisyLabels):
    """Selective classification: one output more than classes; the target follows the softmax over the classes."""

    start_epoch: int = 0

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Classifier(backbone, num_classes + 1)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        assert targets is not None
        outputs = model(batch.input)
        rows = targets.update(batch.index, outputs[:, :-1].softmax(1))
        log_p = outputs.log_softmax(1)
        label = batch.label.unsqueeze(1)
        t = rows.gather(1, label).squeeze(1)
        return mean_of(-(t * log_p.gather(1, label).squeeze(1) + (1 - t) * log_p[:, -1]), outputs)


class Twin(nn.Module):
    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.encoder = nn.Sequential(backbone, nn.Linear(backbone.num_features, 8))
        self.predictor = nn.Linear(8, 8)
        self.momentum_encoder = copy.deepcopy(self.encoder).requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            z = self.momentum_encoder(images)
        return self.predictor(self.encoder(images)), z


@dataclass(frozen=True, kw_only=True)
class FeatureShape(ERM):
    """Self-supervised learning: targets are directions, and a momentum encoder moves after each step."""

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Twin(backbone)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.gaussian(len(labels_N), 8, storage=storage)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        assert targets is not None
        p, z = model(batch.input)
        rows = targets.update(batch.index, z, momentum=0.5 + 0.3 * progress.fraction)
        return mean_of((normalize(p) - normalize(rows)).square().sum(1))

    @torch.no_grad()
    def after_step(self, model: nn.Module, progress: Progress) -> None:
        assert isinstance(model, Twin)
        pairs = zip(model.momentum_encoder.parameters(), model.encoder.parameters(), strict=True)
        for slow, fast in pairs:
            slow.lerp_(fast, 0.01)


@dataclass(frozen=True, kw_only=True)
class AdversarialShape(NoisyLabels):
    """TRADES: an inner attack with the model in evaluation mode, then two forwards and a weighted first term."""

    start_epoch: int = 1

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        assert targets is not None
        model.eval()
        shifted = (batch.input + 0.01 * torch.randn_like(batch.input)).requires_grad_()
        divergence = kl_div(model(shifted).log_softmax(1), model(batch.input).softmax(1).detach(), reduction="sum")
        (slope,) = torch.autograd.grad(divergence, shifted)
        hostile = (shifted + 0.007 * slope.sign()).clamp(0, 1).detach()
        model.train()
        logits = model(batch.input)
        log_p = logits.log_softmax(1)
        rows = targets.update(batch.index, log_p.detach().exp())
        first = target_loss(logits, rows, reweight=self.reweight)
        second = kl_div(model(hostile).log_softmax(1), log_p.exp(), reduction="sum")
        return Loss((*first.terms, Term(6 * second, torch.tensor(float(len(batch))))), logits.detach())


def _training(objective: Objective, samples: Samples) -> Training:
    return small_training(objective, samples, 4)


@pytest.mark.parametrize(
    "objective", [AbstainShape(), FeatureShape(), AdversarialShape()], ids=lambda o: type(o).__name__
)
def test_a_use_of_another_shape_trains_and_resumes(objective: Objective, tiny_samples: Samples, tmp_path: Path) -> None:
    losses: list[float] = []
    whole = _training(objective, tiny_samples)
    fit(whole, after_epoch=lambda training: losses.append(training.accumulator.loss))
    assert losses[-1] < losses[0]

    class Stopped(Exception):
        pass

    def stop(training: Training) -> None:
        if (training.epoch, training.step) == (2, 2):
            training.save(tmp_path)
            raise Stopped

    first = _training(objective, tiny_samples)
    with pytest.raises(Stopped):
        fit(first, after_step=stop)
    second = _training(objective, tiny_samples)
    saved = checkpoint.load_newest(tmp_path)
    assert saved is not None
    second.restore(saved)
    fit(second)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    assert whole.targets is not None
    assert second.targets is not None
    everything = torch.arange(len(tiny_samples))
    assert torch.equal(whole.targets.read(everything), second.targets.read(everything))


def test_the_momentum_encoder_gets_no_gradient(tiny_samples: Samples) -> None:
    training = _training(FeatureShape(), tiny_samples)
    assert isinstance(training.model, Twin)
    before = [parameter.clone() for parameter in training.model.momentum_encoder.parameters()]
    fit(training)
    assert all(parameter.grad is None for parameter in training.model.momentum_encoder.parameters())
    moved = zip(before, training.model.momentum_encoder.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in moved)
