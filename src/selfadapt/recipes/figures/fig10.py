"""Figure 10: sensitivity of self-supervised training to augmentation and batch size."""

from selfadapt.recipes.probe_trials import BYOL, PROTOCOL, RATE, SAT, SHORT_NOTE, laptop, linear, paper, short, whole
from selfadapt.recipes.recipe import Entry, Experiment, Recipe, Settings, Trial
from selfadapt.recipes.scales import PRETRAINING, SHORT_PRETRAINING

AUGMENTS = {
    "all": "self-supervised",
    "no grey": "self-supervised,no-grey",
    "no colour jitter": "self-supervised,no-jitter",
    "crop and flip": "self-supervised,no-jitter,no-grey",
}
METHODS: dict[str, Settings] = {"BYOL": BYOL, "ours": SAT}
PUBLISHED = {
    ("BYOL", "crop and flip"): 86.6,
    ("ours", "crop and flip"): 88.6,
    ("BYOL", "all"): 91.78,
    ("ours", "all"): 92.27,
}
BATCHES, SMALL_BATCHES = (128, 256, 512, 1024), (32, 64, 128)


def _cells(scale: str, batches: tuple[int, ...]) -> tuple[dict[str, Trial], list[Entry]]:
    made, shared = (paper, PRETRAINING) if scale == "paper" else (laptop, SHORT_PRETRAINING)
    trials: dict[str, Trial] = {}
    entries = []
    for row, method in METHODS.items():
        for column, augment in AUGMENTS.items():
            name = f"{row} {augment}"
            trials[name] = made(name, {**method, "augment": augment, "data": "cifar10"})
            entries.append(linear("augmentation", row, column, trials[name], PUBLISHED.get((row, column))))
        default = PUBLISHED[row, "all"]
        for size in batches:
            rate = shared["lr"] * size / shared["batch_size"]  # in proportion to the batch
            name = f"{row} batches of {size}" if size != shared["batch_size"] else f"{row} self-supervised"
            own: Settings = {**method, "batch_size": size, "lr": rate, "data": "cifar10"}
            trials.setdefault(name, made(name, own))
            entries.append(linear("batch size", row, str(size), trials[name], default if size == 512 else None))
    return trials, entries


def _paper() -> Experiment:
    trials, entries = _cells("paper", BATCHES)
    return whole(trials.values(), entries)


RECIPE = Recipe(
    name="fig10",
    title="Figure 10: sensitivity to augmentation and batch size",
    effect="With fewer operators or smaller batches self-adaptive training loses less than BYOL.",
    paper=_paper(),
    laptop=short(*_cells("laptop", SMALL_BATCHES)),
    notes=(
        "The learning rate is in proportion to the batch. Of the operators the text names crop and flip, of the "
        "batches 128, with a drop of 2 points for BYOL and of 1 for ours; the others are chosen around the default.",
        "Published for all operators, and for 512 images, are Table 6's.",
        PROTOCOL,
        RATE,
        SHORT_NOTE,
    ),
)
