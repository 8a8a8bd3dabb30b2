"""Figure 2: a linear classifier beside networks that fit noise, a random network, or their own accumulated outputs."""

from collections.abc import Iterator

from selfadapt.recipes.probe_trials import LINEAR, LONG_NOTE, RATE, UNTRAINED
from selfadapt.recipes.recipe import Cell, Entry, Evaluation, OverEpochs, Recipe, Settings, Trial, experiment
from selfadapt.recipes.scales import LONG_PRETRAINING, LONG_VIEW_MINUTES, PRETRAINING

TARGETS: dict[str, Settings] = {
    "a random network": {"method": "random-network"},
    "fixed noise": {"method": "noise"},
    "ours, plain": {"method": "sat", "predictor": False, "beta": "0", "momentum": "0.9"},
}
AFTER = "classifier after the fact"
PUBLISHED = {("fixed noise", "online probe"): 57.0}


def _cells(shared: Settings, probe: Settings) -> Iterator[Cell]:
    values = {"online probe": "result/online_probe_accuracy", AFTER: LINEAR}
    evaluations = (Evaluation(kind="probe", settings=probe),)
    trials = {
        row: Trial(name=row, kind="pretraining", settings={**shared, **own, "data": "cifar10"}, evaluations=evaluations)
        for row, own in TARGETS.items()
    }
    for row, trial in trials.items():
        for column, value in values.items():
            yield trial, Entry(row=row, column=column, value=value, published=PUBLISHED.get((row, column)))
    yield trials["fixed noise"], Entry(row="untrained", column=AFTER, value=UNTRAINED, published=38.0)  # dashed line


RECIPE = Recipe(
    name="fig2",
    title="Figure 2: linear evaluation while fitting noise",
    effect="A network that fits fixed noise learns features well above those of an untrained one; fitting its own "
    "accumulated outputs is better still.",
    paper=experiment(_cells(PRETRAINING, {})),
    laptop=experiment(_cells(LONG_PRETRAINING, {"limit": LONG_PRETRAINING["limit"]}), minutes=3.5 * LONG_VIEW_MINUTES),
    drawing=OverEpochs(key="online_probe_held_out", description="online probe, held out (%)"),
    rows="targets",
    notes=(
        "Plain self-adaptive training has neither predictor nor momentum encoder. Its alpha is not stated; 0.9 follows "
        "Table 7 (†).",
        "The untrained network, the dashed line of the paper, is evaluated by a linear classifier on frozen features "
        "after training. The others are evaluated in the same way, beside the online probe.",
        "The table uses all test images, the curve 2,000 of them.",
        RATE,
        LONG_NOTE,
    ),
)
