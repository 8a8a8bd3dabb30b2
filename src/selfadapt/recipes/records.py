"""Records for two CPU cores: CIFAR10 with wrong labels from scratch and with pretrained weights in 20 minutes each,
and selective classification in 40.

Settings were chosen on validation images (the last 5,000 of the training set), never on test images; then all 50,000
train.
"""

from selfadapt.recipes.recipe import Entry, Experiment, OverEpochs, Recipe, Settings, Trial
from selfadapt.recipes.table5 import selective_part

NOISE: Settings = {"noise": "symmetric:0.4"}
_QUICK: Settings = {
    "data": "cifar10", "model": "whitened", "optimizer": "nesterov", "lr": 0.7, "weight_decay": 1.5e-4,
    "batch_size": 500, "schedule": "linear", "augment": "crop-flip", "mirror": True, "validation": 0.0,
}  # fmt: skip
_SCRATCH: Settings = {**_QUICK, **NOISE, "epochs": 26, "warmup_epochs": 6.0, "progressive": "24:0.6"}
_SELECTIVE: Settings = {**_QUICK, "epochs": 9, "warmup_epochs": 2.0, "progressive": "24:0.6"}
_FEATURES: Settings = {
    "data": "cifar10", "model": "tf_efficientnet_lite0", "tune": "head", "image_size": 128, "augment": "none",
    "validation": 0.0, **NOISE,
}  # fmt: skip


def _noisy(methods: dict[str, Settings], minutes: float) -> Experiment:
    return Experiment(
        trials=tuple(Trial(name=row, settings=own) for row, own in methods.items()),
        entries=tuple(
            Entry(row=row, column=column, trial=row, value=f"result/{key}")
            for row in methods
            for column, key in (("test accuracy", "test_accuracy"), ("labels recovered", "label_recovery"))
        ),
        minutes=minutes,
    )


def _selective() -> Experiment:
    ours = {"start_epoch": 0, "momentum": 0.74}
    trials, entries = selective_part("CIFAR10", _SELECTIVE, ours, None, ("0.90",), passes=0)
    return Experiment(trials=tuple(trials), entries=tuple(entries), minutes=40)


_OVER_TIME = OverEpochs(key="test_accuracy_after_epoch", words="test accuracy (%)", minutes=True)
_CHOSEN = "Settings were chosen on 5,000 training images held out for it; then all 50,000 train. The result is the last epoch's."
SCRATCH = Recipe(
    name="record-scratch",
    title="Record: CIFAR10 from scratch, 36 % of the labels wrong, in 20 minutes on two cores",
    effect="What 20 minutes of two CPU cores give, with ordinary and with self-adaptive training.",
    paper=_noisy(_FROM_SCRATCH, minutes=40),
    laptop=_noisy(_FROM_SCRATCH, minutes=40),
    drawing=_OVER_TIME,
    notes=(
        _CHOSEN,
        "Test accuracy after each epoch is for the figure alone, and its time is within the 20 minutes.",
        "Both scales are the same experiment.",
    ),
)
