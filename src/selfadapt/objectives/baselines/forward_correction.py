"""Forward correction: train through an estimated noise matrix.

    T_ij = P(given label j | true class i)
    L    = -1/B  sum_i  log (T' p_i)[y_i]

T is estimated with a first network, trained with early stopping on noisy validation labels. Row i of T is its
prediction for the sample that is most typical of class i. As published for CIFAR10, this is the 97th percentile of p_i
rather than the maximum, which may be an outlier: with ten classes, the sample three tenths down the ranking of those
predicted as its class. Stated that way, the rule extends to many and to rare classes.

Deviation: early stopping uses the accuracy; the authors' code uses the loss. The validation samples select the first
network, so they cannot be used for a guarantee afterwards.

Paper: Patrini et al., "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach", 2017, Sections
3.2 and 3.3.
When to use it: with class-dependent noise, and time for two training runs.

Shapes: B samples of a batch, K classes, N samples in total.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.models.heads import CorrectedClassifier
from selfadapt.objectives.baselines.early_stopping import EarlyStopping
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Bench, Trained
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import TargetStore

_MIN_PROBABILITY = 1e-12


def estimate_transition(probabilities_NK: Tensor, outliers: float = 0.3) -> Tensor:
    """Estimate T from the predictions of a network that was trained on the noisy labels."""
    classes = probabilities_NK.shape[1]
    counts_K = torch.bincount(probabilities_NK.argmax(1), minlength=classes)
    ranked_NK = probabilities_NK.argsort(0, descending=True)
    typical_K = ranked_NK.gather(0, (outliers * counts_K).long().unsqueeze(0)).squeeze(0)
    rows_KK = probabilities_NK[typical_K]
    return rows_KK / rows_KK.sum(1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class ForwardCorrection(ERM):
    description = "forward correction, estimated matrix"
    paper = "Patrini et al., Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach, 2017"
    needs = "time for two training runs"
    uses_up_validation = True

    def train(self, bench: Bench) -> Trained:
        return bench.fit("main", self, initialise=lambda model: self._estimate_transition(bench, model))

    def _estimate_transition(self, bench: Bench, model: nn.Module) -> None:
        first = bench.fit("first", EarlyStopping() if bench.has_validation else ERM())
        model.get_buffer("transition_KK").copy_(estimate_transition(bench.predict(first, "train")))

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return CorrectedClassifier(backbone, num_classes)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits_BK = model(batch.input).float()
        transition_KK = unwrapped(model).get_buffer("transition_KK")
        given_B = (logits_BK.softmax(1) * transition_KK.T[batch.label]).sum(1)
        return mean_of(-given_B.clamp_min(_MIN_PROBABILITY).log(), logits_BK)
