"""The network of a run: which one suits the data, how it is built, and features taken once where only a head learns.

Beginning with a pretrained network, a run either tunes a head on features that are taken once, or all of the network.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.data.dataset import Data, Samples, readable
from selfadapt.data.input_statistics import examples
from selfadapt.data.inputs import Inputs, InputSpec
from selfadapt.data.tabular.vectors import VectorInputs
from selfadapt.engine import checkpoint
from selfadapt.models.heads import Backbone, FineTuned, Normalised
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import Pretrained, pretrained, timm_name
from selfadapt.models.registry import backbone
from selfadapt.objectives.objective import Objective
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.run_settings import RunSettings, shared_settings
from selfadapt.runs.config.sections import ModelSettings, parse_progressive
from selfadapt.runs.lifecycle.environment import choose_device


def load_pretrained(
    model: ModelSettings, size: int | None, file: Path | None = None, channels: int | None = None
) -> Pretrained:
    """The pretrained network of these settings, with the weights that a run kept in a file, if it did."""
    name = timm_name(model.name or "")
    assert name is not None
    weights = str(file) if file is not None and file.exists() else model.weights or "pretrained"
    return pretrained(name, weights=weights, size=size, channels=channels)


def bare_backbone(settings: RunSettings, shape: tuple[int, ...]) -> Backbone:
    """The backbone that learns, without weights: the whole of a network, or what a head needs of vectors."""
    model, spec = settings.model, InputSpec.of(shape)
    assert model.name is not None
    name = timm_name(model.name)
    if spec.kind == "vectors":
        return backbone(model.name if name is None else model.head, spec, width=model.width)
    if name is None:
        return backbone(model.name, spec, width=model.width)
    return pretrained(name, weights="none", size=shape[1], channels=shape[0]).backbone


def check_images(settings: RunSettings, shape: tuple[int, ...]) -> None:
    """Refuse what only a network that sees images can do, and sizes of images that it does not take."""
    model, progressive, augment = settings.model, settings.data.progressive, settings.data.augment
    for word, given in (
        ("--mirror", model.mirror),
        ("--crops original", settings.data.crops == "original" and not settings.on_features),
        ("--image-size", settings.data.image_size is not None and not settings.on_features),  # features have their own
        ("--progressive", progressive is not None),
        (f"--augment {augment}", augment not in (None, "none", shared_settings(settings.kind)["augment"].default)),
        ("--sync-bn", settings.fit.sync_bn and settings.kind == "labels"),  # else a projector has it
    ):
        if given and InputSpec.of(shape).kind == "vectors":
            way = "add --tune all, or --weights none" if settings.on_features else "leave it out"
            raise UserError(f"{word} needs a network that sees images: {way}")
    for size, _ in parse_progressive(progressive):
        if size >= min(shape[1:]):
            raise UserError(f"--progressive {size}: images are of {shape[1]}×{shape[2]} pixels; give a smaller size")
        try:
            with torch.inference_mode():
                bare_backbone(settings, shape).eval()(torch.zeros(2, shape[0], size, size))
        except RuntimeError:
            raise UserError(
                f"--progressive {size}: {model.name} does not take images of {size} pixels"
                f"{', only those of the data' if model.name == 'mlp' else '; give a larger size'}; leave it out, or "
                "choose another --model"
            ) from None


def build_model(
    settings: RunSettings,
    objective: Objective,
    shape: tuple[int, ...],
    statistics: tuple[Tensor, Tensor],
    num_classes: int,
    *,
    begins_with: Inputs | None = None,
) -> nn.Module:
    """The network of a run before training, for inputs of this shape with these means and deviations.

    One that begins to learn gets what it needs of the training inputs, `begins_with`; one of timm's brings means and
    deviations of its own, and then what it has learned.
    """
    model = settings.model
    spatial = InputSpec.of(shape).kind == "images"
    if spatial and timm_name(model.name or "") is not None:
        begun = begins_with is not None and settings.fine_tunes
        network = load_pretrained(model if begun else replace(model, weights="none"), shape[1], channels=shape[0])
        whole = network.backbone
        whole.dropout, whole.mirror = nn.Dropout(model.dropout), model.mirror
        return objective.build(FineTuned(whole) if settings.fine_tunes else whole, num_classes)
    bare = bare_backbone(settings, shape)
    normalised = Normalised(bare, *statistics, dropout=model.dropout, spatial=spatial, mirror=model.mirror)
    if begins_with is not None and bare.examples:
        normalised.see(examples(begins_with, bare.examples))
    return objective.build(normalised, num_classes)


def begin_with(folder: RunFolder, model: nn.Module) -> None:
    """Put the weights of a network that was trained without labels, and its normalisation, into a new model."""
    saved = checkpoint.load_newest(folder.checkpoints)
    folder.read_run()
    if saved is None:
        raise UserError(f"{folder.path} holds no trained network")
    learned = {name: value for name, value in saved.model.items() if name.startswith("backbone.")}
    own = {name: value for name, value in model.state_dict().items() if name.startswith("backbone.")}
    different = sorted(set(own) ^ set(learned)) or [n for n, value in own.items() if learned[n].shape != value.shape]
    if different or not own:
        raise UserError(
            f"the network in {folder.path} is another one than this ({different[0] if different else 'no backbone'} "
            "differs); give the same --model and --width, and images of the same kind"
        )
    model.load_state_dict({**model.state_dict(), **learned})


def with_features(
    data: Data, settings: RunSettings, on_progress: ProgressCallback, folder: RunFolder | None = None
) -> Data:
    """The data with the features of a pretrained network in place of images. Files that cannot be read are taken out.

    `folder` is that of a run that was begun; its samples must all be there.
    """
    if any(samples.corrupted is not None for samples in data.splits.values()):
        raise UserError("--noise in images needs a network that sees them: add --tune all, or --weights none")
    network = load_pretrained(
        settings.model, settings.data.image_size, None if folder is None else folder.backbone_file
    )
    device = choose_device(settings.device)
    unreadable = list(data.unreadable)

    def taken(name: str, samples: Samples) -> Samples:
        if distributed.rank():  # the first process takes features for all, and the others find them
            distributed.barrier()
        found = features_of(samples.inputs, network, device=device, on_progress=on_progress)
        if distributed.rank() == 0:
            distributed.barrier()
        vectors = replace(samples, inputs=VectorInputs(found.values_NF), display_images=samples.inputs)
        if not found.broken:
            return vectors
        if folder is not None and name != "test":
            position, reason = found.broken[0]
            raise UserError(
                f"{len(found.broken)} files of {folder.path} cannot be read any more, such as "
                f"{samples.ids[position]}: {reason}; restore them"
            )
        unreadable.extend((samples.ids[position], reason) for position, reason in found.broken)
        return vectors.take(readable(data, samples, dict(found.broken)))

    parts = {name: taken(name, samples) for name, samples in data.splits.items()}
    return replace(data.with_splits(parts), augment="none", unreadable=unreadable)
