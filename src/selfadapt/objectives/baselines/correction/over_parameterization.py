"""Sparse over-parameterisation (SOP): the error of each label as additional parameters of its sample.

    s_i = u_i^2 one_hot(y_i) - v_i^2 (1 - one_hot(y_i))        u_i a number, v_i one for each class; within -1..1
    L   = 1/B  sum_i  -log n(p_i + s_i)[y_i]  +  1/B  sum_i  |one_hot(argmax p_i) + s_i - one_hot(y_i)|^2

n clamps to at least 1e-4 and normalises. The first term trains the network and u, the second v and u; each has its own
learning rate and plain gradient descent, so that a sparse s is found first. u and v start at about 1e-8. Only u_i at
the given label and v_i at the other classes matter, so both fit into one row of K numbers.

Published for CIFAR10: learning rates of 10 for u and v; for CIFAR100 1 and 10 with symmetric, 0.1 and 100 with
asymmetric noise (the authors' code after publication).

Paper: Liu et al., "Robust Training under Label Noise by Over-parameterization", 2022.
When to use it: as a cheap recent baseline, where its two learning rates can be tuned.

Shapes: B samples of a batch, K classes, N samples in total.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import Storage, TargetStore

_MIN_PROBABILITY = 1e-4
_INITIAL = 1e-8


def over_parameterized_losses(logits_BK: Tensor, labels_B: Tensor, rows_BK: Tensor) -> Tensor:
    """Return the loss of each sample. A row holds u at the label and v elsewhere."""
    p_BK = logits_BK.softmax(1)
    given_BK = one_hot(labels_B, p_BK.shape[1]).to(p_BK.dtype)
    squares_BK = rows_BK.square().clamp(0, 1)
    added_BK, removed_BK = squares_BK * given_BK, squares_BK * (1 - given_BK)
    shifted_BK = normalize((p_BK + added_BK - removed_BK.detach()).clamp_min(_MIN_PROBABILITY), p=1, dim=1)
    fit_B = -shifted_BK.gather(1, labels_B.unsqueeze(1)).squeeze(1).clamp_min(_MIN_PROBABILITY).log()
    predicted_BK = one_hot(logits_BK.argmax(1), p_BK.shape[1]).to(p_BK.dtype)
    return fit_B + (predicted_BK + added_BK - removed_BK - given_BK).square().sum(1)


@dataclass(frozen=True, kw_only=True)
class OverParameterized(ERM):
    description = "sparse over-parameterisation"
    paper = "Liu et al., Robust Training under Label Noise by Over-parameterization, 2022"

    label_lr: float = setting(10.0, "learning rate of u; 1 for CIFAR100, 0.1 with asymmetric noise", least=0)
    others_lr: float = setting(10.0, "learning rate of v; 100 for CIFAR100 with asymmetric noise", least=0)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        if storage.top_k is not None or storage.dtype != torch.float32:
            raise UserError("--method sop stores parameters of about 1e-8; leave --targets at float32, or choose file")
        store = TargetStore.empty(len(labels_N), num_classes, storage=storage)
        for index_n in torch.arange(len(labels_N)).split(65_536):
            store.rows.fill(index_n.to(store.rows.device), torch.full((len(index_n), num_classes), _INITIAL))
        return store

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        rows_BK = targets.stored(batch.index).requires_grad_()
        losses_B = over_parameterized_losses(logits_BK, batch.label, rows_BK)
        (gradient_BK,) = torch.autograd.grad(losses_B.sum(), rows_BK, retain_graph=True)
        given_BK = one_hot(batch.label, rows_BK.shape[1]).bool()
        rate_BK = torch.where(given_BK, self.label_lr, self.others_lr) / (batch.whole or len(batch))
        targets.move(batch.index, (rows_BK - rate_BK * gradient_BK).detach(), momentum=0.0)
        return mean_of(losses_B, logits_BK)
