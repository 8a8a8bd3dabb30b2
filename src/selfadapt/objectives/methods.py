"""All methods by name, for labelled data and for self-supervised pre-training. A new method adds a line."""

from typing import Literal

from selfadapt.objectives.adversarial import PGDTraining, Trades, TradesSelfAdaptive
from selfadapt.objectives.baselines.bootstrapping import HardBootstrapping, SoftBootstrapping
from selfadapt.objectives.baselines.co_teaching import CoTeaching
from selfadapt.objectives.baselines.correction.joint_optimization import JointOptimization
from selfadapt.objectives.baselines.correction.over_parameterization import OverParameterized
from selfadapt.objectives.baselines.deep_gamblers import DeepGamblers
from selfadapt.objectives.baselines.early_learning import EarlyLearning
from selfadapt.objectives.baselines.early_learning_plus import EarlyLearningPlus
from selfadapt.objectives.baselines.early_stopping import EarlyStopping
from selfadapt.objectives.baselines.forward_correction import ForwardCorrection
from selfadapt.objectives.baselines.generalized_cross_entropy import (
    GeneralizedCrossEntropy,
    TruncatedGeneralizedCrossEntropy,
)
from selfadapt.objectives.baselines.label_smoothing import LabelSmoothing
from selfadapt.objectives.baselines.mean_absolute_error import MeanAbsoluteError
from selfadapt.objectives.baselines.mixup import Mixup
from selfadapt.objectives.baselines.selection.area_under_margin import AreaUnderMargin
from selfadapt.objectives.baselines.selection.deep_abstaining import DeepAbstaining
from selfadapt.objectives.baselines.selection.divide_mix import DivideMix
from selfadapt.objectives.baselines.selection.label_filtering import LabelFiltering
from selfadapt.objectives.baselines.selection.mentor_net import MentorNet
from selfadapt.objectives.baselines.selective_net import SelectiveNet
from selfadapt.objectives.baselines.symmetric_cross_entropy import SymmetricCrossEntropy
from selfadapt.objectives.cross_fitting.cross_fitted_head import SelfAdaptiveFolds
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Method
from selfadapt.objectives.noisy_labels import (
    SelfAdaptive,
    SelfAdaptiveOfThePaper,
    SelfAdaptiveSymmetric,
    WithoutAverage,
    WithoutWeights,
)
from selfadapt.objectives.posterior_targets import PosteriorTargets
from selfadapt.objectives.pretraining.byol import BYOL
from selfadapt.objectives.pretraining.moco import MoCo
from selfadapt.objectives.pretraining.self_supervised import FixedNoise, RandomNetwork, SelfSupervised
from selfadapt.objectives.pretraining.simclr import SimCLR
from selfadapt.objectives.pretraining.simsiam import SimSiam
from selfadapt.objectives.selective import Selective

NOISY_LABELS: dict[str, type[Method]] = {
    "sat": SelfAdaptive,
    "sat-paper": SelfAdaptiveOfThePaper,
    "sat-sce": SelfAdaptiveSymmetric,
    "sat-posterior": PosteriorTargets,
    "sat-no-weights": WithoutWeights,
    "sat-no-average": WithoutAverage,
    "erm": ERM,
    "early-stopping": EarlyStopping,
    "label-smoothing": LabelSmoothing,
    "mixup": Mixup,
    "mae": MeanAbsoluteError,
    "forward": ForwardCorrection,
    "gce": GeneralizedCrossEntropy,
    "gce-truncated": TruncatedGeneralizedCrossEntropy,
    "sce": SymmetricCrossEntropy,
    "bootstrap-soft": SoftBootstrapping,
    "bootstrap-hard": HardBootstrapping,
    "elr": EarlyLearning,
    "co-teaching": CoTeaching,
    "mentor-net": MentorNet,
    "dac": DeepAbstaining,
    "self": LabelFiltering,
    "aum": AreaUnderMargin,
    "joint-optimization": JointOptimization,
    "sop": OverParameterized,
    "elr-plus": EarlyLearningPlus,
    "divide-mix": DivideMix,
}
METHODS: dict[Literal["labels", "pretraining"], dict[str, type[Method]]] = {
    "labels": {
        **NOISY_LABELS,
        "sat-folds": SelfAdaptiveFolds,
        "selective": Selective,
        "deep-gamblers": DeepGamblers,
        "selective-net": SelectiveNet,
        "trades-sat": TradesSelfAdaptive,
        "trades": Trades,
        "pgd-training": PGDTraining,
    },
    "pretraining": {
        "sat": SelfSupervised,
        "byol": BYOL,
        "moco": MoCo,
        "simclr": SimCLR,
        "simsiam": SimSiam,
        "noise": FixedNoise,
        "random-network": RandomNetwork,
    },
}
ORDINARY = "erm"  # the reference for training times
