"""Seeded label noise, for experiments in which the truth is known.

Shapes: N samples.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from selfadapt.data.samples import Data, Samples
from selfadapt.data.seeds import seeded
from selfadapt.errors import UserError

Kind = Literal["symmetric", "symmetric-other"]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """A kind of noise and the probability with which it strikes a sample."""

    kind: Kind
    rate: float

    @classmethod
    def parse(cls, text: str) -> "Noise":
        """The noise that KIND:RATE names, such as symmetric:0.4."""
        kind, _, rate_text = text.partition(":")
        try:
            rate = float(rate_text)
        except ValueError:
            rate = -1.0
        if kind not in get_args(Kind) or not 0 <= rate <= 1:
            kinds = " or ".join(get_args(Kind))
            raise UserError(f"--noise {text!r} is not KIND:RATE with KIND {kinds} and RATE within 0..1")
        return cls(kind=kind, rate=rate)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.kind}:{self.rate:g}"

    def draw(self, labels_N: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Corrupted labels.

        symmetric: with probability `rate` a label is redrawn over all classes, its own among them (the paper).
        symmetric-other: with probability `rate` a label becomes one of the other classes.
        """
        struck_N = torch.rand(len(labels_N), generator=generator) < self.rate
        if self.kind == "symmetric":
            drawn_N = torch.randint(num_classes, labels_N.shape, generator=generator)
        else:
            offset_N = torch.randint(1, num_classes, labels_N.shape, generator=generator)
            drawn_N = (labels_N + offset_N) % num_classes
        return torch.where(struck_N, drawn_N, labels_N)


def corrupt(data: Data, noise: Noise, seed: int) -> Data:
    """The data with noise in training and validation labels. Test labels stay as they are."""

    def struck(part: str, samples: Samples) -> Samples:
        generator = seeded(seed, "noise", part)
        return samples.relabelled(noise.draw(samples.labels, data.num_classes, generator))

    return replace(
        data,
        train=struck("train", data.train),
        validation=None if data.validation is None else struck("validation", data.validation),
    )


def actual_rate(samples: Samples) -> float | None:
    """The share of labels that differ from the truth, where it is known."""
    return None if samples.truth is None else (samples.labels != samples.truth).double().mean().item()
