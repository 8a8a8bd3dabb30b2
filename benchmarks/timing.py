"""Both sides of a ratio in one process, taking turns, so that a slow moment of the machine strikes both."""

import statistics
import time
from collections.abc import Callable


def _seconds(side: Callable[[], object]) -> float:
    began = time.perf_counter()
    side()
    return time.perf_counter() - began


def time_ratio(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    rounds: int,
    warm_up: int = 5,
) -> float:
    """The median, over rounds, of the first side's time over the second's. Who begins changes from round to round."""
    ratios = []
    for turn in range(warm_up + rounds):
        if turn % 2:
            above, below = _seconds(first), _seconds(second)
        else:
            below, above = _seconds(second), _seconds(first)
        if turn >= warm_up:
            ratios.append(above / below)
    return statistics.median(ratios)
