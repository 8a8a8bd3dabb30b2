"""Figures 5 and 14: robust accuracy of TRADES with and without self-adaptive targets, under AutoAttack and PGD-20."""

from selfadapt.recipes.recipe import Ask, Entry, Experiment, OverEpochs, Recipe, Settings, Trial

# Appendix B.2; the decay is that of the authors' script, for the paper gives none
_PAPER: Settings = {
    "data": "cifar10", "model": "wrn-34-10", "optimizer": "sgd", "lr": 0.1, "weight_decay": 2e-4, "batch_size": 128,
    "epochs": 100, "schedule": "multistep:75,90", "warmup_epochs": 0.0, "augment": "crop-flip", "beta": 6.0,
    "eps": 0.031, "step": 0.007, "steps": 10, "curve_start": 70, "curve_images": 10_000, "validation": 0.0,
}  # fmt: skip
# in which TRADES overfits; docs/results/robustness.md tells how it was found
_SMALL: Settings = {
    **_PAPER, "image_size": 16, "model": "mlp", "width": 512, "lr": 0.05, "batch_size": 64, "limit": 1_000,
    "epochs": 40, "augment": "none", "schedule": "multistep:20,32", "curve_start": 5, "curve_images": 1_000,
}  # fmt: skip


def _experiment(shared: Settings, start: int, asks: tuple[Ask, ...], minutes: float | None = None) -> Experiment:
    methods: dict[str, Settings] = {
        "TRADES": {"method": "trades"},
        "TRADES + ours": {"method": "trades-sat", "start_epoch": start, "momentum": 0.9},
    }
    moments = tuple((f"{ask.settings['at']} network", f"{ask.name}/robust_accuracy") for ask in asks) or (
        ("last epoch", "last/robust_accuracy"),
        ("last epoch, clean", "last/robust_clean_accuracy"),
    )
    return Experiment(
        trials=tuple(Trial(name=row, settings={**shared, **own}, asks=asks) for row, own in methods.items()),
        entries=tuple(
            Entry(row=row, column=column, trial=row, value=value) for row in methods for column, value in moments
        ),
        minutes=minutes,
    )


def _autoattack(moments: tuple[str, ...], images: int | None = None) -> tuple[Ask, ...]:
    limit: Settings = {} if images is None else {"images": images}
    return tuple(Ask(what="attack", settings={"name": "autoattack", "at": at, **limit}) for at in moments)


_EFFECT = (
    "TRADES loses robust accuracy after the first fall of the learning rate; self-adaptive targets mitigate that, and "
    "are 1 to 3 points above it."
)
_SCALE = (
    "At laptop scale a perceptron with two hidden layers of 512 learns 1,000 images of CIFAR10 at 16 pixels for 40 "
    "epochs; E_s is 5, PGD-20 has 1,000 test images and AutoAttack 200 of them, the same each time."
)

FIG5 = Recipe(
    name="fig5",
    title="Figure 5: robust accuracy under AutoAttack",
    effect=_EFFECT,
    paper=_experiment(_PAPER, 70, _autoattack(("first", "last"))),
    laptop=_experiment(_SMALL, 5, _autoattack(("first", "last"), images=200), minutes=15),
    notes=(
        "The paper draws AutoAttack after each epoch from 70 on; here the first and the last network of that time are "
        "attacked, and the curve is PGD-20's (fig14).",
        "All 50,000 images train, as in the program of TRADES.",
        _SCALE,
    ),
)
FIG14 = Recipe(
    name="fig14",
    title="Figure 14: robust accuracy under PGD-20",
    effect=_EFFECT,
    paper=_experiment(_PAPER, 70, ()),
    laptop=_experiment(_SMALL, 5, (), minutes=8),
    drawing=OverEpochs(key="robust_accuracy", description="robust accuracy (%)"),
    notes=("On test images, from E_s on.", _SCALE),
)
