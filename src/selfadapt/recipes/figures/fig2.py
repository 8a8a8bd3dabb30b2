"""Figure 2: a linear classifier beside networks that fit noise, a random network, or their own accumulated outputs."""

from selfadapt.recipes.probe_trials import LINEAR, LONG_NOTE, RATE, UNTRAINED
from selfadapt.recipes.recipe import Ask, Entry, Experiment, OverEpochs, Recipe, Settings, Trial
from selfadapt.recipes.scales import LONG_PRETRAINING, LONG_VIEW_MINUTES, PRETRAINING

TARGETS: dict[str, Settings] = {
    "a random network": {"method": "random-network"},
    "fixed noise": {"method": "noise"},
    "ours, plain": {"method": "sat", "predictor": False, "beta": "0", "momentum": "0.9"},
}
AFTER = "classifier after the fact"
PUBLISHED = {("fixed noise", "online probe"): 57.0}


def _experiment(shared: Settings, probe: Ask, minutes: float | None = None) -> Experiment:
    trials = tuple(
        Trial(name=row, kind="pretraining", settings={**shared, **own, "data": "cifar10"}, asks=(probe,))
        for row, own in TARGETS.items()
    )
    values = {"online probe": "result/online_probe_accuracy", AFTER: LINEAR}
    entries = [
        Entry(row=row, column=column, trial=row, value=value, published=PUBLISHED.get((row, column)))
        for row in TARGETS
        for column, value in values.items()
    ]
    dashed = Entry(row="untrained", column=AFTER, trial="fixed noise", value=UNTRAINED, published=38.0)
    return Experiment(trials=trials, entries=(*entries, dashed), minutes=minutes)


RECIPE = Recipe(
    name="fig2",
    title="Figure 2: linear evaluation while fitting noise",
    effect="A network that fits fixed noise learns features well above those of an untrained one; fitting its own "
    "accumulated outputs is better still.",
    paper=_experiment(PRETRAINING, Ask(what="probe")),
    laptop=_experiment(
        LONG_PRETRAINING,
        Ask(what="probe", settings={"limit": LONG_PRETRAINING["limit"]}),
        minutes=3.5 * LONG_VIEW_MINUTES,
    ),
    drawing=OverEpochs(key="online_probe_held_out", description="online probe, held out (%)"),
    rows="targets",
    notes=(
        "Plain self-adaptive training has neither predictor nor momentum encoder; alpha is not stated, 0.9 by Table "
        "7's †.",
        "The untrained network, the paper's dashed line, is evaluated by a linear classifier after the fact, on "
        "features that were taken once; beside the online probe so are the others.",
        "The table has all test images, the curve 2,000 of them.",
        RATE,
        LONG_NOTE,
    ),
)
