"""Figures 4 and 15: double descent over the width of the network and over the epochs, 15 % of the labels wrong."""

from collections.abc import Iterator
from dataclasses import dataclass

from selfadapt.recipes.recipe import Cell, Entry, OverColumns, OverEpochs, Recipe, Settings, Trial, experiment

# Appendix B.1. Redrawing 16.67 % of the labels leaves 15 % of them wrong.
_PAPER: Settings = {
    "data": "cifar10", "model": "resnet18", "optimizer": "adam", "lr": 1e-4, "weight_decay": 0.0, "batch_size": 128,
    "epochs": 4_000, "schedule": "constant", "warmup_epochs": 0.0, "augment": "crop-flip", "validation": 0.0,
    "noise": "symmetric:0.1667",
}  # fmt: skip
_SMALL: Settings = {
    **_PAPER, "data": "digits", "model": "mlp", "lr": 3e-3, "batch_size": 50, "epochs": 400, "augment": "none",
}  # fmt: skip
WIDTHS = tuple(range(1, 65))
SMALL_WIDTHS = (4, 6, 8, 12, 16, 24, 32, 64, 128)


@dataclass(frozen=True)
class Growing:
    """E_s and alpha by width: E_s = start r and alpha^(1/r), where r is the standard width divided by this one."""

    standard: int
    start: float
    alpha: float

    def at(self, width: int) -> Settings:
        ratio = self.standard / width
        momentum = round(self.alpha ** (1 / ratio), 6)
        return {"method": "sat-paper", "width": width, "start_epoch": int(self.start * ratio), "momentum": momentum}


_GROWING, _SMALL_GROWING = Growing(64, 40, 0.9), Growing(64, 4, 0.9)


def _rows(width: int, growing: Growing) -> dict[str, Settings]:
    return {"ERM": {"method": "erm", "width": width}, "ours": growing.at(width)}


def _widths(shared: Settings, widths: tuple[int, ...], growing: Growing) -> Iterator[Cell]:
    for width in widths:
        for row, own in _rows(width, growing).items():
            trial = Trial(name=f"{row} {width}", settings={**shared, **own})
            yield trial, Entry(part="test error", row=row, column=str(width), value="1 - result/test_accuracy")


def _epochs(shared: Settings, growing: Growing) -> Iterator[Cell]:
    for row, own in _rows(64, growing).items():
        trial = Trial(name=row, settings={**shared, **own, "test_curve": True})
        for column, epoch in (("last epoch", "last"), ("lowest", "peak")):
            yield trial, Entry(row=row, column=column, value=f"1 - {epoch}/test_accuracy_after_epoch")


FIG4 = Recipe(
    name="fig4",
    title="Figure 4: test error over the width of the network",
    effect="The error of ordinary training falls, rises and falls again as networks grow; with self-adaptive training "
    "it only falls.",
    paper=experiment(_widths(_PAPER, WIDTHS, _GROWING)),
    laptop=experiment(_widths(_SMALL, SMALL_WIDTHS, _SMALL_GROWING), minutes=5),
    drawing=OverColumns(description="test error (%)", columns="width of the network"),
    notes=(
        "E_s = int(40 r) and alpha = 0.9^(1/r) with r = 64 / width; at laptop scale, with 400 epochs instead of 4,000, "
        "int(4 r).",
        "At laptop scale a perceptron with two hidden layers of this width is trained on 1,397 images of digits "
        "without augmentation, and tested on 300.",
    ),
)
FIG15 = Recipe(
    name="fig15",
    title="Figure 15: test error over the epochs",
    effect="The error of ordinary training falls, rises and falls again over the epochs; that of self-adaptive "
    "training keeps falling once targets move.",
    paper=experiment(_epochs(_PAPER, _GROWING)),
    laptop=experiment(_epochs(_SMALL, _SMALL_GROWING), minutes=1),
    drawing=OverEpochs(key="test_accuracy_after_epoch", description="clean test error (%)", less_than_one=True),
    notes=(
        "Clean test error after each epoch is logged for the figure only, never used for selection.",
        "At laptop scale the network of width 64 and the digits of fig4.",
    ),
)
