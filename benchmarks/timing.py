"""Time both sides of a ratio alternately in one process, so that a slow moment of the machine affects both."""

import statistics
import time
from collections.abc import Callable


def _seconds(side: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    side()
    return clock() - began


def time_ratio(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    rounds: int,
    warm_up: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Median over rounds of the first side's time over the second's. The order alternates between rounds.

    The clock `time.process_time` counts CPU time, which other programs affect less.
    """
    ratios = []
    for turn in range(warm_up + rounds):
        if turn % 2:
            above, below = _seconds(first, clock), _seconds(second, clock)
        else:
            below, above = _seconds(second, clock), _seconds(first, clock)
        if turn >= warm_up:
            ratios.append(above / below)
    return statistics.median(ratios)
