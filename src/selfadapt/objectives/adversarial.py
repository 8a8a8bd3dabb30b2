"""Adversarial training: TRADES (Zhang et al., 2019), and TRADES with self-adaptive targets (Section 3.3).

    x' = argmax over the ball around x of KL(p(x) || p(x'))                      the inner attack, attacks/pgd.py
    L  = 1/m sum_i CE(p(x_i), y_i)  +  beta 1/m sum_i KL(p(x_i) || p(x'_i))      TRADES, beta = 1/lambda = 6

With self-adaptive training only the first term changes. The targets move by the clean prediction p(x_i), and

    L  = 1/(sum_i w_i) sum_i w_i CE(p(x_i), t_i)  +  beta 1/m sum_i KL(p(x_i) || p(x'_i)),      w_i = max_j t_ij

from epoch E_s on; before it the loss is that of TRADES. m is the number of samples. The two terms have two divisors,
and both sums run over the whole step, all micro-batches and all processes. Gradient flows through p(x) in both terms,
and none through t or w.

Training with PGD alone (Madry et al., 2018) is cross entropy on x', the attack being on cross entropy.

The paper trains WRN-34-10 for 100 epochs with E_s = 70. Its curve (Figures 5 and 14) is measured on test images from
E_s on; a method asks for it in `attack_after`.

Shapes: B samples of a batch, K classes, N samples in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from selfadapt.attacks.pgd import PGD, LossName, StartName, perturb
from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.heads import unwrapped
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import AttackAfterEpoch, Task
from selfadapt.objectives.noisy_labels import NoisyLabels, check_start, target_loss
from selfadapt.objectives.objective import Evidence, Loss, Metrics, Progress, Term
from selfadapt.targets.store import Storage, TargetStore

BETA = 6.0  # 1/lambda
START = 0.7  # of the epochs, as 70 of 100


def trades_terms(clean_BK: Tensor, perturbed_BK: Tensor, labels_B: Tensor, *, beta: float = BETA) -> tuple[Term, Term]:
    """TRADES: cross entropy of clean logits and labels, and beta times the divergence of the perturbed logits."""
    (first,) = label_loss(clean_BK, labels_B).terms
    return first, divergence_term(clean_BK, perturbed_BK, beta=beta)


def trades_sat_terms(
    clean_BK: Tensor, perturbed_BK: Tensor, targets_BK: Tensor, *, beta: float = BETA, reweight: bool = True
) -> tuple[Term, Term]:
    """TRADES with the targets that the clean prediction has just moved, from epoch E_s on; before it `trades_terms`."""
    (first,) = target_loss(clean_BK, targets_BK, reweight=reweight).terms
    return first, divergence_term(clean_BK, perturbed_BK, beta=beta)


def divergence_term(clean_BK: Tensor, perturbed_BK: Tensor, *, beta: float = BETA) -> Term:
    """beta times the divergence of each sample, every sample with weight one."""
    total = beta * divergence(clean_BK, perturbed_BK).sum()
    return Term(total, torch.full_like(total, len(clean_BK)).detach())


def divergence(clean_BK: Tensor, perturbed_BK: Tensor) -> Tensor:
    """KL(p || p') = sum_j p_j (log p_j - log p'_j) for each sample, with gradient through both."""
    log_p_BK, log_q_BK = clean_BK.float().log_softmax(1), perturbed_BK.float().log_softmax(1)
    return (log_p_BK.exp() * (log_p_BK - log_q_BK)).sum(1)


@dataclass(frozen=True, kw_only=True)
class PGDTraining(ERM):
    """Cross entropy on attacked images, and the common ground of methods that attack their own network."""

    description: ClassVar[str] = "training on images attacked by PGD"
    paper: ClassVar[str] = "Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, 2018"
    needs: ClassVar[str] = "images, and a network that sees them"
    inner_loss: ClassVar[LossName] = "cross-entropy"
    inner_start: ClassVar[StartName] = "ball"

    eps: float = setting(0.031, "radius of the attacks, in each pixel of 0..1", above=0, most=1)
    step: float = setting(0.007, "step of the attacks", above=0, most=1)
    steps: int = setting(10, "steps of the attack in training", least=1)
    curve_images: int = setting(
        500, "test images, the same each time, that are put under PGD-20 after each late epoch; 0 for none", least=0
    )
    curve_start: int | None = setting(
        None, "epochs before that curve begins", least=0, unset="start-epoch, else 0.7 of the epochs"
    )

    def suited(self, task: Task) -> Self:
        if not task.sees_images:
            raise UserError(
                "training against attacks needs a network that sees images, not vectors or a head on features; for "
                "photos add --tune all"
            )
        return self if self.curve_start is not None else replace(self, curve_start=int(START * task.epochs))

    @property
    def inner_attack(self) -> PGD:
        return PGD(eps=self.eps, step=self.step, steps=self.steps, start=self.inner_start, loss=self.inner_loss)

    def attacked(self, model: nn.Module, batch: Batch) -> Tensor:
        """The images as the inner attack moves them.

        Its start is drawn from torch's own generator, whose state a checkpoint keeps for each process.
        """
        return perturb(unwrapped(model), batch.input, batch.label, self.inner_attack, torch.default_generator)

    def attack_after(self, epoch: int) -> AttackAfterEpoch | None:
        if not self.curve_images or epoch <= (self.curve_start or 0):
            return None
        return AttackAfterEpoch(PGD(eps=self.eps, step=self.step, steps=20), self.curve_images)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        return label_loss(model(self.attacked(model, batch)), batch.label)


@dataclass(frozen=True, kw_only=True)
class Trades(PGDTraining):
    description: ClassVar[str] = "TRADES"
    paper: ClassVar[str] = "Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy, 2019"
    inner_loss: ClassVar[LossName] = "kl"
    inner_start: ClassVar[StartName] = "normal"

    beta: float = setting(BETA, "weight of the divergence under attack (1/lambda)", least=0)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        moved_BCHW = self.attacked(model, batch)
        clean_BK, perturbed_BK = model(batch.input), model(moved_BCHW)
        return Loss(trades_terms(clean_BK, perturbed_BK, batch.label, beta=self.beta), clean_BK.detach())


@dataclass(frozen=True, kw_only=True)
class TradesSelfAdaptive(Trades):
    description: ClassVar[str] = "TRADES with self-adaptive targets"
    paper: ClassVar[str] = NoisyLabels.paper

    start_epoch: int | None = setting(None, "epochs before the targets move (E_s)", least=0, unset="0.7 of the epochs")
    momentum: float = setting(
        0.9, "momentum of the targets (alpha)", option="--target-momentum", aliases=("--momentum",), least=0, most=1
    )

    def suited(self, task: Task) -> Self:
        start = int(START * task.epochs) if self.start_epoch is None else self.start_epoch
        check_start(start, task.epochs)
        curve = start if self.curve_start is None else self.curve_start
        return super(TradesSelfAdaptive, replace(self, start_epoch=start, curve_start=curve)).suited(task)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.from_labels(labels_N, num_classes, self.momentum, storage)

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        return int(START * epochs) if self.start_epoch is None else self.start_epoch

    def evidence(self, progress: Progress) -> Evidence | None:
        moved = progress.epoch - (self.started(progress.history, progress.epochs) or 0)
        return Evidence(label_share=float(self.momentum ** max(0, moved)), weighed=True)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        start = self.started(progress.history, progress.epochs)
        if targets is None or start is None or progress.epoch < start:
            return super().loss(model, batch, targets, progress)
        moved_BCHW = self.attacked(model, batch)
        clean_BK, perturbed_BK = model(batch.input), model(moved_BCHW)
        rows_BK = targets.move(batch.index, clean_BK.detach().float().softmax(1))
        return Loss(trades_sat_terms(clean_BK, perturbed_BK, rows_BK, beta=self.beta), clean_BK.detach())
