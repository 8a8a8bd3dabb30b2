"""The network of a run: how it is built, and frozen features of a pretrained one where only a head is trained."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.device import choose_device, make_deterministic, prefers_channels_last
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.core.rng import draw
from selfadapt.data.dataset import Data, Samples, readable
from selfadapt.data.input_statistics import channel_statistics, examples
from selfadapt.data.inputs import Inputs, InputSpec
from selfadapt.data.tabular.vectors import VectorInputs
from selfadapt.models.backbone import Backbone, FineTuned, Normalised
from selfadapt.models.batch_norm.sync_batch_norm import sync_batch_norms
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import Pretrained, pretrained, timm_name
from selfadapt.models.registry import backbone
from selfadapt.objectives.objective import Objective
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import ModelPlan, Plan, ReadingPlan
from selfadapt.runs.lifecycle.saved_network import newest_checkpoint


def load_pretrained(
    model: ModelPlan, size: int | None, started: RunFolder | None = None, channels: int | None = None
) -> Pretrained:
    """Load the pretrained network of a plan, with the weights that a run which was `started` saved, if it did."""
    weights = model.weights
    if started is not None:
        started.check_recorded(started.backbone_file)
        weights = str(started.backbone_file) if started.backbone_file.exists() else weights
    return pretrained(timm_name(model.name) or model.name, weights=weights, size=size, channels=channels)


def bare_backbone(model: ModelPlan, spec: InputSpec) -> Backbone:
    """The trained backbone with random weights: a whole network, or the hidden layers of a head on vectors."""
    name = timm_name(model.name)
    if name is None:
        return backbone(model.name, spec, width=model.width)
    if spec.kind == "vectors":
        return backbone(model.head, spec, width=model.width)
    return pretrained(name, weights="none", size=spec.shape[1], channels=spec.shape[0]).backbone


def new_model(plan: Plan, data: Data, objective: Objective, *, resumed: bool) -> nn.Module:
    """Build the model that an objective trains on these data; a resumed one gets its weights from a checkpoint later.

    Afterwards torch's generator is in the state that training starts with.
    """
    device = choose_device(plan.device)
    make_deterministic(device, plan.fit.deterministic)
    torch.manual_seed(plan.seed)
    inputs = data.train.inputs
    statistics = channel_statistics(inputs)
    start_from = None if resumed else inputs
    model = build_model(plan, objective, inputs.shape, statistics, data.num_classes, start_from=start_from)
    if plan.model.pretrained is not None and not resumed:
        copy_backbone(RunFolder(Path(plan.model.pretrained)), model)
    if plan.fit.sync_bn and distributed.world_size() > 1:
        sync_batch_norms(model, device)
    if distributed.rank():  # else all processes would draw the same dropout masks
        torch.manual_seed(draw(plan.seed, "process", distributed.rank()))
    return model.to(device)


def build_model(
    plan: Plan,
    objective: Objective,
    shape: tuple[int, ...],
    statistics: tuple[Tensor, Tensor],
    num_classes: int,
    *,
    start_from: Inputs | None = None,
) -> nn.Module:
    """Build the network of a run for inputs of this shape, with these means and standard deviations.

    With `start_from`, the training inputs, it is initialised for training: with pretrained weights, or by statistics
    of these inputs where the network asks for them. timm networks have their own means and deviations.
    """
    model, spec = plan.model, InputSpec.of(shape)
    spatial = spec.kind == "images"
    if spatial and timm_name(model.name) is not None:
        initialised = start_from is not None and plan.fine_tunes
        network = load_pretrained(model if initialised else replace(model, weights="none"), shape[1], channels=shape[0])
        whole = network.backbone
        whole.dropout, whole.mirror = nn.Dropout(model.dropout), model.mirror
        return objective.build(FineTuned(whole) if plan.fine_tunes else whole, num_classes)
    bare = bare_backbone(model, spec)
    normalised = Normalised(
        bare,
        *statistics,
        dropout=model.dropout,
        spatial=spatial,
        mirror=model.mirror,
        channels_last=prefers_channels_last(plan.device, plan.fit.precision),
    )
    if start_from is not None and bare.examples:
        normalised.see(examples(start_from, bare.examples))
    return objective.build(normalised, num_classes)


def copy_backbone(folder: RunFolder, model: nn.Module) -> None:
    """Copy the backbone of a run without labels, with its normalisation, into a new model."""
    saved = newest_checkpoint(folder)
    learned = {name: value for name, value in saved.model.items() if name.startswith("backbone.")}
    own = {name: value for name, value in model.state_dict().items() if name.startswith("backbone.")}
    different = sorted(set(own) ^ set(learned)) or [n for n, value in own.items() if learned[n].shape != value.shape]
    if different or not own:
        raise UserError(
            f"the network in {folder.path} differs from this one ({different[0] if different else 'no backbone'}); "
            "give the same --model and --width, and images of the same kind"
        )
    model.load_state_dict({**model.state_dict(), **learned})


def with_features(
    data: Data, reading: ReadingPlan, on_progress: ProgressCallback, folder: RunFolder | None = None
) -> Data:
    """The data with frozen features of a pretrained network in place of images; unreadable files are left out.

    `folder` is that of a run that was started before; all of its samples must be readable.
    """
    network = load_pretrained(reading.model, reading.data.image_size, folder)
    device = choose_device(reading.device)
    unreadable = list(data.unreadable)

    def featurised(name: str, samples: Samples) -> Samples:
        found = features_of(samples.inputs, network, device=device, on_progress=on_progress)
        vectors = replace(samples, inputs=VectorInputs(found.values_NF), display_images=samples.inputs)
        if not found.broken:
            return vectors
        if folder is not None and name != "test":
            position, reason = found.broken[0]
            raise UserError(
                f"{len(found.broken)} files of {folder.path} can no longer be read, such as "
                f"{samples.ids[position]}: {reason}; restore them"
            )
        unreadable.extend((samples.ids[position], reason) for position, reason in found.broken)
        return vectors.take(readable(data, samples, dict(found.broken)))

    splits = {name: featurised(name, samples) for name, samples in data.splits.items()}
    return replace(data.with_splits(splits), augment="none", unreadable=unreadable)
