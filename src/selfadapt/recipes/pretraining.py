"""Learning without labels, from data to the finished run folder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from selfadapt.data.fetch import Watch, unwatched
from selfadapt.data.images import Shape
from selfadapt.data.samples import Data, Samples, channel_statistics
from selfadapt.data.seeds import seeded
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training
from selfadapt.engine.optim import learning_rate
from selfadapt.errors import UserError
from selfadapt.evaluation.accuracy import accuracy, outputs, predicted_classes
from selfadapt.evaluation.probe import collapsed, effective_rank, spread
from selfadapt.models.heads import Backbone, Normalised, unwrapped
from selfadapt.models.named import backbone
from selfadapt.objectives.pretraining.encoders import Encoders
from selfadapt.recipes import lifecycle
from selfadapt.recipes.lifecycle import StepWatch
from selfadapt.recipes.prepare import open_for, recall
from selfadapt.recipes.pretraining_settings import METHODS, PretrainingSettings
from selfadapt.recipes.settings import choose_device
from selfadapt.recipes.surroundings import repeatable, take_surroundings
from selfadapt.recipes.threads import take_useful_threads
from selfadapt.report.results import RunFolder
from selfadapt.targets.store import Storage

_WATCHED = 2_000  # images whose features are looked at after each epoch


@dataclass(frozen=True)
class PretrainingRun:
    folder: RunFolder
    settings: PretrainingSettings
    data: Data
    training: Training


def _labelled(data: Data) -> bool:
    return data.num_classes > 1


def _prepared(data: Data) -> Data:
    """The data as training sees them: images that have no label instead of the labelled ones, if the data bring any."""
    if data.unlabelled is None:
        return data
    count = len(data.unlabelled)
    ids = [f"{data.name}/unlabelled/{i}" for i in range(count)]
    nothing = torch.zeros(count, dtype=torch.int64)
    train = Samples(images=data.unlabelled, labels=nothing, truth=None, ids=ids)
    return replace(data, train=train, validation=None, test=None, classes=("unlabelled",))


def start(settings: PretrainingSettings, folder: RunFolder, watch: Watch = unwatched) -> PretrainingRun:
    with folder.locked():
        folder.check_free()
        data = _prepared(open_for(settings, watch, unlabelled=True)).limited(
            settings.limit, settings.test_limit, settings.seed
        )
        settings = settings.resolved(data)
        take_useful_threads(settings, data.train.images.shape, choose_device(settings.device))
        training = _training(settings, data, folder)
        description = {
            "settings": settings.to_json(),
            "kind": "pretraining",
            "method": METHODS[settings.method][0],
            "seed": settings.seed,
            "start_epoch": None,
            "noise": None,
            "device": settings.device,
        }
        lifecycle.begin(folder, data, training, description)
    return PretrainingRun(folder, settings, data, training)


def reopen(folder: RunFolder, given: Mapping[str, Any], watch: Watch = unwatched) -> PretrainingRun:
    """The run as its newest checkpoint has it; settings that are repeated must be its own."""
    settings = lifecycle.settings_of(folder, PretrainingSettings, given)
    data = recall(_prepared(open_for(settings, watch, unlabelled=True, begun=folder)), settings, folder)
    take_surroundings(folder.read_run(), to_train=True)
    training = _training(settings, data, folder)
    lifecycle.restore(training, folder)
    return PretrainingRun(folder, settings, data, training)


def _training(settings: PretrainingSettings, data: Data, folder: RunFolder) -> Training:
    device = choose_device(settings.device)
    repeatable(device)
    torch.manual_seed(settings.seed)
    objective = settings.objective()
    network = build_backbone(settings, data.train.images.shape, channel_statistics(data.train.images))
    model = objective.build(network, data.num_classes)
    storage = Storage.parse(settings.targets, device=device, file=folder.targets_file)
    return lifecycle.assemble(settings, data, objective, model, storage, views=settings.views)


def build_backbone(settings: PretrainingSettings, shape: Shape, statistics: tuple[Tensor, Tensor]) -> Backbone:
    channels, height, width = shape
    network = backbone(settings.model, channels=channels, height=height, width_pixels=width, width=settings.width)
    return Normalised(network, *statistics)


def pretrain(run: PretrainingRun, watch: StepWatch = lambda training: None) -> dict[str, Any]:
    """Train to the end, write the run folder, and return the result."""
    with run.folder.locked():
        lifecycle.carry_out(run.training, run.folder, run.data, lambda: _measure(run), watch)
        result = _result(run)
        lifecycle.conclude(run.folder, result)
    return result


def _measure(run: PretrainingRun) -> dict[str, Any]:
    training = run.training
    encoders = cast(Encoders, unwrapped(training.model))
    epoch = training.epoch + 1
    count = len(run.data.train)
    watched = run.data.train.images.take(torch.linspace(0, count - 1, min(_WATCHED, count)).round().long())

    def both(images_BCHW: Tensor) -> Tensor:
        features_BF = encoders.backbone(images_BCHW)
        return torch.cat([features_BF, encoders.projector(features_BF)], 1)

    said = outputs(encoders, watched, training.device, forward=both)
    said = said[said.isfinite().all(1)]
    features_NF, projected_ND = said.tensor_split([encoders.backbone.num_features], 1)
    apart, outputs_apart, rank = spread(features_NF), spread(projected_ND), effective_rank(features_NF)
    figures: dict[str, Any] = {
        "epoch": epoch,
        "train_loss": training.tally.loss,
        "lr": learning_rate(training.settings.optimizer, epoch, training.settings.epochs),
        **training.tally.figures,
        "feature_std": apart,
        "output_std": outputs_apart,
        "effective_rank": rank,
        "collapsed": collapsed(apart, outputs_apart, rank, min(len(features_NF) - 1, features_NF.shape[1])),
    }
    if _labelled(run.data):
        figures["online_probe_train"] = accuracy(training.tally.predicted_N.cpu().long(), run.data.train.labels)
        held_out = run.data.validation or run.data.test
        if held_out is not None:
            few = held_out.share(_WATCHED, seeded(run.settings.seed, "watched"))
            figures["online_probe_held_out"] = _probed(run, few)
    return figures


def _probed(run: PretrainingRun, samples: Samples) -> float | None:
    """How often the linear layer that learned beside the network is right."""
    encoders = cast(Encoders, unwrapped(run.training.model))
    probe = encoders.probe
    assert probe is not None
    said_nK = outputs(encoders, samples.images, run.training.device, forward=lambda x: probe(encoders.backbone(x)))
    return accuracy(predicted_classes(said_nK), samples.labels)


def _result(run: PretrainingRun) -> dict[str, Any]:
    metrics, held_out = lifecycle.whole_metrics(run.folder, run.settings.epochs), run.data.test or run.data.validation
    last = metrics[-1]
    return {
        "run": str(run.folder.path),
        "method": run.settings.method,
        "views": run.settings.views,
        "epochs": run.settings.epochs,
        "online_probe_accuracy": _probed(run, held_out) if held_out and _labelled(run.data) else None,
        "feature_std": last["feature_std"],
        "output_std": last["output_std"],
        "effective_rank": last["effective_rank"],
        "collapsed": last["collapsed"],
        "collapsed_in_epochs": [record["epoch"] for record in metrics if record["collapsed"]],
        "seconds_per_epoch": round(median(record["seconds"] for record in metrics), 3),
        "unreadable": lifecycle.list_unreadable(run.folder, run.data),
    }


def load_backbone(folder: RunFolder, device: torch.device, *, trained: bool = True) -> Backbone:
    """The backbone of a run without labels, as its newest checkpoint has it, or as it was before training."""
    content = folder.read_run()
    settings = PretrainingSettings.from_json(content["settings"])
    channels, height, width = content["data"]["shape"]
    saved = checkpoint.load_newest(folder.checkpoints, device)
    if saved is None:
        raise UserError(f"{folder.path} holds no trained network; go on with: selfadapt pretrain --resume")
    own = {name.removeprefix("backbone."): value for name, value in saved.model.items() if name.startswith("backbone.")}
    torch.manual_seed(settings.seed)
    network = build_backbone(settings, (channels, height, width), (own["mean_C11"].flatten(), own["std_C11"].flatten()))
    if trained:
        network.load_state_dict(own)
    return network.to(device)
