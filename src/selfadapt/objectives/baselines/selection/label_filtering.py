"""SELF: filter labels by the averaged predictions of a mean teacher, in several rounds.

In a round a student is trained beside a teacher, its slow average (theta' <- 0.99 theta' + 0.01 theta after each step):

    L = 1/(sum_i c_i)  sum_i  -c_i log p_i[y_i]   +   w/B  sum_i  1/K sum_j (p_ij - p'_ij)^2

p is the student's prediction and p' the teacher's, for another augmentation where the run has two views. c_i is 1 for
the labels that are kept, all of them in the first round. The second term learns from every sample, also without its
label; w rises to 100 over the first tenth of the training as exp(-5 (1 - x)^2). The running mean of the teacher's
predictions, z_i <- 0.9 z_i + 0.1 p'_i, decides after the round: a label is kept if it is the most likely class of z_i.
Each round starts with a new network and judges the original labels, so a label can return. The teacher of the last
round is the result.

Reading: the number of rounds, their length (the epochs of the run), w and both momenta are choices made here; no
program of the authors was compared.

Paper: Nguyen et al., "SELF: Learning to Filter Noisy Labels with Self-Ensembling", 2020; Tarvainen and
Valpola, "Mean teachers are better role models", 2017.
When to use it: with time for three training runs and memory for two networks.

Shapes: B samples of a batch, N samples in total, K classes.
"""

import copy
import math
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.device import kept_on
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.models.heads import Classifier
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Bench, Trained, rows_of
from selfadapt.objectives.objective import Loss, Progress, Term
from selfadapt.targets.store import Storage, TargetStore

_RISING = 0.1  # share of the training in which the weight of consistency rises
_RUNNING_MEAN_MOMENTUM = 0.9


class StudentAndTeacher(nn.Module):
    """A network and its slow average, which answers in evaluation."""

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.student = Classifier(backbone, num_classes)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, *views: Tensor) -> Tensor:
        """In training the logits of both, side by side: of the student for the first view, the teacher for the last."""
        if not self.training:
            return cast(Tensor, self.teacher(views[0]))
        with torch.no_grad():
            taught_BK = self.teacher(views[-1])
        return torch.cat([self.student(views[0]), taught_BK], 1)

    @torch.no_grad()
    def move_teacher(self, momentum: float) -> None:
        torch._foreach_lerp_(list(self.teacher.parameters()), list(self.student.parameters()), 1 - momentum)


@dataclass(frozen=True, kw_only=True)
class LabelFiltering(ERM):
    description = "SELF: labels filtered by a mean teacher, in rounds"
    paper = "Nguyen et al., SELF: Learning to Filter Noisy Labels with Self-Ensembling, 2020"
    needs = "time for three training runs, memory for two networks"

    rounds: int = setting(3, "training runs, each on the labels that the previous one kept", least=1)
    consistency: float = setting(100.0, "weight of the agreement of student and teacher (w)", least=0)
    teacher_momentum: float = setting(0.99, "momentum of the teacher", least=0, most=1)
    voted_N: Tensor | None = field(
        default=None, compare=False
    )  # most likely class by the last round; None: no round yet

    def train(self, bench: Bench) -> Trained:
        own = self
        for number in range(1, self.rounds):
            means = rows_of(bench.fit(f"round-{number}", own))
            own = replace(self, voted_N=torch.cat([means_nK.argmax(1) for means_nK in means]))
        return bench.fit("main", own)

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return StudentAndTeacher(backbone, num_classes)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.empty(len(labels_N), num_classes, _RUNNING_MEAN_MOMENTUM, storage)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        student_BK, teacher_BK = model(*batch.views).float().chunk(2, 1)
        taught_BK = teacher_BK.detach().softmax(1)
        if targets is not None:
            targets.move(batch.index, taught_BK)
        losses_B = cross_entropy(student_BK, batch.label, reduction="none")
        kept_B = torch.ones_like(losses_B)
        if self.voted_N is not None:
            kept_B = (kept_on(batch.label.device, self.voted_N)[batch.index] == batch.label).to(losses_B.dtype)
        rising = math.exp(-5 * (1 - min(progress.fraction / _RISING, 1)) ** 2)
        distances_B = (student_BK.softmax(1) - taught_BK).square().mean(1)
        terms = (
            Term.of((kept_B * losses_B).sum(), kept_B.sum().clamp_min(1e-12)),  # zero where no label is kept
            Term.of(self.consistency * rising * distances_B.sum(), len(batch)),
        )
        return Loss(terms, student_BK.detach())

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        cast(StudentAndTeacher, unwrapped(model)).move_teacher(self.teacher_momentum)
