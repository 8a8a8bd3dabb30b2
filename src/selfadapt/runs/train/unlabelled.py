"""What a run without labels measures: the spread of its features and the accuracy of an online probe."""

from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn

from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.inputs import InputSpec
from selfadapt.engine.fit import Training
from selfadapt.evaluation.classification import accuracy, outputs, predicted_classes
from selfadapt.evaluation.linear_probe import collapsed, effective_rank, spread
from selfadapt.models.backbone import Backbone, Normalised, unwrapped
from selfadapt.models.pretrained.timm_models import timm_name
from selfadapt.objectives.pretraining.encoders import Encoders
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.metrics_file import measured_seconds
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.lifecycle.lifecycle import Run, all_metrics, list_unreadable
from selfadapt.runs.lifecycle.network import bare_backbone
from selfadapt.runs.lifecycle.opened_run import OpenedRun
from selfadapt.runs.lifecycle.saved_network import newest_checkpoint, restoring
from selfadapt.runs.train.bench import Measures

_MEASURED = 2_000  # images whose features are measured after each epoch


def _labelled(data: Data) -> bool:
    return data.num_classes > 1


def _after_epoch(run: Run, training: Training) -> dict[str, Any]:
    encoders = cast(Encoders, unwrapped(training.model))
    count = len(run.data.train)
    measured = run.data.train.inputs.take(torch.linspace(0, count - 1, min(_MEASURED, count)).round().long())

    def both(images_BCHW: Tensor) -> Tensor:
        features_BF = encoders.backbone(images_BCHW)
        return torch.cat([features_BF, encoders.projector(features_BF)], 1)

    precision = run.plan.fit.precision
    found_NO = outputs(encoders, measured, training.device, forward=both, precision=precision)
    found_NO = found_NO[found_NO.isfinite().all(1)]
    features_NF, projected_ND = found_NO.tensor_split([encoders.backbone.num_features], 1)
    feature_std, output_std, rank = spread(features_NF), spread(projected_ND), effective_rank(features_NF)
    metrics: dict[str, Any] = {
        "feature_std": feature_std,
        "output_std": output_std,
        "effective_rank": rank,
        "collapsed": collapsed(feature_std, output_std, rank, min(len(features_NF) - 1, features_NF.shape[1])),
    }
    if _labelled(run.data):
        metrics["online_probe_train"] = accuracy(training.accumulator.predicted_N.cpu().long(), run.data.train.labels)
        held_out = run.data.validation or run.data.test
        if held_out is not None:
            few = held_out.share(_MEASURED, seeded(run.plan.seed, "watched"))
            metrics["online_probe_held_out"] = _probe_accuracy(training.model, few, training.device)
    return metrics


def _probe_accuracy(model: nn.Module, samples: Samples, device: torch.device) -> float | None:
    """The accuracy of the online probe, where there is one."""
    encoders = cast(Encoders, unwrapped(model))
    probe = encoders.probe
    if probe is None:
        return None
    found_nK = outputs(encoders, samples.inputs, device, forward=lambda x: probe(encoders.backbone(x)))
    return accuracy(predicted_classes(found_nK), samples.labels)


def _result(run: OpenedRun) -> dict[str, Any]:
    metrics, held_out = all_metrics(run.folder, run.plan.epochs), run.data.test or run.data.validation
    last, seconds = metrics[-1], measured_seconds(metrics)
    return {
        "run": str(run.folder.path),
        "method": run.plan.method_name,
        "views": run.plan.views,
        "epochs": run.plan.epochs,
        "online_probe_accuracy": _probe_accuracy(run.model, held_out, run.device)
        if held_out and _labelled(run.data)
        else None,
        **{name: last[name] for name in ("feature_std", "output_std", "effective_rank", "collapsed")},
        "collapsed_in_epochs": [record["epoch"] for record in metrics if record["collapsed"]],
        "seconds": round(sum(seconds), 3),
        "seconds_per_epoch": round(median(seconds), 3) if seconds else None,
        "unreadable": list_unreadable(run.folder, run.data),
    }


MEASURES = Measures(after_epoch=_after_epoch, result=_result)


def load_backbone(folder: RunFolder, device: torch.device, *, trained: bool = True) -> Backbone:
    """The backbone of a run without labels, as in its newest checkpoint, or as it was before training."""
    content = folder.read_run()
    plan = Plan.of(folder, "pretraining")
    saved = newest_checkpoint(folder, device)
    own = {name.removeprefix("backbone."): value for name, value in saved.model.items() if name.startswith("backbone.")}
    torch.manual_seed(plan.seed)
    spec = InputSpec.of(tuple(content["data"]["shape"]))
    with restoring(folder.checkpoints, saved):
        network = bare_backbone(plan.model, spec)
        if timm_name(plan.model.name) is None:  # timm networks have their own scale
            mean_C, std_C = own["mean_C11"].flatten(), own["std_C11"].flatten()
            network = Normalised(network, mean_C, std_C, spatial=spec.kind == "images")
        if trained:
            network.load_state_dict(own)
    return network.to(device)
