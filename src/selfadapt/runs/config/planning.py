"""Turn a request, and facts about the data and the machine, into a plan.

Every default that depends on the data, and every refusal of a combination of settings, is here; what a method itself
needs is checked by its `suited`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from selfadapt.core.errors import UserError
from selfadapt.core.settings import from_plain, plain
from selfadapt.data.images.augment import augmentation_by_name, smallest_area
from selfadapt.data.labels.noise import Noise
from selfadapt.data.order import check_shards
from selfadapt.models.pretrained.timm_models import timm_name
from selfadapt.models.registry import FIXED_SIZE
from selfadapt.objectives.method import Method
from selfadapt.runs.config.facts import Facts, SourceFacts
from selfadapt.runs.config.plan import DataPlan, ModelPlan, Plan, ReadingPlan, TrainingPlan
from selfadapt.runs.config.request import Request, method_class, option_of, shared_settings
from selfadapt.runs.config.sections import (
    PHOTOS,
    DataSettings,
    ModelSettings,
    TrainingSettings,
    parse_progressive,
    parse_schedule,
    parse_shuffle,
)
from selfadapt.targets.store import Storage

SMALL_SET = 5_000  # training samples
FOR_HEADS = "sat-folds"  # the method for a linear head, if none is asked for
_NETWORK_FOR = {"photos": PHOTOS, "vectors": "linear"}
_OTHER_NETWORK = "resnet-small"
_SHARDS = 64  # virtual shards at most, unless there are more processes
_CROP_SIZE = 224  # pixels to which crops from images are resized, unless --image-size says otherwise
_WARMUP = 30 / 800  # share of the pretraining epochs, as in the paper
_NEEDS_IMAGES = "this needs a network that is trained on images: add --tune all, or --weights none"
_OF_STEPS = (
    "batch_size", "micro_batches", "optimizer", "lr", "weight_decay", "warmup_epochs", "warmup_from", "schedule",
    "shuffle",
)  # fmt: skip


def plan_reading(request: Request, source: SourceFacts) -> ReadingPlan:
    """Choose the network, the method and how the data are read, before they are opened.

    Raises:
        UserError: if settings contradict each other, or do not suit the kind of data.
    """
    own = request.data
    if own.labels is not None and own.corrected is not None:
        raise UserError("--labels and --corrected both give the labels; leave one of them out")
    reading = ReadingPlan(
        kind=request.kind,
        data=own,
        model=_model(request, source),
        method_name=request.method_name,
        seed=request.general.seed,
        device=source.device,
    )
    if request.kind == "labels" and reading.linear and not request.names_method:
        reading = replace(reading, method_name=FOR_HEADS)
    if reading.on_features and _corrupts_images(own):
        raise UserError(f"--noise {own.noise} changes images, and {_NEEDS_IMAGES}")
    return replace(reading, data=_with_crops(reading, source))


def plan(request: Request, facts: Facts) -> Plan:
    """Choose everything that the user left open.

    Args:
        request: the settings that the user gave.
        facts: what the data and the machine are like.

    Returns:
        The plan, with every setting chosen.

    Raises:
        UserError: if settings contradict each other, or do not suit the data, the method or the machine.

    Examples:
        >>> source = inspect_source(request)
        >>> reading = plan_reading(request, source)
        >>> plan(request, inspect_data(source, reading, prepare(reading)))
    """
    reading = plan_reading(request, facts.source)
    method = request.method if reading.method_name == request.method_name else method_class("labels", FOR_HEADS)()
    usual = _usual_fit(reading, facts.samples, method, request.fit.epochs)
    given = {name: value for name, value in plain(request.fit).items() if value is not None}
    if given["precision"] == "auto":
        given["precision"] = "bfloat16" if facts.source.bfloat16 else "float32"
    chosen = Plan(
        kind=request.kind,
        data=_data(reading.data, facts),
        model=reading.model,
        method_name=reading.method_name,
        method=method,
        fit=from_plain(TrainingPlan, {**usual, **given}),
        seed=reading.seed,
        device=reading.device,
        views=method.views if request.general.views is None else request.general.views,
    ).suited(
        data=facts.name,
        num_classes=facts.classes,
        num_samples=facts.samples,
        has_validation=facts.has_validation,
        noise_rate=facts.noise_rate,
        sees_images=facts.spec.kind == "images",
    )
    if method.solves:
        _check_no_steps(chosen, {**plain(TrainingSettings()), **usual})
    else:
        _check_schedule(chosen.fit)
        _check_batches(chosen.fit, facts)
        chosen = replace(chosen, fit=_with_shards(chosen.fit, facts.processes))
    _check_images(chosen, facts)
    Storage.parse(chosen.fit.targets)
    return chosen


def _with_shards(fit: TrainingPlan, processes: int) -> TrainingPlan:
    """Choose the number of virtual shards, if there are any."""
    shards = parse_shuffle(fit.shuffle)
    if shards is None:
        return fit
    if not shards:
        shards = processes
        while 2 * shards <= min(_SHARDS, fit.batch_size):
            shards *= 2
    check_shards(shards, processes)
    if shards > fit.batch_size:
        raise UserError(
            f"--shuffle shards:{shards}: a batch of {fit.batch_size} samples would always take them from the same "
            f"shards; use at most {fit.batch_size} shards"
        )
    return replace(fit, shuffle=f"shards:{shards}")


def _model(request: Request, source: SourceFacts) -> ModelPlan:
    """The network: the one asked for, or one that suits the data."""
    given = request.model
    name = given.name or _NETWORK_FOR.get(source.holds, _OTHER_NETWORK)
    if request.kind == "pretraining":
        chosen = {"weights": "none", "tune": "all"}
    elif timm_name(name) is None:
        _check_from_scratch(name, given, request.data.source, source)
        chosen = {"weights": "none", "tune": "all"}
    else:
        if source.holds == "vectors":
            raise UserError(
                f"--model {name} takes images, and {request.data.source} holds vectors; choose linear or mlp"
            )
        weights = given.weights or "pretrained"
        tune = given.tune or ("all" if source.device != "cpu" or weights == "none" else "head")
        if tune == "head" and weights == "none":
            raise UserError("--tune head needs a pretrained network; leave --weights none out")
        if tune == "all" and given.head != "linear":
            raise UserError(f"--head {given.head} is for frozen features: --tune head")
        chosen = {"weights": weights, "tune": tune}
    model = from_plain(ModelPlan, {**plain(given), "name": name, **chosen})
    has_width = (name != "linear" and timm_name(name) is None) or (model.tune == "head" and model.head == "mlp")
    if model.width is not None and not has_width:
        raise UserError(f"--width {model.width} would do nothing: the width of {name} is fixed; leave it out")
    return model


def _check_from_scratch(name: str, given: ModelSettings, data: str, source: SourceFacts) -> None:
    """Refuse options of pretrained networks for one that is trained from scratch."""
    if given.head != "linear":
        remedy = ": for vectors, choose --model mlp" if name == "linear" else ""
        raise UserError(f"--head {given.head} is for features of timm networks, and {name} is not one{remedy}")
    if given.tune is not None and source.holds == "vectors":
        raise UserError(f"--tune {given.tune} is for pretrained networks, and {data} holds vectors; leave it out")
    for option, value, scratch in (("--weights", given.weights, "none"), ("--tune", given.tune, "all")):
        if value not in (None, scratch):
            raise UserError(f"{option} {value} is for timm networks; {name} is trained from scratch")


def _corrupts_images(data: DataSettings) -> bool:
    return data.noise is not None and Noise.parse(data.noise).of_images


def _with_crops(reading: ReadingPlan, source: SourceFacts) -> DataSettings:
    """Return the data settings with the source and the size of random crops filled in."""
    data = reading.data
    suits = (data.augment is None or smallest_area(data.augment) is not None) and not reading.on_features
    crops = data.crops or ("original" if suits and source.crops_from_images else "square")
    if crops == "square":
        return replace(data, crops=crops)
    if reading.on_features:
        raise UserError(f"--crops original cuts crops from images, and {_NEEDS_IMAGES}")
    if not suits:
        raise UserError(
            f"--crops original is for random resized crops, and --augment {data.augment} has none; "
            "choose resized-crop, self-supervised or self-supervised-blur"
        )
    if _corrupts_images(data):
        raise UserError("--crops original cannot cut crops from images that --noise changed; leave one of them out")
    size = data.image_size or (_CROP_SIZE if timm_name(reading.model.name) is None else None)
    return replace(data, crops=crops, augment=data.augment or "resized-crop", image_size=size)


def _data(data: DataSettings, facts: Facts) -> DataPlan:
    chosen = {"augment": data.augment or facts.augment, "image_size": data.image_size or facts.image_size}
    return from_plain(DataPlan, {**plain(data), **chosen})


def _usual_fit(reading: ReadingPlan, samples: int, method: Method, epochs: int | None) -> dict[str, Any]:
    """How such a network is usually trained on this number of samples.

    Large sets take the paper's values for CIFAR. A small set has few steps in an epoch and is memorised early, so it
    gets smaller batches and a stronger weight decay. A head on features is trained fast, and memorises fast.
    """
    if reading.kind == "pretraining":
        epochs = epochs or 100
        batch_size, warmup = 512 if samples >= 10 * SMALL_SET else 128, round(_WARMUP * epochs, 3)
        steps = {"epochs": epochs, "batch_size": batch_size, "warmup_epochs": warmup}
        return {**steps, "lr": 0.1, "weight_decay": 5e-5}
    if reading.on_features or reading.model.name == "linear":
        batch_size = min(256, max(4, samples // 16))  # few samples in large batches would be too few steps
        epochs = 1 if method.solves else 20
        return {"epochs": epochs, "lr": 0.003, "batch_size": batch_size, "weight_decay": 0.3, "warmup_epochs": 0.0}
    if reading.fine_tunes:
        warmup = 0.0 if epochs == 1 else 1.0
        return {"epochs": 15, "lr": 0.01, "batch_size": 32, "weight_decay": 5e-4, "warmup_epochs": warmup}
    batch_size, weight_decay = (64, 5e-3) if samples < SMALL_SET else (256, 5e-4)
    return {"epochs": 60, "lr": 0.1, "batch_size": batch_size, "weight_decay": weight_decay, "warmup_epochs": 0.0}


def _check_no_steps(chosen: Plan, usual: Mapping[str, Any]) -> None:
    """Refuse options of the optimiser for a method that takes no steps, as they would do nothing."""
    given = [name for name in _OF_STEPS if getattr(chosen.fit, name) != usual[name]]
    given += ["dropout"] if chosen.model.dropout else []
    if given:
        raise UserError(
            f"--method {chosen.method_name} takes no steps, so {option_of(given[0])} would do nothing; leave it out, "
            "or choose another method"
        )


def _check_schedule(fit: TrainingPlan) -> None:
    """Refuse a learning-rate schedule that does not fit into the epochs."""
    milestones = parse_schedule(fit.schedule, fit.epochs).get("milestones")
    if milestones is not None and not any(epoch < fit.epochs for epoch in milestones):
        raise UserError(f"--schedule {fit.schedule} never lowers the learning rate within {fit.epochs} epochs")
    if fit.warmup_epochs and fit.warmup_epochs >= fit.epochs:
        raise UserError(f"--warmup-epochs {fit.warmup_epochs:g} must be less than --epochs {fit.epochs}")
    if fit.warmup_from and not fit.warmup_epochs:
        raise UserError(f"--warmup-from {fit.warmup_from:g} has no effect without --warmup-epochs")


def _check_images(chosen: Plan, facts: Facts) -> None:
    """Refuse what only a network that takes images can do, and sizes of images that it does not take."""
    data, model, shape = chosen.data, chosen.model, facts.spec.shape
    if facts.spec.kind == "vectors":
        for option in _options_of_images(chosen):
            way = "add --tune all, or --weights none" if chosen.on_features else "leave it out"
            raise UserError(f"{option} needs a network that takes images: {way}")
        return
    cropped = data.crops == "original"
    augmentation_by_name(data.augment, shape[1], keep_size=model.name in FIXED_SIZE, cropped=cropped)
    if cropped and not facts.image_files:
        raise UserError(f"--crops original cuts crops from image files, and {facts.name} has none; leave it out")
    for size, _ in parse_progressive(data.progressive):
        if size >= min(shape[1:]):
            raise UserError(f"--progressive {size}: images are of {shape[1]}×{shape[2]} pixels; give a smaller size")
        if size in facts.refused_sizes:
            raise UserError(
                f"--progressive {size}: {model.name} does not take images of {size} pixels"
                f"{', only those of the data' if model.name in FIXED_SIZE else '; give a larger size'}; leave it out, "
                "or choose another --model"
            )


def _options_of_images(chosen: Plan) -> Iterator[str]:
    """The options in this plan that do nothing for vectors."""
    data = chosen.data
    for option, given in (
        ("--mirror", chosen.model.mirror),
        ("--crops original", data.crops == "original"),
        ("--image-size", data.image_size is not None and not chosen.on_features),  # features are of images
        ("--progressive", data.progressive is not None),
        (f"--augment {data.augment}", data.augment not in ("none", shared_settings(chosen.kind)["augment"].default)),
        ("--sync-bn", chosen.fit.sync_bn and chosen.kind == "labels"),  # else the projector has batch normalisation
    ):
        if given:
            yield option


def _check_batches(fit: TrainingPlan, facts: Facts) -> None:
    """Refuse batches that leave a single sample to a forward pass."""
    steps = -(-facts.samples // fit.batch_size)
    if facts.samples // steps // fit.micro_batches // facts.processes < 2:
        shared = f", {facts.processes} processes" if facts.processes > 1 else ""
        cut = f" and {fit.micro_batches} micro-batches" if fit.micro_batches > 1 else ""
        raise UserError(
            f"{facts.samples} samples in batches of {fit.batch_size}{shared}{cut} leave less than two to a forward "
            "pass, too few for batch normalisation; use larger batches, fewer micro-batches or more samples"
        )
