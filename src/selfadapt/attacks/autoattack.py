"""AutoAttack (Croce and Hein, 2020) through the package pyautoattack, which holds its authors' own attacks.

Four parts run one after another, each on the images that still stand:

    apgd-ce   PGD with a step size that adapts itself, on cross entropy
    apgd-t    the same on the targeted DLR loss, against the 9 likeliest other classes
    fab-t     the nearest point beyond the boundary to each of those classes
    square    random squares, without any gradient

With K classes there are K-1 others; below ten classes they are all taken. The targeted DLR loss divides by differences
of the four largest logits, so it needs four classes; with two or three the plain margin z_target - z_y stands in.

Shapes: B images of a batch, K classes, C channels, H by W pixels.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.attacks.attack import STANDS, WRONG, Norm, check_inputs, check_radius, evaluation_mode, predicted
from selfadapt.core.errors import UserError

STEPS, QUERIES, TARGETS = 100, 5000, 9  # of the standard version
_NORMS = {"linf": "Linf", "l2": "L2"}
_FEWEST_FOR_DLR = 4
_ROUNDING = 1e-5  # an image may leave the ball by the rounding of its pixels

_MISSING = "AutoAttack needs the extra: pip install 'selfadapt[attack]'"

Part = Callable[[Tensor, Tensor], Tensor]  # images and labels to moved images


@dataclass(frozen=True, kw_only=True)
class AutoAttack:
    """The standard version, unless steps or queries say otherwise."""

    eps: float = 0.031
    norm: Norm = "linf"
    steps: int = STEPS  # of apgd and fab
    queries: int = QUERIES  # of square
    parts: tuple[str, ...] = ("apgd-ce", "apgd-t", "fab-t", "square")

    def __post_init__(self) -> None:
        if find_spec("pyautoattack") is None:
            raise UserError(_MISSING)
        check_radius(self.eps)
        if self.eps == 0 or self.steps < 1 or self.queries < 1:
            raise UserError(
                f"AutoAttack with eps {self.eps:g}, {self.steps} steps and {self.queries} queries cannot be; "
                "each must be above 0"
            )

    @property
    def settings(self) -> Mapping[str, object]:
        return asdict(self)

    def notes(self, num_classes: int) -> tuple[str, ...]:
        said = []
        if (self.steps, self.queries, self.parts) != (STEPS, QUERIES, AutoAttack.parts):
            said.append(
                f"not the standard AutoAttack: {', '.join(self.parts)} with {self.steps} steps and {self.queries} "
                "queries; its figures compare with no published ones"
            )
        if num_classes < _FEWEST_FOR_DLR:
            said.append(
                f"with {num_classes} classes the DLR loss of apgd-t does not exist; it attacks the margin of the logits"
            )
        if num_classes <= TARGETS:
            said.append(
                f"with {num_classes} classes the targeted attacks have {num_classes - 1} targets, not {TARGETS}"
            )
        return tuple(said)

    def outcome(self, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, generator: torch.Generator) -> Tensor:
        check_inputs(images_BCHW)
        seed = int(torch.randint(2**31, (1,), generator=generator))
        with evaluation_mode(model), _without_gradients(model), _own_randomness(images_BCHW.device):
            right_B = predicted(model, images_BCHW) == labels_B
            outcome_B = torch.where(right_B, STANDS, WRONG)
            for number, name in enumerate(self.parts, start=1):
                standing = (outcome_B == STANDS).nonzero().flatten()
                if not len(standing):
                    break
                images, labels = images_BCHW[standing].contiguous(), labels_B[standing]
                moved = self._part(name, model, images, seed)(images, labels)
                self._check_ball(name, moved, images)
                outcome_B[standing[predicted(model, moved) != labels]] = number
        return outcome_B

    def _part(self, name: str, model: nn.Module, images_BCHW: Tensor, seed: int) -> Part:
        """One of the package's attacks on this model."""
        package = _package()
        with torch.no_grad():
            num_classes = model(images_BCHW[:1]).shape[1]
        device, norm, targets = images_BCHW.device, _NORMS[self.norm], min(TARGETS, num_classes - 1)
        common: dict[str, Any] = {"norm": norm, "eps": self.eps, "seed": seed, "device": device, "verbose": False}
        if name == "apgd-ce":
            attack = package.autopgd_base.APGDAttack(model, n_iter=self.steps, **common)
        elif name == "apgd-t":
            attack = package.autopgd_base.APGDAttack_targeted(
                model, n_iter=self.steps, n_target_classes=targets, logger=_Silent(), **common
            )
            if num_classes < _FEWEST_FOR_DLR:
                attack.dlr_loss_targeted = lambda logits, labels: _targeted_margin(logits, labels, attack.y_target)
        elif name == "fab-t":
            attack = package.fab_pt.FABAttack_PT(
                model, n_iter=self.steps, targeted=True, n_target_classes=targets, **common
            )
        elif name == "square":
            attack = package.square.SquareAttack(
                model, n_queries=self.queries, p_init=0.8, resc_schedule=False, **common
            )
        else:
            raise UserError(f"AutoAttack has no part {name!r}; its parts are {', '.join(AutoAttack.parts)}")
        perturb: Part = attack.perturb
        return perturb

    def _check_ball(self, name: str, moved_BCHW: Tensor, images_BCHW: Tensor) -> None:
        """An attack that cheats would make a robust network look weak."""
        shift = (moved_BCHW - images_BCHW).flatten(1)
        longest = (shift.abs().amax() if self.norm == "linf" else shift.norm(dim=1).amax()).item()
        if not longest <= self.eps + _ROUNDING * max(1, self.eps) or bool(((moved_BCHW < 0) | (moved_BCHW > 1)).any()):
            raise RuntimeError(f"{name} of pyautoattack left the ball: {longest:g} from the image, eps is {self.eps:g}")


def _targeted_margin(logits_BK: Tensor, labels_B: Tensor, targets_B: Tensor) -> Tensor:
    target_B, own_B = (logits_BK.gather(1, index_B.unsqueeze(1)).squeeze(1) for index_B in (targets_B, labels_B))
    return target_B - own_B


def _package() -> Any:
    try:
        import pyautoattack
        import pyautoattack.autopgd_base
        import pyautoattack.fab_pt
        import pyautoattack.square
    except ImportError as error:
        raise UserError(_MISSING) from error
    return pyautoattack


class _Silent:
    """Takes the package's remark that some gradients vanish: images deep inside their class do that."""

    def warning(self, message: str) -> None:
        pass


@contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """The parameters want no gradient meanwhile: the package calls `backward`, which would leave some behind."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_()


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """The package seeds torch's global generators; outside nobody may notice."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
