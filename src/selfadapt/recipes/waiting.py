"""Tables and figures that cannot be run yet, each with what it waits for and the numbers that are published."""

from selfadapt.recipes.recipe import Experiment, Recipe, cited

TABLE10 = Recipe(
    name="table10",
    title="Table 10: transfer to Pascal VOC",
    effect="Features of self-adaptive training are on par with the best, and above supervised ones.",
    paper=Experiment(
        trials=(),
        entries=cited(
            {
                "supervised, 1 view": (53.5, 81.3, 58.8, 67.7),
                "SimCLR, 2 views": (55.5, 81.8, 61.4, None),
                "MoCo v2, 2 views": (57.0, 82.4, 63.6, 66.7),
                "SwAV, 2 views": (55.4, 81.5, 61.4, None),
                "BYOL, 2 views": (55.3, 81.4, 61.1, None),
                "SimSiam, 2 views": (56.4, 82.0, 62.8, None),
                "ours, 1 view": (55.2, 81.5, 60.9, 64.8),
                "ours, 2 views": (56.4, 82.5, 63.0, 68.2),
            },
            ("AP", "AP50", "AP75", "mIoU"),
        ),
    ),
    missing="a C4 detector on VOC 07+12 with 11-point AP; `selfadapt transfer` has a feature pyramid, one set and "
    "101-point AP, which is another measure",
)
