"""The expected quality of the list of likely label errors, without true labels: error rate, precision and recall.

All three are computed from P(wrong), summed from the top of the list:

    error rate   = mean of P(wrong)
    precision(d) = mean of P(wrong) over the first d
    recall(d)    = sum of P(wrong) over the first d / sum over all

The intervals cover sampling error (two standard errors) and what the noise model cannot identify. Errors between
classes that predictions confuse anyway (a blurred cat that looks like a dog) look like overlapping classes. So the
lower bound of the error rate is the rate that the likelihood of the labels supports, and the upper bound is the share
of labels that are three times less likely than another class. The bounds of precision are the same for the first d. If
predictions agree with labels no better than chance, the interval ranges from 0 to the share of disagreement. Decisions
of a reviewer narrow the intervals (review/).

Shapes: N samples.
"""

from dataclasses import dataclass

from torch import Tensor

_STANDARD_ERRORS = 2.0  # on either side of an interval


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"about {self.value:.0%} ({self.low:.0%} to {self.high:.0%})"


@dataclass(frozen=True)
class ListQuality:
    """The expected quality of the list: `precision[d]` and `recall[d]` hold for its first `depths[d]` samples."""

    noise_rate: Interval
    depths: tuple[int, ...]
    precision: tuple[Interval, ...]
    recall: tuple[Interval, ...]

    def at(self, depth: int) -> tuple[Interval, Interval]:
        """Precision and recall of the list cut at the nearest of `depths`."""
        nearest = min(range(len(self.depths)), key=lambda index: abs(self.depths[index] - depth))
        return self.precision[nearest], self.recall[nearest]


def expected_quality(p_wrong_N: Tensor, visible_N: Tensor, unlikely_N: Tensor) -> ListQuality:
    """The expected quality of the list of all samples, sorted by decreasing P(wrong).

    `visible_N` is P(wrong) from the likelihood alone. `unlikely_N` marks labels far less likely than another class.
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
        interval = _interval(expected, visible, unlikely, depth)
        precision.append(interval)
        recall.append(_recall(depth / count, interval, rate))
    return ListQuality(rate, tuple(depths), tuple(precision), tuple(recall))


def _interval(expected: float, visible: float, unlikely: float, count: int) -> Interval:
    value, low, high = expected / count, min(visible, expected) / count, max(unlikely, expected) / count
    return Interval(value, max(0.0, low - _margin(low, count)), min(1.0, high + _margin(high, count)))


def _margin(share: float, count: int) -> float:
    return float(_STANDARD_ERRORS * (max(share * (1 - share), 1 / count) / count) ** 0.5)


def _recall(share: float, precision: Interval, rate: Interval) -> Interval:
    """The number of errors found over the number of errors, with the bounds of both."""

    def ratio(num_found: float, num_all: float) -> float:
        return min(1.0, num_found / num_all) if num_all > 0 else 1.0

    missed = min(1 - share, max(0.0, rate.high - share * precision.low))  # upper bound
    return Interval(
        ratio(share * precision.value, rate.value),
        ratio(share * precision.low, share * precision.low + missed),
        ratio(share * precision.high, max(rate.low, share * precision.low)),
    )


def _depths(count: int, expected: int) -> list[int]:
    """10, 20, 50, 100, …, the expected number of errors, and the length of the list."""
    steps = [mantissa * 10**power for power in range(12) for mantissa in (1, 2, 5)]
    return sorted({*(step for step in steps if 10 <= step < count), count, *([expected] if expected else [])})
