"""Tables and figures that cannot be run yet, each with what it waits for and the numbers that are published."""

from selfadapt.recipes.recipe import Experiment, Recipe, cited

TABLE4 = Recipe(
    name="table4",
    title="Table 4: top-1 accuracy on ImageNet",
    effect="Self-adaptive training is above ordinary training, the more so with 40 % label noise.",
    paper=Experiment(
        trials=(),
        entries=cited(
            {"ERM": (76.8, 69.5, 78.2, 70.2), "ours": (77.2, 71.5, 78.7, 73.5)},
            ("ResNet-50 0.0", "ResNet-50 0.4", "ResNet-101 0.0", "ResNet-101 0.4"),
        ),
    ),
    missing="crops are taken from a square that was resized first, not from the picture, and there is no centre crop "
    "at test",
)
TABLE9 = Recipe(
    name="table9",
    title="Table 9: linear evaluation on ImageNet",
    effect="With two views self-adaptive training is above all others that train for 200 epochs.",
    paper=Experiment(
        trials=(),
        entries=cited(
            {
                "InstDisc, 2 views, 200 epochs": (56.5,), "MoCo, 2 views, 200 epochs": (60.6,),
                "CPC v2, 2 views, 200 epochs": (63.8,), "SimCLR, 2 views, 200 epochs": (66.6,),
                "MoCo v2, 2 views, 200 epochs": (67.5,), "BYOL, 2 views, 200 epochs": (70.6,),
                "SwAV, 2 views, 200 epochs": (69.1,), "SimSiam, 2 views, 200 epochs": (70.0,),
                "ours, 1 view, 200 epochs": (67.4,), "ours, 2 views, 200 epochs": (72.8,),
                "CMC, 2 views, 240 epochs": (60.0,), "BYOL, 2 views, 300 epochs": (72.4,),
                "Barlow Twins, 2 views, 300 epochs": (71.4,), "MoCo v3, 2 views, 300 epochs": (72.8,),
                "SeLa, 2 views, 400 epochs": (61.5,), "SeLa v2, 2 views, 400 epochs": (67.2,),
                "DeepCluster v2, 2 views, 400 epochs": (70.2,), "SwAV, 2 views, 400 epochs": (70.1,),
                "PIRL, 2 views, 800 epochs": (63.6,), "SimCLR v2, 2 views, 800 epochs": (71.7,),
            },
            ("linear accuracy",),
        ),
    ),
    missing="crops from the picture itself, and batch normalisation over all processes (--sync-bn)",
)  # fmt: skip
FIG9 = Recipe(
    name="fig9",
    title="Figure 9: training time, by data, forward and backward",
    effect="With one view a step costs little more than supervised training, and half of BYOL's.",
    missing="the loop does not time data, forward and backward apart; `python -m benchmarks.views` compares whole "
    "steps",
)
