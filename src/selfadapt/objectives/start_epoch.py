"""Determine E_s, the epoch from which the targets move, during training, without clean labels or held-out data.

Moving too early makes the mistakes of a half-trained network permanent. Moving too late leaves time to
memorise wrong labels. Two questions are asked after each epoch, and a third at E_s.

*Is the network memorising?* An injected label-noise probe: one sample in twenty, but at most about 1,000, are trained
with a random label other than the given one until the targets move; then they get their given labels back. The seed
chooses them. A network that does not memorise gives these wrong labels the same probability as random wrong labels of
all other samples, so that

    excess = mean of p_i[wrong_i] over the injected i  -  the same mean over the others

is zero up to chance, whatever the network, the classes and the noise. It grows as labels are memorised.

*Is the network still learning?* While nothing is memorised, the agreement of the running mean of a sample's predictions
with the given label grows with the accuracy. It is much less noisy than the agreement of single predictions.

*What are the initial targets?* The labels, as in the paper, if nothing was memorised yet. If the network memorises,
such targets have no time to move away from wrong labels; then they combine the label and the running mean m_i, weighted
by their odds of being correct:

    t_i = s one_hot(y_i) + (1 - s) m_i,    s = o(q) / (o(q) + o(c)),    o(x) = x / (1 - x)

Where the running mean is most confident it is almost always correct, so its agreement with those labels estimates the
share q of correct labels; each sample is weighted by the sixth power of its largest entry. The agreement over all
samples is about q times the share c of samples on which the running mean is correct.

The targets move after the first epoch in which the excess is above 0.02 and above three standard errors; or three
quarters of the epochs have passed; or, where fewer than 200 labels are injected, too few to detect memorisation in
time, the agreement of the running mean grew by less than 2.5 % of itself in five epochs. Half a standard error of that
growth is added to it, because many of the five changes are reversed later.

Shapes: B samples of a batch, K classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import label_loss
from selfadapt.objectives.objective import Loss, Metrics
from selfadapt.targets.store import TargetStore

# Keys of metrics.jsonl; the standard error of each has the suffix _error, the number of samples _count.
INJECTED, OTHERS = "probe_injected", "probe_others"
AGREEMENT, CHANGE = "running_mean_agreement", "running_mean_change"
CONFIDENCE, CONFIDENT_AGREEMENT = "running_mean_confidence", "running_mean_confident_agreement"
RUNNING_MEAN_MOMENTUM = 0.8
CONFIDENCE_POWER = 6


@dataclass(frozen=True, kw_only=True)
class AutoStart:
    share: float = 0.05  # of the samples that get an injected label, at most
    most: int = 1000  # injected labels: as many measure the excess well enough
    excess: float = 0.02
    errors: float = 3.0  # standard errors that the excess must exceed
    fewest: int = 20  # injected labels needed to measure the excess
    enough: int = 200  # injected labels needed to detect memorisation in time
    window: int = 5  # epochs
    growth: float = 0.025  # of the agreement within the window
    latest: float = 0.75  # of the epochs
    seed: int = 0  # selects the injected samples
    _last_answer: dict[int, tuple[Metrics | None, int, int | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def suited(self, num_samples: int, seed: int) -> "AutoStart":
        """Return the settings for this many training samples."""
        return replace(self, seed=seed, share=min(self.share, self.most / num_samples))

    def probe(self, index_B: Tensor, labels_B: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return a wrong label for each sample and whether it is injected; both depend on index and seed only."""
        draw_B = _scrambled(index_B, self.seed)
        shift_B = 1 + (draw_B >> 16) % max(1, num_classes - 1)
        return (labels_B + shift_B) % num_classes, (draw_B & 0xFFFF) < max(1, round(self.share * 0x10000))

    def probed_loss(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, *, first: bool) -> Loss:
        """Return the loss with injected labels and the measurements for `found`. The store holds running means.

        In the first epoch the running mean is the prediction.
        """
        p_BK = logits_BK.detach().softmax(1)
        wrong_B, injected_B = self.probe(batch.index, batch.label, p_BK.shape[1])
        injected_B = injected_B & ~logits_BK.gather(1, wrong_B.unsqueeze(1)).squeeze(1).isneginf()  # a masked class
        p_wrong_B = p_BK.gather(1, wrong_B.unsqueeze(1)).squeeze(1)
        before_BK = p_BK if first else targets.stored(batch.index)
        after_BK = targets.move(batch.index, p_BK, momentum=RUNNING_MEAN_MOMENTUM, rows=before_BK)
        agreed_B, agrees_B = ((rows_BK.argmax(1) == batch.label).float() for rows_BK in (before_BK, after_BK))
        confident_B, confidence_B = confident_agreement(after_BK, batch.label)
        others = {
            OTHERS: p_wrong_B,
            AGREEMENT: agrees_B,
            CHANGE: agrees_B - agreed_B,
            CONFIDENCE: confidence_B,
            CONFIDENT_AGREEMENT: confident_B,
        }
        measured = {
            INJECTED: torch.where(injected_B, p_wrong_B, torch.nan),
            **{name: torch.where(injected_B, torch.nan, value_B) for name, value_B in others.items()},
        }
        return replace(label_loss(logits_BK, torch.where(injected_B, wrong_B, batch.label)), measured=measured)

    def found(self, history: Sequence[Metrics], epochs: int) -> int | None:
        """Return E_s, or None while it is unknown."""
        if epochs == 1:
            return 0
        if not history:
            return None
        last, total, answer = self._last_answer.get(len(history), (None, 0, None))
        if last is not history[-1] or total != epochs:  # called in every step, but the answer changes once per epoch
            due = (epoch + 1 for epoch in range(len(history)) if self._due(history, epoch, epochs))
            answer = next(due, None)
            self._last_answer.clear()
            self._last_answer[len(history)] = (history[-1], epochs, answer)
        return answer

    def label_share(self, history: Sequence[Metrics], start: int) -> float:
        """Return the share s of the given label in the initial targets; the rest is the running mean."""
        metrics = history[start - 1] if start else {}
        if not self._memorises(metrics) or not metrics[CONFIDENT_AGREEMENT]:
            return 1.0
        label = label_accuracy(metrics)
        mean = min(1.0, metrics[AGREEMENT] / label)
        label_only, mean_only = label * (1 - mean), mean * (1 - label)
        return label_only / (label_only + mean_only) if label < 1 else 1.0

    def _due(self, history: Sequence[Metrics], epoch: int, epochs: int) -> bool:
        """Return whether the targets should move after this epoch."""
        metrics = history[epoch]
        if epoch + 1 >= min(self.latest * epochs, epochs - 1) or self._memorises(metrics):
            return True
        if epoch < self.window or metrics.get(f"{INJECTED}_count", 0) >= self.enough:
            return False
        recent = history[epoch - self.window + 1 : epoch + 1]
        growth = sum(step[CHANGE] for step in recent)
        error = math.sqrt(sum(step[f"{CHANGE}_error"] ** 2 for step in recent))
        return growth + error / 2 < self.growth * metrics[AGREEMENT]

    def _memorises(self, metrics: Metrics) -> bool:
        if metrics.get(f"{INJECTED}_count", 0) < self.fewest:
            return False
        return metrics[INJECTED] - metrics[OTHERS] > max(self.excess, self.errors * metrics[f"{INJECTED}_error"])

    def __str__(self) -> str:
        return "auto"


def confident_agreement(means_BK: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence of each running mean, first set to zero where it disagrees with the label, then as is."""
    confidence_B = means_BK.amax(1) ** CONFIDENCE_POWER
    return confidence_B * (means_BK.argmax(1) == labels_B), confidence_B


def label_accuracy(metrics: Metrics) -> float:
    """Estimate the share of correct labels: the agreement of confident running means with their labels."""
    return metrics[CONFIDENT_AGREEMENT] / metrics[CONFIDENCE]


def parse_start(text: str) -> int | AutoStart:
    """Parse `auto` or a number of epochs."""
    if text == "auto":
        return AutoStart()
    if text.isdecimal():
        return int(text)
    raise UserError(f"{text!r} must be auto or an integer of at least 0")


def _scrambled(index_B: Tensor, seed: int) -> Tensor:
    """Hash each index to 32 pseudo-random bits."""
    start = (seed * 0x85EBCA6B + 0x7F4A7C15) & 0xFFFFFFFF
    bits_B = (index_B.long() * 0x9E3779B1 + start) & 0xFFFFFFFF
    for _ in range(2):
        bits_B = ((bits_B ^ (bits_B >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return bits_B ^ (bits_B >> 16)
