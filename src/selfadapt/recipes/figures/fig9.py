"""Figure 9: what training with one view costs, beside supervised training and methods that need two views."""

from selfadapt.recipes.probe_trials import BYOL, MOCO, SAT
from selfadapt.recipes.recipe import Entry, Experiment, Recipe, Settings, Stacked, Timing, Trial, TrialKind
from selfadapt.recipes.scales import SMALL, SMALL_PRETRAINING

SUPERVISED, OURS = "supervised, 1 view", "ours, 1 view"
MOCO_V2, TWO_VIEW_BYOL = "MoCo v2, 2 views", "BYOL, 2 views"
PUBLISHED = {  # the text's "doubled", "2x" and "1.3x"; how many times as long as …
    (MOCO_V2, SUPERVISED): 2.0,
    (TWO_VIEW_BYOL, SUPERVISED): 2.0,
    (MOCO_V2, OURS): 1.3,
    (TWO_VIEW_BYOL, OURS): 2.0,
}
PHASES = ("data", "forward", "backward")
AN_IMAGE, TIMES = "milliseconds an image", "times as long as"

# Appendix B.5 has the batches, Section 7.1 the rest of BYOL and ours; what is left is common practice
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


def _experiment(
    kinds: dict[str, tuple[TrialKind, Settings]], timing: Timing, minutes: float | None = None
) -> Experiment:
    trials = tuple(Trial(name=name, kind=kind, settings=settings) for name, (kind, settings) in kinds.items())
    entries = []
    for name in kinds:
        columns = {phase: phase for phase in PHASES} | {"in all": "whole", "in all, a view": "view"}
        for column, word in columns.items():
            entries.append(Entry(part=AN_IMAGE, row=name, column=column, trial=name, value=f"result/{word}"))
    for name in kinds:
        for other in (SUPERVISED, OURS):
            value, published = f"result/times/{other}", PUBLISHED.get((name, other))
            entries.append(Entry(part=TIMES, row=name, column=other, trial=name, value=value, published=published))
    return Experiment(trials=trials, entries=tuple(entries), timing=timing, minutes=minutes)


RECIPE = Recipe(
    name="fig9",
    title="Figure 9: training time, by data, forward and backward",
    effect="With one view training costs little more than supervised training, and half of BYOL's.",
    paper=_experiment(PAPER, Timing(turns=5, steps=32, warm_up=32)),
    laptop=_experiment(LAPTOP, Timing(turns=12, steps=4, warm_up=1), minutes=1.0),
    drawing=Stacked(part=AN_IMAGE, columns=PHASES),
    unit="",
    notes=(
        "Data: what a step waits for its batch, with augmentation; forward: the loss, with all encoders and targets; "
        "backward: gradients, the optimiser and the momentum encoder. Methods take turns; numbers are medians over "
        "turns, and a ratio is of the same turn.",
        "Times are of an image, as an epoch has equally many for all. In a step of as many views, BYOL sees half the "
        "images with two passes of gradients for each, which makes the times of a view about equal.",
        "Published are the words of the text (doubled, 2x and 1.3x faster); the figure's bars have no numbers.",
        "The paper's batches are 256, 256, 512 and 1,024 images on eight GPUs, normalised over all of them for BYOL "
        "and ours; here one device must hold the whole batch, which comes to the same. MoCo normalises eight parts of "
        "its batch apart. At laptop scale every step has 128 views.",
    ),
)
