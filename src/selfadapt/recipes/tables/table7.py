"""Table 7: momentum encoder and predictor."""

from selfadapt.recipes.probe_trials import BYOL, PROTOCOL, RATE, SAT, SHORT_NOTE, laptop, linear, paper, short, whole
from selfadapt.recipes.recipe import Entry, Experiment, Recipe, Settings, Trial

PUBLISHED: dict[str, dict[tuple[bool, str], float]] = {
    "BYOL": {
        (False, "0"): 25.64, (False, "0.99"): 26.87, (False, "0.999"): 72.44,
        (True, "0"): 85.22, (True, "0.99"): 91.78, (True, "0.999"): 90.68,
    },
    "ours": {
        (False, "0"): 78.36, (False, "0.99"): 79.68, (False, "0.999"): 83.58,
        (True, "0"): 90.18, (True, "0.99"): 92.27, (True, "0.999"): 90.92,
    },
}  # fmt: skip


def _cells() -> list[tuple[str, str, str, Settings, float]]:
    """Row, column, name, settings and the published number of each cell."""
    cells = []
    for method, shared in (("BYOL", BYOL), ("ours", SAT)):
        for (predictor, beta), published in PUBLISHED[method].items():
            row = f"{method}, {'with' if predictor else 'without'} predictor"
            own: Settings = {**shared, "predictor": predictor, "beta": beta, "data": "cifar10"}
            if method == "ours" and not predictor:
                own = {**own, "momentum": "0.9"}  # the rows marked with a dagger
            cells.append((row, f"beta {beta}", f"{row} {beta}", own, published))
    return cells


def _paper() -> Experiment:
    trials: dict[str, Trial] = {name: paper(name, own) for _, _, name, own, _ in _cells()}
    entries: list[Entry] = [
        linear("", row, column, trials[name], published) for row, column, name, _, published in _cells()
    ]
    return whole(trials.values(), entries)


def _laptop() -> Experiment:
    trials: dict[str, Trial] = {name: laptop(name, own) for _, _, name, own, _ in _cells()}
    entries: list[Entry] = [
        linear("", row, column, trials[name], published) for row, column, name, _, published in _cells()
    ]
    return short(trials, entries)


RECIPE = Recipe(
    name="table7",
    title="Table 7: momentum encoder and predictor",
    effect="Self-adaptive training learns decent features without predictor and momentum encoder, where BYOL "
    "collapses.",
    paper=_paper(),
    laptop=_laptop(),
    notes=("Our rows without a predictor have alpha 0.9 (†).", PROTOCOL, RATE, SHORT_NOTE),
)
