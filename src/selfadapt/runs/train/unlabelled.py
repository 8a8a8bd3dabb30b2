"""Learning without labels, from the first step to the finished run folder."""

from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.inputs import InputSpec
from selfadapt.engine import checkpoint
from selfadapt.engine.optim import learning_rate
from selfadapt.evaluation.classification import accuracy, outputs, predicted_classes
from selfadapt.evaluation.linear_probe import collapsed, effective_rank, spread
from selfadapt.models.heads import Backbone, Normalised, unwrapped
from selfadapt.models.pretrained.timm_models import timm_name
from selfadapt.objectives.pretraining.encoders import Encoders
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.run_settings import RunSettings
from selfadapt.runs.lifecycle.lifecycle import Run, TrainingCallback, conclude, list_unreadable, whole_metrics
from selfadapt.runs.lifecycle.network import bare_backbone
from selfadapt.runs.train.bench import RunBench

_MEASURED = 2_000  # images whose features are looked at after each epoch


def _labelled(data: Data) -> bool:
    return data.num_classes > 1


def pretrain(run: Run, on_step: TrainingCallback = lambda training: None) -> dict[str, Any]:
    """Train to the end, write the run folder, and return the result."""
    with run.folder.locked():
        run.settings.method.train(RunBench(run, _measure, on_step))
        result = _result(run)
        conclude(run.folder, result)
    return result


def _measure(run: Run) -> dict[str, Any]:
    training = run.training
    encoders = cast(Encoders, unwrapped(training.model))
    epoch = training.epoch + 1
    count = len(run.data.train)
    measured = run.data.train.inputs.take(torch.linspace(0, count - 1, min(_MEASURED, count)).round().long())

    def both(images_BCHW: Tensor) -> Tensor:
        features_BF = encoders.backbone(images_BCHW)
        return torch.cat([features_BF, encoders.projector(features_BF)], 1)

    said = outputs(encoders, measured, training.device, forward=both)
    said = said[said.isfinite().all(1)]
    features_NF, projected_ND = said.tensor_split([encoders.backbone.num_features], 1)
    feature_std, output_std, rank = spread(features_NF), spread(projected_ND), effective_rank(features_NF)
    metrics: dict[str, Any] = {
        "epoch": epoch,
        "train_loss": training.accumulator.loss,
        "lr": learning_rate(training.settings.optimizer, epoch, training.settings.epochs),
        **training.accumulator.metrics,
        "feature_std": feature_std,
        "output_std": output_std,
        "effective_rank": rank,
        "collapsed": collapsed(feature_std, output_std, rank, min(len(features_NF) - 1, features_NF.shape[1])),
    }
    if _labelled(run.data):
        metrics["online_probe_train"] = accuracy(training.accumulator.predicted_N.cpu().long(), run.data.train.labels)
        held_out = run.data.validation or run.data.test
        if held_out is not None:
            few = held_out.share(_MEASURED, seeded(run.settings.seed, "watched"))
            metrics["online_probe_held_out"] = _probed(run, few)
    return metrics


def _probed(run: Run, samples: Samples) -> float | None:
    """How often the linear layer that learned beside the network is right."""
    encoders = cast(Encoders, unwrapped(run.training.model))
    probe = encoders.probe
    assert probe is not None
    said_nK = outputs(encoders, samples.inputs, run.training.device, forward=lambda x: probe(encoders.backbone(x)))
    return accuracy(predicted_classes(said_nK), samples.labels)


def _result(run: Run) -> dict[str, Any]:
    metrics, held_out = whole_metrics(run.folder, run.settings.epochs), run.data.test or run.data.validation
    last = metrics[-1]
    return {
        "run": str(run.folder.path),
        "method": run.settings.method_name,
        "views": run.settings.views,
        "epochs": run.settings.epochs,
        "online_probe_accuracy": _probed(run, held_out) if held_out and _labelled(run.data) else None,
        "feature_std": last["feature_std"],
        "output_std": last["output_std"],
        "effective_rank": last["effective_rank"],
        "collapsed": last["collapsed"],
        "collapsed_in_epochs": [record["epoch"] for record in metrics if record["collapsed"]],
        "seconds": round(sum(record["seconds"] for record in metrics), 3),
        "seconds_per_epoch": round(median(record["seconds"] for record in metrics), 3),
        "unreadable": list_unreadable(run.folder, run.data),
    }


def load_backbone(folder: RunFolder, device: torch.device, *, trained: bool = True) -> Backbone:
    """The backbone of a run without labels, as its newest checkpoint has it, or as it was before training."""
    content = folder.read_run()
    settings = RunSettings.from_json(content["settings"], "pretraining")
    saved = checkpoint.load_newest(folder.checkpoints, device)
    if saved is None:
        raise UserError(f"{folder.path} holds no trained network; go on with: selfadapt pretrain --resume")
    own = {name.removeprefix("backbone."): value for name, value in saved.model.items() if name.startswith("backbone.")}
    torch.manual_seed(settings.seed)
    shape = tuple(content["data"]["shape"])
    network = bare_backbone(settings, shape)
    if timm_name(settings.model.name or "") is None:  # whose networks bring their own scale
        mean_C, std_C = own["mean_C11"].flatten(), own["std_C11"].flatten()
        network = Normalised(network, mean_C, std_C, spatial=InputSpec.of(shape).kind == "images")
    if trained:
        network.load_state_dict(own)
    return network.to(device)
