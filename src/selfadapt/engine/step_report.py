"""What the host learns of a step: whether the loss was finite, the sums of its terms, and what the method measured.

On an accelerator all of it is copied to the host without waiting, and read while the device computes the next step.

Shapes: B samples of a micro-batch, T terms of the loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selfadapt.core.device import Arriving
from selfadapt.objectives.objective import Loss


@dataclass
class StepReport:
    """The report of one step, filled while it is computed."""

    epoch: int
    step: int
    _finite: list[Tensor] = field(default_factory=list)  # of each micro-batch
    _suspects: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # index, and which outputs are not finite
    _measured: list[tuple[str, Tensor]] = field(default_factory=list)
    _arriving: Arriving | None = None

    def add(self, loss: Loss, index_B: Tensor) -> None:
        """Note the loss of a micro-batch."""
        self._finite.append(torch.stack([term.total.detach() for term in loss.terms]).isfinite().all())
        self._suspects.append((index_B, not_finite(loss, index_B)))

    def measure(self, measured: Mapping[str, Tensor]) -> None:
        """Note values per sample."""
        self._measured += measured.items()

    def send(self, sums_T2: Tensor) -> None:
        """Start the copy to the host."""
        self._arriving = Arriving([sums_T2, *self._finite, *(values for _, values in self._measured)])

    def read(self) -> tuple[Tensor, list[tuple[str, Tensor]], list[int] | None]:
        """Return the sums (T×2), the values by name, and the samples at which the loss is not finite, if any."""
        if self._arriving is None:
            raise RuntimeError("send() comes before read()")
        sums_T2, *values = self._arriving.wait()
        finite, measured = values[: len(self._finite)], values[len(self._finite) :]
        samples = None
        if not all(map(bool, finite)):
            suspects = [(index_B, suspect_B) for index_B, suspect_B in self._suspects if suspect_B.any()]
            chosen = [index_B[suspect_B] for index_B, suspect_B in suspects] or [own for own, _ in self._suspects]
            samples = torch.cat(chosen).tolist()
        return sums_T2, [(name, own) for (name, _), own in zip(self._measured, measured, strict=True)], samples


def not_finite(loss: Loss, index_B: Tensor) -> Tensor:
    """Return for which samples the class outputs are not finite; for none without class outputs."""
    if loss.logits_BK is None:
        return torch.zeros_like(index_B, dtype=torch.bool)
    return ~loss.logits_BK.isfinite().all(1)
