"""Proposition 1 and its corollary: the residual of self-adaptive linear regression, below and above the bound."""

from collections.abc import Iterator

from selfadapt.recipes.recipe import Cell, Entry, OverEpochs, Recipe, Trial, experiment

RATES = (0.1, 0.5, 0.9, 0.99, 1.01, 1.05)  # relative to the largest learning rate that converges
SHAPES = {"more samples than dimensions": (40, 10), "more dimensions than samples": (10, 40)}
VALUES = {
    "factor, predicted": "predicted_factor",
    "factor, measured": "measured_factor",
    "residual, last": "last_residual",
}


def _cells() -> Iterator[Cell]:
    for part, (samples, dimensions) in SHAPES.items():
        for rate in RATES:
            settings = {"samples": samples, "dimensions": dimensions, "alpha": 0.9, "rate": rate, "steps": 400}
            trial = Trial(name=f"{samples}x{dimensions} at {rate}", kind="linear-regression", settings=settings)
            for column, key in VALUES.items():
                yield trial, Entry(part=part, row=f"{rate}", column=column, value=f"result/{key}")


_EXPERIMENT = experiment(_cells(), minutes=0.1)
RECIPE = Recipe(
    name="theory",
    title="Proposition 1: the learning rate below which targets and predictions converge",
    effect="Below (alpha + 1) / (alpha d_max) each step shrinks the residual by the predicted factor; above it, the "
    "residual grows.",
    paper=_EXPERIMENT,
    laptop=_EXPERIMENT,
    drawing=OverEpochs(key="residual", description="|X theta - t|", log=True),
    unit="",
    rows="learning rate / bound",
    notes=(
        "With more samples than dimensions X X^T has zero eigenvalues, so the factor is at least alpha (0.9).",
        "Both scales are the same computation.",
    ),
)
