"""What to expect of the list of likely label errors, without a true label: error rate, precision and recall.

All three follow from P(wrong), summed down the list:

    error rate   = mean of P(wrong)
    precision(d) = mean of P(wrong) over the first d
    recall(d)    = sum of P(wrong) over the first d / sum over all

The intervals cover chance (two standard errors) and what the noise model cannot know. Errors that follow what
predictions confuse anyway (a blurred cat that everybody calls a dog) look like classes that overlap. So the error rate
goes down to what the likelihood of the labels shows, and up to the share of labels that are three times less likely
than another class; so does precision, among the first d. Where predictions agree with labels no better than chance,
the interval extends from 0 to the share of disagreement. Decisions of a reviewer make them narrower (review/).

Shapes: N samples.
"""

from dataclasses import dataclass

from torch import Tensor

_ERRORS = 2.0  # standard errors on either side of an interval


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"about {self.value:.0%} ({self.low:.0%} to {self.high:.0%})"


@dataclass(frozen=True)
class ListQuality:
    """What to expect of the list at each depth: `precision[d]` of its first `depths[d]` samples, and so on."""

    noise_rate: Interval
    depths: tuple[int, ...]
    precision: tuple[Interval, ...]
    recall: tuple[Interval, ...]

    def at(self, depth: int) -> tuple[Interval, Interval]:
        """Precision and recall of the list cut at this depth, by the nearest depth known."""
        nearest = min(range(len(self.depths)), key=lambda place: abs(self.depths[place] - depth))
        return self.precision[nearest], self.recall[nearest]


def expected_quality(p_wrong_N: Tensor, visible_N: Tensor, unlikely_N: Tensor) -> ListQuality:
    """The quality of the list of all samples by falling P(wrong).

    `visible_N` is P(wrong) by the likelihood alone; `unlikely_N` marks labels far less likely than another class.
    """
    count = len(p_wrong_N)
    if not count:
        return ListQuality(Interval(0.0, 0.0, 1.0), (0,), (Interval(0.0, 0.0, 1.0),), (Interval(0.0, 0.0, 1.0),))
    order_N = p_wrong_N.argsort(descending=True, stable=True)
    sums_N, visible_sums_N, unlikely_sums_N = (
        values_N[order_N].double().cumsum(0) for values_N in (p_wrong_N, visible_N, unlikely_N)
    )
    rate = _interval(float(sums_N[-1]), float(visible_sums_N[-1]), float(unlikely_sums_N[-1]), count)
    depths = _depths(count, round(float(sums_N[-1])))
    precision, recall = [], []
    for depth in depths:
        expected, visible, unlikely = (float(sums[depth - 1]) for sums in (sums_N, visible_sums_N, unlikely_sums_N))
        own = _interval(expected, visible, unlikely, depth)
        precision.append(own)
        recall.append(_recall(depth / count, own, rate))
    return ListQuality(rate, tuple(depths), tuple(precision), tuple(recall))


def _interval(expected: float, visible: float, unlikely: float, count: int) -> Interval:
    value, low, high = expected / count, min(visible, expected) / count, max(unlikely, expected) / count
    return Interval(value, max(0.0, low - _chance(low, count)), min(1.0, high + _chance(high, count)))


def _chance(share: float, count: int) -> float:
    return float(_ERRORS * (max(share * (1 - share), 1 / count) / count) ** 0.5)


def _recall(share: float, precision: Interval, rate: Interval) -> Interval:
    """What is found over what there is, at best and at worst."""

    def part(found: float, all_: float) -> float:
        return min(1.0, found / all_) if all_ > 0 else 1.0

    missed = min(1 - share, max(0.0, rate.high - share * precision.low))  # at most
    return Interval(
        part(share * precision.value, rate.value),
        part(share * precision.low, share * precision.low + missed),
        part(share * precision.high, max(rate.low, share * precision.low)),
    )


def _depths(count: int, expected: int) -> list[int]:
    """10, 20, 50, 100, … , the expected number of errors and the whole list."""
    steps = [mantissa * 10**power for power in range(12) for mantissa in (1, 2, 5)]
    return sorted({*(step for step in steps if 10 <= step < count), count, *([expected] if expected else [])})
