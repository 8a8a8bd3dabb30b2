"""A run under attack: how much of its test part it still gets right.

Outcomes are kept in the run folder batch by batch, by everything that decides them, so the same question asked again
goes on where it was stopped, or is answered at once.

Shapes: N test images.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from selfadapt.attacks.attack import Attack, evaluation_mode
from selfadapt.attacks.by_name import named_attack
from selfadapt.attacks.pgd import PGD
from selfadapt.attacks.transfer import Transferred
from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Samples
from selfadapt.engine.fit import Training
from selfadapt.evaluation.robustness import (
    GRADIENT_FREE,
    ClassOutputs,
    Robustness,
    batch_for,
    masking_signs,
    robustness,
    spread_subset,
)
from selfadapt.objectives.method import AttackAfterEpoch
from selfadapt.runs.export.network_files import write_tensors
from selfadapt.runs.inspect.image_view import Seen, network_digest, seen
from selfadapt.runs.lifecycle.lifecycle import Run
from selfadapt.runs.lifecycle.opened_run import OpenedRun, check_trained

MOMENTS = ("first", "best", "last")
_JUDGE = "robust_validation_accuracy"
_CHECKED = 200  # images on which gradients are checked for masking


def attack_run(
    run: OpenedRun,
    name: str,
    attack: Attack,
    *,
    images: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    checks: bool = True,
    at: str = "last",
    transfer: OpenedRun | None = None,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Robust accuracy on all test images, or on so many of them, every class with its share; into attack.json.

    `at` is the network: the result, or the first or the best of the curve under attack, best on validation images under
    the same attack. With `transfer`, the check for masked gradients also tries images moved against that run's network.
    """
    if transfer is not None and not checks:
        raise UserError("--transfer is one of the checks for masked gradients, so it does not go with --no-checks")
    if batch_size is not None and batch_size < 1:
        raise UserError(f"--batch-size {batch_size} must be at least 1")
    check_trained(run)
    own = seen(run)
    test = own.test
    chosen_n = spread_subset(test.labels, len(test) if images is None else images, seed)
    transferred = None if transfer is None else _transferred(run, own, attack, transfer)
    epoch = load_moment(run, at)
    kept = _Kept(run, own.model, seed, batch_size or batch_for(test.inputs.shape))

    def under(other: Attack, index_n: Tensor) -> Robustness:
        return kept.robustness(test.take(index_n), other, on_progress)

    measured = under(attack, chosen_n)
    if not measured.images:
        raise UserError(f"no test image of {run.folder.path} can be read; are the data still there?")
    name = name if len(attack.parts) > 1 else attack.parts[0]  # with the steps that were taken
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
        "warnings": [],
        "notes": list(measured.notes),
        "settings": {**attack.settings, "seed": seed, "batch_size": kept.batch_size},
    }
    if checks:
        few_n = spread_subset(measured.labels_N, min(_CHECKED, len(chosen_n)), seed)
        few = replace(measured, outcome_N=measured.outcome_N[few_n], labels_N=measured.labels_N[few_n])
        again = partial(under, index_n=chosen_n[few_n])
        moved = None if transferred is None else again(transferred)
        pixels, by_transfer = math.prod(test.inputs.shape), None if moved is None else moved.robust_accuracy
        result["warnings"] = masking_signs(measured, few, attack, again, pixels=pixels, transfer=by_transfer)
        if transfer is not None and moved is not None:
            result["transfer"] = {
                "run": str(transfer.folder.path), "robust_accuracy": by_transfer, "images": moved.images
            }  # fmt: skip
    label = f"{name}, {result['norm']}, {result['eps']:g}, {at}"
    file = run.folder.attack_file
    run.folder.write_json(file, {**(run.folder.read_if_there(file) or {}), label: result})
    return result


def _transferred(run: OpenedRun, own: Seen, attack: Attack, other: OpenedRun) -> Transferred:
    """The attack if it is PGD, else PGD-20 of its radius, on the network of another run."""
    if attack.parts == (GRADIENT_FREE,):
        raise UserError(f"--transfer is a check of attacks by gradient, and {GRADIENT_FREE} has none")
    check_trained(other)
    others = seen(other)
    if (run.data.classes, own.test.inputs.shape) != (other.data.classes, others.test.inputs.shape):
        raise UserError(
            f"{other.folder.path} does not take the images and classes of {run.folder.path}, so what is moved against "
            "it tells nothing; give a run on the same data"
        )
    if not isinstance(attack, PGD):
        attack = named_attack("pgd20", eps=attack.settings["eps"], norm=attack.settings["norm"])
        assert isinstance(attack, PGD)
    source = ClassOutputs(others.model, other.data.num_classes).eval()
    return Transferred(attack=attack, source=source, origin=network_digest(others.model))


def load_moment(run: OpenedRun, moment: str) -> int:
    """Give the run the network of this moment of its curve under attack; returns the epoch. The last is the result."""
    if moment not in MOMENTS:
        raise UserError(f"--at {moment!r} is not known; choose one of {', '.join(MOMENTS)}")
    if moment == "last":
        return run.plan.epochs
    curve = [record for record in run.folder.read_metrics() if "robust_accuracy" in record]
    file = run.folder.network_file(moment)
    if not curve or not file.exists() or (moment == "best" and _JUDGE not in curve[0]):
        raise UserError(
            f"{run.folder.path} kept no {moment} network; methods against attacks do, with a curve and, for the best, "
            "a validation part"
        )
    run.model.load_state_dict(load_file(file, device=str(run.device)))
    chosen = curve[0] if moment == "first" else max(curve, key=lambda record: record[_JUDGE])
    return int(chosen["epoch"])


def accuracy_after_epoch(run: Run, training: Training, metrics: Mapping[str, Any]) -> dict[str, float]:
    """What the method wants measured after the epoch of these metrics: test images, always the same, under attack.

    The network of the first such epoch is kept, and that of the best. Test images choose nothing, so the best is judged
    by validation images under the same attack: accuracy on clean ones goes on rising where robust accuracy falls.
    """
    asked, test = run.plan.method.attack_after(metrics["epoch"]), run.data.test
    if asked is None or test is None:
        return {}
    measured = _under_attack(training, test, asked)
    if not measured.images:
        return {}
    found = {
        "robust_accuracy": measured.robust_accuracy,
        "robust_clean_accuracy": measured.clean_accuracy,
        "robust_images": measured.images,
    }
    judged = None if run.data.validation is None else _under_attack(training, run.data.validation, asked)
    if judged is not None and judged.images:
        found[_JUDGE] = judged.robust_accuracy
    before = [record for record in training.history if "robust_accuracy" in record]
    moments = [] if before else ["first"]
    if _JUDGE in found and all(found[_JUDGE] > record.get(_JUDGE, -1) for record in before):
        moments.append("best")
    for moment in moments if distributed.rank() == 0 else ():
        write_tensors(run.folder.network_file(moment), training.model.state_dict())
    return found


def _under_attack(training: Training, samples: Samples, asked: AttackAfterEpoch) -> Robustness:
    part = samples.take(spread_subset(samples.labels, asked.images))
    with evaluation_mode(training.model):
        return robustness(
            training.model, part.inputs, part.labels, asked.attack,
            num_classes=training.num_classes, device=training.device,
        )  # fmt: skip


class _Kept:
    """Outcomes in the run folder, by network, images, attack and whatever else decides them."""

    def __init__(self, run: OpenedRun, model: nn.Module, seed: int, batch_size: int) -> None:
        self.run, self.model, self.seed, self.batch_size = run, model, seed, batch_size
        self.network = network_digest(model)

    def robustness(self, samples: Samples, attack: Attack, on_progress: ProgressCallback) -> Robustness:
        asked = {
            "settings": dict(attack.settings), "parts": attack.parts, "seed": self.seed, "batch_size": self.batch_size,
            "network": self.network, "images": samples.inputs.signature().hex(), "labels": samples.labels.tolist(),
        }  # fmt: skip
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24]
        folder = self.run.folder
        known = folder.read_if_there(folder.attacks / f"{key}.json")
        with evaluation_mode(self.model):
            return robustness(
                self.model,
                samples.inputs,
                samples.labels,
                attack,
                num_classes=self.run.data.num_classes,
                device=self.run.device,
                batch_size=self.batch_size,
                seed=self.seed,
                outcome_N=None if known is None else torch.tensor(known["outcome"]),
                save=lambda outcome_N: folder.write_json(
                    folder.attacks / f"{key}.json", {"outcome": outcome_N.tolist()}, indent=None
                ),
                on_progress=on_progress,
            )


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
