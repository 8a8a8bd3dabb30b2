"""The speed-up of bfloat16 on this processor: a step of ordinary training in float32 against one in bfloat16.

Random images of 3×32×32, batches of 250. The ratio is the median over 20 rounds of the first side's time over the
second's, alternating in one process. It depends on the processor: without instructions for bfloat16 it is slower.
`selfadapt doctor` measures a single convolution on yours.
"""

from dataclasses import replace

from benchmarks.step import random_samples, training
from benchmarks.timing import time_ratio
from selfadapt.data.dataset import Samples
from selfadapt.objectives.erm import ERM

NETWORKS = ("resnet-small", "whitened")


def run() -> dict[str, float]:
    samples = random_samples(500, (3, 32, 32))
    return {f"{name}: float32 step / bfloat16 step": _ratio(name, samples) for name in NETWORKS}


def _ratio(name: str, samples: Samples) -> float:
    plain, half = (training(ERM(), samples, name, batch_size=250) for _ in range(2))
    half.settings = replace(half.settings, precision="bfloat16")
    batch = next(iter(plain.loader.epoch(0)))
    return time_ratio(lambda: plain.take_step(batch), lambda: half.take_step(batch), rounds=20, warm_up=2)
