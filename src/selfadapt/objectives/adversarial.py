"""Adversarial training: PGD training, TRADES, and TRADES with self-adaptive targets (Section 3.3).

    x' = argmax over the ball around x of KL(p(x) || p(x'))                      inner attack, attacks/pgd.py
    L  = 1/m sum_i CE(p(x_i), y_i)  +  beta 1/m sum_i KL(p(x_i) || p(x'_i))      TRADES, beta = 1/lambda = 6

Self-adaptive training changes only the first term. The targets move towards the clean prediction p(x_i), and

    L  = 1/(sum_i w_i) sum_i w_i CE(p(x_i), t_i)  +  beta 1/m sum_i KL(p(x_i) || p(x'_i)),      w_i = max_j t_ij

from epoch E_s on; before it the loss is that of TRADES. m is the number of samples. The two terms have different
divisors, and both sums run over the whole step, all micro-batches and all processes. Gradient flows through p(x) in
both terms, and not through t or w.

PGD training (Madry et al., 2018) is cross entropy on x', with an inner attack on cross entropy.

The paper trains WRN-34-10 for 100 epochs with E_s = 70. Its curve (Figures 5 and 14) is measured on test images from
E_s on; a method requests it in `attack_after`.

Shapes: B samples of a batch, K classes, N samples in total, C channels, H by W pixels.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from selfadapt.attacks.pgd import PGD, LossName, StartName, perturb
from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import unwrapped
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import AttackAfterEpoch, Task
from selfadapt.objectives.moving_targets import MovingTargets
from selfadapt.objectives.objective import Loss, Progress, Term
from selfadapt.objectives.self_adaptive_loss import target_loss
from selfadapt.targets.store import TargetStore

BETA = 6.0  # 1/lambda
DEFAULT_START = 0.7  # E_s as a share of the epochs: 70 of 100


def trades_loss(clean_BK: Tensor, perturbed_BK: Tensor, labels_B: Tensor, *, beta: float = BETA) -> Loss:
    """Return the loss of TRADES from clean and perturbed logits."""
    return with_divergence(label_loss(clean_BK, labels_B), clean_BK, perturbed_BK, beta=beta)


def trades_sat_loss(clean_BK: Tensor, perturbed_BK: Tensor, targets_BK: Tensor, *, beta: float = BETA) -> Loss:
    """Return the loss of TRADES with targets that the clean prediction has just updated."""
    return with_divergence(target_loss(clean_BK, targets_BK, reweight=True), clean_BK, perturbed_BK, beta=beta)


def with_divergence(loss: Loss, clean_BK: Tensor, perturbed_BK: Tensor, *, beta: float) -> Loss:
    """Add beta times the divergence of each sample as a second term, every sample with weight one."""
    total = beta * divergence(clean_BK, perturbed_BK).sum()
    return Loss((*loss.terms, Term.of(total, len(clean_BK))), clean_BK.detach())


def divergence(clean_BK: Tensor, perturbed_BK: Tensor) -> Tensor:
    """Return KL(p || p') = sum_j p_j (log p_j - log p'_j) for each sample, with gradient through both."""
    log_p_BK, log_q_BK = clean_BK.float().log_softmax(1), perturbed_BK.float().log_softmax(1)
    return (log_p_BK.exp() * (log_p_BK - log_q_BK)).sum(1)


@dataclass(frozen=True, kw_only=True)
class PGDTraining(ERM):
    """Cross entropy on perturbed images, and the base class of methods with an inner attack."""

    description = "training on images attacked by PGD"
    paper = "Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, 2018"
    needs = "images, and a network that takes them as input"
    inner_loss: ClassVar[LossName] = "cross-entropy"
    inner_start: ClassVar[StartName] = "ball"

    eps: float = setting(
        0.031, "radius of the attacks: the largest change of a pixel, which is within 0..1", above=0, most=1
    )
    step: float = setting(0.007, "step size of the attacks", above=0, most=1)
    steps: int = setting(10, "steps of the attack in training", least=1)
    curve_images: int = setting(
        500, "test images, the same each time, to attack with PGD-20 after each epoch of the curve; 0 for none", least=0
    )
    curve_start: int | None = setting(
        None, "epochs before that curve starts", least=0, unset="start-epoch, else 0.7 of the epochs"
    )

    def suited(self, task: Task) -> Self:
        if not task.sees_images:
            raise UserError(
                "adversarial training needs a network that takes images, not vectors or a head on features; for "
                "photos add --tune all"
            )
        return self if self.curve_start is not None else replace(self, curve_start=int(DEFAULT_START * task.epochs))

    @property
    def inner_attack(self) -> PGD:
        return PGD(eps=self.eps, step=self.step, steps=self.steps, start=self.inner_start, loss=self.inner_loss)

    def perturbed(self, model: nn.Module, batch: Batch) -> Tensor:
        """Apply the inner attack. It draws from torch's global generator, which checkpoints save for each process."""
        return perturb(unwrapped(model), batch.input, batch.label, self.inner_attack, torch.default_generator)

    def attack_after(self, epoch: int) -> AttackAfterEpoch | None:
        if not self.curve_images or epoch <= (self.curve_start or 0):
            return None
        return AttackAfterEpoch(PGD(eps=self.eps, step=self.step, steps=20), self.curve_images)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        return label_loss(model(self.perturbed(model, batch)), batch.label)


@dataclass(frozen=True, kw_only=True)
class Trades(PGDTraining):
    description = "TRADES"
    paper = "Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy, 2019"
    inner_loss = "kl"
    inner_start = "normal"

    beta: float = setting(BETA, "weight of the divergence under attack (1/lambda)", least=0)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        perturbed_BCHW = self.perturbed(model, batch)
        clean_BK, perturbed_BK = model(batch.input), model(perturbed_BCHW)
        start = self.started(progress.history, progress.epochs)
        if targets is None or start is None or progress.epoch < start:
            return trades_loss(clean_BK, perturbed_BK, batch.label, beta=self.beta)
        rows_BK = targets.move(batch.index, clean_BK.detach().float().softmax(1))
        return trades_sat_loss(clean_BK, perturbed_BK, rows_BK, beta=self.beta)


@dataclass(frozen=True, kw_only=True)
class TradesSelfAdaptive(MovingTargets, Trades):
    description = "TRADES with self-adaptive targets"
    paper = MovingTargets.paper
    default_start = DEFAULT_START

    start_epoch: int | None = setting(None, "epochs before the targets move (E_s)", least=0, unset="0.7 of the epochs")

    def suited(self, task: Task) -> Self:
        resolved = super().suited(task)
        return resolved if self.curve_start is not None else replace(resolved, curve_start=resolved.start_epoch)
