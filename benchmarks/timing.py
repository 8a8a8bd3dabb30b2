"""Both sides of a ratio in one process, taking turns, so that a slow moment of the machine strikes both."""

import statistics
import time
from collections.abc import Callable, Mapping


def medians(sides: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 3) -> dict[str, float]:
    """The median seconds of each side over so many rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm_up + rounds):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}
