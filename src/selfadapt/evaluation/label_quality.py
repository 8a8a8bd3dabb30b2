"""What a list of suspected labels is worth, told without the truth: how many are wrong, and how many of them it finds.

A prediction that knows nothing of its sample's label (objectives/cross_fitting.py) stays the same whatever that label
is. So errors can be put in at no cost: sample i, of class k with probability r_ik, gets the label j drawn from V[k, j],
j other than k, and is judged with the same q_i. The share of those errors that come out above a threshold s is the
list's recall for errors of that kind. Kinds b are pairs (k, j) that are about as common, for errors between classes
that are often confused are easier to tell than rare ones:

    recall_b(s)  = share of the errors put in, of kind b, whose doubt is at least s
    found_b(s)   = share of all samples whose doubt, between their label and its rival, is of kind b and at least s
    rate_b       = found_b(s*) / recall_b(s*)       with s* high, where false alarms are few
    noise rate   = sum_b rate_b
    precision(s) = sum_b rate_b recall_b(s) / sum_b found_b(s)
    recall(s)    = sum_b rate_b recall_b(s) / noise rate

The noise rate is the median over several s*. Its interval goes from the least of those estimates to the most, each with
two standard errors, and on to the share of labels that are not the judge's first choice: errors that follow the picture
rather than the class (a blurred cat called a dog by everybody) look like classes that overlap, no list can tell
them apart, and the interval says so. Precision has a second estimate, the mean posterior odds of the samples above s.
Its interval covers both, goes down by as much as the noise rate's does, and up to the share of those samples whose
label is not the judge's first choice.

As many labels are suspects as there are wrong ones by that estimate, the most doubtful first. That balances wrong
labels that are missed with right ones that are listed; cut where the odds turn against a label, symmetric errors among
27 kinds of plants would be found at 0.95 precision and 0.25 recall instead of 0.77 and 0.77. And they are at least as
many as have a label that is ten times less likely than another one: where errors follow the picture the estimate is
nothing, whatever there is, and so would be the list.

Shapes: N samples, n of a share of them, K classes, B kinds, S thresholds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.data.seeds import seeded
from selfadapt.objectives.transition import doubts, posterior

_KINDS = 8  # each twice as common as the one before
_STRICT = (0.5, 1.0, 1.5, 2.0)  # s*, as log odds that the label is wrong
_BOUNDS = (-1.0, 0.0, 3.0)  # more of them, for the interval
_DRAWS = 5
_MOST_SAMPLES = 20_000  # that errors are put into
_LEAST_RECALL = 0.02
_ERRORS = 2.0  # standard errors on either side of an interval
_UNLIKELY = 10.0  # times less likely than another one: a label that is listed whatever the estimate


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    @property
    def says_little(self) -> bool:
        """Whether it leaves nearly everything open."""
        return self.high - self.low > 0.8

    def __str__(self) -> str:
        ends = f"{self.low:.0%} to {self.high:.0%}"
        return f"cannot be told ({ends})" if self.says_little else f"about {self.value:.0%} ({ends})"


@dataclass(frozen=True)
class ListQuality:
    """What to expect of the list at each depth: `precision[d]` of its first `depths[d]` samples, and so on."""

    noise_rate: Interval
    cut: int  # how many labels are suspects
    depths: tuple[int, ...]
    precision: tuple[Interval, ...]
    recall: tuple[Interval, ...]

    def at(self, depth: int) -> tuple[Interval, Interval]:
        """Precision and recall of the list cut at this depth, by the nearest depth known."""
        nearest = min(range(len(self.depths)), key=lambda place: abs(self.depths[place] - depth))
        return self.precision[nearest], self.recall[nearest]


def expected_quality(predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, *, seed: int = 0) -> ListQuality:
    """The quality of the list of all samples by falling doubt."""
    doubt_N, rival_N = doubts(predicted_NK, labels_N, matrix_KK)
    kind_KK = _kinds(matrix_KK)
    found = _Shares(doubt_N, kind_KK[rival_N, labels_N], len(doubt_N))
    put_in = _put_in(predicted_NK, labels_N, matrix_KK, kind_KK, seed)
    strict = [_rates(found, put_in, threshold) for threshold in _STRICT]
    total = [float(rates_B.sum()) for rates_B in strict]
    middle = sorted(range(len(total)), key=lambda place: total[place])[len(total) // 2]
    rates_B = strict[middle]
    noise_rate = _noise_rate(predicted_NK, labels_N, found, put_in, total, float(rates_B.sum()))
    cut = max(round(noise_rate.value * len(labels_N)), _unlikely(predicted_NK, labels_N))
    depths = sorted({*_depths(len(labels_N)), *([cut] if cut else [])})
    sorted_N, order_N = doubt_N.sort(descending=True, stable=True)
    odds_N = sorted_N.sigmoid().double().cumsum(0)
    unlike_N = (predicted_NK.argmax(1) != labels_N)[order_N].double().cumsum(0)
    doubtful = noise_rate.low / noise_rate.value if noise_rate.value > 0 else 0.0
    precision, recall = [], []
    for depth in depths:
        threshold = float(sorted_N[depth - 1])
        wrong = float((rates_B * put_in.above(threshold) / put_in.sizes_B.clamp_min(1e-12)).sum()) * len(labels_N)
        by_errors, by_odds = min(1.0, wrong / depth), float(odds_N[depth - 1]) / depth
        chance = _ERRORS * (max(by_errors * (1 - by_errors), 0.01) / depth) ** 0.5
        low = max(0.0, min(by_errors, by_odds) * doubtful - chance)
        high = min(1.0, max(by_errors, by_odds, float(unlike_N[depth - 1]) / depth) + chance)
        precision.append(Interval(by_errors, low, high))
        recall.append(_recall(depth / len(labels_N), precision[-1], noise_rate))
    return ListQuality(noise_rate, cut, tuple(depths), tuple(precision), tuple(recall))


def _unlikely(predicted_NK: Tensor, labels_N: Tensor) -> int:
    given_N = predicted_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1)
    return int((predicted_NK.amax(1) > _UNLIKELY * given_N).sum())


def _recall(share: float, precision: Interval, rate: Interval) -> Interval:
    """What is found over what there is, at best and at worst."""

    def part(found: float, all_: float) -> float:
        return min(1.0, found / all_) if all_ > 0 else 1.0

    return Interval(
        part(share * precision.value, rate.value),
        part(share * precision.low, rate.high),
        part(share * precision.high, max(rate.low, share * precision.low)),
    )


@dataclass(frozen=True)
class _Shares:
    """Doubts by kind, as shares of a number of samples."""

    doubt_n: Tensor
    kind_n: Tensor
    count: int

    def above(self, threshold: float) -> Tensor:
        """For each kind."""
        counted = torch.bincount(self.kind_n[self.doubt_n >= threshold], minlength=_KINDS)
        return counted.double() / self.count

    @property
    def sizes_B(self) -> Tensor:
        return self.above(-torch.inf)


def _kinds(matrix_KK: Tensor) -> Tensor:
    """The kind of each pair of true and given class, by how common it is beside the mean pair."""
    wrong_KK = matrix_KK.clone().fill_diagonal_(0)
    pairs = max(1, wrong_KK.numel() - len(wrong_KK))
    common_KK = wrong_KK / (wrong_KK.sum() / pairs).clamp_min(1e-12)
    return (common_KK.clamp_min(1e-6).log2().floor() + 3).clamp(0, _KINDS - 1).long()


def _put_in(predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, kind_KK: Tensor, seed: int) -> _Shares:
    generator = seeded(seed, "errors put in")
    chosen_n = torch.randperm(len(labels_N), generator=generator)[:_MOST_SAMPLES]
    predicted_nK = predicted_NK[chosen_n]
    rows_nK = posterior(predicted_nK, labels_N[chosen_n], matrix_KK)
    wrong_KK = matrix_KK.clone().fill_diagonal_(0).clamp_min(1e-12)
    doubt, kind = [], []
    for _ in range(_DRAWS):
        true_n = torch.multinomial(rows_nK, 1, generator=generator).squeeze(1)
        odds_nK = wrong_KK[true_n].scatter(1, true_n.unsqueeze(1), 0.0)
        given_n = torch.multinomial(odds_nK, 1, generator=generator).squeeze(1)
        doubt.append(doubts(predicted_nK, given_n, matrix_KK)[0])
        kind.append(kind_KK[true_n, given_n])
    return _Shares(torch.cat(doubt), torch.cat(kind), _DRAWS * len(chosen_n))


def _rates(found: _Shares, put_in: _Shares, threshold: float) -> Tensor:
    """rate_b. A kind that errors put in never had counts as it was found."""
    recall_B = put_in.above(threshold) / put_in.sizes_B.clamp_min(1e-12)
    recall_B = torch.where(put_in.sizes_B > 0, recall_B, 1.0).clamp_min(_LEAST_RECALL)
    return found.above(threshold) / recall_B


def _noise_rate(
    predicted_NK: Tensor, labels_N: Tensor, found: _Shares, put_in: _Shares, total: list[float], value: float
) -> Interval:
    unlike = float((predicted_NK.argmax(1) != labels_N).double().mean())
    likely = float(found.doubt_n.sigmoid().double().mean())
    others = [float(_rates(found, put_in, threshold).sum()) for threshold in _BOUNDS]
    count = max(1.0, float(found.above(0.0).sum()) * found.count)
    spread = _ERRORS * max(value, 1 / found.count) / count**0.5
    low = max(0.0, min(*total, *others, likely) - spread)
    high = min(1.0, max(*total, *others, unlike) + spread + _ERRORS * (unlike / found.count) ** 0.5)
    return Interval(min(value, 1.0), low, high)


def _depths(count: int) -> list[int]:
    """1, 2, 5, 10, … and the whole list."""
    steps = [mantissa * 10**power for power in range(12) for mantissa in (1, 2, 5)]
    return [*(step for step in steps if 10 <= step < count), count]
