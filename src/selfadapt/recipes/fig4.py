"""Figures 4 and 15: double descent over the width of the network and over the epochs, 15 % of the labels wrong."""

from selfadapt.recipes.recipe import Entry, Experiment, OverColumns, OverEpochs, Recipe, Settings, Trial

# Appendix B.1. Redrawing 16.67 % of the labels leaves 15 % of them wrong.
_PAPER: Settings = {
    "data": "cifar10", "model": "resnet18", "optimizer": "adam", "lr": 1e-4, "weight_decay": 0.0, "batch_size": 128,
    "epochs": 4_000, "schedule": "constant", "warmup_epochs": 0.0, "augment": "crop-flip", "validation": 0.0,
    "noise": "symmetric:0.1667",
}  # fmt: skip
_SMALL: Settings = {
    **_PAPER, "model": "resnet-small", "lr": 1e-3, "epochs": 60, "augment": "none", "limit": 2_000, "batch_size": 64,
    "validation": 0.1,
}  # fmt: skip
WIDTHS = tuple(range(1, 65))
SMALL_WIDTHS = (1, 2, 4, 8, 16, 32)


def at_width(width: int, standard: int, start: float) -> Settings:
    """E_s = start r and alpha = 0.9^(1/r), with r the standard width over this one."""
    ratio = standard / width
    return {"method": "sat-paper", "width": width, "start_epoch": int(start * ratio), "momentum": 0.9 ** (1 / ratio)}


def _widths(
    shared: Settings, widths: tuple[int, ...], standard: int, start: float, minutes: float | None = None
) -> Experiment:
    trials, entries = [], []
    for width in widths:
        ours: Settings = at_width(width, standard, start)
        for row, own in (("ERM", {"method": "erm", "width": width}), ("ours", ours)):
            name = f"{row} {width}"
            trials.append(Trial(name=name, settings={**shared, **own}))
            value = "1 - result/test_accuracy"
            entries.append(Entry(part="test error", row=row, column=str(width), trial=name, value=value))
    return Experiment(trials=tuple(trials), entries=tuple(entries), minutes=minutes)


def _epochs(shared: Settings, width: int, start: int, minutes: float | None = None) -> Experiment:
    methods: dict[str, Settings] = {
        "ERM": {"method": "erm"},
        "ours": {"method": "sat-paper", "start_epoch": start, "momentum": 0.9},
    }
    return Experiment(
        trials=tuple(
            Trial(name=row, settings={**shared, **own, "width": width, "test_curve": True})
            for row, own in methods.items()
        ),
        entries=tuple(
            Entry(row=row, column="last epoch", trial=row, value="1 - last/test_accuracy_after_epoch")
            for row in methods
        ),
        minutes=minutes,
    )


FIG4 = Recipe(
    name="fig4",
    title="Figure 4: test error over the width of the network",
    effect="The error of ordinary training falls, rises and falls again as networks grow; with self-adaptive training "
    "it only falls.",
    paper=_widths(_PAPER, WIDTHS, 64, 40),
    laptop=_widths(_SMALL, SMALL_WIDTHS, 16, 2.5, minutes=25),
    drawing=OverColumns(words="test error (%)", columns="width of the network"),
    notes=(
        "E_s = int(40 r) and alpha = 0.9^(1/r) with r = 64 / width; at laptop scale int(2.5 r), r = 16 / width.",
        "At laptop scale the second descent needs more width and epochs than there are; whether the error turns up is "
        "what to look at.",
    ),
)
FIG15 = Recipe(
    name="fig15",
    title="Figure 15: test error over the epochs",
    effect="Ordinary training has a second rise of the error; self-adaptive training goes on falling once targets "
    "move.",
    paper=_epochs(_PAPER, 64, 40),
    laptop=_epochs({**_SMALL, "limit": 4_000}, 16, 4, minutes=14),
    drawing=OverEpochs(key="test_accuracy_after_epoch", words="clean test error (%)", less_than_one=True),
    notes=("Clean test error after each epoch is for the figure alone: nothing was chosen by it.",),
)
