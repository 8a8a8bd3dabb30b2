"""Attacks by name, for the command line: fgsm, pgdN with N steps, autoattack, or one of its parts."""

import re

from selfadapt.attacks.attack import Attack, Norm
from selfadapt.attacks.autoattack import QUERIES, STEPS, AutoAttack
from selfadapt.attacks.pgd import PGD, LossName, fgsm
from selfadapt.core.errors import UserError

_RADII: dict[Norm, float] = {"linf": 0.031, "l2": 0.5}  # defaults
_RELATIVE_STEP = 0.007 / 0.031  # relative to the radius, as in the paper; few steps must still reach the boundary
_LOSSES = ("cross-entropy", "margin")


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
    """Build an attack from its name. None selects the default; a setting that the attack does not have is an error."""
    if norm not in _RADII:
        raise UserError(f"--norm {norm!r} is not known; choose one of {', '.join(_RADII)}")
    kind: Norm = "linf" if norm == "linf" else "l2"
    radius = _RADII[kind] if eps is None else eps
    options = {"--steps": steps, "--step": step, "--restarts": restarts, "--loss": loss, "--queries": queries}
    given = {option for option, value in options.items() if value is not None}
    parts = AutoAttack.parts if name == "autoattack" else (name,)
    if set(parts) <= set(AutoAttack.parts):
        _refuse(name, given, {"--queries" if part == "square" else "--steps" for part in parts})
        steps, queries = STEPS if steps is None else steps, QUERIES if queries is None else queries
        return AutoAttack(eps=radius, norm=kind, parts=parts, steps=steps, queries=queries)
    pgd = re.fullmatch(r"pgd(\d{1,6})?", name)
    if name != "fgsm" and pgd is None:
        known = ", ".join(("fgsm", "pgd20 (or another number)", "autoattack", *AutoAttack.parts))
        raise UserError(f"--with {name!r} is not known; choose one of {known}")
    if loss not in (None, *_LOSSES):
        raise UserError(f"--loss {loss!r} is not known; choose one of {', '.join(_LOSSES)}")
    loss_name: LossName = "margin" if loss == "margin" else "cross-entropy"
    if pgd is None:
        _refuse(name, given, {"--loss"})
        return fgsm(radius, norm=kind, loss=loss_name)
    _refuse(name, given, set(options) - {"--queries"})
    steps = int(pgd[1] or 20) if steps is None else steps
    step = radius * max(_RELATIVE_STEP, 1 / max(1, steps)) if step is None else step
    restarts = 1 if restarts is None else restarts
    return PGD(eps=radius, step=step, steps=steps, norm=kind, loss=loss_name, restarts=restarts)


def _refuse(name: str, given: set[str], known: set[str]) -> None:
    for option in sorted(given - known):
        raise UserError(f"{name} has no {option}; its settings are {', '.join(sorted(known))}, --eps and --norm")
