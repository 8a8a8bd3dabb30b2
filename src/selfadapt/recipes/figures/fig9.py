"""Figure 9: the cost of training with one view, beside supervised training and methods that need two views."""

from collections.abc import Iterator

from selfadapt.recipes.probe_trials import BYOL, MOCO, SAT
from selfadapt.recipes.recipe import Cell, Entry, Recipe, Settings, Stacked, Timing, Trial, TrialKind, experiment
from selfadapt.recipes.scales import SMALL, SMALL_PRETRAINING

SUPERVISED, OURS = "supervised, 1 view", "ours, 1 view"
MOCO_V2, TWO_VIEW_BYOL = "MoCo v2, 2 views", "BYOL, 2 views"
PUBLISHED = {  # "doubled", "2x" and "1.3x" in the text: time relative to the second method
    (MOCO_V2, SUPERVISED): 2.0,
    (TWO_VIEW_BYOL, SUPERVISED): 2.0,
    (MOCO_V2, OURS): 1.3,
    (TWO_VIEW_BYOL, OURS): 2.0,
}
PHASES = ("data", "forward", "backward")
AN_IMAGE, TIMES = "milliseconds an image", "times as long as"

# batch sizes from Appendix B.5, other settings of BYOL and ours from Section 7.1; the rest is common practice
IMAGENET: Settings = {
    "data": "imagenet", "model": "resnet50", "image_size": 224, "crops": "original", "epochs": 200,
    "schedule": "cosine",
}  # fmt: skip
LARGE: Settings = {
    **IMAGENET, "augment": "self-supervised-blur", "optimizer": "lars", "weight_decay": 1e-6,
    "warmup_epochs": 10.0, "hidden": 4096, "dimensions": 256, "beta": "0.99:1",
}  # fmt: skip
PAPER: dict[str, tuple[TrialKind, Settings]] = {
    SUPERVISED: (
        "labels",
        {
            **IMAGENET, "method": "erm", "validation": 0.0, "augment": "resized-crop",
            "optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-4, "batch_size": 256,
        },
    ),
    MOCO_V2: (
        "pretraining",
        {
            **LARGE, "method": "moco", "views": 2, "batch_size": 256, "optimizer": "sgd", "lr": 0.03,
            "weight_decay": 1e-4, "warmup_epochs": 0.0, "hidden": 2048, "dimensions": 128, "beta": "0.999",
            "queue": 65_536,
        },
    ),
    TWO_VIEW_BYOL: ("pretraining", {**LARGE, "method": "byol", "views": 2, "batch_size": 512, "lr": 4.0}),
    OURS: ("pretraining", {**LARGE, "method": "sat", "views": 1, "momentum": "0.5:0.8", "batch_size": 1024, "lr": 8.0}),
}  # fmt: skip

_ONE_VIEW: Settings = {"limit": 4_096, "batch_size": 128}
_TWO_VIEWS: Settings = {"limit": 4_096, "batch_size": 64}
_SUPERVISED: Settings = {
    **SMALL, "model": SMALL_PRETRAINING["model"], "method": "erm", "validation": 0.0, "augment": "crop-flip",
}  # fmt: skip
LAPTOP: dict[str, tuple[TrialKind, Settings]] = {
    SUPERVISED: ("labels", {**_SUPERVISED, **_ONE_VIEW}),
    MOCO_V2: ("pretraining", {**SMALL_PRETRAINING, **MOCO, **_TWO_VIEWS}),
    TWO_VIEW_BYOL: ("pretraining", {**SMALL_PRETRAINING, **BYOL, **_TWO_VIEWS}),
    OURS: ("pretraining", {**SMALL_PRETRAINING, **SAT, **_ONE_VIEW}),
}


def _cells(rows: dict[str, tuple[TrialKind, Settings]]) -> Iterator[Cell]:
    trials = [Trial(name=name, kind=kind, settings=settings) for name, (kind, settings) in rows.items()]
    columns = {**{phase: phase for phase in PHASES}, "in all": "whole", "in all, a view": "view"}
    for trial in trials:
        for column, key in columns.items():
            yield trial, Entry(part=AN_IMAGE, row=trial.name, column=column, value=f"result/{key}")
    for trial in trials:
        for other in (SUPERVISED, OURS):
            value, published = f"result/times/{other}", PUBLISHED.get((trial.name, other))
            yield trial, Entry(part=TIMES, row=trial.name, column=other, value=value, published=published)


RECIPE = Recipe(
    name="fig9",
    title="Figure 9: training time, by data, forward and backward",
    effect="With one view training takes little longer than supervised training, and half as long as BYOL.",
    paper=experiment(_cells(PAPER), timing=Timing(turns=5, steps=32, warm_up=32)),
    laptop=experiment(_cells(LAPTOP), timing=Timing(turns=12, steps=4, warm_up=1), minutes=1.0),
    drawing=Stacked(part=AN_IMAGE, columns=PHASES),
    unit="",
    notes=(
        "Data: the time a step waits for its batch, with augmentation; forward: the loss, with all encoders and "
        "targets; backward: gradients, optimiser and momentum encoder. Methods are timed alternately; numbers are "
        "medians over turns, and ratios compare times of the same turn.",
        "Times are per image, because an epoch has the same number of images for all methods. With the same number of "
        "views per step, BYOL sees half the images with two backward passes each, so times per view are about equal.",
        "Published are the statements of the text (doubled, 2x and 1.3x faster); the bars of the figure are "
        "unlabelled.",
        "The paper's batches are 256, 256, 512 and 1,024 images on eight GPUs, with synchronised batch normalisation "
        "for BYOL and ours. Here one device must hold the whole batch, which is equivalent. MoCo normalises eight "
        "sub-batches separately. At laptop scale every step has 128 views.",
    ),
)
