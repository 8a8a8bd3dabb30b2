"""The parts of a run's settings that every method shares: data, model and fit.

Each is a frozen dataclass whose fields carry words and bounds, from which the options of the command line follow. What
is None is chosen for the data and the machine (runs/config/run_settings.py).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from selfadapt.core.errors import UserError
from selfadapt.core.settings import check_settings, setting

PHOTOS = "tf_efficientnet_lite0"  # the network for photos of one's own; its weights are installed with a package


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which samples are learned from, and what is done to them first."""

    source: str = setting(
        description="A name (selfadapt data list), or a folder, .csv, .parquet or .npz.", option="DATA"
    )
    labels: str | None = setting(
        None, "Training labels from a .npy or .csv; the data's own count as the truth.", unset="the data's own"
    )
    corrected: str | None = setting(
        None,
        "The table that `selfadapt labels` wrote: labels for every part, without what was removed.",
        unset="none",
    )
    noise: str | None = setting(
        None,
        "KIND:RATE, noise to put in: symmetric, symmetric-other, asymmetric, instance, gaussian, random-pixels or "
        "shuffled-pixels; or matrix:FILE.",
    )
    image_size: int | None = setting(
        None,
        "Bring images to a square of this size.",
        least=1,
        most=4096,
        unset="as they are, files of many sizes their middle, 64 at most; files for one of timm's networks what it "
        "takes; 224 with --crops original",
    )
    crops: Literal["square", "original"] | None = setting(
        None,
        "Source of random resized crops: the square that a file was resized to, or the original image, decoded "
        "again for each crop; evaluation then uses the centre crop of 7/8 of the shorter side.",
        unset="original for imagenet, otherwise square",
    )
    augment: str | None = setting(
        None,
        "none, crop, crop-flip, shift-flip, rotate-crop, resized-crop, self-supervised or self-supervised-blur; the "
        "last two with no-flip, no-jitter or no-grey behind a comma, to do without.",
        unset="what suits the data",
    )
    progressive: str | None = setting(
        None,
        "SIZE:SHARE, progressive resizing: images are brought to this smaller size up to this share of the epochs, as "
        "24:0.5; several as 16:0.25,24:0.5.",
        unset="all are as large as they come",
    )
    validation: float = setting(
        0.1,
        "The share of each class that is held out to watch training, if the data bring no such part.",
        least=0,
        below=1,
    )
    label_share: float | None = setting(
        None, "Learn from this share of each class only, such as 0.01.", above=0, most=1, unset="all"
    )
    label_column: str = setting("label", "The column of a table, of images too, that holds the labels.")
    text_column: str | None = setting(
        None, "The column of a table that holds texts, to be encoded as vectors.", unset="none: columns are the data"
    )
    group_column: str | None = setting(
        None, "The column of a table that tells which samples belong together (patient, video, user)."
    )
    stream: bool = setting(False, "Decode image files on demand instead of keeping a decoded copy.")
    limit: int | None = setting(
        None,
        "Use so many training samples: the first of most named sets, a seeded share of each class of your own.",
        least=1,
        unset="all",
    )
    test_limit: int | None = setting(None, "Use so many test samples, chosen likewise.", least=1, unset="all")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.labels is not None and self.corrected is not None:
            raise UserError("--labels and --corrected both give the labels; leave one of them out")
        parse_progressive(self.progressive)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The network."""

    name: str | None = setting(
        None,
        "resnet-small, resnet18, resnet34, resnet50, resnet101, wrn-28-10, wrn-34-10, vgg16, alexnet, whitened (few "
        "wide layers, for small images in minutes), mlp, linear (for vectors, as mlp is too), or any of timm's; "
        "timm/NAME for one that has a name of ours.",
        option="--model",
        unset=f"{PHOTOS} for photos of your own above 32 pixels, linear for vectors, else resnet-small",
    )
    weights: str | None = setting(
        None,
        "What one of timm's begins with: pretrained, none or a .safetensors or .pth file.",
        unset="pretrained",
    )
    tune: Literal["head", "all"] | None = setting(
        None,
        "What of a pretrained network learns: head (on features taken once) or all.",
        unset="head on a CPU, all on a GPU",
    )
    head: Literal["linear", "mlp"] = setting("linear", "The head on features: linear, or mlp with one hidden layer.")
    width: int | None = setting(None, "Width of the model's first stage.", least=1, unset="the model's own")
    dropout: float = setting(
        0.0, "The share of features that training leaves out before the last layer.", least=0, below=1
    )
    mirror: bool = setting(
        False,
        "Outside training, go by the mean of an image and its mirror image. Not for digits or letters, nor for a head "
        "on features.",
    )
    pretrained: str | None = setting(
        None, "Begin with the network of this run of `selfadapt pretrain`, of the same model.", unset="random weights"
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How long and in which steps the network is trained."""

    epochs: int | None = setting(
        None,
        "How often every sample is seen.",
        least=1,
        unset="60; 20 for a head, where the method has epochs; 15 for fine-tuning",
    )
    batch_size: int | None = setting(
        None,
        "Samples in a step.",
        least=1,
        unset="256, or 64 below 5,000 samples; for a head a sixteenth of the samples, 256 at most; 32 for fine-tuning",
    )
    micro_batches: int = setting(
        1,
        "Gradient accumulation: forward a batch in so many micro-batches, to save memory.",
        least=1,
        aliases=("--pieces",),
    )
    optimizer: Literal["sgd", "nesterov", "adam", "adamw", "lars"] = setting(
        "sgd", "sgd, nesterov (sgd with Nesterov's momentum), adam, adamw or lars."
    )
    lr: float | None = setting(
        None, "Learning rate, at its largest.", least=0, unset="0.1; 0.003 for a head; 0.01 for fine-tuning"
    )
    weight_decay: float | None = setting(
        None, "Weight decay.", least=0, unset="0.0005, or 0.005 below 5,000 samples; 0.3 for a head"
    )
    warmup_epochs: float | None = setting(
        None, "Epochs in which the learning rate grows.", least=0, unset="0; 1 for fine-tuning"
    )
    warmup_from: float = setting(0.0, "Learning rate at the start of the warm-up.", least=0)
    schedule: str = setting(
        "cosine",
        "How the learning rate falls: cosine, linear, constant, step:25 (halved every 25 epochs) or multistep:75,90.",
    )
    precision: Literal["float32", "bfloat16", "float16"] = setting("float32", "float32, bfloat16 or float16.")
    sync_bn: bool = setting(
        False, "Batch normalisation over the parts of a batch in all processes, as if they were one."
    )
    compile: bool = setting(False, "Compile the model with torch.compile.")
    curves: Literal["running", "tested"] = setting(
        "running",
        "Training accuracy after each epoch: running, by the predictions of its batches; or tested, as the "
        "paper's curves "
        "are, on the training samples without augmentation, which takes a third of the time more.",
    )
    test_curve: bool = setting(False, "Measure test accuracy after each epoch too, for the record; nothing goes by it.")
    targets: str = setting(
        "float32", "How targets are kept: float32, float16, file, topk:K or int8; sharded:… to share them."
    )

    def __post_init__(self) -> None:
        check_settings(self)
        parse_schedule(self.schedule, self.epochs or 1)

    def check_rate(self) -> None:
        """Raise a UserError if the learning rate would not go as asked within the epochs, which are settled."""
        epochs, warm_up = self.epochs or 0, self.warmup_epochs or 0
        after = parse_schedule(self.schedule, epochs).get("milestones")
        if after is not None and not any(epoch < epochs for epoch in after):
            raise UserError(f"--schedule {self.schedule}: the rate would not fall before the end, epoch {epochs}")
        if warm_up and warm_up >= epochs:
            raise UserError(f"--warmup-epochs {warm_up:g} must end before training does, in epoch {epochs}")
        if self.warmup_from and not warm_up:
            raise UserError(f"--warmup-from {self.warmup_from:g} would do nothing without --warmup-epochs")


def parse_progressive(text: str | None) -> tuple[tuple[int, float], ...]:
    """The sizes of images and the share of the epochs up to which each holds, in their order."""
    try:
        given = [step.split(":") for step in text.split(",")] if text is not None else []
        steps = tuple((int(size), float(share)) for size, share in given)
    except ValueError:
        steps = ((0, 0.0),)
    shares = [0.0, *(share for _, share in steps)]
    growing = all(before < share <= 1 for before, share in pairwise(shares))
    if not growing or any(size < 1 for size, _ in steps):
        raise UserError(f"--progressive {text!r} is not SIZE:SHARE, as 24:0.5, or several with growing shares up to 1")
    return steps


def parse_schedule(text: str, epochs: int) -> dict[str, Any]:
    """How the learning rate falls: cosine, linear, constant, step:EVERY (to half) or multistep:AFTER,… (to a tenth)."""
    kind, _, numbers = text.partition(":")
    if text in ("cosine", "linear", "constant"):
        return {"schedule": text}
    try:
        given = tuple(int(number) for number in numbers.split(","))
        if kind in ("step", "halve") and len(given) == 1 and given[0] > 0:
            return {"schedule": "step", "gamma": 0.5, "milestones": tuple(range(given[0], epochs, given[0]))}
        if kind in ("multistep", "tenth") and min(given) > 0:
            return {"schedule": "step", "gamma": 0.1, "milestones": given}
    except ValueError:
        pass
    raise UserError(
        f"--schedule {text!r} is none of cosine, linear, constant, step:25 (every 25 epochs), multistep:75,90"
    )
