"""Table 11: sensitivity of self-supervised training to alpha and beta."""

from collections.abc import Callable

from selfadapt.recipes.probe_trials import PROTOCOL, RATE, SAT, SHORT_NOTE, laptop, linear, paper, short, whole
from selfadapt.recipes.recipe import Entry, Experiment, Recipe, Settings, Trial

ALPHAS = {"0.5": 91.68, "0.6": 91.76, "0.7": 92.27, "0.8": 92.08, "0.9": 91.68}
BETAS = {"0.9": 90.68, "0.95": 91.60, "0.99": 92.27, "0.995": 92.16, "0.999": 90.92}


def _cells(made: Callable[[str, Settings], Trial]) -> tuple[dict[str, Trial], list[Entry]]:
    trials: dict[str, Trial] = {}
    entries = []
    cells = [("alpha, beta = 0.99", alpha, alpha, "0.99", number) for alpha, number in ALPHAS.items()]
    cells += [("beta, alpha = 0.7", beta, "0.7", beta, number) for beta, number in BETAS.items()]
    for part, column, alpha, beta, published in cells:
        name = f"alpha {alpha} beta {beta}"
        trials[name] = made(name, {**SAT, "momentum": alpha, "beta": beta, "data": "cifar10"})
        entries.append(linear(part, "ours", column, trials[name], published))
    return trials, entries


def _paper() -> Experiment:
    trials, entries = _cells(paper)
    return whole(trials.values(), entries)


RECIPE = Recipe(
    name="table11",
    title="Table 11: sensitivity to alpha and beta without labels",
    effect="Accuracy changes by less than two points over a wide range of both.",
    paper=_paper(),
    laptop=short(*_cells(laptop)),
    notes=(PROTOCOL, RATE, SHORT_NOTE),
)
