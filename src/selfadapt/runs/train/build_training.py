"""A training of a plan's network: model, targets, loader and optimiser, as the loop needs them."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from selfadapt.core import distributed
from selfadapt.core.device import choose_device
from selfadapt.data.dataset import Data
from selfadapt.data.images.augment import augmentation_by_name, smallest_area
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import SampleLoader
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training
from selfadapt.models.registry import FIXED_SIZE
from selfadapt.objectives.objective import Objective
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.sections import parse_progressive
from selfadapt.runs.lifecycle.network import new_model
from selfadapt.runs.lifecycle.saved_network import restoring
from selfadapt.targets.store import Storage, TargetStore


def build_training(
    plan: Plan, data: Data, objective: Objective, storage: Storage, *, resumed: bool = False
) -> Training:
    """A training by this objective with a new model and its initial targets."""
    model = new_model(plan, data, objective, resumed=resumed)
    targets = objective.initial_targets(data.train.labels, data.num_classes, storage)
    return training_of(plan, data, objective, model, targets)


def training_of(
    plan: Plan, data: Data, objective: Objective, model: nn.Module, targets: TargetStore | None
) -> Training:
    """A training of this model by this objective."""
    return Training(
        objective,
        model,
        targets,
        _loader(plan, data),
        plan.fit_settings(),
        num_classes=data.num_classes,
        device=choose_device(plan.device),
    )


def restore(training: Training, checkpoints: Path) -> None:
    """Load the newest checkpoint into a training, if there is one."""
    saved = checkpoint.load_newest(checkpoints, training.device)
    if saved is not None:
        with restoring(checkpoints, saved):
            training.restore(saved)


def _loader(plan: Plan, data: Data) -> SampleLoader:
    augment, spec = plan.data.augment, InputSpec.of(data.train.inputs.shape)
    cropped = plan.data.crops == "original"
    if spec.kind == "images":
        fixed = plan.model.name in FIXED_SIZE
        operator = augmentation_by_name(augment, spec.shape[1], keep_size=fixed, cropped=cropped)
    else:
        operator = None
    return SampleLoader(
        data.train,
        batch_size=plan.fit.batch_size,
        seed=plan.seed,
        device=choose_device(plan.device),
        augment=operator,
        part=(distributed.rank(), distributed.world_size()),
        views=plan.views,
        size_in=_progressive_size(plan),
        crop_area=smallest_area(augment) if cropped else None,
        shards=plan.shards,
    )


def _progressive_size(plan: Plan) -> Callable[[int], int | None]:
    """The size that the images of an epoch are resized to, if any."""
    steps = parse_progressive(plan.data.progressive)
    return lambda epoch: next((size for size, share in steps if epoch < share * plan.epochs), None)
