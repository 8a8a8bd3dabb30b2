"""Figures 5 and 14: robust accuracy of TRADES with and without self-adaptive targets, under AutoAttack and PGD-20."""

from collections.abc import Iterator

from selfadapt.recipes.recipe import Cell, Entry, Evaluation, OverEpochs, Recipe, Settings, Trial, experiment

# Appendix B.2; the weight decay is that of the authors' script, because the paper gives none
_PAPER: Settings = {
    "data": "cifar10", "model": "wrn-34-10", "optimizer": "sgd", "lr": 0.1, "weight_decay": 2e-4, "batch_size": 128,
    "epochs": 100, "schedule": "multistep:75,90", "warmup_epochs": 0.0, "augment": "crop-flip", "beta": 6.0,
    "eps": 0.031, "step": 0.007, "steps": 10, "curve_start": 70, "curve_images": 10_000, "validation": 0.0,
}  # fmt: skip
# a setting in which TRADES overfits; docs/results/robustness.md describes the search
_SMALL: Settings = {
    **_PAPER, "image_size": 16, "model": "mlp", "width": 512, "lr": 0.05, "batch_size": 64, "limit": 1_000,
    "epochs": 40, "augment": "none", "schedule": "multistep:20,32", "curve_start": 5, "curve_images": 1_000,
}  # fmt: skip


def _cells(shared: Settings, start: int, evaluations: tuple[Evaluation, ...] = ()) -> Iterator[Cell]:
    rows: dict[str, Settings] = {
        "TRADES": {"method": "trades"},
        "TRADES + ours": {"method": "trades-sat", "start_epoch": start, "momentum": 0.9},
    }
    columns = {f"{own.settings['at']} network": f"{own.name}/robust_accuracy" for own in evaluations} or {
        "last epoch": "last/robust_accuracy",
        "last epoch, clean": "last/robust_clean_accuracy",
        "highest": "peak/robust_accuracy",
    }
    for row, own in rows.items():
        trial = Trial(name=row, settings={**shared, **own}, evaluations=evaluations)
        for column, value in columns.items():
            yield trial, Entry(row=row, column=column, value=value)


def _autoattack(**limit: int) -> tuple[Evaluation, ...]:
    return tuple(
        Evaluation(kind="attack", settings={"name": "autoattack", "at": at, **limit}) for at in ("first", "last")
    )


_EFFECT = (
    "TRADES loses robust accuracy after the first drop of the learning rate; self-adaptive targets mitigate that and "
    "end 1 to 3 points higher."
)
_SCALE = (
    "At laptop scale a perceptron with two hidden layers of 512 is trained on 1,000 images of CIFAR10 at 16 pixels for "
    "40 epochs. E_s is 5; PGD-20 uses 1,000 test images, and AutoAttack the same 200 of them each time."
)

FIG5 = Recipe(
    name="fig5",
    title="Figure 5: robust accuracy under AutoAttack",
    effect=_EFFECT,
    paper=experiment(_cells(_PAPER, 70, _autoattack())),
    laptop=experiment(_cells(_SMALL, 5, _autoattack(images=200)), minutes=15),
    notes=(
        "The paper plots AutoAttack after each epoch from 70 on. Here the first and the last network of that range are "
        "attacked, and the curve is that of PGD-20 (fig14).",
        "All 50,000 images are used for training, as in the code of TRADES.",
        _SCALE,
    ),
)
FIG14 = Recipe(
    name="fig14",
    title="Figure 14: robust accuracy under PGD-20",
    effect=_EFFECT,
    paper=experiment(_cells(_PAPER, 70)),
    laptop=experiment(_cells(_SMALL, 5), minutes=8),
    drawing=OverEpochs(key="robust_accuracy", description="robust accuracy (%)"),
    notes=("On test images, starting at E_s.", _SCALE),
)
