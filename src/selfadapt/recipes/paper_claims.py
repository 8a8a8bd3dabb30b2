"""What the paper says that its tables and figures show, by recipe, as comparisons that can be tested.

Of errors and times the lower ones are better, so there ours is the lower side.
"""

from dataclasses import replace

from selfadapt.recipes.claim import Cells, Claim
from selfadapt.recipes.figures.fig1 import EARLY_STOPPED, KINDS, SHARE_CLEAN
from selfadapt.recipes.figures.fig3 import CLEAN_STOPPED_EARLY
from selfadapt.recipes.scales import SMALL_DATA
from selfadapt.recipes.tables.table1 import METHODS
from selfadapt.recipes.tables.table3 import COMPARED, STOPPED_EARLY
from selfadapt.recipes.tables.table9 import BYOL_200

_LABELS, *_IMAGES = KINDS
_SELECTORS = {
    "softmax response": "softmax response on ordinary training",
    "MC-dropout": "MC-dropout",
    "Deep Gamblers": "Deep Gamblers",
    "SelectiveNet": "SelectiveNet",
}


def _above(statement: str, higher: str, lower: str, **both: str | tuple[str, ...]) -> Claim:
    """One row is above another, in the same cells."""
    return Claim(statement=statement, higher=Cells(row=higher, **both), lower=Cells(row=lower, **both))


def _best(name: str, part: str, best: str, ends: tuple[str, str]) -> Claim:
    """The value of the paper is above both ends of the range that the paper tries."""
    ours = Cells(part=part, row="ours", column=best)
    return Claim(
        statement=f"{name} of {best} is above the ends of its range", higher=ours, lower=replace(ours, column=ends)
    )


def _curves() -> tuple[Claim, ...]:
    """Figures 1 and 11. With corrupted labels each data set has its own claims, because they differ.

    The peak of ordinary training would show Observation I by construction: once it fits all labels, its accuracy is the
    share of correct ones.
    """
    images = tuple(f"{data}, {corruption}" for data in SMALL_DATA for corruption in _IMAGES)
    compared = {data: f"{data}, {_LABELS}" for data in SMALL_DATA} | {"corrupted images": images}
    noisy = Cells(row="ERM", column="noisy train")
    return (
        Claim(statement="ordinary training ends above 95 % on the noisy training set", higher=noisy, lower=95.0),
        _above("ours memorises less of the noisy training set", "ERM", "ours", column="noisy train"),
        *(
            Claim(
                statement=f"stopped early, ordinary training is more accurate than its labels (Observation I), {data}",
                higher=Cells(part=f"{data}, {_LABELS}", row=EARLY_STOPPED, column="clean train"),
                lower=Cells(part=f"{data}, {_LABELS}", row="ERM", column=SHARE_CLEAN),
            )
            for data in SMALL_DATA
        ),
        *(
            _above(f"ours ends above {name}, {where}", "ours", row, part=parts, column="clean validation")
            for where, parts in compared.items()
            for row, name in (("ERM", "ordinary training"), (EARLY_STOPPED, "ordinary training stopped early"))
        ),
    )


def _errors() -> tuple[Claim, ...]:
    noisy = tuple(f"{number / 10:g}" for number in range(1, 10))
    return tuple(
        Claim(
            statement=f"ours has the smaller {part}{than}, {kinds}",
            higher=Cells(part=compared, row=tuple(f"ERM, {corruption}" for corruption in corruptions), column=noisy),
            lower=Cells(part=part, row=tuple(f"ours, {corruption}" for corruption in corruptions), column=noisy),
        )
        for part, compared, than in (
            ("generalisation error", "generalisation error", ""),
            ("clean validation error", "clean validation error", ""),
            ("clean validation error", CLEAN_STOPPED_EARLY, " than ordinary training stopped early"),
        )
        for kinds, corruptions in (
            ("corrupted labels", (_LABELS,)),
            ("corrupted images (mean of three kinds)", tuple(_IMAGES)),
        )
    )


def _robust(column: str) -> Claim:
    return _above("ours ends above TRADES", "TRADES + ours", "TRADES", column=column)


def _one_view(*others: str) -> tuple[Claim, ...]:
    return tuple(_above(f"ours with one view is above {other}", "ours, 1 view", other) for other in others)


PAPER_CLAIMS: dict[str, tuple[Claim, ...]] = {
    "fig1": _curves(),
    "fig11": _curves(),
    "fig2": (
        _above("fitting fixed noise is above an untrained network", "fixed noise", "untrained"),
        _above("fitting its own outputs is above fitting fixed noise", "ours, plain", "fixed noise"),
    ),
    "fig3": _errors(),
    "fig13": _errors(),
    "fig4": (_above("ours has the smaller error at every width", "ERM", "ours"),),
    "fig15": (_above("ours ends with the smaller error", "ERM", "ours", column="last epoch"),),
    "fig5": (_robust("last network"),),
    "fig14": (_robust("last epoch"),),
    "fig9": (
        _above("BYOL takes longer than ours", "BYOL, 2 views", "ours, 1 view", column="in all"),
        _above("MoCo takes longer than ours", "MoCo v2, 2 views", "ours, 1 view", column="in all"),
    ),
    "fig10": (
        Claim(
            statement="without colour operators ours is above BYOL",
            higher=Cells(part="augmentation", row="ours", column="crop and flip"),
            lower=Cells(part="augmentation", row="BYOL", column="crop and flip"),
        ),
    ),
    "fig6": (_above("more labels are right after recovery", "ours", "given labels"),),
    "fig12": (
        Claim(
            statement="ordinary training forgets true labels that noise changed, after it had learned them",
            higher=Cells(row="ERM", column="corrupted, peak"),
            lower=Cells(row="ERM", column="corrupted"),
        ),
        _above("ours ends above ordinary training where noise changed the label", "ours", "ERM", column="corrupted"),
    ),
    "table1": tuple(_above(f"ours is above {other}", "ours", other) for other in METHODS),
    "table2": (
        _above("re-weighting helps", "ours", "without re-weighting"),
        _above("the moving average helps", "ours", "without moving average"),
    ),
    "table3": (
        *(
            Claim(
                statement=f"ours is above {name} for every alpha and E_s",
                higher=Cells(row="ours"),
                lower=Cells(part=COMPARED, row=row, column="test accuracy"),
            )
            for row, name in (("ERM", "ordinary training"), (STOPPED_EARLY, "ordinary training stopped early"))
        ),
        _best("alpha", "alpha, E_s = 60", "0.9", ("0.6", "0.99")),
        _best("E_s", "E_s, alpha = 0.9", "60", ("20", "100")),
    ),
    "table4": (_above("ours is above ordinary training", "ours", "ERM"),),
    "table5": tuple(_above(f"ours has a lower error than {name}", row, "ours") for row, name in _SELECTORS.items()),
    "table6": _one_view("BYOL, 1 view", "MoCo v2, 1 view", "BYOL, 2 views", "MoCo v2, 2 views"),
    "table7": (
        _above("without predictor and momentum encoder ours is above BYOL",
               "ours, without predictor", "BYOL, without predictor", column="beta 0"),
    ),
    "table8": tuple(_above(f"ours with one view is above two-view {other}", "ours", other)
                    for other in ("MoCo v2", "SimCLR", "BYOL")),
    "table9": (_above("with two views ours is above BYOL", "ours, 2 views, 200 epochs", BYOL_200),),
    "table10": (_above("ours is above supervised features", "ours, 1 view", "supervised, 1 view"),),
    "table11": (
        _best("alpha", "alpha, beta = 0.99", "0.7", ("0.5", "0.9")),
        _best("beta", "beta, alpha = 0.7", "0.99", ("0.9", "0.999")),
    ),
    "table12": (
        _above("the symmetric loss adds to ours", "ours + SCE", "ours"),
        _above("ours is above the symmetric loss alone", "ours", "SCE"),
    ),
    "table13": (
        _above("ours is above ordinary training under corruption", "ours", "ERM",
               column=tuple(f"level {level}" for level in range(1, 6))),
    ),
}  # fmt: skip
