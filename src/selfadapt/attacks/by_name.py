"""Attacks by name, for the command line: fgsm, pgd20 and other numbers of steps, autoattack, or one of its parts."""

import re
from collections.abc import Mapping
from typing import get_args

from selfadapt.attacks.attack import Attack, Norm
from selfadapt.attacks.autoattack import AutoAttack
from selfadapt.attacks.pgd import PGD, LossName, fgsm
from selfadapt.core.errors import UserError

RADII: dict[Norm, float] = {"linf": 0.031, "l2": 0.5}  # where none is given
_STEP = 0.007 / 0.031  # of the radius, as in the paper; a path of few steps must still reach the border
_LOSSES: tuple[LossName, ...] = ("cross-entropy", "margin")


def named_attack(
    name: str,
    *,
    norm: str = "linf",
    eps: float | None = None,
    steps: int | None = None,
    step: float | None = None,
    restarts: int | None = None,
    loss: str | None = None,
    queries: int | None = None,
) -> Attack:
    """The attack of this name; None leaves a setting to the attack, and one that the attack has not is an error."""
    if norm not in get_args(Norm):
        raise UserError(f"--norm {norm!r} is not known; choose one of {', '.join(get_args(Norm))}")
    own: Norm = "linf" if norm == "linf" else "l2"
    radius = RADII[own] if eps is None else eps
    given = {"--steps": steps, "--step": step, "--restarts": restarts, "--loss": loss, "--queries": queries}
    parts = AutoAttack.parts if name == "autoattack" else (name,)
    if set(parts) <= set(AutoAttack.parts):
        _refuse(name, given, {"--queries" if part == "square" else "--steps" for part in parts})
        sizes = {word: value for word, value in (("steps", steps), ("queries", queries)) if value is not None}
        return AutoAttack(eps=radius, norm=own, parts=parts, **sizes)
    found = re.fullmatch(r"pgd(\d{1,6})?", name)
    if name != "fgsm" and found is None:
        known = ", ".join(("fgsm", "pgd20 (or another number)", "autoattack", *AutoAttack.parts))
        raise UserError(f"--with {name!r} is not known; choose one of {known}")
    chosen = next((word for word in _LOSSES if word == (loss or _LOSSES[0])), None)
    if chosen is None:
        raise UserError(f"--loss {loss!r} is not known; choose one of {', '.join(_LOSSES)}")
    if found is None:
        _refuse(name, given, {"--loss"})
        return fgsm(radius, norm=own, loss=chosen)
    _refuse(name, given, set(given) - {"--queries"})
    count = steps if steps is not None else int(found[1] or 20)
    length = radius * max(_STEP, 1 / max(1, count)) if step is None else step
    return PGD(
        eps=radius, step=length, steps=count, norm=own, loss=chosen, restarts=1 if restarts is None else restarts
    )


def _refuse(name: str, given: Mapping[str, object], known: set[str]) -> None:
    for option, value in given.items():
        if value is not None and option not in known:
            raise UserError(f"{option} is no setting of {name}; it has {', '.join(sorted(known))}, --eps and --norm")
