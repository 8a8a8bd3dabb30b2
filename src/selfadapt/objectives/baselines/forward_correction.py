"""Forward correction with an estimated matrix (Patrini et al., "Making Deep Neural Networks Robust to Label Noise: a
Loss Correction Approach", 2017, Sections 3.2 and 3.3).

    T_ij = P(given label j | true class i)
    L    = -1/B  sum_i  log (T' p_i)[y_i]

T comes from a network of its own, trained first in the ordinary way and kept as it was in the epoch that was best on
noisy validation labels (by accuracy; the authors' program goes by the loss). Row i of T is that network's prediction
for the sample that it finds most typical of class i. As published for CIFAR10, the most typical is the 97th percentile
of p_i and not the maximum, which may be an outlier: with ten classes, the sample three tenths down the list of those of
its class. Said that way it also holds for many classes and for rare ones. So this method trains twice. The validation
samples had a part in it, and cannot vouch for the network afterwards.

Shapes: B samples of a batch, K classes, N samples in all.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from selfadapt.data.loader import Batch
from selfadapt.models.heads import Backbone, CorrectedClassifier, unwrapped
from selfadapt.objectives.baselines.early_stopping import EarlyStopping
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Bench, Trained
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import TargetStore

_SMALLEST = 1e-12


def estimate_transition(probabilities_NK: Tensor, outliers: float = 0.3) -> Tensor:
    """T from the predictions of a network that was trained on the noisy labels."""
    classes = probabilities_NK.shape[1]
    members_K = torch.bincount(probabilities_NK.argmax(1), minlength=classes)
    ranked_N_of_K = probabilities_NK.argsort(0, descending=True)
    typical_K = ranked_N_of_K.gather(0, (outliers * members_K).long().unsqueeze(0)).squeeze(0)
    rows_KK = probabilities_NK[typical_K]
    return rows_KK / rows_KK.sum(1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class ForwardCorrection(ERM):
    description: ClassVar[str] = "forward correction, estimated matrix"
    paper: ClassVar[str] = (
        "Patrini et al., Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach, 2017"
    )
    needs: ClassVar[str] = "time for two trainings"
    uses_up_validation: ClassVar[bool] = True

    def train(self, bench: Bench) -> Trained:
        return bench.fit("main", self, initialise=lambda model: self._learn_transition(bench, model))

    def _learn_transition(self, bench: Bench, model: nn.Module) -> None:
        first = bench.fit("first", EarlyStopping() if bench.has_validation else ERM())
        model.get_buffer("transition_KK").copy_(estimate_transition(bench.predict(first, "train")))

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return CorrectedClassifier(backbone, num_classes)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits_BK = model(batch.input).float()
        transition_KK = unwrapped(model).get_buffer("transition_KK")
        given_B = (logits_BK.softmax(1) * transition_KK.T[batch.label]).sum(1)
        return mean_of(-given_B.clamp_min(_SMALLEST).log(), logits_BK)
