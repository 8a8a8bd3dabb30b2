"""Linear evaluation of pre-training: a linear classifier and nearest neighbours on frozen features.

Optionally, another linear classifier is trained on images that are augmented in each epoch. It is saved after each
epoch, so an interrupted training resumes, and a finished one is not repeated.
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.core.device import choose_device
from selfadapt.core.errors import UserError, check_least
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.augment import augmentation_by_name, smallest_area
from selfadapt.data.images.decoded_cache import cache_decoded
from selfadapt.data.images.storage import ImageFiles
from selfadapt.data.loader import SampleLoader
from selfadapt.data.sources.catalog import open_data
from selfadapt.evaluation.classification import accuracy, outputs
from selfadapt.evaluation.linear_probe import (
    Features,
    LinearClassifier,
    linear_probe,
    nearest_neighbours,
)
from selfadapt.evaluation.probe_settings import ProbeSettings
from selfadapt.models.backbone import Backbone
from selfadapt.report.page import write_run_page
from selfadapt.run_folder.contents import Probe
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.request import normal_form
from selfadapt.runs.inspect.image_view import network_digest
from selfadapt.runs.lifecycle.prepare_data import with_center_crops
from selfadapt.runs.lifecycle.saved_network import newest_checkpoint, restoring
from selfadapt.runs.lifecycle.threads import set_useful_threads
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
    """Evaluate the features of a run and of the untrained network on labelled data, and write probe.json.

    Args:
        folder: A run of `selfadapt pretrain`.
        source: Labelled data; None for the data of the run.
        settings: Of the classifiers.
        device: Such as "auto", "cpu" or "cuda".
        image_size: Resize images to this size; None for the size of the run.
        limit: Number of training samples; None for all.
        test_limit: Number of test samples; None for all.
        on_progress: Called with images or steps done and in total.

    Returns:
        The entry of probe.json.
    """
    check_least({"--epochs": settings.epochs, "--limit": limit, "--test-limit": test_limit})
    plan, own, shape = Plan.of(folder, "pretraining"), choose_device(device), tuple(folder.read_run()["data"]["shape"])
    _check(settings, shape)
    with restoring(folder.checkpoints, newest_checkpoint(folder)):
        set_useful_threads(plan, shape, own)
    trained, untrained = (load_backbone(folder, own, trained=trained) for trained in (True, False))
    data = _opened(folder, plan, source, settings, image_size, on_progress).limited(limit, test_limit, settings.seed)
    test = _test_split(data, shape)
    bench = _Bench(folder, data, test, settings, own, on_progress)
    found = {
        "test_accuracy": bench.accuracy(trained, linear_probe),
        "knn_accuracy": bench.accuracy(trained, nearest_neighbours),
        "random_network_accuracy": bench.accuracy(untrained, linear_probe),
    }
    if settings.augment != "none":
        found["augmented_accuracy"] = bench.augmented_accuracy(trained, from_files=plan.data.crops == "original")
    result = {**found, "data": data.name, "settings": asdict(settings)}
    folder.add_json(folder.probe_file, Probe, data.name, result)
    if distributed.rank() == 0:
        write_run_page(folder)
    return result


def _check(settings: ProbeSettings, shape: tuple[int, ...]) -> None:
    if settings.schedule not in ("step", "cosine"):
        raise UserError(f"--schedule {settings.schedule!r} is not known; choose step or cosine")
    if not 0 < settings.lr < float("inf"):
        raise UserError(f"--lr {settings.lr} must be a number above 0")
    augmentation_by_name(settings.augment, shape[-1])
    if settings.augment != "none" and len(shape) == 1:
        raise UserError(f"--augment {settings.augment} is for images, but the run was trained on vectors; leave it out")


def _opened(
    folder: RunFolder,
    plan: Plan,
    source: str | None,
    settings: ProbeSettings,
    image_size: int | None,
    on_progress: ProgressCallback,
) -> Data:
    """The labelled data, prepared like those of the run; decoded unless random crops are cut from the image files."""
    own = plan.data
    source = normal_form({"data": source or own.source})["data"]
    white = folder.read_run()["data"].get("white") if source == own.source else None
    size = image_size or own.image_size
    data = open_data(source, resize=size, white=white)
    if size is not None:
        data = data.with_images(lambda images: images.resized_to(size))
    if own.crops == "original":
        data = with_center_crops(data)
    cuts = own.crops == "original" and smallest_area(settings.augment) is not None
    return cache_decoded(data, stream=own.stream, stream_train=cuts, on_progress=on_progress)


def _differ_in_size(data: Data, shape: tuple[int, ...]) -> bool:
    """Whether both are images with the same number of channels, and those of the run are square."""
    own = data.train.inputs.shape
    return len(own) == len(shape) == 3 and own[0] == shape[0] and shape[1] == shape[2]


def _test_split(data: Data, shape: tuple[int, ...]) -> Samples:
    """The split to evaluate on, after checking that the data fit a run with this input shape."""
    if data.train.inputs.shape != shape:
        raise UserError(
            f"{data.name} has inputs of {data.train.inputs.shape} (images: channels, height, width), but the run "
            f"takes {shape}" + (f"; resize them with --image-size {shape[-1]}" if _differ_in_size(data, shape) else "")
        )
    if data.num_classes < 2 or len(data.train.labels.unique()) < 2:
        raise UserError(f"{data.name} has only one class; give labelled data with --data")
    test = data.test or data.validation
    if test is None:
        raise UserError(f"{data.name} lacks a test split to evaluate on")
    return test


@dataclass(frozen=True)
class _Bench:
    """The data that networks are evaluated on, and the cache of their features."""

    folder: RunFolder
    data: Data
    test: Samples
    settings: ProbeSettings
    device: torch.device
    on_progress: ProgressCallback

    def accuracy(
        self, network: Backbone, method: Callable[[Features, ProbeSettings, ProgressCallback], Tensor]
    ) -> float | None:
        """Accuracy on frozen features."""
        train_NF, read_N = self._features(network, self.data.train)
        test_nF, read_n = self._features(network, self.test)
        labels_N = self.data.train.labels[read_N].to(self.device)
        features = Features(
            train_NF[read_N].to(self.device), labels_N, test_nF[read_n].to(self.device), self.data.num_classes
        )
        return accuracy(method(features, self.settings, self.on_progress).cpu(), self.test.labels[read_n])

    def augmented_accuracy(self, network: Backbone, *, from_files: bool) -> float | None:
        """Accuracy of a linear classifier trained on augmented images, cut from the image files if there are any."""
        train, settings = self.data.train, self.settings
        cuts = from_files and isinstance(train.inputs, ImageFiles)
        area = smallest_area(settings.augment) if cuts else None
        loader = SampleLoader(
            train,
            batch_size=settings.batch_size,
            seed=settings.seed,
            device=self.device,
            augment=augmentation_by_name(
                settings.augment, train.inputs.shape[1], keep_size=True, cropped=area is not None
            ),
            crop_area=area,
        )
        classifier = LinearClassifier(network.num_features, self.data.num_classes, self.device)
        determined_by = repr((asdict(settings), area, train.labels.tolist()))
        path = self._file(f"classifier-{_key(network, train, determined_by)}")
        if _seen_by_all(path):
            with self.folder.tensors_of(path) as saved:
                classifier.load(saved)
        classifier.learn_all(
            network,
            loader,
            settings,
            after_epoch=lambda: self.folder.write_tensors(path, classifier.state()),
            on_progress=self.on_progress,
        )
        test_nF, read_n = self._features(network, self.test)
        return accuracy(classifier.classes(test_nF[read_n].to(self.device)).cpu(), self.test.labels[read_n])

    def _features(self, network: Backbone, samples: Samples) -> tuple[Tensor, Tensor]:
        """Features of each image, from the cache if possible, and a mask of the images that could be read."""
        path = self._file(_key(network, samples))
        if _seen_by_all(path):
            with self.folder.tensors_of(path) as saved:
                features_NF = saved["features"]
                if features_NF.shape != (len(samples), network.num_features):
                    raise ValueError(f"it holds features of shape {tuple(features_NF.shape)}")
        else:
            features_NF = outputs(network, samples.inputs, self.device, on_progress=self.on_progress)
            if not features_NF.isnan().any():  # a file that cannot be read now may be readable later
                self.folder.write_tensors(path, {"features": features_NF})
        return features_NF, features_NF.isfinite().all(1)

    def _file(self, name: str) -> Path:
        return self.folder.path / "features" / f"{name}.safetensors"


def _seen_by_all(path: Path) -> bool:
    """Whether all processes see a file."""
    return all(distributed.all_gather_objects(path.exists()))


def _key(network: Backbone, samples: Samples, salt: str = "") -> str:
    """Cache key of the outputs of this network for these inputs."""
    return hashlib.sha256(samples.inputs.signature() + f"{network_digest(network)}{salt}".encode()).hexdigest()[:24]
