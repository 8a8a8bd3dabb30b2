"""The methods by name, for the command line and the recipes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from selfadapt.errors import UserError
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Objective
from selfadapt.objectives.peers.bootstrapping import HardBootstrapping, SoftBootstrapping
from selfadapt.objectives.peers.co_teaching import CoTeaching
from selfadapt.objectives.peers.deep_gamblers import DeepGamblers
from selfadapt.objectives.peers.early_learning import EarlyLearning
from selfadapt.objectives.peers.early_stopping import EarlyStopping
from selfadapt.objectives.peers.forward_correction import ForwardCorrection
from selfadapt.objectives.peers.generalized_cross_entropy import (
    GeneralizedCrossEntropy,
    TruncatedGeneralizedCrossEntropy,
)
from selfadapt.objectives.peers.label_smoothing import LabelSmoothing
from selfadapt.objectives.peers.mixup import Mixup
from selfadapt.objectives.peers.selective_net import SelectiveNet
from selfadapt.objectives.peers.symmetric_cross_entropy import SymmetricCrossEntropy
from selfadapt.objectives.selective import Selective
from selfadapt.objectives.start import AutoStart


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user may choose about a method."""

    start_epoch: int | AutoStart
    momentum: float
    noise_rate: float
    reward: float
    coverage: float


@dataclass(frozen=True)
class Method:
    words: str
    make: Callable[[Choices], Objective]
    start_epoch: int | Literal["auto"] | None = None  # when its targets move if not told; None if it has none to move
    momentum: float = 0.9  # of the targets, if not told
    abstains: bool = False

    @property
    def adaptive(self) -> bool:
        return self.start_epoch is not None


def _selective(choices: Choices) -> Objective:
    if not isinstance(choices.start_epoch, int):
        raise UserError("--start-epoch auto is for labels that are wrong; for selective give a number, 0 in the paper")
    return Selective(start_epoch=choices.start_epoch, momentum=choices.momentum)


def _adaptive(words: str, **variant: float | bool) -> Method:
    def make(choices: Choices) -> Objective:
        return NoisyLabels(start_epoch=choices.start_epoch, momentum=choices.momentum, **variant)  # type: ignore[arg-type]

    return Method(words, make, start_epoch="auto")


METHODS = {
    "erm": Method("ordinary training", lambda _: ERM()),
    "early-stopping": Method("ordinary training, stopped early on noisy validation", lambda _: EarlyStopping()),
    "label-smoothing": Method("label smoothing", lambda _: LabelSmoothing()),
    "mixup": Method("mixup", lambda _: Mixup()),
    "forward": Method("forward correction, estimated matrix", lambda _: ForwardCorrection()),
    "gce": Method("generalised cross entropy", lambda _: GeneralizedCrossEntropy()),
    "gce-truncated": Method("generalised cross entropy, truncated", lambda _: TruncatedGeneralizedCrossEntropy()),
    "sce": Method("symmetric cross entropy", lambda _: SymmetricCrossEntropy()),
    "bootstrap-soft": Method("bootstrapping, soft", lambda _: SoftBootstrapping()),
    "bootstrap-hard": Method("bootstrapping, hard", lambda _: HardBootstrapping()),
    "elr": Method("early-learning regularisation", lambda _: EarlyLearning()),
    "co-teaching": Method("co-teaching", lambda choices: CoTeaching(noise_rate=choices.noise_rate)),
    "sat": _adaptive("self-adaptive training"),
    "sat-sce": _adaptive("self-adaptive training with symmetric cross entropy", reverse_weight=0.1),
    "sat-no-weights": _adaptive("self-adaptive training without re-weighting", reweight=False),
    "sat-no-average": _adaptive("self-adaptive training without the moving average", moving_average=False),
    "selective": Method(
        "self-adaptive training with abstention", _selective, start_epoch=0, momentum=0.99, abstains=True
    ),
    "deep-gamblers": Method("Deep Gamblers", lambda choices: DeepGamblers(reward=choices.reward), abstains=True),
    "selective-net": Method("SelectiveNet", lambda choices: SelectiveNet(coverage=choices.coverage), abstains=True),
}
