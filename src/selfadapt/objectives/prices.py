"""What each method costs, from the measurements in prices.json, which `python -m benchmarks.prices` writes."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, kw_only=True)
class Price:
    """The cost of a whole training, with all trainings that a method consists of, for ten classes."""

    time: float  # relative to ordinary training
    forward: float  # passes through a network per sample and epoch
    backward: float
    parameters: float  # in memory, relative to ordinary training
    bytes_per_sample: int  # of what is stored for each training sample

    def __str__(self) -> str:
        networks = f"{self.parameters:.0f} network{'s' if self.parameters > 1.5 else ''}"
        return (
            f"{self.time:.1f} times the time of erm ({self.forward:.1f} forward and {self.backward:.1f} backward "
            f"passes per sample), memory for {networks} and {self.bytes_per_sample} bytes per sample"
        )


@cache
def known_prices() -> dict[str, Price]:
    """Return the price of every method for labelled data that trains in steps, by name."""
    return {name: Price(**own) for name, own in json.loads(FILE.read_text(encoding="utf-8"))["prices"].items()}
