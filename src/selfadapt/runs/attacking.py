"""A run under attack: how much of its test part it still gets right.

Outcomes are kept in the run folder batch by batch, by everything that decides them, so the same question asked again
goes on where it was stopped, or is answered at once.

Shapes: N test images.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from selfadapt import processes
from selfadapt.attacks.attack import Attack, evaluation_mode
from selfadapt.data.samples import Samples
from selfadapt.errors import UserError
from selfadapt.evaluation.robustness import Robustness, masking_signs, robustness, spread_subset
from selfadapt.progress import ProgressCallback, no_progress
from selfadapt.report.results import RunFolder
from selfadapt.runs.export import write_tensors
from selfadapt.runs.lifecycle import Run, check_trained

MOMENTS = ("first", "best", "last")
_JUDGE = "validation_accuracy_given"
_CHECKED = 200  # images on which gradients are checked for masking


def attack_run(
    run: Run,
    name: str,
    attack: Attack,
    *,
    images: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    checks: bool = True,
    at: str = "last",
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Robust accuracy on all test images, or on so many of them, every class with its share; into attack.json.

    `at` is the network: the result, or the first or the best (by validation) of the curve under attack.
    """
    if batch_size < 1:
        raise UserError(f"--batch-size {batch_size} must be at least 1")
    check_trained(run)
    test = seen_test_part(run)
    chosen_n = spread_subset(test.labels, len(test) if images is None else images, seed)
    epoch = load_moment(run, at)
    kept = _Kept(run.folder, run.training.model, seed, batch_size)

    def under(other: Attack, index_n: Tensor) -> Robustness:
        return kept.robustness(run, test.take(index_n), other, on_progress)

    measured = under(attack, chosen_n)
    if not measured.images:
        raise UserError(f"no test image of {run.folder.path} can be read; are the data still there?")
    warnings: list[str] = []
    if checks:
        few_n = spread_subset(measured.labels_N, min(_CHECKED, len(chosen_n)), seed)
        pixels = int(torch.tensor(test.inputs.shape).prod())
        few = replace(measured, outcome_N=measured.outcome_N[few_n], labels_N=measured.labels_N[few_n])
        warnings = masking_signs(measured, few, attack, lambda other: under(other, chosen_n[few_n]), pixels=pixels)
    result = {
        "attack": name,
        "clean_accuracy": measured.clean_accuracy,
        "robust_accuracy": measured.robust_accuracy,
        "eps": attack.settings["eps"],
        "norm": attack.settings["norm"],
        "images": measured.images,
        "at": at,
        "epoch": epoch,
        "by_attack": measured.after_each_part(),
        "by_class": _by_class(measured, run.data.classes),
        "warnings": warnings,
        "notes": list(measured.notes),
        "settings": {**attack.settings, "seed": seed, "batch_size": batch_size},
    }
    label = f"{name}, {result['norm']}, {result['eps']:g}, {at}"
    run.folder.write_attack({**(run.folder.read_if_there(run.folder.attack_file) or {}), label: result})
    return result


def load_moment(run: Run, moment: str) -> int:
    """Give the run the network of this moment of its curve under attack; returns the epoch. The last is the result."""
    if moment not in MOMENTS:
        raise UserError(f"--at {moment!r} is not known; choose one of {', '.join(MOMENTS)}")
    if moment == "last":
        return run.settings.epochs
    curve = [record for record in run.folder.read_metrics() if "robust_accuracy" in record]
    file = run.folder.network_file(moment)
    if not curve or not file.exists():
        raise UserError(f"{run.folder.path} kept no {moment} network; methods against attacks do, with a curve")
    run.training.model.load_state_dict(load_file(file, device=str(run.training.device)))
    chosen = curve[0] if moment == "first" else max(curve, key=lambda record: record[_JUDGE])
    return int(chosen["epoch"])


def seen_test_part(run: Run) -> Samples:
    """The test part, of images that the network itself sees."""
    if len(run.data.train.inputs.shape) != 3:
        raise UserError(
            f"{run.folder.path} is a head on features or vectors, and this needs a network that sees images; train one "
            "with --tune all or --weights none"
        )
    if run.data.test is None:
        raise UserError(f"{run.folder.path} has no test part, so there are no images to try")
    return run.data.test


def accuracy_after_epoch(run: Run, metrics: Mapping[str, Any]) -> dict[str, float]:
    """What the method wants measured after the epoch of these metrics: test images, always the same, under attack.

    The network of the first such epoch is kept, and that of the best by validation.
    """
    asked, test, training = run.settings.method.attack_after(metrics["epoch"]), run.data.test, run.training
    if asked is None or test is None:
        return {}
    before = [record for record in training.history if "robust_accuracy" in record]
    moments = [] if before else ["first"]
    if metrics.get(_JUDGE) is not None and all(metrics[_JUDGE] > record[_JUDGE] for record in before):
        moments.append("best")
    for moment in moments if processes.rank() == 0 else ():
        write_tensors(run.folder.network_file(moment), training.model.state_dict())
    part = test.take(spread_subset(test.labels, asked.images))
    with evaluation_mode(training.model):
        measured = robustness(
            training.model, part.inputs, part.labels, asked.attack,
            num_classes=training.num_classes, device=training.device,
        )  # fmt: skip
    if not measured.images:
        return {}
    return {
        "robust_accuracy": measured.robust_accuracy,
        "robust_clean_accuracy": measured.clean_accuracy,
        "robust_images": measured.images,
    }


class _Kept:
    """Outcomes in the run folder, by network, images, attack and whatever else decides them."""

    def __init__(self, folder: RunFolder, model: nn.Module, seed: int, batch_size: int) -> None:
        self.folder, self.seed, self.batch_size = folder, seed, batch_size
        self.network = network_digest(model)

    def robustness(self, run: Run, samples: Samples, attack: Attack, on_progress: ProgressCallback) -> Robustness:
        asked = {
            "settings": dict(attack.settings), "parts": attack.parts, "seed": self.seed, "batch_size": self.batch_size,
            "network": self.network, "images": samples.inputs.signature().hex(), "labels": samples.labels.tolist(),
        }  # fmt: skip
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24]
        known = self.folder.read_if_there(self.folder.attacks / f"{key}.json")
        model = run.training.model
        with evaluation_mode(model):
            return robustness(
                model,
                samples.inputs,
                samples.labels,
                attack,
                num_classes=run.data.num_classes,
                device=run.training.device,
                batch_size=self.batch_size,
                seed=self.seed,
                outcome_N=None if known is None else torch.tensor(known["outcome"]),
                save=lambda outcome_N: self.folder.write_outcome(key, {"outcome": outcome_N.tolist()}),
                on_progress=on_progress,
            )


def network_digest(model: nn.Module) -> str:
    """A hash of everything that a network has learned."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _by_class(measured: Robustness, classes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    rows = zip(classes, measured.by_class(), strict=True)
    return {
        name: {
            "images": count,
            "clean_accuracy": clean if count else None,
            "robust_accuracy": robust if count else None,
        }
        for name, (count, clean, robust) in rows
    }
