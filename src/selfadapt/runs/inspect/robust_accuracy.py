"""Robust accuracy of a run: the accuracy on test images under attack.

Outcomes are cached in the run folder batch by batch, keyed by everything that determines them, so a repeated command
resumes or returns at once.

Shapes: N test images.
"""

import hashlib
import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.attacks.attack import Attack
from selfadapt.attacks.by_name import named_attack
from selfadapt.attacks.pgd import PGD
from selfadapt.attacks.transfer import Transferred
from selfadapt.core.errors import UserError, check_least
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Samples
from selfadapt.engine.fit import Training
from selfadapt.evaluation.robustness import (
    GRADIENT_FREE,
    ClassOutputs,
    Robustness,
    attack_batch_size,
    masking_signs,
    robustness,
    stratified_subset,
)
from selfadapt.models.backbone import evaluation_mode
from selfadapt.objectives.method import AttackAfterEpoch
from selfadapt.run_folder.contents import Attacked, Outcomes
from selfadapt.runs.inspect.image_view import ImageView, image_view, network_digest
from selfadapt.runs.inspect.inspection_settings import AttackSettings
from selfadapt.runs.lifecycle.lifecycle import Run
from selfadapt.runs.lifecycle.opened_run import OpenedRun, check_trained

MOMENTS = ("first", "best", "last")
_VALIDATED = "robust_validation_accuracy"
_CHECKED = 200  # images used to check for masked gradients


def attack_run(
    run: OpenedRun,
    settings: AttackSettings,
    *,
    transfer: OpenedRun | None = None,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Measure robust accuracy and write it to attack.json.

    Args:
        run: A trained run.
        settings: The attack, and the images and network that are attacked: "last", the result; "first" or "best" of the
            training curve under attack, where best is selected on validation images under the same attack.
        transfer: A run whose network is used to craft adversarial images for the check.
        on_progress: Called with images done and images in total.

    Returns:
        The entry of attack.json.
    """
    name, seed, attack = settings.name, settings.seed, settings.attack()
    if transfer is not None and not settings.checks:
        raise UserError("--transfer is a check for masked gradients, so it cannot be combined with --no-checks")
    check_least({"--batch-size": settings.batch_size})
    check_trained(run)
    own = image_view(run)
    test = own.test
    chosen_n = stratified_subset(test.labels, len(test) if settings.images is None else settings.images, seed)
    transferred = None if transfer is None else _transferred(run, own, attack, transfer)
    epoch = load_moment(run, settings.at)
    cached = _CachedRobustness(run, own.model, seed, settings.batch_size or attack_batch_size(test.inputs.shape))

    def under(other: Attack, index_n: Tensor) -> Robustness:
        return cached.measure(test.take(index_n), other, on_progress)

    measured = under(attack, chosen_n)
    if not measured.images:
        raise UserError(f"no test image of {run.folder.path} can be read; check that the data still exist")
    name = name if len(attack.parts) > 1 else attack.parts[0]  # includes the number of steps
    result = {
        "attack": name,
        "clean_accuracy": measured.clean_accuracy,
        "robust_accuracy": measured.robust_accuracy,
        "eps": attack.settings["eps"],
        "norm": attack.settings["norm"],
        "images": measured.images,
        "at": settings.at,
        "epoch": epoch,
        "by_attack": measured.after_each_part(),
        "by_class": _by_class(measured, run.data.classes),
        "warnings": [],
        "notes": list(measured.notes),
        "settings": {**attack.settings, "seed": seed, "batch_size": cached.batch_size},
    }
    if settings.checks:
        subset_n = stratified_subset(measured.labels_N, min(_CHECKED, len(chosen_n)), seed)
        subset = replace(measured, outcome_N=measured.outcome_N[subset_n], labels_N=measured.labels_N[subset_n])
        again = partial(under, index_n=chosen_n[subset_n])
        crafted = None if transferred is None else again(transferred)
        pixels, by_transfer = math.prod(test.inputs.shape), None if crafted is None else crafted.robust_accuracy
        result["warnings"] = masking_signs(measured, subset, attack, again, pixels=pixels, transfer=by_transfer)
        if transfer is not None and crafted is not None:
            result["transfer"] = {
                "run": str(transfer.folder.path), "robust_accuracy": by_transfer, "images": crafted.images
            }  # fmt: skip
    label = f"{name}, {result['norm']}, {result['eps']:g}, {settings.at}"
    run.folder.add_json(run.folder.attack_file, Attacked, label, result)
    return result


def _transferred(run: OpenedRun, own: ImageView, attack: Attack, other: OpenedRun) -> Transferred:
    """The attack on the network of another run: itself if it is PGD, otherwise PGD-20 with its radius."""
    if attack.parts == (GRADIENT_FREE,):
        raise UserError(f"--transfer checks gradient-based attacks, and {GRADIENT_FREE} uses no gradients")
    check_trained(other)
    others = image_view(other)
    if (run.data.classes, own.test.inputs.shape) != (other.data.classes, others.test.inputs.shape):
        raise UserError(
            f"{other.folder.path} was not trained on the images and classes of {run.folder.path}, so the check would "
            "be meaningless; give a run on the same data"
        )
    if not isinstance(attack, PGD):
        attack = named_attack("pgd20", eps=attack.settings["eps"], norm=attack.settings["norm"])
        assert isinstance(attack, PGD)
    source = ClassOutputs(others.model, other.data.num_classes).eval()
    return Transferred(attack=attack, source=source, origin=network_digest(others.model))


def load_moment(run: OpenedRun, moment: str) -> int:
    """Load the first, best or last network of the training curve under attack into the run, and return its epoch."""
    if moment not in MOMENTS:
        raise UserError(f"--at {moment!r} is not known; choose one of {', '.join(MOMENTS)}")
    if moment == "last":
        return run.plan.epochs
    curve = [record for record in run.folder.read_metrics() if "robust_accuracy" in record]
    file = run.folder.network_file(moment)
    if not curve or not file.exists() or (moment == "best" and _VALIDATED not in curve[0]):
        raise UserError(
            f"{run.folder.path} has no {moment} network; only adversarial training with --curve-images above 0 saves "
            "it, the best one only with a validation split"
        )
    with run.folder.tensors_of(file) as tensors:
        run.model.load_state_dict(tensors)
    chosen = curve[0] if moment == "first" else max(curve, key=lambda record: record[_VALIDATED])
    return int(chosen["epoch"])


def accuracy_after_epoch(run: Run, training: Training) -> dict[str, float]:
    """Robust accuracy after an epoch, on a fixed subset of the test images, if the method asks for it.

    The networks of the first such epoch and of the best one are saved. The best is selected on validation images under
    the same attack: clean accuracy keeps rising while robust accuracy falls, and test images are never used for
    selection.
    """
    asked, test = run.plan.method.attack_after(training.epoch + 1), run.data.test
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
    validated = None if run.data.validation is None else _under_attack(training, run.data.validation, asked)
    if validated is not None and validated.images:
        found[_VALIDATED] = validated.robust_accuracy
    before = [record for record in training.history if "robust_accuracy" in record]
    moments = [] if before else ["first"]
    if _VALIDATED in found and all(found[_VALIDATED] > record.get(_VALIDATED, -1) for record in before):
        moments.append("best")
    for moment in moments:
        run.folder.write_tensors(run.folder.network_file(moment), training.model.state_dict())
    return found


def _under_attack(training: Training, samples: Samples, asked: AttackAfterEpoch) -> Robustness:
    subset = samples.take(stratified_subset(samples.labels, asked.images))
    with evaluation_mode(training.model):
        return robustness(
            training.model, subset.inputs, subset.labels, asked.attack,
            num_classes=training.num_classes, device=training.device,
        )  # fmt: skip


class _CachedRobustness:
    """Caches outcomes in the run folder, keyed by network, images, attack and everything else that determines them."""

    def __init__(self, run: OpenedRun, model: nn.Module, seed: int, batch_size: int) -> None:
        self.run, self.model, self.seed, self.batch_size = run, model, seed, batch_size
        self.network = network_digest(model)

    def measure(self, samples: Samples, attack: Attack, on_progress: ProgressCallback) -> Robustness:
        inputs = {
            "settings": dict(attack.settings), "parts": attack.parts, "seed": self.seed, "batch_size": self.batch_size,
            "network": self.network, "images": samples.inputs.signature().hex(), "labels": samples.labels.tolist(),
        }  # fmt: skip
        key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:24]
        folder = self.run.folder
        known = folder.read_json(folder.attacks / f"{key}.json", Outcomes)
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
