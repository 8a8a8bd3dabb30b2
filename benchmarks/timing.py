"""Time both sides of a ratio alternately in one process, so that a slow moment of the machine affects both."""

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
    """Median over rounds of the first side's time over the second's. The order alternates between rounds."""
    ratios = []
    for turn in range(warm_up + rounds):
        if turn % 2:
            above, below = _seconds(first), _seconds(second)
        else:
            below, above = _seconds(second), _seconds(first)
        if turn >= warm_up:
            ratios.append(above / below)
    return statistics.median(ratios)
