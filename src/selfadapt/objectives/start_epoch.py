"""When to let the targets move, found while training, with no clean label and no held-out part.

Moving too early fixes the mistakes of a network that still learns from the labels. Moving too late leaves time to
memorise the wrong labels. So there are two questions to ask after each epoch, and a third when the time has come:

*Does it memorise?* An injected label-noise probe tells: one sample in twenty, chosen by the seed, is trained under a
random label other than the given one until the targets move; then it gets its given label back. A network that
memorises nothing gives these wrong labels the same probability as wrong labels, never shown to it, of all others:

    excess = mean of p_i[wrong_i] over the injected i  -  the same mean over the others

is then zero up to chance, whatever the network, the classes and the noise, and grows as labels are memorised.

*Does it still learn?* How often the running mean of a sample's predictions agrees with the given label grows with its
accuracy as long as nothing is memorised, and is much steadier than the agreement of single predictions, whose random
errors it averages out.

*What do the targets begin with?* The label, as in the paper, where nothing was memorised yet. A network that was caught
memorising leaves such targets no time to turn away from wrong labels; there they begin with the label and the running
mean m_i, each by its odds of being right:

    t_i = s one_hot(y_i) + (1 - s) m_i,    s = o(q) / (o(q) + o(c)),    o(x) = x / (1 - x)

Of the samples of which the running mean is most confident it is hardly wrong, so how often it agrees with their labels
tells how many labels are right: q is that agreement, each sample weighted by the sixth power of its largest entry. The
agreement over all samples is about q times the share c of samples on which the running mean is right.

The targets move after the first epoch in which the excess is above 0.02 and above three standard errors; or three
quarters of the epochs are over; or, where fewer than 200 labels are injected, which can't tell in time, the agreement
of the running mean grew by less than 2.5 % of itself in five epochs, the chance in that number being added to it (half
the standard error of the sum of five steps, many of which are taken back).

Shapes: B samples of a batch, K classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.objectives.objective import Metrics

# Names in metrics.jsonl; each has its standard error under the same name with _error.
INJECTED, OTHERS = "probe_injected", "probe_others"
AGREEMENT, CHANGE = "running_mean_agreement", "running_mean_change"
CONFIDENCE, CONFIDENT_AGREEMENT = "running_mean_confidence", "running_mean_confident_agreement"
RUNNING_MEAN_MOMENTUM = 0.8
CONFIDENCE_POWER = 6


@dataclass(frozen=True, kw_only=True)
class AutoStart:
    share: float = 0.05  # of the samples get an injected label
    excess: float = 0.02
    errors: float = 3.0  # standard errors that the excess must be above
    fewest: int = 20  # injected labels that can tell
    enough: int = 200  # injected labels that tell in time
    window: int = 5  # epochs
    growth: float = 0.025  # of the agreement within the window
    latest: float = 0.75  # of the epochs
    seed: int = 0  # decides which samples these are
    _last_answer: dict[int, tuple[Metrics | None, int, int | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def probe(self, index_B: Tensor, labels_B: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """For each sample a label other than the given one, and whether it is injected, by its index and the seed."""
        draw_B = _scrambled(index_B, self.seed)
        shift_B = 1 + (draw_B >> 16) % max(1, num_classes - 1)
        return (labels_B + shift_B) % num_classes, (draw_B & 0xFFFF) < round(self.share * 0x10000)

    def found(self, history: Sequence[Metrics], epochs: int) -> int | None:
        """E_s, once it is known."""
        if epochs == 1:
            return 0  # there is no epoch to learn from
        if not history:
            return None
        last, of, answer = self._last_answer.get(len(history), (None, 0, None))
        if last is not history[-1] or of != epochs:  # every step asks, and the answer changes with an epoch only
            due = (epoch + 1 for epoch in range(len(history)) if self._due(history, epoch, epochs))
            answer = next(due, None)
            self._last_answer.clear()
            self._last_answer[len(history)] = (history[-1], epochs, answer)
        return answer

    def label_share(self, history: Sequence[Metrics], start: int) -> float:
        """How much of a target is its given label when it begins to move; the rest is the running mean."""
        metrics = history[start - 1] if start else {}
        if not self._caught(metrics) or not metrics[CONFIDENT_AGREEMENT]:
            return 1.0
        label = label_accuracy(metrics)
        mean = min(1.0, metrics[AGREEMENT] / label)
        label_alone, mean_alone = label * (1 - mean), mean * (1 - label)
        return label_alone / (label_alone + mean_alone) if label < 1 else 1.0

    def _due(self, history: Sequence[Metrics], epoch: int, epochs: int) -> bool:
        """Whether the targets are to move after this epoch."""
        metrics = history[epoch]
        if epoch + 1 >= min(self.latest * epochs, epochs - 1) or self._caught(metrics):
            return True
        if epoch < self.window or metrics.get(f"{INJECTED}_count", 0) >= self.enough:
            return False
        recent = history[epoch - self.window + 1 : epoch + 1]
        growth = sum(step[CHANGE] for step in recent)
        error = math.sqrt(sum(step[f"{CHANGE}_error"] ** 2 for step in recent))
        return growth + error / 2 < self.growth * metrics[AGREEMENT]

    def _caught(self, metrics: Metrics) -> bool:
        """Whether the network memorises."""
        if metrics.get(f"{INJECTED}_count", 0) < self.fewest:
            return False
        return metrics[INJECTED] - metrics[OTHERS] > max(self.excess, self.errors * metrics[f"{INJECTED}_error"])

    def __str__(self) -> str:
        return "auto"


def confident_agreement(means_BK: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """How confident each running mean is, as far as it agrees with the label, and in any case."""
    confidence_B = means_BK.amax(1) ** CONFIDENCE_POWER
    return confidence_B * (means_BK.argmax(1) == labels_B), confidence_B


def label_accuracy(metrics: Metrics) -> float:
    """How many labels are right: how often the most confident running means agree with them."""
    return metrics[CONFIDENT_AGREEMENT] / metrics[CONFIDENCE]


def parse_start(text: str) -> int | AutoStart:
    """auto, or a number of epochs."""
    if text == "auto":
        return AutoStart()
    if text.isdecimal():
        return int(text)
    raise UserError(f"{text!r} must be auto or a whole number from 0 on")


def _scrambled(index_B: Tensor, seed: int) -> Tensor:
    """32 bits that look random, from each index."""
    start = (seed * 0x85EBCA6B + 0x7F4A7C15) & 0xFFFFFFFF
    bits_B = (index_B.long() * 0x9E3779B1 + start) & 0xFFFFFFFF
    for _ in range(2):
        bits_B = ((bits_B ^ (bits_B >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return bits_B ^ (bits_B >> 16)
