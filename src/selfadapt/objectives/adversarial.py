"""Adversarial training: TRADES (Zhang et al., 2019), and TRADES with self-adaptive targets (Section 3.3).

    x' = argmax over the ball around x of KL(p(x) || p(x'))                      the inner attack, attacks/pgd.py
    L  = 1/m sum_i CE(p(x_i), y_i)  +  beta 1/m sum_i KL(p(x_i) || p(x'_i))      TRADES, beta = 1/lambda = 6

With self-adaptive training only the first term changes. The targets move by the clean prediction p(x_i), and

    L  = 1/(sum_i w_i) sum_i w_i CE(p(x_i), t_i)  +  beta 1/m sum_i KL(p(x_i) || p(x'_i)),      w_i = max_j t_ij

m is the number of samples. The two terms have two divisors, and both sums run over the whole step, all pieces and all
processes, so a term is given as a total and a weight, and whoever sees the whole step divides. Gradient flows through
p(x) in both terms, and none through t or w.

Training with PGD alone (Madry et al., 2018) is cross entropy on x', the attack being on cross entropy.

Shapes: B samples of a batch, K classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from selfadapt.attacks.pgd import PGD
from selfadapt.objectives.erm import label_loss
from selfadapt.objectives.noisy_labels import target_loss

BETA = 6.0  # 1/lambda

# The inner attacks, with the paper's radius.
TRADES_ATTACK = PGD(eps=0.031, step=0.007, steps=10, start="normal", loss="kl")
PGD_TRAINING_ATTACK = PGD(eps=0.031, step=0.007, steps=10, start="ball", loss="cross-entropy")


class Term(NamedTuple):
    """A part of the loss; over a whole step it counts sum of totals / sum of weights."""

    total: Tensor  # with gradient
    weight: Tensor  # without


def trades_terms(clean_BK: Tensor, perturbed_BK: Tensor, labels_B: Tensor, *, beta: float = BETA) -> tuple[Term, Term]:
    """TRADES: cross entropy of clean logits and labels, and beta times the divergence of the perturbed logits."""
    loss = label_loss(clean_BK, labels_B)
    return Term(loss.total, loss.weight), divergence_term(clean_BK, perturbed_BK, beta=beta)


def trades_sat_terms(
    clean_BK: Tensor, perturbed_BK: Tensor, targets_BK: Tensor, *, beta: float = BETA, reweight: bool = True
) -> tuple[Term, Term]:
    """TRADES with the targets that the clean prediction has just moved, from epoch E_s on; before it `trades_terms`."""
    loss = target_loss(clean_BK, targets_BK, reweight=reweight)
    return Term(loss.total, loss.weight), divergence_term(clean_BK, perturbed_BK, beta=beta)


def divergence_term(clean_BK: Tensor, perturbed_BK: Tensor, *, beta: float = BETA) -> Term:
    """beta times the divergence of each sample, every sample with weight one."""
    total = beta * divergence(clean_BK, perturbed_BK).sum()
    return Term(total, torch.full_like(total, len(clean_BK)).detach())


def divergence(clean_BK: Tensor, perturbed_BK: Tensor) -> Tensor:
    """KL(p || p') = sum_j p_j (log p_j - log p'_j) for each sample, with gradient through both."""
    log_p_BK, log_q_BK = clean_BK.float().log_softmax(1), perturbed_BK.float().log_softmax(1)
    return (log_p_BK.exp() * (log_p_BK - log_q_BK)).sum(1)
