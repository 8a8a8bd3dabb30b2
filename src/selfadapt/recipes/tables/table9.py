"""Table 9: linear evaluation on ImageNet, beside methods that others trained."""

from selfadapt.recipes.probe_trials import BYOL, PROTOCOL, SAT, SHORT_NOTE, laptop, linear, short, whole
from selfadapt.recipes.recipe import Ask, Entry, Experiment, Recipe, Trial, cited
from selfadapt.recipes.scales import IMAGENET_PRETRAINING

COLUMN = "linear accuracy"
OURS = {1: ("ours, 1 view, 200 epochs", 67.4), 2: ("ours, 2 views, 200 epochs", 72.8)}
BYOL_200 = "BYOL, 2 views, 200 epochs"
AS_LONG = {
    "InstDisc, 2 views, 200 epochs": (56.5,), "MoCo, 2 views, 200 epochs": (60.6,),
    "CPC v2, 2 views, 200 epochs": (63.8,), "SimCLR, 2 views, 200 epochs": (66.6,),
    "MoCo v2, 2 views, 200 epochs": (67.5,), BYOL_200: (70.6,),
    "SwAV, 2 views, 200 epochs": (69.1,), "SimSiam, 2 views, 200 epochs": (70.0,),
}  # fmt: skip
LONGER = {
    "CMC, 2 views, 240 epochs": (60.0,), "BYOL, 2 views, 300 epochs": (72.4,),
    "Barlow Twins, 2 views, 300 epochs": (71.4,), "MoCo v3, 2 views, 300 epochs": (72.8,),
    "SeLa, 2 views, 400 epochs": (61.5,), "SeLa v2, 2 views, 400 epochs": (67.2,),
    "DeepCluster v2, 2 views, 400 epochs": (70.2,), "SwAV, 2 views, 400 epochs": (70.1,),
    "PIRL, 2 views, 800 epochs": (63.6,), "SimCLR v2, 2 views, 800 epochs": (71.7,),
}  # fmt: skip
PROBE = Ask(
    what="probe",
    settings={"epochs": 100, "batch_size": 512, "lr": 2.0, "schedule": "cosine", "augment": "resized-crop"},
)


def _paper() -> Experiment:
    trials = [
        Trial(
            name=f"ours {views}",
            kind="pretraining",
            settings={**IMAGENET_PRETRAINING, "method": "sat", "views": views, "momentum": "0.5:0.8", "beta": "0.99:1"},
            asks=(PROBE,),
        )
        for views in OURS
    ]
    ours = [linear("", row, COLUMN, trial, own) for trial, (row, own) in zip(trials, OURS.values(), strict=True)]
    entries = [*cited(AS_LONG, (COLUMN,)), *ours, *cited(LONGER, (COLUMN,))]
    return whole(trials, entries)


def _laptop() -> Experiment:
    settings = {
        BYOL_200: BYOL, OURS[1][0]: SAT, OURS[2][0]: {**SAT, "views": 2},
    }  # fmt: skip
    published = dict([*OURS.values(), (BYOL_200, AS_LONG[BYOL_200][0])])
    trials: dict[str, Trial] = {row: laptop(row, own) for row, own in settings.items()}
    entries: list[Entry] = [linear("", row, COLUMN, trial, published[row]) for row, trial in trials.items()]
    return short(trials, entries)


RECIPE = Recipe(
    name="table9",
    title="Table 9: linear evaluation on ImageNet",
    effect="With two views self-adaptive training is above all others that train for 200 epochs.",
    paper=_paper(),
    laptop=_laptop(),
    notes=(
        "Every row but ours is cited by the authors, BYOL's too (from SimSiam's paper): shown as published, not run.",
        "Batch normalisation goes over all processes (--sync-bn). The paper's base rate of 2.0 for 256 images is 8 for "
        "1,024. Alpha grows from 0.5 to 0.8 and beta from 0.99 to 1, along BYOL's cosine.",
        PROTOCOL,
        f"{SHORT_NOTE} SGD at a rate of 0.3, alpha 0.7 and beta 0.99 are those for small images. Rows have "
        "the paper's names; BYOL is run.",
    ),
)
