"""Does the model ever wait for data?

- pipeline: batches of 256 CIFAR-sized images, augmented and normalised, from memory, against torchvision's transforms
  image by image in a DataLoader with two workers; images per second, ours over theirs.
- epoch: a whole training epoch of the small ResNet against the bare forward-backward-step loop on one fixed batch.
- streaming: 5,000 JPEGs of 256×256 from a folder, against torchvision's ImageFolder in a DataLoader with the same
  two workers and the same decoded size; images per second, ours over theirs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from selfadapt.data.dataset import Samples
from selfadapt.data.images.augment import augmentation_by_name
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import SampleLoader
from selfadapt.data.sources.image_folder import folder_data
from selfadapt.engine.fit import FitSettings, Training
from selfadapt.engine.optim import OptimizerSettings, make_optimizer
from selfadapt.models.backbone import Normalised
from selfadapt.models.registry import backbone
from selfadapt.objectives.erm import ERM

CPU = torch.device("cpu")
MEAN, STD = [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]
BATCH, COUNT = 256, 10_240


def _samples() -> Samples:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (COUNT, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (COUNT,), generator=generator)
    return Samples(inputs=TensorImages(images), labels=labels, truth=None, ids=[str(i) for i in range(COUNT)])


class PerSample(Dataset[torch.Tensor]):
    """The usual pipeline: one PIL image per index, transformed separately."""

    def __init__(self, images: torch.Tensor, transform: v2.Transform) -> None:
        self.inputs = images.permute(0, 2, 3, 1).numpy()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels: torch.Tensor = self.transform(Image.fromarray(self.inputs[index]))
        return pixels


_TO_NORMAL = (v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
THEIRS = {
    "crop-flip": v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *_TO_NORMAL]),
    "self-supervised": v2.Compose(
        [
            v2.RandomResizedCrop(32, scale=(0.2, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            *_TO_NORMAL,
        ]
    ),
}


def _rate(batches: Callable[[], Iterable[object]], count: int) -> float:
    """Images per second over one pass, after warm-up."""
    iterator = iter(batches())
    next(iterator)
    began = time.perf_counter()
    passed = sum(1 for _ in iterator)
    return passed * count / (time.perf_counter() - began)


def _ratio(ours: Callable[[], float], theirs: Callable[[], float], rounds: int = 3) -> float:
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def _pipeline(recipe: str, samples: Samples) -> float:
    assert isinstance(samples.inputs, TensorImages)
    loader = SampleLoader(samples, batch_size=BATCH, seed=0, device=CPU, augment=augmentation_by_name(recipe, 32))
    network = Normalised(backbone("mlp", InputSpec("images", (3, 32, 32))), torch.tensor(MEAN), torch.tensor(STD))
    theirs = DataLoader(
        PerSample(samples.inputs.values_NCHW, THEIRS[recipe]), batch_size=BATCH, shuffle=True, num_workers=2
    )

    def ours() -> Iterable[torch.Tensor]:
        for batch in loader.epoch(0):
            images = batch.input.contiguous(memory_format=network.layout)
            # as the first layer of a model does
            yield torch.addcmul(-network.mean_C11 / network.std_C11, images, 1 / network.std_C11)

    return _ratio(lambda: _rate(ours, BATCH), lambda: _rate(lambda: theirs, BATCH))


def _epoch(samples: Samples) -> float:
    samples = samples.take(torch.arange(2560))
    objective = ERM()
    network = backbone("resnet-small", InputSpec("images", (3, 32, 32)))
    model = objective.build(Normalised(network, torch.tensor(MEAN), torch.tensor(STD)), 10)
    loader = SampleLoader(samples, batch_size=BATCH, seed=0, device=CPU, augment=augmentation_by_name("crop-flip", 32))
    training = Training(objective, model, None, loader, FitSettings(), num_classes=10, device=CPU)
    optimizer = make_optimizer(OptimizerSettings(), list(model.parameters()), CPU)
    fixed = next(iter(loader.epoch(0)))

    def bare() -> float:
        began = time.perf_counter()
        for _ in range(10):
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(fixed.input), fixed.label).backward()
            optimizer.step()
        return 1 / (time.perf_counter() - began)

    def whole() -> float:
        began = time.perf_counter()
        for batch in loader.epoch(0):
            training.take_step(batch)
        return 1 / (time.perf_counter() - began)

    bare(), whole()
    return _ratio(whole, bare, rounds=7)


def _streaming() -> float:
    with tempfile.TemporaryDirectory() as name:
        generator = np.random.default_rng(0)
        smooth = generator.integers(0, 256, (50, 8, 8, 3), np.uint8)
        for position in range(5000):
            path = Path(name) / str(position % 2) / f"{position}.jpg"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(smooth[position % 50]).resize((256, 256), Image.Resampling.BICUBIC).save(path, quality=90)
        samples = folder_data(Path(name)).train
        loader = SampleLoader(samples, batch_size=BATCH, seed=0, device=CPU, workers=2)
        theirs = DataLoader(
            ImageFolder(name, v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])),
            batch_size=BATCH, shuffle=True, num_workers=2,
        )  # fmt: skip
        return _ratio(lambda: _rate(lambda: loader.epoch(0), BATCH), lambda: _rate(lambda: theirs, BATCH))


def run() -> dict[str, float]:
    samples = _samples()
    return {
        "pipeline, crop + flip + normalise: ours / torchvision": _pipeline("crop-flip", samples),
        "pipeline, self-supervised recipe: ours / torchvision": _pipeline("self-supervised", samples),
        "epoch of training / bare loop on a fixed batch": _epoch(samples),
        "streaming 5,000 JPEGs: ours / ImageFolder": _streaming(),
    }
