"""Table 7: momentum encoder and predictor."""

from collections.abc import Iterator

from selfadapt.recipes.probe_trials import BYOL, SAT, SHORT_NOTES, MakeTrial, laptop, linear, paper, probed, short
from selfadapt.recipes.recipe import Cell, Recipe, Settings

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


def _cells(make: MakeTrial) -> Iterator[Cell]:
    for method, shared in (("BYOL", BYOL), ("ours", SAT)):
        for (predictor, beta), published in PUBLISHED[method].items():
            row = f"{method}, {'with' if predictor else 'without'} predictor"
            own: Settings = {**shared, "predictor": predictor, "beta": beta, "data": "cifar10"}
            if method == "ours" and not predictor:
                own = {**own, "momentum": "0.9"}  # rows marked with a dagger
            yield linear(make(f"{row} {beta}", own), row, f"beta {beta}", published)


RECIPE = Recipe(
    name="table7",
    title="Table 7: momentum encoder and predictor",
    effect="Self-adaptive training learns decent features without predictor and momentum encoder, where BYOL "
    "collapses.",
    paper=probed(_cells(paper)),
    laptop=short(_cells(laptop)),
    notes=("Our rows without a predictor have alpha 0.9 (†).", *SHORT_NOTES),
)
