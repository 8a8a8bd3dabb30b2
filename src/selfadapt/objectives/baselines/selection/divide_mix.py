"""DivideMix: two networks divide the samples for each other into labelled and unlabelled ones, and train by MixMatch.

After some epochs of cross entropy, before each epoch, a mixture of two Gaussians is fitted to the losses of each
network, scaled to 0..1. w_i is the probability of the component with the smaller mean. Network 1 gets the w of network
2, and the other way around. With p_i and p'_i, the means of the predictions of network 1 and of the other one over two
augmented views:

    q_i = sharpen(w_i one_hot(y_i) + (1 - w_i) p_i)   if w_i > 0.5: labelled, refined         co-refinement
    q_i = sharpen((p_i + p'_i) / 2)                   otherwise: unlabelled, guessed          co-guessing
    x   = s x_i + (1 - s) x_j,   q in the same way,   s ~ Beta(4, 4), at least 1/2, j any view of any sample
    L   = mean over labelled i of -sum_k q_k log p_k  +  l mean over unlabelled i of 1/K sum_k (p_k - q_k)^2
          +  sum_k 1/K log((1/K) / (mean of p_k over the batch))                 p = softmax(f(x)) of network 1

sharpen(q) is q^2, normalised. l rises linearly to 25 in the 16 epochs after the warm-up. Both losses are added. The
mean of the two networks' logits is the prediction.

Published for CIFAR10: 10 epochs of warm-up out of 300, 30 for CIFAR100; l = 0 for 20 % symmetric and 40 % asymmetric
noise, 25 for 50 and 80 %, 50 for 90 %, and 25 to 150 for CIFAR100; a threshold of 0.6 at 90 %; with asymmetric noise
the warm-up also subtracts the entropy of the prediction from the loss. As in the authors' code, losses are those of
images without augmentation in evaluation mode, the other network guesses in evaluation mode, and EM is stopped after 10
steps or when the likelihood gains less than 0.01 per sample, with 5e-4 added to the variances. Their average of the
losses of five epochs, at 90 % only, is left out.

Deviations: both networks take their steps together and divide the same batches, each with its own mixture; the authors
train them alternately for an epoch, on as many unlabelled as labelled samples in each step. Both views are passed
through a network at once. Micro-batches and processes each have their own mean of p in the last term.

Paper: Li et al., "DivideMix: Learning with Noisy Labels as Semi-supervised Learning", 2020.
When to use it: with several times the time and memory for two networks.

Shapes: B samples of a batch, K classes, N samples in total, P = 2B views of the samples of a batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from selfadapt.core import distributed
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, evaluation_mode
from selfadapt.objectives.baselines.co_teaching import TwoClassifiers
from selfadapt.objectives.baselines.mixup import Mixture
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Loss, Progress, Term, mean_of
from selfadapt.targets.store import Storage, TargetStore

_WARM_UP = 10  # epochs
_EM_STEPS, _TOLERANCE, _ADDED_VARIANCE = 10, 1e-2, 5e-4
_LEAST = 1e-12


def clean_probabilities(losses_N: Tensor) -> Tensor:
    """Fit two Gaussians to the losses, scaled to 0..1, and return the probability of the one with the smaller mean."""
    x_N1 = losses_N.double().unsqueeze(1)
    x_N1 = (x_N1 - x_N1.min()) / (x_N1.max() - x_N1.min()).clamp_min(_LEAST)
    share_N2 = _two_means(x_N1)
    bound = -torch.inf
    for _ in range(_EM_STEPS):
        before, (share_N2, bound) = bound, _expectation(x_N1, share_N2)
        if abs(bound - before) < _TOLERANCE:
            break
    share_N2, _ = _expectation(x_N1, share_N2)
    means_2 = (share_N2 * x_N1).sum(0) / share_N2.sum(0).clamp_min(_LEAST)
    return share_N2[:, means_2.argmin()].float()


def _two_means(x_N1: Tensor) -> Tensor:
    """Assign each value to one of two groups by k-means, starting from the smallest and the largest value."""
    centres_2 = torch.stack([x_N1.min(), x_N1.max()])
    while True:
        share_N2 = one_hot((x_N1 - centres_2).abs().argmin(1), 2).double()
        moved_2 = (share_N2 * x_N1).sum(0) / share_N2.sum(0).clamp_min(_LEAST)
        if torch.equal(moved_2, centres_2) or not share_N2.any(0).all():
            return share_N2
        centres_2 = moved_2


def _expectation(x_N1: Tensor, share_N2: Tensor) -> tuple[Tensor, float]:
    """Fit the Gaussians to the shares; return the new shares and the mean log-likelihood."""
    counts_2 = share_N2.sum(0).clamp_min(_LEAST)
    means_2 = (share_N2 * x_N1).sum(0) / counts_2
    variances_2 = (share_N2 * (x_N1 - means_2).square()).sum(0) / counts_2 + _ADDED_VARIANCE
    density_N2 = -((x_N1 - means_2).square() / variances_2 + (2 * torch.pi * variances_2).log()) / 2
    joint_N2 = (counts_2 / len(x_N1)).log() + density_N2
    return joint_N2.softmax(1), float(joint_N2.logsumexp(1).mean())


def sharpened(q_BK: Tensor) -> Tensor:
    squares_BK = q_BK.square()
    return squares_BK / squares_BK.sum(1, keepdim=True)


class TwoThatGuess(TwoClassifiers):
    """Two networks that also guess labels for each other. In evaluation the output is the mean of their logits."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """In training: logits of both for one input (B×2K), or for the mixtures of each and the views (P×6K).

        The six are those of the mixtures, and of the views in training and in evaluation mode, of each network.
        """
        if not self.training:
            return cast(Tensor, (self.first(inputs[0]) + self.second(inputs[0])) / 2)
        if len(inputs) == 1:
            return super().forward(inputs[0])
        for_first, for_second, views = inputs
        with torch.no_grad():
            guesses = [super().forward(views)]
            with evaluation_mode(self):
                guesses.append(super().forward(views))
        return torch.cat([self.first(for_first), self.second(for_second), *guesses], 1)


@dataclass(frozen=True, kw_only=True)
class DivideMix(ERM):
    description = "DivideMix: two networks, labels that the losses call wrong are replaced by guesses"
    paper = "Li et al., DivideMix: Learning with Noisy Labels as Semi-supervised Learning, 2020"
    needs = "memory for two networks, several times the time"
    views: ClassVar[int] = 2

    warm_up: int | None = setting(
        None,
        "epochs with cross entropy; 30 for CIFAR100",
        least=0,
        unset=f"{_WARM_UP}, or a third of the epochs if that is less",
    )
    unlabelled_weight: float = setting(
        25.0, "weight of the guessed labels (l); 0 for little or asymmetric noise, 50 for 90 %", least=0
    )
    rising: int = setting(16, "epochs after the warm-up in which that weight rises", least=1)
    threshold: float = setting(0.5, "probability of being correct above which a label is kept", least=0, below=1)
    strength: float = setting(4.0, "parameter of the Beta distribution of mixtures", above=0)
    penalise_confidence: bool = setting(False, "warm up with confident predictions penalised, for asymmetric noise")

    def suited(self, task: Task) -> Self:
        warm_up = max(1, min(_WARM_UP, task.epochs // 3)) if self.warm_up is None else self.warm_up
        task.check_phase("--warm-up", warm_up, "; train for 2 epochs or more")
        return replace(self, warm_up=warm_up)

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return TwoThatGuess(backbone, num_classes)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        """Create a store of w, one for each network."""
        return TargetStore.empty(len(labels_N), 2, storage=storage)

    @torch.no_grad()
    def before_epoch(
        self, model: nn.Module, samples: Iterable[Batch], targets: TargetStore | None, progress: Progress
    ) -> None:
        """Divide the samples by the losses of each network. An unreadable one is not labelled."""
        if targets is None or progress.epoch < (self.warm_up or 0):
            return
        networks = cast(TwoThatGuess, model)
        device = next(networks.parameters()).device
        known_N3 = torch.zeros(len(targets), 3, device=device)  # losses of each network, and whether they are known
        with evaluation_mode(networks):
            for batch in samples:
                logits = [network(batch.input).float() for network in (networks.first, networks.second)]
                losses = [cross_entropy(logits_BK, batch.label, reduction="none") for logits_BK in logits]
                known_N3[batch.index] = torch.stack([*losses, torch.ones_like(losses[0])], 1)
        known_N3 = distributed.all_reduce_sum(known_N3).cpu()
        index_n = known_N3[:, 2].nonzero().flatten()
        clean_n2 = torch.stack([clean_probabilities(known_N3[index_n, column]) for column in range(2)], 1)
        targets.rows.fill(index_n.to(targets.rows.device), clean_n2.to(targets.rows.device))

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        if targets is None:
            raise ValueError("DivideMix needs its targets")
        if progress.epoch < (self.warm_up or 0):
            return self._warm_up_loss(model(batch.input).float(), batch)
        views_P = torch.cat([batch.views[0], batch.views[-1]])
        mixtures = [Mixture.draw(views_P, self.strength) for _ in range(2)]
        logits_PK6 = model(*(mixture.of(views_P) for mixture in mixtures), views_P).float()
        mixed, views, fixed = (pair.chunk(2, 1) for pair in logits_PK6.chunk(3, 1))
        p, guessed = (
            [logits_PK.detach().softmax(1).unflatten(0, (2, -1)).mean(0) for logits_PK in pair]
            for pair in (views, fixed)
        )
        clean_B2 = targets.stored(batch.index)
        terms: list[Term] = []
        for own, other in ((0, 1), (1, 0)):
            clean_B1 = clean_B2[:, other : other + 1]
            labels_BK = one_hot(batch.label, p[own].shape[1]).to(p[own].dtype)
            refined_BK = clean_B1 * labels_BK + (1 - clean_B1) * p[own]
            labelled_B1 = clean_B1 > self.threshold
            q_BK = sharpened(torch.where(labelled_B1, refined_BK, (p[own] + guessed[other]) / 2))
            q_PK = mixtures[own].of(q_BK.repeat(2, 1))
            terms += self._terms(mixed[own], q_PK, labelled_B1.squeeze(1).repeat(2), progress)
        return Loss(tuple(terms), (p[0] + p[1]).log())

    def _terms(self, logits_PK: Tensor, q_PK: Tensor, labelled_P: Tensor, progress: Progress) -> list[Term]:
        """The terms of a network: labelled, unlabelled, and the penalty of classes that are not predicted."""
        log_p_PK = logits_PK.log_softmax(1)
        p_PK = log_p_PK.exp()
        labelled_P = labelled_P.to(p_PK.dtype)
        since = progress.fraction * progress.epochs - (self.warm_up or 0)
        weight = self.unlabelled_weight * min(max(since / self.rising, 0), 1)
        penalty = -(p_PK.mean(0) * p_PK.shape[1]).log().mean()
        return [
            Term.of(-(labelled_P * (q_PK * log_p_PK).sum(1)).sum(), labelled_P.sum().clamp_min(_LEAST)),
            Term.of(
                weight * ((1 - labelled_P) * (p_PK - q_PK).square().mean(1)).sum(),
                (1 - labelled_P).sum().clamp_min(_LEAST),
            ),
            Term.of(penalty * len(p_PK), len(p_PK)),
        ]

    def _warm_up_loss(self, logits_BK2: Tensor, batch: Batch) -> Loss:
        logits_B2K = logits_BK2.unflatten(1, (2, -1))
        log_p_B2K = logits_B2K.log_softmax(2)
        losses_B = -log_p_B2K.gather(2, batch.label.view(-1, 1, 1).expand(-1, 2, 1)).sum((1, 2))
        if self.penalise_confidence:
            losses_B = losses_B + (log_p_B2K.exp() * log_p_B2K).sum((1, 2))
        return mean_of(losses_B, logits_B2K.sum(1))
