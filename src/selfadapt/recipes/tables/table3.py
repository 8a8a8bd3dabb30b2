"""Table 3: sensitivity to alpha and to E_s, 40 % symmetric noise on CIFAR10."""

from collections.abc import Iterator

from selfadapt.recipes.recipe import Cell, Entry, Recipe, Settings, Trial, experiment
from selfadapt.recipes.scales import AUGMENTED, AUGMENTED_MINUTES, CIFAR, WHOLE

ALPHAS = {0.6: 90.17, 0.8: 91.91, 0.9: 92.64, 0.95: 92.54, 0.99: 84.38}
COMPARED, STOPPED_EARLY = "for comparison", "ERM + early stop"
STARTS = {20: 89.58, 40: 91.89, 60: 92.64, 80: 92.26, 100: 88.83}


def _cells(shared: Settings, *, scaled: bool) -> Iterator[Cell]:
    cells = [("alpha, E_s = 60", str(alpha), alpha, 60, number) for alpha, number in ALPHAS.items()]
    cells += [("E_s, alpha = 0.9", str(start), 0.9, start, number) for start, number in STARTS.items()]
    for part, column, alpha, start, published in cells:
        momentum, start_epoch = (round(alpha**2, 4), start // 2) if scaled else (alpha, start)
        own = {"method": "sat-paper", "noise": "symmetric:0.4", "momentum": momentum, "start_epoch": start_epoch}
        trial = Trial(name=f"alpha {alpha} start {start}", settings={**shared, **own})
        yield trial, Entry(part=part, row="ours", column=column, published=published)
    split: Settings = {} if scaled else {"validation": 0.1}  # needed to select the epoch
    for row, method in (("ERM", {"method": "erm"}), (STOPPED_EARLY, {"method": "early-stopping", **split})):
        trial = Trial(name=row, settings={**shared, **method, "noise": "symmetric:0.4"})
        yield trial, Entry(part=COMPARED, row=row, column="test accuracy")


RECIPE = Recipe(
    name="table3",
    title="Table 3: sensitivity to alpha and E_s",
    effect="Accuracy changes little over a wide range of both and drops at the ends.",
    paper=experiment(_cells({**CIFAR, **WHOLE, "data": "cifar10"}, scaled=False)),
    laptop=experiment(_cells(AUGMENTED, scaled=True), minutes=11 * AUGMENTED_MINUTES),
    notes=(
        "Ordinary training, to the end and stopped early on noisy validation labels, is shown for comparison.",
        "At laptop scale 2,000 images of Fashion-MNIST at 14 pixels with crops and flips, as in fig12, for half of the "
        "paper's epochs: E_s is half of the value in the column, and alpha its square.",
    ),
)
