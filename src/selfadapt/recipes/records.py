"""Records for two CPU cores: CIFAR10 with wrong labels in 20 minutes, selective classification in 40.

These are not tables of the paper; they show what its method reaches without a GPU. Nothing was selected on test images:
the method and width of the first, and E_s and alpha of the third, were selected on 5,000 held-out training images, and
then all 50,000 were used for training. The first trains for as many epochs as fit into 20 minutes. The rest is not
tuned.
"""

from selfadapt.recipes.recipe import Drawing, Entry, Experiment, OverEpochs, Recipe, Settings, Trial, experiment
from selfadapt.recipes.tables.table5 import selective_cells

_CIFAR: Settings = {"data": "cifar10", "validation": 0.0}
_NOISE: Settings = {"noise": "symmetric:0.4"}
_QUICK: Settings = {
    **_CIFAR, "model": "whitened", "optimizer": "nesterov", "lr": 0.5, "weight_decay": 1.4e-4, "batch_size": 500,
    "schedule": "linear", "augment": "shift-flip", "mirror": True, "progressive": "24:0.6",
}  # fmt: skip
_LONG: Settings = {
    **_QUICK, **_NOISE, "width": 48, "epochs": 16, "warmup_epochs": 3.7, "warmup_from": 0.1, "test_curve": True,
}  # fmt: skip
_SHORT: Settings = {**_QUICK, "epochs": 9, "warmup_epochs": 2.0, "warmup_from": 0.1}
_HEAD: Settings = {
    **_CIFAR, **_NOISE, "model": "tf_efficientnet_lite0", "tune": "head", "image_size": 128, "augment": "none",
}  # fmt: skip
_STEPS: Settings = {"epochs": 20, "lr": 0.003, "weight_decay": 0.3, "batch_size": 256}


def _noisy(*methods: Settings, minutes: float) -> Experiment:
    values = {"test accuracy": "test_accuracy", "labels recovered": "label_recovery"}
    return experiment(
        (
            (Trial(name=own["method"], settings=own), Entry(row=own["method"], column=column, value=f"result/{key}"))
            for own in methods
            for column, key in values.items()
        ),
        minutes=minutes,
    )


def _record(name: str, title: str, experiment: Experiment, *notes: str, drawing: Drawing | None = None) -> Recipe:
    return Recipe(
        name=f"record-{name}",
        title=f"Record for two cores: {title}",
        effect="What ordinary and self-adaptive training reach in that time without a GPU.",
        paper=experiment,
        laptop=experiment,
        drawing=drawing,
        notes=(
            *notes,
            "Both scales are the same experiment. All 50,000 images are used for training; nothing was selected on "
            "test images.",
        ),
    )


SCRATCH = _record(
    "scratch",
    "CIFAR10 from scratch in 20 minutes for each method, 36 % of the labels wrong",
    _noisy({**_LONG, "method": "erm"}, {**_LONG, "method": "sat-posterior"}, minutes=65),
    "The first 60 % of the epochs use images of 24 pixels.",
    "Test accuracy after each epoch is logged for the figure only; its time is part of the 20 minutes.",
    "20 minutes are enough with --precision bfloat16 on a processor that supports it; float32 takes an estimated half "
    "an hour.",
    drawing=OverEpochs(key="test_accuracy_after_epoch", description="test accuracy (%)", minutes=True),
)
PRETRAINED = _record(
    "pretrained",
    "CIFAR10 from pretrained weights in 20 minutes, 36 % of the labels wrong",
    _noisy({**_HEAD, **_STEPS, "method": "erm"}, {**_HEAD, "method": "sat-folds"}, minutes=20),
    "Frozen features of EfficientNet-Lite0 at 128 pixels are computed once for both rows, which takes most of the "
    "time; with --jobs each row computes its own.",
)
SELECTIVE = _record(
    "selective",
    "selective classification on CIFAR10 in 40 minutes",
    experiment(
        selective_cells("CIFAR10", _SHORT, {"start_epoch": 5, "momentum": 0.7}, None, ("0.90",), passes=0), minutes=58
    ),
    "Original labels. The error is measured at exactly this coverage of the test images, the protocol of the paper.",
    "E_s is 5 of 9 epochs and alpha 0.7, selected by the area under the risk-coverage curve of the abstain output on "
    "5,000 held-out training images. Deep Gamblers selects its reward on a tenth of the training images; SelectiveNet "
    "is trained for a coverage of 0.90.",
    "40 minutes are enough with --jobs 2 --precision bfloat16 on a processor that supports it; float32 takes an "
    "estimated hour.",
)
