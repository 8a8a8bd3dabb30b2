"""SelectiveNet: a network trained to abstain at a given coverage.

Three heads on one backbone: f predicts, g in 0..1 selects, and an auxiliary head h also predicts, for the features.

    phi = 1/B sum_i g_i                                                      coverage
    r   = 1/B sum_i g_i CE(f_i, y_i)                                         selective risk
    L   = a (r + lambda max(0, c - phi)^2) + (1 - a) 1/B sum_i CE(h_i, y_i)

with lambda = 32 and a = 1/2. g is a hidden layer as wide as the features, with batch normalisation and, as in the
authors' code, divided by ten, then a linear layer and a sigmoid.

Deviations: the paper divides r by phi; the authors' code does not, which works better here and is the default. Coverage
and risk are those of a batch; with micro-batches or several processes, each part has its own. The network is valid for
one coverage c; the authors train one network for each.

Paper: Geifman and El-Yaniv, "SelectiveNet: A Deep Neural Network with an Integrated Reject Option", 2019.
When to use it: when the coverage is known before training.

Shapes: B samples of a batch, N samples, K classes, O = 2 K + 1 outputs, F features, C channels, H by W pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress

_WEIGHT, _BALANCE = 32.0, 0.5  # lambda, a


class DivideByTen(nn.Module):
    """Keeps the selection near one half at the start of training."""

    def forward(self, values_BF: Tensor) -> Tensor:
        return values_BF / 10


class ThreeHeads(nn.Module):
    """Outputs the K class logits of f, the logit of the selection g, and the K class logits of h."""

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        features = backbone.num_features
        self.backbone = backbone
        self.predict = nn.Linear(features, num_classes)
        self.select = nn.Sequential(
            nn.Linear(features, features), nn.ReLU(), nn.BatchNorm1d(features), DivideByTen(), nn.Linear(features, 1)
        )
        self.help = nn.Linear(features, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        features_BF = self.backbone(images_BCHW)
        return torch.cat([self.predict(features_BF), self.select(features_BF), self.help(features_BF)], 1)


def selective_net_loss(outputs_BO: Tensor, labels_B: Tensor, coverage: float, *, divide: bool = False) -> Tensor:
    classes = (outputs_BO.shape[1] - 1) // 2
    predicted_BK, selection_B, auxiliary_BK = outputs_BO.tensor_split([classes, classes + 1], 1)
    selected_B = selection_B.squeeze(1).sigmoid()
    share = selected_B.mean()
    risk = (selected_B * cross_entropy(predicted_BK, labels_B, reduction="none")).mean()
    if divide:
        risk = risk / share
    penalty = (coverage - share).clamp_min(0).square()
    return _BALANCE * (risk + _WEIGHT * penalty) + (1 - _BALANCE) * cross_entropy(auxiliary_BK, labels_B)


@dataclass(frozen=True, kw_only=True)
class SelectiveNet(ERM):
    description = "SelectiveNet"
    abstains = True
    paper = "Geifman and El-Yaniv, SelectiveNet: A Deep Neural Network with an Integrated Reject Option, 2019"

    coverage: float = setting(0.8, "coverage to train for", above=0, most=1)
    divide_by_coverage: bool = setting(False, "divide the risk by the coverage, as in the paper")

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return ThreeHeads(backbone, num_classes)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        mean = selective_net_loss(logits_BK, batch.label, self.coverage, divide=self.divide_by_coverage)
        return Loss.of(len(batch) * mean, len(batch), logits_BK[:, : logits_BK.shape[1] // 2])

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        return {"selection": outputs_NO[:, num_classes]}  # without the sigmoid, which would create ties

    def trained_for(self) -> float | None:
        return self.coverage
