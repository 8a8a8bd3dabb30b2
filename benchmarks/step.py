"""What self-adaptive training costs: a step of it against a step of ordinary training.

The small ResNet (stages 16-32-64) on batches of 256 random images of 3×32×32, targets in float32. The ratio is
the median over 100 rounds of the first side's time over the second's, both in one process, taking turns.
"""

import torch

from benchmarks.timing import time_ratio
from selfadapt.data.images import TensorImages
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import Batch, SampleLoader
from selfadapt.data.samples import Samples
from selfadapt.engine.fit import FitSettings, Training
from selfadapt.models.heads import Normalised
from selfadapt.models.named import backbone
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Objective
from selfadapt.targets.store import Storage

CPU = torch.device("cpu")


def _training(objective: Objective, samples: Samples) -> Training:
    torch.manual_seed(0)
    network = backbone("resnet-small", InputSpec("image", (3, 32, 32)))
    return Training(
        objective,
        objective.build(Normalised(network, torch.full((3,), 0.5), torch.full((3,), 0.25)), 10),
        objective.initial_targets(samples.labels, 10, Storage()),
        SampleLoader(samples, batch_size=256, seed=0, device=CPU),
        FitSettings(),
        num_classes=10,
        device=CPU,
    )


def run() -> dict[str, float]:
    count = 2560
    samples = Samples(
        inputs=TensorImages(torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)),
        labels=torch.randint(10, (count,)),
        truth=None,
        ids=[str(i) for i in range(count)],
    )
    ordinary, adaptive = _training(ERM(), samples), _training(NoisyLabels(start_epoch=0), samples)
    batch: Batch = next(iter(ordinary.loader.epoch(0)))
    ratio = time_ratio(lambda: adaptive.take_step(batch), lambda: ordinary.take_step(batch), rounds=100)
    return {"self-adaptive step / ordinary step": ratio}
