"""Records for two CPU cores: CIFAR10 with wrong labels in 20 minutes, selective classification in 40.

No table of the paper, but what its method gives to those who have no GPU. Nothing was chosen on test images: the method
and width of the first, and E_s and alpha of the third, went by 5,000 training images that were held out for it, then
all 50,000 train. The length of the first is what 20 minutes hold. The rest is not tuned.
"""

from selfadapt.recipes.recipe import Drawing, Entry, Experiment, OverEpochs, Recipe, Settings, Trial
from selfadapt.recipes.tables.table5 import selective_part

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


def _noisy(erm: Settings, ours: Settings, minutes: float) -> Experiment:
    trials = (Trial(name="ERM", settings=erm), Trial(name="ours", settings=ours))
    values = {"test accuracy": "test_accuracy", "labels recovered": "label_recovery"}
    entries = tuple(
        Entry(row=trial.name, column=column, trial=trial.name, value=f"result/{key}")
        for trial in trials
        for column, key in values.items()
    )
    return Experiment(trials=trials, entries=entries, minutes=minutes)


def _selective() -> Experiment:
    ours = {"start_epoch": 5, "momentum": 0.7}
    trials, entries = selective_part("CIFAR10", _SHORT, ours, None, ("0.90",), passes=0)
    return Experiment(trials=tuple(trials), entries=tuple(entries), minutes=58)


def _record(name: str, title: str, experiment: Experiment, *notes: str, drawing: Drawing | None = None) -> Recipe:
    return Recipe(
        name=f"record-{name}",
        title=f"Record for two cores: {title}",
        effect="What a machine without a GPU learns in that time, by ordinary and by self-adaptive training.",
        paper=experiment,
        laptop=experiment,
        drawing=drawing,
        notes=(
            *notes,
            "Both scales are the same experiment. All 50,000 images train; nothing was chosen on test images.",
        ),
    )


SCRATCH = _record(
    "scratch",
    "CIFAR10 from scratch in 20 minutes for each method, 36 % of the labels wrong",
    _noisy({**_LONG, "method": "erm"}, {**_LONG, "method": "sat-posterior"}, minutes=65),
    "The first 60 % of the epochs see images of 24 pixels.",
    "Test accuracy after each epoch is for the figure alone; its time is within the 20 minutes.",
    "20 minutes are enough with --precision bfloat16, on a processor that has it; in float32 it is half an hour, by "
    "estimate.",
    drawing=OverEpochs(key="test_accuracy_after_epoch", description="test accuracy (%)", minutes=True),
)
PRETRAINED = _record(
    "pretrained",
    "CIFAR10 from pretrained weights in 20 minutes, 36 % of the labels wrong",
    _noisy({**_HEAD, **_STEPS, "method": "erm"}, {**_HEAD, "method": "sat-folds"}, minutes=20),
    "Features of EfficientNet-Lite0 at 128 pixels are taken once for both rows, which is most of the time, and kept; "
    "with --jobs each row takes them for itself.",
)
SELECTIVE = _record(
    "selective",
    "selective classification on CIFAR10 in 40 minutes",
    _selective(),
    "Labels as they are. The error is that at exactly this coverage of the test images, the paper's protocol.",
    "E_s is 5 of 9 epochs and alpha 0.7, by the area under the abstain output's curve on 5,000 training images that "
    "were held out. Deep Gamblers chooses its reward on a tenth split off the training images; SelectiveNet is trained "
    "for 0.90.",
    "40 minutes are enough with --jobs 2 --precision bfloat16, on a processor that has it; in float32 it is an hour, "
    "by estimate.",
)
