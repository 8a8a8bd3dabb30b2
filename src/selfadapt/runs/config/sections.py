"""The settings that every method shares, in sections: data, model, training, and the run as a whole.

Each section is a frozen dataclass whose fields carry a description and bounds; the options of the command line follow
from them. A setting that is None was not given, and `plan` chooses it (runs/config/planning.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from selfadapt.core.errors import UserError
from selfadapt.core.settings import check_settings, setting

# Settings by the panel of `train --help` that shows them.
data, model, training, advanced, experiment = (
    partial(setting, group=group) for group in ("Data", "Model", "Training", "Advanced", "Experiments")
)

PHOTOS = "tf_efficientnet_lite0"  # the default network for photos; its weights are installed as a package


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The samples and their preprocessing."""

    source: str = setting(
        description="A name (selfadapt data list), or a folder, .csv, .parquet or .npz.", option="DATA"
    )
    labels: str | None = experiment(
        None,
        "Replace the training labels by those in a .npy or .csv file; the original labels then count as the truth.",
    )
    corrected: str | None = data(
        None, "Corrected labels of every split, as written by `selfadapt labels`; removed samples are left out."
    )
    noise: str | None = experiment(
        None,
        "Add noise to the training data, as KIND:RATE. KIND is symmetric, symmetric-other, asymmetric or instance for "
        "labels, gaussian, random-pixels or shuffled-pixels for images. matrix:FILE reads a transition matrix.",
    )
    image_size: int | None = data(
        None,
        "Resize and crop images to a square of this size.",
        least=1,
        most=4096,
        unset="the input size of a timm model; 224 with --crops original; else the size of the images or, if they "
        "differ, their median (at most 64)",
    )
    crops: Literal["square", "original"] | None = advanced(
        None,
        "Source of random resized crops: square (the resized image) or original (the file as it is, decoded for every "
        "crop; evaluation then uses the central 7/8 of its shorter side).",
        unset="original for imagenet, else square",
    )
    augment: str | None = advanced(
        None,
        "Augmentation: none, crop, crop-flip, shift-flip, rotate-crop, resized-crop, self-supervised or "
        "self-supervised-blur. Append ,no-flip ,no-jitter or ,no-grey to one of the last two to leave that operation "
        "out.",
        unset="depends on the data",
    )
    progressive: str | None = advanced(
        None,
        "Progressive resizing, as SIZE:SHARE: train on images of this size up to this share of the epochs. Example: "
        "24:0.5, or 16:0.25,24:0.5.",
        unset="full size",
    )
    validation: float = advanced(
        0.1, "Share of each class to hold out for validation, if the data have no validation split.", least=0, below=1
    )
    label_share: float | None = experiment(
        None, "Train on this share of each class, for example 0.01.", above=0, most=1, unset="all"
    )
    label_column: str = data("label", "Column of a table that holds the labels.")
    text_column: str | None = data(None, "Column of a table that holds texts; they are encoded as vectors.")
    group_column: str | None = data(
        None, "Column of a table that names the group of a sample (patient, video, user). Splits never divide a group."
    )
    stream: bool = advanced(False, "Decode image files on demand instead of caching the decoded images.")
    limit: int | None = data(
        None,
        "Use N training samples: the first N of most named data sets, a random sample of each class for other data.",
        least=1,
        unset="all",
    )
    test_limit: int | None = advanced(None, "Use N test samples, selected as by --limit.", least=1, unset="all")

    def __post_init__(self) -> None:
        check_settings(self)
        parse_progressive(self.progressive)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The network."""

    name: str | None = model(
        None,
        "Network: resnet-small, resnet18, resnet34, resnet50, resnet101, wrn-28-10, wrn-34-10, vgg16, alexnet, "
        "whitened (trains on small images within minutes), mlp, linear (for vectors), or any timm model (timm/NAME if "
        "the name is one of the above).",
        option="--model",
        unset=f"{PHOTOS} for photos larger than 32 pixels, linear for vectors, else resnet-small",
    )
    weights: str | None = model(
        None,
        "Initial weights: none, pretrained, a .safetensors or .pth FILE (for timm models), or the folder of a RUN of "
        "`selfadapt pretrain` with the same model.",
        unset="pretrained for timm models, else none",
        aliases=("--pretrained",),
    )
    tune: Literal["head", "all"] | None = model(
        None,
        "What to train in a pretrained model: head (on frozen features) or all.",
        unset="head on a CPU, all on a GPU",
    )
    head: Literal["linear", "mlp"] = advanced(
        "linear", "Head on frozen features: linear, or mlp with one hidden layer."
    )
    width: int | None = advanced(
        None, "Width of the first stage of the model.", least=1, most=2**14, unset="depends on the model"
    )
    dropout: float = advanced(0.0, "Dropout rate before the last layer.", least=0, below=1)
    mirror: bool = advanced(
        False,
        "Flip test-time augmentation: average the predictions for an image and its mirror image. Not for digits, "
        "letters or frozen features.",
    )
    pretrained: str | None = setting(  # the RUN of --weights: see split_weights
        None, "Start from the network of this run of `selfadapt pretrain`, with the same model.", option="--weights"
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Epochs, batches and the optimiser."""

    epochs: int | None = training(
        None,
        "Number of epochs.",
        least=1,
        unset="60; 20 for a head on frozen features (sat-folds, its default method, has no epochs); 15 for fine-tuning",
    )
    batch_size: int | None = training(
        None,
        "Samples per step.",
        least=1,
        unset="256, or 64 below 5,000 samples; for a head a sixteenth of the samples, at most 256; 32 for fine-tuning",
    )
    micro_batches: int = advanced(
        1, "Gradient accumulation: number of micro-batches per batch, to save memory.", least=1, aliases=("--pieces",)
    )
    optimizer: Literal["sgd", "nesterov", "adam", "adamw", "lars"] = advanced(
        "sgd", "Optimiser: sgd, nesterov (SGD with Nesterov momentum), adam, adamw or lars."
    )
    lr: float | None = training(
        None, "Peak learning rate.", least=0, unset="0.1; 0.003 for a head; 0.01 for fine-tuning"
    )
    weight_decay: float | None = advanced(
        None, "Weight decay.", least=0, unset="0.0005, or 0.005 below 5,000 samples; 0.3 for a head"
    )
    warmup_epochs: float | None = advanced(
        None, "Epochs of learning-rate warm-up.", least=0, unset="0; 1 for fine-tuning"
    )
    warmup_from: float = advanced(0.0, "Learning rate at the start of the warm-up.", least=0)
    schedule: str = advanced(
        "cosine",
        "Learning-rate schedule: cosine, linear, constant, step:25 (halve every 25 epochs) or multistep:75,90 (divide "
        "by 10 after these epochs).",
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = advanced(
        "auto",
        "Precision of training and evaluation: float32, bfloat16, float16 or auto (bfloat16 on an accelerator that "
        "supports it, else float32).",
    )
    sync_bn: bool = advanced(False, "Synchronise batch normalisation across processes.")
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = advanced(
        "none", "Compile the network for training, attacks and evaluation: none, or a mode of torch.compile."
    )
    deterministic: bool = advanced(True, "On an accelerator, use deterministic algorithms, which may be slower.")
    curves: Literal["running", "tested"] = experiment(
        "running",
        "How to measure the training accuracy of an epoch: running (from the predictions made while training) or "
        "tested (evaluated without augmentation, as in the curves of the paper; takes a third longer).",
    )
    test_curve: bool = experiment(False, "Log the test accuracy after each epoch. It is never used for selection.")
    targets: str = advanced(
        "float32",
        "Target store: float32, float16, int8, topk:K or file. pinned:KIND keeps it in pinned host memory, "
        "sharded:KIND divides it among the processes.",
    )
    shuffle: str = advanced(
        "global",
        "Order of an epoch: global (all samples at random), or shards:V (V virtual shards, each shuffled and always "
        "used by the same process, which then needs the order, labels, targets and images in memory of its own samples "
        "only). shards chooses V.",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        parse_schedule(self.schedule, self.epochs or 1)
        parse_shuffle(self.shuffle)


@dataclass(frozen=True, kw_only=True)
class GeneralSettings:
    """What belongs to the whole run."""

    seed: int = setting(0, "Seed of all random numbers.", least=0, most=2**63 - 1)
    views: int | None = setting(
        None,
        "Augmented views of an image in a step, 1 or 2.",
        least=1,
        most=2,
        unset="as in the papers: 2 for byol, moco, simclr and simsiam, else 1",
    )
    device: str = setting("auto", "Device: auto, cpu, cuda, rocm, xpu or mps.")

    def __post_init__(self) -> None:
        check_settings(self)


def parse_progressive(text: str | None) -> tuple[tuple[int, float], ...]:
    """Parse pairs of image size and the share of the epochs up to which it is used."""
    try:
        given = [step.split(":") for step in text.split(",")] if text is not None else []
        steps = tuple((int(size), float(share)) for size, share in given)
    except ValueError:
        steps = ((0, 0.0),)
    shares = [0.0, *(share for _, share in steps)]
    growing = all(before < share <= 1 for before, share in pairwise(shares))
    if not growing or any(size < 1 for size, _ in steps):
        raise UserError(
            f"--progressive {text!r} is not SIZE:SHARE, such as 24:0.5, or a list with increasing shares up to 1"
        )
    return steps


def parse_schedule(text: str, epochs: int) -> dict[str, Any]:
    """Parse cosine, linear, constant, step:EVERY (halve) or multistep:AFTER,… (divide by 10)."""
    kind, _, numbers = text.partition(":")
    if text in ("cosine", "linear", "constant"):
        return {"schedule": text}
    try:  # halve and tenth: the names in runs of version 0.1
        given = tuple(int(number) for number in numbers.split(","))
        if kind in ("step", "halve") and len(given) == 1 and given[0] > 0:
            return {"schedule": "step", "gamma": 0.5, "milestones": tuple(range(given[0], epochs, given[0]))}
        if kind in ("multistep", "tenth") and min(given) > 0:
            return {"schedule": "step", "gamma": 0.1, "milestones": given}
    except ValueError:
        pass
    raise UserError(
        f"--schedule {text!r} is not known; choose one of cosine, linear, constant, step:25 (every 25 epochs), "
        "multistep:75,90"
    )


def parse_shuffle(text: str) -> int | None:
    """Parse global, shards or shards:V: the number of virtual shards, 0 if it is not given, None for global."""
    kind, _, count = text.partition(":")
    if text == "global":
        return None
    if kind == "shards" and (text == kind or (count.isdecimal() and int(count) > 0)):
        return int(count or 0)
    raise UserError(f"--shuffle {text!r} is not known; choose global, shards, or shards:V for V virtual shards")


def split_weights(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which a run folder given as `weights` is the setting `pretrained`."""
    weights = given.get("weights")
    if weights in (None, "none", "pretrained") or not Path(weights).is_dir():
        return dict(given)
    return {**{name: value for name, value in given.items() if name != "weights"}, "pretrained": weights}
