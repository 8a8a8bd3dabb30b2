"""Selective prediction with a trained run: error at each coverage, and a threshold with a risk guarantee.

Thresholds are fitted on the validation split and evaluated on the test split, never on the same samples.

Shapes: N samples, n of them used for the bound.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.errors import UserError, check_least
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.inputs import Inputs
from selfadapt.evaluation.classification import UNKNOWN, outputs
from selfadapt.evaluation.selective.guarantee import candidates, excess_p_value, guarantee
from selfadapt.evaluation.selective.mc_dropout import has_dropout, mc_dropout
from selfadapt.evaluation.selective.risk_coverage import (
    COVERAGES,
    aurc,
    exact_risk,
    excess_aurc,
    risk_at,
    risk_coverage_curve,
    threshold_for,
)
from selfadapt.evaluation.selective.selectors import class_selectors
from selfadapt.objectives.objective import Objective
from selfadapt.runs.lifecycle.lifecycle import list_unreadable
from selfadapt.runs.lifecycle.opened_run import OpenedRun, check_trained

_POINTS = 200  # of a curve in coverage.json


def by_dropout(selector: str | None) -> bool:
    """Whether a selector needs many forward passes with dropout enabled."""
    return selector is not None and selector.startswith("mc-dropout")


@dataclass(frozen=True)
class Answers:
    """Predictions of a model, with the confidence that one selector assigns."""

    predicted_N: Tensor
    confidence_N: Tensor
    trained_for: float | None = None  # the coverage that the selector was trained for

    def wrong(self, labels_N: Tensor) -> Tensor:
        return self.predicted_N != labels_N


def answers(outputs_NO: Tensor, objective: Objective, num_classes: int) -> dict[str, Answers]:
    """Predictions by every selector that needs a single forward pass, those of the method first."""
    predicted_N = outputs_NO[:, :num_classes].argmax(1)
    own, shared = objective.selectors(outputs_NO, num_classes), class_selectors(outputs_NO, num_classes)
    return {
        **{name: Answers(predicted_N, values_N.double(), objective.trained_for()) for name, values_N in own.items()},
        **{name: Answers(predicted_N, values_N.double()) for name, values_N in shared.items()},
    }


def answers_on(
    model: nn.Module,
    inputs: Inputs,
    objective: Objective,
    num_classes: int,
    device: torch.device,
    *,
    precision: str = "float32",
    on_progress: ProgressCallback = no_progress,
) -> tuple[dict[str, Answers], Tensor]:
    """Predictions for the inputs that can be read, and a mask of these. Outputs are not held for all inputs."""
    selectors: dict[str, float | None] = {}  # with the coverage that each was trained for

    def keep(index_B: Tensor, outputs_BO: Tensor) -> Tensor:
        found = answers(outputs_BO, objective, num_classes)
        selectors.update((name, own.trained_for) for name, own in found.items())
        columns = [outputs_BO[:, :num_classes].argmax(1), *(own.confidence_N for own in found.values())]
        kept_BC = torch.stack([column.double() for column in columns], 1)
        return kept_BC.masked_fill_(outputs_BO.isnan().any(1, keepdim=True), torch.nan)

    kept_NC = outputs(model, inputs, device, on_progress=on_progress, precision=precision, keep=keep)
    read_N = ~kept_NC[:, 0].isnan()
    # A process that could read nothing learns from the others which selectors there are.
    offered = next(filter(None, distributed.all_gather_objects(selectors)), selectors)
    predicted_n, *confidences = kept_NC[read_N].T.contiguous().view(1 + len(offered), -1)
    return {
        name: Answers(predicted_n.long(), confidence_n, trained_for)
        for (name, trained_for), confidence_n in zip(offered.items(), confidences, strict=True)
    }, read_N


def _answers_on(
    run: OpenedRun, samples: Samples, passes: int, on_progress: ProgressCallback
) -> tuple[dict[str, Answers], Tensor]:
    """Predictions for the samples that can be read, and a mask of these samples."""
    classes = run.data.num_classes
    found, read_N = answers_on(run.model, samples.inputs, run.objective, classes, run.device, on_progress=on_progress)
    if not read_N.any():
        raise UserError(f"no image can be read, such as {samples.ids[0]}; check that the data still exist")
    if passes and has_dropout(run.model):
        predicted_N, by_passes = mc_dropout(
            run.model, samples.inputs, classes, run.device, passes=passes, on_progress=on_progress
        )
        both_N = read_N & (predicted_N != UNKNOWN)  # a file may be lost between the passes
        kept_n = both_N[read_N]
        found = {
            name: replace(own, predicted_N=own.predicted_N[kept_n], confidence_N=own.confidence_N[kept_n])
            for name, own in found.items()
        }
        found |= {name: Answers(predicted_N[both_N], own_N[both_N]) for name, own_N in by_passes.items()}
        read_N = both_N
    list_unreadable(run.folder, run.data)
    return found, read_N


def _check_passes(run: OpenedRun, passes: int) -> None:
    check_least({"--passes": passes}, 0)
    check_trained(run)


def _split(run: OpenedRun, name: str, samples: Samples | None) -> Samples:
    if samples is None:
        raise UserError(
            f"{run.folder.path} lacks a {name} split; thresholds are fitted on validation and evaluated on test samples"
        )
    return samples


def measure_coverage(run: OpenedRun, passes: int, on_progress: ProgressCallback = no_progress) -> dict[str, Any]:
    """Measure the test error at each coverage, for every selector, and write coverage.json.

    `coverage` uses thresholds from the validation split, as in practice, and is empty without one. `exact_coverage`
    uses thresholds from the test split, the protocol of Table 5 of the paper.
    """
    _check_passes(run, passes)
    test = _split(run, "test", run.data.test)
    validation = run.data.validation
    held_out = {} if validation is None else _answers_on(run, validation, passes, on_progress)[0]
    tested, read_N = _answers_on(run, test, passes, on_progress)
    grid = sorted({*COVERAGES, *(own.trained_for for own in tested.values() if own.trained_for)}, reverse=True)
    selectors = {name: _measured(held_out.get(name), own, test.labels[read_N], grid) for name, own in tested.items()}
    content = {"method": run.plan.method_name, "selectors": selectors}
    run.folder.write_json(run.folder.coverage_file, content, indent=None)
    return content


def _measured(held_out: Answers | None, tested: Answers, labels_N: Tensor, grid: Sequence[float]) -> dict[str, Any]:
    wrong_N = tested.wrong(labels_N)
    coverage_N, risk_N = risk_coverage_curve(tested.confidence_N, wrong_N)
    errors: dict[str, float | None] = {}
    exact, actual, thresholds = {}, {}, {}
    for coverage in grid:
        key = f"{coverage:.2f}"
        exact[key] = exact_risk(risk_N, coverage)
        if held_out is None:
            errors[key] = None
            continue
        threshold = threshold_for(held_out.confidence_N, coverage)
        errors[key], actual[key] = risk_at(tested.confidence_N, wrong_N, threshold)
        thresholds[key] = threshold if coverage < 1 else None
    shown = torch.linspace(0, len(risk_N) - 1, min(_POINTS, len(risk_N))).round().long()
    return {
        "coverage": errors,
        "exact_coverage": exact,
        "actual_coverage": actual,
        "thresholds": thresholds,
        "aurc": aurc(tested.confidence_N, wrong_N),
        "excess_aurc": excess_aurc(tested.confidence_N, wrong_N),
        "trained_for": None if tested.trained_for is None else f"{tested.trained_for:.2f}",
        "curve": [coverage_N[shown].tolist(), risk_N[shown].tolist()],
    }


def calibrate(
    run: OpenedRun,
    *,
    risk: float,
    confidence: float,
    selector: str | None,
    passes: int,
    true_labels: bool,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Select the threshold on the validation split, evaluate it on the test split if there is one, and write it.

    Args:
        run: A trained run.
        risk: The largest error rate among the samples that the model answers.
        confidence: Probability with which the bound holds.
        selector: Name of the selector; None for softmax response.
        passes: Forward passes of MC-dropout.
        true_labels: Whether to use the labels before noise was added.
        on_progress: Called with samples done and samples in total.

    Returns:
        The content of calibration.json. If no threshold can guarantee the risk, `threshold` is None, the best possible
        guarantee is returned with a risk that can be requested, and an earlier calibration is deleted.

    Raises:
        UserError: If an option is wrong, or the validation split cannot be used.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise UserError(f"--{name} {value} must be between 0 and 1")
    _check_passes(run, passes)
    if by_dropout(selector) and not passes:
        raise UserError(f"--selector {selector} needs --passes above 0")
    if run.plan.method.uses_up_validation:
        raise UserError(
            f"{run.plan.method_name} selected a model on the validation split, so a bound on it would not "
            "hold; train with another method, or calibrate on held-out data"
        )
    validation = _split(run, "validation", run.data.validation)
    if true_labels and validation.truth is None:
        raise UserError("--true-labels: the true labels of these data are unknown")
    held_out, read_N = _answers_on(run, validation, passes if by_dropout(selector) else 0, on_progress)
    name = _checked_selector(selector, held_out)
    labels_N = validation.truth if true_labels and validation.truth is not None else validation.labels
    counted = _one_per_group(validation, read_N, run.data.train.groups or (), run.plan.seed)
    confidence_n = held_out[name].confidence_N[counted]
    wrong_n = held_out[name].wrong(labels_N[read_N])[counted]
    found = guarantee(confidence_n, wrong_n, risk=risk, confidence=confidence)
    content: dict[str, Any] = {
        "selector": name,
        "passes": passes if by_dropout(name) else 0,
        "risk": risk,
        "confidence": confidence,
        "samples": len(wrong_n),
        "left_out": int(read_N.sum()) - len(wrong_n),
    }
    if found is None:
        earlier = run.folder.calibration_file.exists()
        run.folder.remove(run.folder.calibration_file)
        every = candidates(confidence_n, wrong_n, risk=1.0, confidence=confidence)
        nearest = min(every, key=lambda one: one.guaranteed_risk)
        return {
            **content,
            "threshold": None,
            "earlier_removed": earlier,
            "guaranteed_risk": nearest.guaranteed_risk,
            "suggested_risk": _risk_to_request(nearest.guaranteed_risk),
            "validation_coverage": nearest.coverage,
            "test_risk": None,
            "test_coverage": None,
        }
    test_risk = test_coverage = test_p_value = None
    if run.data.test is not None:
        tested, read_N = _answers_on(run, run.data.test, passes if by_dropout(name) else 0, on_progress)
        answered_N = tested[name].confidence_N > found.threshold
        test_wrong_N = tested[name].wrong(run.data.test.labels[read_N])[answered_N]
        test_risk = test_wrong_N.double().mean().item() if len(test_wrong_N) else None
        if test_risk is not None and test_risk > found.guaranteed_risk:
            test_p_value = excess_p_value(int(test_wrong_N.sum()), len(test_wrong_N), found.guaranteed_risk)
        test_coverage = answered_N.double().mean().item()
    content |= {
        "threshold": found.threshold,
        "guaranteed_risk": found.guaranteed_risk,
        "validation_coverage": found.coverage,
        "test_risk": test_risk,
        "test_coverage": test_coverage,
        "test_p_value": test_p_value,
    }
    run.folder.write_json(run.folder.calibration_file, content)
    return content


def _risk_to_request(guaranteed: float) -> float | None:
    """The guaranteed risk, rounded up to a tenth of a percent; None if that is 1."""
    rounded = math.ceil(1000 * guaranteed) / 1000
    return rounded if rounded < 1 else None


def _one_per_group(samples: Samples, read_N: Tensor, trained_on: Collection[str], seed: int) -> Tensor:
    """Positions of the samples used for the bound: a random one of each group, because errors must be independent.

    Groups with samples in the training split are excluded.
    """
    positions = read_N.nonzero().flatten().tolist()
    if samples.groups is None:
        return torch.arange(len(positions))
    first: dict[str, int] = {}
    for n in torch.randperm(len(positions), generator=seeded(seed, "one of each group")).tolist():
        first.setdefault(samples.groups[positions[n]], n)
    counted = [n for group, n in first.items() if group not in set(trained_on)]
    if not counted:
        raise UserError(
            "every validation sample belongs to a group in the training split, or is a duplicate of a training sample, "
            "so a bound on them would not hold; calibrate on other data"
        )
    return torch.tensor(sorted(counted))


def _checked_selector(selector: str | None, offered: Mapping[str, Answers]) -> str:
    """The given selector, by default softmax response, which every run has."""
    if selector is not None and selector not in offered:
        raise UserError(f"--selector {selector!r} is not available for this run; choose one of {', '.join(offered)}")
    return selector or "softmax-response"
