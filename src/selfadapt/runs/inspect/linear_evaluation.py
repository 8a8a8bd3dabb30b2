"""Linear evaluation of a run without labels: features taken once, then a linear classifier and nearest neighbours.

If asked for, another linear classifier learns from images that are augmented anew in each epoch. It is kept after each,
so one that was stopped goes on, and one that is done is not trained again.
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.augment import named_augment, smallest_area
from selfadapt.data.images.decoded_cache import keep_decoded
from selfadapt.data.images.storage import ImageFiles
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import SampleLoader
from selfadapt.data.sources.catalog import open_data
from selfadapt.evaluation.classification import accuracy, outputs
from selfadapt.evaluation.linear_probe import (
    Features,
    LinearClassifier,
    ProbeSettings,
    linear_probe,
    nearest_neighbours,
)
from selfadapt.models.heads import Backbone
from selfadapt.report.page import write_run_page
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.run_settings import RunSettings, normal_form
from selfadapt.runs.export.network_files import write_tensors
from selfadapt.runs.lifecycle.environment import choose_device
from selfadapt.runs.lifecycle.prepare_data import seeing_the_middle
from selfadapt.runs.lifecycle.threads import take_useful_threads
from selfadapt.runs.train.unlabelled import load_backbone


def probe(
    folder: RunFolder,
    source: str | None,
    settings: ProbeSettings,
    *,
    device: str = "auto",
    image_size: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Evaluate the features of a run on labelled data, its own or others, beside those of the untrained network."""
    for name, value in (("--epochs", settings.epochs), ("--limit", limit), ("--test-limit", test_limit)):
        if value is not None and value < 1:
            raise UserError(f"{name} {value} must be at least 1")
    content = folder.read_run()
    own, shape = choose_device(device), tuple(content["data"]["shape"])
    _check(settings, shape)
    take_useful_threads(RunSettings.from_json(content["settings"], "pretraining"), shape, own)
    trained, untrained = (load_backbone(folder, own, trained=trained) for trained in (True, False))
    data = _opened(content, source, settings, image_size, on_progress).limited(limit, test_limit, settings.seed)
    test = _test_part(data, shape)
    bench = _Bench(folder.path / "features", data, test, settings, own, on_progress)
    found = {
        "test_accuracy": bench.accuracy(trained, linear_probe),
        "knn_accuracy": bench.accuracy(trained, nearest_neighbours),
        "random_network_accuracy": bench.accuracy(untrained, linear_probe),
    }
    if settings.augment != "none":
        from_pictures = content["settings"]["data"].get("crops") in ("original", "picture")
        found["augmented_accuracy"] = bench.augmented_accuracy(trained, from_pictures=from_pictures)
    result = {**found, "data": data.name, "settings": asdict(settings)}
    folder.write_probe({**(folder.read_if_there(folder.probe_file) or {}), data.name: result})
    write_run_page(folder)
    return result


def _check(settings: ProbeSettings, shape: tuple[int, ...]) -> None:
    if settings.schedule not in ("step", "cosine"):
        raise UserError(f"--schedule {settings.schedule!r} is not known; choose step or cosine")
    if not 0 < settings.lr < float("inf"):
        raise UserError(f"--lr {settings.lr} must be a number above 0")
    named_augment(settings.augment, shape[-1])
    if settings.augment != "none" and InputSpec.of(shape).kind == "vectors":
        raise UserError(f"--augment {settings.augment} is for images, and the run learned from vectors; leave it out")


def _opened(
    content: dict[str, Any],
    source: str | None,
    settings: ProbeSettings,
    image_size: int | None,
    on_progress: ProgressCallback,
) -> Data:
    """The labelled data as the run saw its own, decoded if they fit and no random crops are cut from the pictures."""
    run_data = content["settings"]["data"]
    source = normal_form({"data": source or run_data["source"]})["data"]
    white = content["data"].get("white") if source == run_data["source"] else None
    size = image_size or run_data["image_size"]
    data = open_data(source, resize=size, white=white)
    if size is not None:
        data = data.with_images(lambda images: images.brought_to(size))
    from_pictures = run_data.get("crops") in ("original", "picture")
    if from_pictures:
        data = seeing_the_middle(data)
    cuts = from_pictures and smallest_area(settings.augment) is not None
    return keep_decoded(data, stream=run_data["stream"], stream_train=cuts, on_progress=on_progress)


def _differ_in_size(data: Data, shape: tuple[int, ...]) -> bool:
    """Whether both are images of as many channels, the run's square ones."""
    own = data.train.inputs
    images = own.kind == InputSpec.of(shape).kind == "images"
    return images and own.shape[0] == shape[0] and shape[1] == shape[2]


def _test_part(data: Data, shape: tuple[int, ...]) -> Samples:
    """The part to evaluate on, of data that suit a run of this shape."""
    if data.train.inputs.shape != shape:
        raise UserError(
            f"{data.name} has inputs of {data.train.inputs.shape} (images: channels, height, width), the run of "
            f"{shape}; linear evaluation needs the same"
            + (f": --image-size {shape[-1]} brings images to it" if _differ_in_size(data, shape) else "")
        )
    if data.num_classes < 2 or len(data.train.labels.unique()) < 2:
        raise UserError(f"{data.name} has one class only; give labelled data with --data")
    test = data.test or data.validation
    if test is None:
        raise UserError(f"{data.name} has no test part to evaluate on")
    return test


@dataclass(frozen=True)
class _Bench:
    """The data that networks are evaluated on, and where what was taken of them is kept."""

    cache: Path
    data: Data
    test: Samples
    settings: ProbeSettings
    device: torch.device
    on_progress: ProgressCallback

    def accuracy(
        self, network: Backbone, method: Callable[[Features, ProbeSettings, ProgressCallback], Tensor]
    ) -> float | None:
        """On features that were taken once."""
        train_NF, fine_N = self._features(network, self.data.train)
        test_nF, fine_n = self._features(network, self.test)
        labels_N = self.data.train.labels[fine_N].to(self.device)
        features = Features(
            train_NF[fine_N].to(self.device), labels_N, test_nF[fine_n].to(self.device), self.data.num_classes
        )
        return accuracy(method(features, self.settings, self.on_progress).cpu(), self.test.labels[fine_n])

    def augmented_accuracy(self, network: Backbone, *, from_pictures: bool) -> float | None:
        """Of a linear classifier that learned from augmented images, cut from the pictures if there are files."""
        train, settings = self.data.train, self.settings
        cuts = from_pictures and isinstance(train.inputs, ImageFiles)
        area = smallest_area(settings.augment) if cuts else None
        loader = SampleLoader(
            train,
            batch_size=settings.batch_size,
            seed=settings.seed,
            device=self.device,
            augment=named_augment(settings.augment, train.inputs.shape[1], keep_size=True, cropped=area is not None),
            crop_area=area,
        )
        classifier = LinearClassifier(network.num_features, self.data.num_classes, self.device)
        decided_by = repr((asdict(settings), area, train.labels.tolist()))
        path = self.cache / f"classifier-{_key(network, train, decided_by)}.safetensors"
        if path.exists():
            classifier.load(load_file(path))
        classifier.learn_all(
            network,
            loader,
            settings,
            after_epoch=lambda: write_tensors(path, classifier.state()),
            on_progress=self.on_progress,
        )
        test_nF, fine_n = self._features(network, self.test)
        return accuracy(classifier.classes(test_nF[fine_n].to(self.device)).cpu(), self.test.labels[fine_n])

    def _features(self, network: Backbone, samples: Samples) -> tuple[Tensor, Tensor]:
        """The features of each image, and which could be read; from the cache if they were taken before."""
        path = self.cache / f"{_key(network, samples)}.safetensors"
        if path.exists():
            kept = load_file(path)["features"]
        else:
            kept = outputs(network, samples.inputs, self.device, on_progress=self.on_progress)
            if not kept.isnan().any():  # a file that cannot be read today may be there tomorrow
                write_tensors(path, {"features": kept})
        return kept, kept.isfinite().all(1)


def _key(network: Backbone, samples: Samples, words: str = "") -> str:
    """A name for what this network makes of these inputs."""
    digest = hashlib.sha256(samples.inputs.signature())
    for tensor in network.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    digest.update(words.encode())
    return digest.hexdigest()[:24]
