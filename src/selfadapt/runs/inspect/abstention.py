"""What a trained run knows of its own uncertainty: error at each coverage, and a threshold with a risk guarantee.

Thresholds are fitted on the validation part and measured on the test part, never on the same samples.

Shapes: N samples, of which n count.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.evaluation.classification import outputs
from selfadapt.evaluation.selective.guarantee import candidates, guarantee
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
    """Whether a selector needs many passes with dropout on."""
    return selector is not None and selector.startswith("mc-dropout")


@dataclass(frozen=True)
class Answers:
    """What a model would answer, and how confident it is by one selector."""

    predicted_N: Tensor
    confidence_N: Tensor
    trained_for: float | None = None  # the one coverage that the selector was trained for

    def wrong(self, labels_N: Tensor) -> Tensor:
        return self.predicted_N != labels_N


def answers(outputs_NO: Tensor, objective: Objective, num_classes: int) -> dict[str, Answers]:
    """The answers by every selector that one pass of the model offers, the method's own first."""
    predicted_N = outputs_NO[:, :num_classes].argmax(1)
    own, shared = objective.selectors(outputs_NO, num_classes), class_selectors(outputs_NO, num_classes)
    return {
        **{name: Answers(predicted_N, values_N.double(), objective.trained_for()) for name, values_N in own.items()},
        **{name: Answers(predicted_N, values_N.double()) for name, values_N in shared.items()},
    }


def _answers_on(
    run: OpenedRun, samples: Samples, passes: int, on_progress: ProgressCallback
) -> tuple[dict[str, Answers], Tensor]:
    """The answers to the samples that can be read, and which those are."""
    classes = run.data.num_classes
    said_NO = outputs(run.model, samples.inputs, run.device, on_progress=on_progress)
    fine_N = ~said_NO.isnan().any(1)
    if not fine_N.any():
        raise UserError(f"no image can be read, such as {samples.ids[0]}; are the data still there?")
    by_passes: dict[str, Answers] = {}
    if passes and has_dropout(run.model):
        predicted_N, selectors = mc_dropout(
            run.model, samples.inputs, classes, run.device, passes=passes, on_progress=on_progress
        )
        for name, confidence_N in selectors.items():
            fine_N &= ~confidence_N.isnan()
            by_passes[name] = Answers(predicted_N, confidence_N)
    list_unreadable(run.folder, run.data)
    found = answers(said_NO[fine_N], run.objective, classes)
    for name, own in by_passes.items():
        found[name] = Answers(own.predicted_N[fine_N], own.confidence_N[fine_N])
    return found, fine_N


def _trained(run: OpenedRun, passes: int) -> None:
    if passes < 0:
        raise UserError(f"--passes {passes} must be at least 0")
    check_trained(run)


def _part(run: OpenedRun, name: str, samples: Samples | None) -> Samples:
    if samples is None:
        raise UserError(
            f"{run.folder.path} has no {name} part; a threshold is fitted on validation and measured on test samples"
        )
    return samples


def measure_coverage(run: OpenedRun, passes: int, on_progress: ProgressCallback = no_progress) -> dict[str, Any]:
    """The error on test data at each coverage, by every selector; written into the run folder.

    `coverage` has thresholds from the validation part, as one has to choose them, or nothing where there is none;
    `exact_coverage` has them from the test part itself, which is the protocol of the paper's Table 5.
    """
    _trained(run, passes)
    test = _part(run, "test", run.data.test)
    validation = run.data.validation
    held_out = {} if validation is None else _answers_on(run, validation, passes, on_progress)[0]
    tested, fine_N = _answers_on(run, test, passes, on_progress)
    grid = sorted({*COVERAGES, *(own.trained_for for own in tested.values() if own.trained_for)}, reverse=True)
    selectors = {name: _measured(held_out.get(name), own, test.labels[fine_N], grid) for name, own in tested.items()}
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
    """Pick the threshold on the validation part, measure it on the test part if any, and write it into the run folder.

    Without a threshold that can guarantee the risk, `threshold` is None and what was written before is taken away.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise UserError(f"--{name} {value} must be between 0 and 1")
    _trained(run, passes)
    if by_dropout(selector) and not passes:
        raise UserError(f"--selector {selector} needs --passes above 0")
    if run.plan.method.uses_up_validation:
        raise UserError(
            f"{run.plan.method_name} made choices by the validation samples, so they cannot vouch for it; "
            "train by another method, or calibrate on data that it has not seen"
        )
    validation = _part(run, "validation", run.data.validation)
    if true_labels and validation.truth is None:
        raise UserError("--true-labels: the true labels of these data are not known")
    held_out, fine_N = _answers_on(run, validation, passes if by_dropout(selector) else 0, on_progress)
    name = _chosen(selector, held_out)
    labels_N = validation.truth if true_labels and validation.truth is not None else validation.labels
    counted = _one_of_each_group(validation, fine_N, run.data.train.groups or (), run.plan.seed)
    confidence_n = held_out[name].confidence_N[counted]
    wrong_n = held_out[name].wrong(labels_N[fine_N])[counted]
    found = guarantee(confidence_n, wrong_n, risk=risk, confidence=confidence)
    content: dict[str, Any] = {
        "selector": name,
        "passes": passes if by_dropout(name) else 0,
        "risk": risk,
        "confidence": confidence,
        "samples": len(wrong_n),
        "left_out": int(fine_N.sum()) - len(wrong_n),
    }
    if found is None:
        earlier = run.folder.calibration_file.exists()
        run.folder.calibration_file.unlink(missing_ok=True)
        every = candidates(confidence_n, wrong_n, risk=1.0, confidence=confidence)  # the coverage grid for any risk
        nearest = min(every, key=lambda one: one.guaranteed_risk)
        return {
            **content,
            "threshold": None,
            "earlier_removed": earlier,
            "guaranteed_risk": nearest.guaranteed_risk,
            "validation_coverage": nearest.coverage,
            "test_risk": None,
            "test_coverage": None,
        }
    test_risk = test_coverage = None
    if run.data.test is not None:
        tested, fine_N = _answers_on(run, run.data.test, passes if by_dropout(name) else 0, on_progress)
        answered_N = tested[name].confidence_N > found.threshold
        test_wrong_N = tested[name].wrong(run.data.test.labels[fine_N])[answered_N]
        test_risk = test_wrong_N.double().mean().item() if len(test_wrong_N) else None
        test_coverage = answered_N.double().mean().item()
    content |= {
        "threshold": found.threshold,
        "guaranteed_risk": found.guaranteed_risk,
        "validation_coverage": found.coverage,
        "test_risk": test_risk,
        "test_coverage": test_coverage,
    }
    run.folder.write_json(run.folder.calibration_file, content)
    return content


def _one_of_each_group(samples: Samples, fine_N: Tensor, trained_on: Collection[str], seed: int) -> Tensor:
    """Which of the answers count: of a group one, by lot, because the bound needs samples that err independently.

    Of groups that were trained on none counts.
    """
    places = fine_N.nonzero().flatten().tolist()
    if samples.groups is None:
        return torch.arange(len(places))
    first: dict[str, int] = {}
    for answer in torch.randperm(len(places), generator=seeded(seed, "one of each group")).tolist():
        first.setdefault(samples.groups[places[answer]], answer)
    counted = [answer for group, answer in first.items() if group not in set(trained_on)]
    if not counted:
        raise UserError(
            "every validation sample belongs to a group of the training samples, or is a copy of one, so none can "
            "vouch for the model; calibrate on others"
        )
    return torch.tensor(sorted(counted))


def _chosen(selector: str | None, offered: Mapping[str, Answers]) -> str:
    """The selector asked for; else softmax response, which every run offers."""
    if selector is not None and selector not in offered:
        raise UserError(f"--selector {selector!r} is not offered by this run; choose one of {', '.join(offered)}")
    return selector or "softmax-response"
