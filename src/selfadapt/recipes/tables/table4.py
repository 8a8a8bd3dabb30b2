"""Table 4: accuracy on ImageNet with its own labels, and with 40 % of them redrawn."""

from selfadapt.recipes.recipe import Entry, Experiment, Recipe, Settings, Trial
from selfadapt.recipes.scales import IMAGENET, SMALL, SMALL_MINUTES, SMALL_SAT

RATES = (0.0, 0.4)
PUBLISHED = {  # by network: ordinary training and ours at each rate
    "ResNet-50": {"ERM": (76.8, 69.5), "ours": (77.2, 71.5)},
    "ResNet-101": {"ERM": (78.2, 70.2), "ours": (78.7, 73.5)},
}
ADAPTIVE: dict[float, Settings] = {
    0.0: {"method": "sat-paper", "start_epoch": 50, "momentum": 0.99},
    0.4: {"method": "sat-paper", "start_epoch": 60, "momentum": 0.95},
}
SMALL_NETWORKS: dict[str, Settings] = {
    "ResNet-50": {},
    "ResNet-101": {"width": 32},
}
_WIDER = 3  # times the computation of the network of half the width


def _experiment(
    shared: Settings, networks: dict[str, Settings], adaptive: dict[float, Settings], minutes: float | None = None
) -> Experiment:
    trials, entries = [], []
    for row in ("ERM", "ours"):
        for network, own in networks.items():
            for rate, published in zip(RATES, PUBLISHED[network][row], strict=True):
                name = f"{row} {network} {rate}"
                method: Settings = {"method": "erm"} if row == "ERM" else adaptive[rate]
                noise: Settings = {"noise": f"symmetric:{rate}"} if rate else {}
                trials.append(Trial(name=name, settings={**shared, **own, **method, **noise}))
                entries.append(Entry(row=row, column=f"{network} {rate}", trial=name, published=published))
    return Experiment(trials=tuple(trials), entries=tuple(entries), minutes=minutes)


RECIPE = Recipe(
    name="table4",
    title="Table 4: top-1 accuracy on ImageNet",
    effect="Self-adaptive training is above ordinary training, the more so with 40 % label noise.",
    paper=_experiment(IMAGENET, {"ResNet-50": {"model": "resnet50"}, "ResNet-101": {"model": "resnet101"}}, ADAPTIVE),
    laptop=_experiment(
        SMALL, SMALL_NETWORKS, dict.fromkeys(RATES, SMALL_SAT), minutes=4 * (1 + _WIDER) * SMALL_MINUTES
    ),
    notes=(
        "The test part is ImageNet's official validation part; all training images are trained on. Crops are cut from "
        "the original images; at test the shorter side is 256 pixels and the middle 224 are seen.",
        "The authors trained in mixed precision by apex on several GPUs: float16 here, and --devices or torchrun as "
        "you have them.",
        "At laptop scale 6,000 images of CIFAR10 without augmentation: the whitened network of width 16 in the place "
        "of ResNet-50, of width 32 in that of ResNet-101; E_s and alpha are those of the other recipes there, 6 of 20 "
        "epochs and 0.35.",
    ),
)
