"""SelectiveNet (Geifman and El-Yaniv, "SelectiveNet: A Deep Neural Network with an Integrated Reject Option", 2019).

Three heads on one backbone: f predicts, g in 0..1 selects, h predicts too and only helps the features along.

    phi = 1/B sum_i g_i                                                      coverage
    r   = 1/B sum_i g_i CE(f_i, y_i)                                         risk on what is selected
    L   = a (r + lambda max(0, c - phi)^2) + (1 - a) 1/B sum_i CE(h_i, y_i)

with lambda = 32 and a = 1/2. The paper divides r by phi; the authors' program does not, and does better here, so that
is the default. g is a hidden layer as wide as the features, with batch normalisation, its outputs divided by ten as in
the program, before a sigmoid. Coverage and risk are a batch's; where a batch is cut into micro-batches or shared by
processes, each part has its own. The network is trained for one coverage c, and says nothing of others: the authors
train one for each.

Shapes: B samples of a batch, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.heads import Backbone
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress


class Tenth(nn.Module):
    """A tenth of what comes in, so that selection begins undecided."""

    def forward(self, values_BF: Tensor) -> Tensor:
        return values_BF / 10


class ThreeHeads(nn.Module):
    """Outputs: the K classes of f, the selection g before its sigmoid, the K classes of h."""

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        features = backbone.num_features
        self.backbone = backbone
        self.predict = nn.Linear(features, num_classes)
        self.select = nn.Sequential(
            nn.Linear(features, features), nn.ReLU(), nn.BatchNorm1d(features), Tenth(), nn.Linear(features, 1)
        )
        self.help = nn.Linear(features, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        features_BF = self.backbone(images_BCHW)
        return torch.cat([self.predict(features_BF), self.select(features_BF), self.help(features_BF)], 1)


def selective_net_loss(
    outputs_BO: Tensor,
    labels_B: Tensor,
    coverage: float,
    weight: float = 32.0,
    balance: float = 0.5,
    *,
    divide: bool = False,
) -> Tensor:
    classes = (outputs_BO.shape[1] - 1) // 2
    predicted_BK, selected_B, helped_BK = (
        outputs_BO[:, :classes],
        outputs_BO[:, classes].sigmoid(),
        outputs_BO[:, classes + 1 :],
    )
    share = selected_B.mean()
    risk = (selected_B * cross_entropy(predicted_BK, labels_B, reduction="none")).mean()
    if divide:
        risk = risk / share
    short = (coverage - share).clamp_min(0).square()
    return balance * (risk + weight * short) + (1 - balance) * cross_entropy(helped_BK, labels_B)


@dataclass(frozen=True, kw_only=True)
class SelectiveNet(ERM):
    description: ClassVar[str] = "SelectiveNet"
    abstains: ClassVar[bool] = True
    paper: ClassVar[str] = (
        "Geifman and El-Yaniv, SelectiveNet: A Deep Neural Network with an Integrated Reject Option, 2019"
    )

    coverage: float = setting(0.8, "the coverage to train for", above=0, most=1)
    divide_by_coverage: bool = setting(False, "divide the risk by the coverage, as the paper has it")

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return ThreeHeads(backbone, num_classes)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        size = torch.full((), float(len(batch)), device=logits_BK.device)
        total = size * selective_net_loss(logits_BK, batch.label, self.coverage, divide=self.divide_by_coverage)
        return Loss.of(total, size, logits_BK[:, : logits_BK.shape[1] // 2])

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        return {"selection": outputs_NO[:, num_classes]}  # before the sigmoid, which would make ties

    def trained_for(self) -> float | None:
        return self.coverage
