"""The cost of self-adaptive training: one of its steps against a step of ordinary training.

The small ResNet (stages 16-32-64) on batches of 256 random images of 3×32×32, targets in float32. A repeat is the
median over 10 rounds of the first side's CPU time over the second's, alternating in one process; the ratio is the
median of 10 repeats, given with the interval of at least 95 % confidence between the second and the ninth of them.
"""

import statistics
import time

import torch

from benchmarks.timing import time_ratio
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import Shape, TensorImages
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training
from selfadapt.models.backbone import Normalised
from selfadapt.models.registry import backbone
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Objective
from selfadapt.targets.store import Storage

CPU = torch.device("cpu")


def random_samples(count: int, shape: Shape) -> Samples:
    """Random images of this shape in ten classes."""
    return Samples(
        inputs=TensorImages(torch.randint(0, 256, (count, *shape), dtype=torch.uint8)),
        labels=torch.randint(10, (count,)),
        truth=None,
        ids=[str(i) for i in range(count)],
    )


def training(objective: Objective, samples: Samples, name: str = "resnet-small", batch_size: int = 256) -> Training:
    """A training of a named network on these samples, before its first step."""
    torch.manual_seed(0)
    network = backbone(name, InputSpec("images", samples.inputs.shape))
    channels = samples.inputs.shape[0]
    statistics = torch.full((channels,), 0.5), torch.full((channels,), 0.25)
    return Training(
        objective,
        objective.build(Normalised(network, *statistics), 10),
        objective.initial_targets(samples.labels, 10, Storage()),
        SampleLoader(samples, batch_size=batch_size, seed=0, device=CPU),
        FitSettings(),
        num_classes=10,
        device=CPU,
    )


def run() -> dict[str, float]:
    samples = random_samples(2560, (3, 32, 32))
    ordinary, adaptive = training(ERM(), samples), training(NoisyLabels(start_epoch=0), samples)
    batch: Batch = next(iter(ordinary.loader.epoch(0)))
    repeats = sorted(
        time_ratio(
            lambda: adaptive.take_step(batch),
            lambda: ordinary.take_step(batch),
            rounds=10,
            warm_up=2,
            clock=time.process_time,
        )
        for _ in range(10)
    )
    return {
        "self-adaptive step / ordinary step": statistics.median(repeats),
        "its interval, from": repeats[1],
        "its interval, to": repeats[-2],
    }
