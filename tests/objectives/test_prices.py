"""The price list: its counts are those of trainings now."""

import pytest
import torch
from benchmarks.prices import measured, price
from benchmarks.step import random_samples

from selfadapt.objectives.prices import known_prices


@pytest.mark.parametrize("name", ["sat", "elr-plus", "co-teaching", "self", "aum"])
def test_passes_and_memory_are_those_of_a_training(name: str) -> None:
    torch.manual_seed(0)
    samples = random_samples(24, (3, 16, 16))
    ordinary = measured("erm", samples, 2)
    found, known = price(measured(name, samples, 2), ordinary, ordinary), known_prices()[name]
    assert (found.forward, found.backward) == (known.forward, known.backward)
    assert (found.parameters, found.bytes_per_sample) == (known.parameters, known.bytes_per_sample)
