"""Table 9: linear evaluation on ImageNet, beside methods trained by others."""

from collections.abc import Iterator

from selfadapt.recipes.probe_trials import BYOL, PROTOCOL, SAT, SHORT_NOTE, laptop, linear, probed, short
from selfadapt.recipes.recipe import Cell, Evaluation, Recipe, Trial, cited
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
PROBE = Evaluation(
    kind="probe",
    settings={"epochs": 100, "batch_size": 512, "lr": 2.0, "schedule": "cosine", "augment": "resized-crop"},
)


def _paper() -> Iterator[Cell]:
    yield from cited(AS_LONG, (COLUMN,))
    for views, (row, published) in OURS.items():
        own = {"method": "sat", "views": views, "momentum": "0.5:0.8", "beta": "0.99:1"}
        settings = {**IMAGENET_PRETRAINING, **own}
        trial = Trial(name=f"ours {views}", kind="pretraining", settings=settings, evaluations=(PROBE,))
        yield linear(trial, row, COLUMN, published)
    yield from cited(LONGER, (COLUMN,))


def _laptop() -> Iterator[Cell]:
    yield linear(laptop(BYOL_200, BYOL), BYOL_200, COLUMN, AS_LONG[BYOL_200][0])
    for views, (row, published) in OURS.items():
        yield linear(laptop(row, {**SAT, "views": views}), row, COLUMN, published)


RECIPE = Recipe(
    name="table9",
    title="Table 9: linear evaluation on ImageNet",
    effect="With two views self-adaptive training is above all others that train for 200 epochs.",
    paper=probed(_paper()),
    laptop=short(_laptop()),
    notes=(
        "All rows except ours are cited by the authors, that of BYOL from the SimSiam paper: shown as published, not "
        "run.",
        "Batch normalisation is synchronised over all processes (--sync-bn). The paper's base learning rate of 2.0 per "
        "256 images is 8 for 1,024. Alpha grows from 0.5 to 0.8 and beta from 0.99 to 1, with the cosine schedule of "
        "BYOL.",
        PROTOCOL,
        f"{SHORT_NOTE} SGD with a learning rate of 0.3, alpha 0.7 and beta 0.99 are the settings for small images. "
        "Rows have the names of the paper; BYOL is run.",
    ),
)
