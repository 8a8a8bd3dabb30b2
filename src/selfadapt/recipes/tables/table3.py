"""Table 3: sensitivity to alpha and to E_s, 40 % symmetric noise on CIFAR10."""

from collections.abc import Iterator

from selfadapt.recipes.recipe import Cell, Entry, Recipe, Settings, Trial, experiment
from selfadapt.recipes.scales import CIFAR, SMALL, SMALL_MINUTES, WHOLE, tenth

ALPHAS = {0.6: 90.17, 0.8: 91.91, 0.9: 92.64, 0.95: 92.54, 0.99: 84.38}
STARTS = {20: 89.58, 40: 91.89, 60: 92.64, 80: 92.26, 100: 88.83}


def _cells(shared: Settings, *, scaled: bool) -> Iterator[Cell]:
    cells = [("alpha, E_s = 60", str(alpha), alpha, 60, number) for alpha, number in ALPHAS.items()]
    cells += [("E_s, alpha = 0.9", str(start), 0.9, start, number) for start, number in STARTS.items()]
    for part, column, alpha, start, published in cells:
        momentum, start_epoch = (tenth(alpha), start // 10) if scaled else (alpha, start)
        own = {"method": "sat-paper", "noise": "symmetric:0.4", "momentum": momentum, "start_epoch": start_epoch}
        trial = Trial(name=f"alpha {alpha} start {start}", settings={**shared, **own})
        yield trial, Entry(part=part, row="ours", column=column, published=published)


RECIPE = Recipe(
    name="table3",
    title="Table 3: sensitivity to alpha and E_s",
    effect="Accuracy changes little over a wide range of both and drops at the ends.",
    paper=experiment(_cells({**CIFAR, **WHOLE, "data": "cifar10"}, scaled=False)),
    laptop=experiment(_cells(SMALL, scaled=True), minutes=9 * SMALL_MINUTES),
    notes=("At laptop scale, with 20 epochs, E_s is a tenth of the value in the column, and alpha its tenth power.",),
)
