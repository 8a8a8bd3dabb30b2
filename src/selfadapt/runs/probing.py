"""Linear evaluation of a run without labels: features taken once, then a linear classifier and nearest neighbours."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from selfadapt.data.decoded import keep_decoded
from selfadapt.data.samples import Samples
from selfadapt.data.sources import open_data
from selfadapt.errors import UserError
from selfadapt.evaluation.accuracy import accuracy, outputs
from selfadapt.evaluation.probe import Features, ProbeSettings, linear_probe, nearest_neighbours
from selfadapt.models.heads import Backbone
from selfadapt.progress import ProgressCallback, no_progress
from selfadapt.report.page import write_run_page
from selfadapt.report.results import RunFolder
from selfadapt.runs.environment import choose_device
from selfadapt.runs.export import write_tensors
from selfadapt.runs.prepare import seeing_the_middle
from selfadapt.runs.pretraining import load_backbone
from selfadapt.runs.settings import RunSettings, normal_form
from selfadapt.runs.threads import take_useful_threads


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
    if settings.schedule not in ("step", "cosine"):
        raise UserError(f"--schedule {settings.schedule!r} is not known; choose step or cosine")
    if not 0 < settings.lr < float("inf"):
        raise UserError(f"--lr {settings.lr} must be a number above 0")
    content = folder.read_run()
    own = choose_device(device)
    channels, height, width = content["data"]["shape"]
    take_useful_threads(RunSettings.from_json(content["settings"], "pretraining"), (channels, height, width), own)
    trained, untrained = (load_backbone(folder, own, trained=trained) for trained in (True, False))
    source = normal_form({"data": source or content["settings"]["data"]["source"]})["data"]
    run_data = content["settings"]["data"]
    resize = image_size or run_data["image_size"]
    white = content["data"].get("white") if source == run_data["source"] else None
    data = open_data(source, resize=resize, white=white)
    if run_data.get("crops") == "picture":
        data = seeing_the_middle(data)
    data = keep_decoded(data, stream=run_data["stream"], on_progress=on_progress)
    data = data.limited(limit, test_limit, settings.seed)
    if data.train.inputs.shape != (channels, height, width):
        raise UserError(
            f"{source} has images of {data.train.inputs.shape} (channels, height, width), the run of "
            f"{(channels, height, width)}; linear evaluation needs the same: bring image files to it with --image-size"
        )
    if data.num_classes < 2 or len(data.train.labels.unique()) < 2:
        raise UserError(f"{source} has one class only; give labelled data with --data")
    test = data.test or data.validation
    if test is None:
        raise UserError(f"{source} has no test part to evaluate on")
    cache = folder.path / "features"

    def classified(
        network: Backbone, method: Callable[[Features, ProbeSettings, ProgressCallback], Tensor]
    ) -> float | None:
        train_NF, fine_N = _features(cache, network, data.train, own, on_progress)
        test_nF, fine_n = _features(cache, network, test, own, on_progress)
        labels_N, labels_n = data.train.labels[fine_N].to(own), test.labels[fine_n]
        features = Features(train_NF[fine_N].to(own), labels_N, test_nF[fine_n].to(own), data.num_classes)
        return accuracy(method(features, settings, on_progress).cpu(), labels_n)

    found = {
        "test_accuracy": classified(trained, linear_probe),
        "knn_accuracy": classified(trained, nearest_neighbours),
        "random_network_accuracy": classified(untrained, linear_probe),
    }
    result = {**found, "data": data.name, "settings": asdict(settings)}
    folder.write_probe({**(folder.read_if_there(folder.probe_file) or {}), data.name: result})
    write_run_page(folder)
    return result


def _features(
    cache: Path, network: Backbone, samples: Samples, device: torch.device, on_progress: ProgressCallback
) -> tuple[Tensor, Tensor]:
    """The features of each image, and which could be read; from the cache if they were taken before."""
    digest = hashlib.sha256(samples.inputs.signature())
    for tensor in network.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    key = digest.hexdigest()[:24]
    path = cache / f"{key}.safetensors"
    if path.exists():
        kept = load_file(path)["features"]
    else:
        kept = outputs(network, samples.inputs, device, on_progress=on_progress)
        if not kept.isnan().any():  # a file that cannot be read today may be there tomorrow
            write_tensors(path, {"features": kept})
    return kept, kept.isfinite().all(1)
