"""Table 11: sensitivity of self-supervised training to alpha and beta."""

from collections.abc import Iterator

from selfadapt.recipes.probe_trials import SAT, SHORT_NOTES, MakeTrial, laptop, linear, paper, probed, short
from selfadapt.recipes.recipe import Cell, Recipe

ALPHAS = {"0.5": 91.68, "0.6": 91.76, "0.7": 92.27, "0.8": 92.08, "0.9": 91.68}
BETAS = {"0.9": 90.68, "0.95": 91.60, "0.99": 92.27, "0.995": 92.16, "0.999": 90.92}


def _cells(make: MakeTrial) -> Iterator[Cell]:
    cells = [("alpha, beta = 0.99", alpha, alpha, "0.99", number) for alpha, number in ALPHAS.items()]
    cells += [("beta, alpha = 0.7", beta, "0.7", beta, number) for beta, number in BETAS.items()]
    for part, column, alpha, beta, published in cells:
        trial = make(f"alpha {alpha} beta {beta}", {**SAT, "momentum": alpha, "beta": beta, "data": "cifar10"})
        yield linear(trial, "ours", column, published, part)


RECIPE = Recipe(
    name="table11",
    title="Table 11: sensitivity to alpha and beta without labels",
    effect="Accuracy changes by less than two points over a wide range of both.",
    paper=probed(_cells(paper)),
    laptop=short(_cells(laptop)),
    notes=SHORT_NOTES,
)
