"""Proposition 1 and its corollary: the residual of self-adaptive linear regression, below and above the bound."""

from selfadapt.recipes.recipe import Entry, Experiment, OverEpochs, Recipe, Trial

RATES = (0.1, 0.5, 0.9, 0.99, 1.01, 1.05)  # of the largest learning rate
SHAPES = {"more samples than dimensions": (40, 10), "more dimensions than samples": (10, 40)}
VALUES = {
    "factor, predicted": "predicted_factor",
    "factor, measured": "measured_factor",
    "residual, last": "last_residual",
}


def _experiment() -> Experiment:
    trials, entries = [], []
    for part, (samples, dimensions) in SHAPES.items():
        for rate in RATES:
            name = f"{samples}x{dimensions} at {rate}"
            settings = {"samples": samples, "dimensions": dimensions, "alpha": 0.9, "rate": rate, "steps": 400}
            trials.append(Trial(name=name, kind="linear-regression", settings=settings))
            entries += [
                Entry(part=part, row=f"{rate}", column=column, trial=name, value=f"result/{key}")
                for column, key in VALUES.items()
            ]
    return Experiment(trials=tuple(trials), entries=tuple(entries), minutes=0.1)


RECIPE = Recipe(
    name="theory",
    title="Proposition 1: the learning rate below which targets and predictions meet",
    effect="Below (alpha + 1) / (alpha d_max) the residual goes to 0, by the predicted factor in each step; above it "
    "grows.",
    paper=_experiment(),
    laptop=_experiment(),
    drawing=OverEpochs(key="residual", description="|X theta - t|", log=True),
    unit="",
    rows="learning rate, of the bound",
    notes=(
        "With more samples than dimensions X X^T has eigenvalues of 0, so the factor is alpha (0.9) at least.",
        "Both scales are the same calculation.",
    ),
)
