"""The audit of a run: a verdict on every label of every part, as labels.csv and in numbers.

Training labels are judged by what the method knows of them (its `evidence`); validation and test labels, which no
method trains on, by the predictions of the finished network. Where training labels are judged by predictions that never
saw them, all parts are judged alike, by the odds that a label is wrong, and one ranking holds for all.

Shapes: N samples, K classes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.duplicates.groups import single_image_classes
from selfadapt.evaluation.classification import accuracy, predict, predicted_classes
from selfadapt.evaluation.label_errors.list_quality import Interval, ListQuality
from selfadapt.evaluation.label_errors.other_splits import with_errors_of_each
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.outliers import outlier_scores
from selfadapt.evaluation.label_errors.recovery import Verdicts, average_precision, judge, transition_matrix
from selfadapt.models.backbone import unwrapped
from selfadapt.objectives.objective import Evidence
from selfadapt.review.statistics.label_figures import Share, label_figures
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.label_table import JudgedPart, write_label_table
from selfadapt.runs.lifecycle.data_duplicates import places_of
from selfadapt.runs.lifecycle.lifecycle import list_unreadable
from selfadapt.runs.lifecycle.opened_run import TrainedState
from selfadapt.targets.store import TargetStore

_PIECE = 65_536
_MOST_CLASSES = 1000  # for which the odds of every pair of classes are written


@dataclass(frozen=True, kw_only=True)
class Audit:
    parts: Sequence[JudgedPart]  # training first
    quality: ListQuality | None  # what to expect of the list of training labels, where that can be told
    summary: dict[str, Any]


def audit_training(folder: RunFolder, data: Data, training: TrainedState) -> Audit:
    """Judge every label, write labels.csv and transition.csv, and return what was found."""
    start = training.objective.started(training.history, training.epochs) or 0
    if (training.epoch, training.step) <= (start, 0):
        raise UserError(
            f"{folder.path} knows nothing of its labels yet: {training.epoch} epochs are done, and it begins to learn "
            f"about them after epoch {start}. Train on with: selfadapt train --resume --out {folder.path}"
        )
    list_unreadable(folder, data)  # so that all processes know of the same files
    evidence = training.objective.evidence(training.progress)
    held_out = evidence is not None and evidence.held_out
    parts, quality = _judge_held_out(data, training) if held_out else (_judge_parts(data, training), None)
    list_unreadable(folder, data)
    write_label_table(folder, data, parts)
    train = parts[0]
    summary = {**_summary(folder, data, parts, quality), "labels": str(folder.labels_file)}
    if data.num_classes <= _MOST_CLASSES:
        known_n = train.known_n
        transition_KK = transition_matrix(train.suggested_N[known_n], data.train.labels[known_n], data.num_classes)
        folder.write_transition(data.classes, transition_KK.tolist())
        summary["transition"] = str(folder.transition_file)
    return Audit(parts=parts, quality=quality, summary=summary)


def _judge_held_out(data: Data, training: TrainedState) -> tuple[list[JudgedPart], ListQuality]:
    """All splits by out-of-sample predictions: those of the folds, and those of the finished head.

    What is estimated comes from the training labels alone, as `find_label_errors` on them has it.
    """
    assert training.targets is not None
    matrix_KK = unwrapped(training.model).get_buffer("transition_KK").cpu()
    train_NK = torch.cat([training.targets.read(index_n) for index_n in torch.arange(len(data.train)).split(_PIECE)])
    others = [samples for name, samples in data.splits.items() if name != "train"]
    predicted_NK = torch.cat(
        [train_NK, *(predict(training.model, own.inputs, data.num_classes, training.device) for own in others)]
    )
    labels_N = torch.cat([data.train.labels, *(own.labels for own in others)])
    vectors_ND = torch.cat([own.inputs.read(torch.arange(len(own))) for own in (data.train, *others)])
    ids = [sample_id for own in (data.train, *others) for sample_id in own.ids]
    duplicates = [group.members for group in places_of(ids, data.duplicates) if group.is_evidence]
    found = judge_out_of_sample(
        predicted_NK, labels_N, matrix_KK, duplicates, estimated_on=len(data.train), unjudged_K=_unjudged(data)
    )
    ends = list(accumulate(map(len, data.splits.values())))
    splits = [slice(end - len(samples), end) for samples, end in zip(data.splits.values(), ends, strict=True)]
    found = with_errors_of_each(found, predicted_NK, labels_N, matrix_KK, splits[1:])
    outlier_score_N = outlier_scores(vectors_ND, predicted_NK, found.suggested_N)
    rank_N = torch.empty(len(labels_N))
    rank_N[found.ranked_n] = torch.arange(len(labels_N), 0, -1).float()
    parts = []
    for (name, samples), own in zip(data.splits.items(), splits, strict=True):
        parts.append(
            JudgedPart(
                name=name,
                samples=samples,
                suggested_N=found.suggested_N[own],
                confidence_N=found.confidence_N[own],
                weight_N=found.weight_N[own],
                suspect_N=found.is_error_N[own],
                suspicion_N=rank_N[own],
                p_wrong_N=found.p_wrong_N[own],
                runner_up_N=found.runner_up_N[own],
                known_n=torch.arange(len(samples)),
                predicted_N=None if name == "train" else predicted_classes(predicted_NK[own]),
                outsider_N=outlier_score_N[own],
                few_K=found.few_K,
            )
        )
    return parts, found.quality


def _unjudged(data: Data) -> Tensor:
    """The classes whose training samples are all duplicates of one."""
    groups = [group.members for group in places_of(data.train.ids, data.duplicates)]
    return single_image_classes(groups, data.train.labels, data.num_classes)


def _judge_parts(data: Data, training: TrainedState) -> list[JudgedPart]:
    """Training labels by the method's evidence, the others by the network's predictions."""
    verdicts, known_n = _judged(data, training)
    parts = [_part("train", data.train, verdicts, known_n)]
    for name, samples in data.splits.items():
        if name != "train":
            predicted_NK = predict(training.model, samples.inputs, data.num_classes, training.device)
            known_n = (~predicted_NK.isnan().any(1)).nonzero().flatten()
            rows = [predicted_NK[known_n]]
            found = judge(lambda rows=rows: rows, samples.labels[known_n], weighted=False)  # type: ignore[misc]
            part = _part(name, samples, _for_all(samples, found, known_n), known_n)
            parts.append(replace(part, predicted_N=predicted_classes(predicted_NK)))
    return parts


def _part(name: str, samples: Samples, verdicts: Verdicts, known_n: Tensor) -> JudgedPart:
    suspect_N = verdicts.suggested_N != samples.labels
    return JudgedPart(
        name=name,
        samples=samples,
        suggested_N=verdicts.suggested_N,
        confidence_N=verdicts.confidence_N,
        weight_N=verdicts.weight_N,
        suspect_N=suspect_N,
        suspicion_N=2 * suspect_N.double() - verdicts.support_N.double(),  # support is at most 1
        p_wrong_N=1 - verdicts.support_N,
        runner_up_N=verdicts.runner_up_N,
        known_n=known_n,
    )


def judge_labels(data: Data, training: TrainedState) -> Verdicts:
    """A verdict on every training label. One whose file was never read stays as it is, at the end of the ranking."""
    return _judged(data, training)[0]


def _judged(data: Data, training: TrainedState) -> tuple[Verdicts, Tensor]:
    """The verdicts, and the samples of which there is something to judge by."""
    evidence = training.objective.evidence(training.progress)
    labels, (known_n, rows) = data.train.labels, _beliefs(data, training, evidence)
    share_n = None if evidence is None else _label_shares(training, evidence)[known_n]
    weighted = evidence is not None and evidence.weighed
    found = judge(rows, labels[known_n], weighted=weighted, label_share_N=share_n)
    return _for_all(data.train, found, known_n), known_n


def _for_all(samples: Samples, found: Verdicts, known_n: Tensor) -> Verdicts:
    """Verdicts on all samples, from those on the known ones. The others keep their labels, and come last."""
    labels, ones_N = samples.labels, torch.ones(len(samples))
    if len(known_n) == len(labels):
        return found
    return Verdicts(
        suggested_N=labels.index_copy(0, known_n, found.suggested_N),
        confidence_N=(ones_N / 2).index_copy(0, known_n, found.confidence_N),
        weight_N=ones_N.index_copy(0, known_n, found.weight_N),
        support_N=ones_N.index_copy(0, known_n, found.support_N),
        runner_up_N=labels.index_copy(0, known_n, found.runner_up_N),
    )


def _beliefs(
    data: Data, training: TrainedState, evidence: Evidence | None
) -> tuple[Tensor, Callable[[], Iterable[Tensor]]]:
    """The samples of which something is known, and what the network, or its targets, hold of them."""
    targets = training.targets
    if targets is None or evidence is None:
        predicted_NK = predict(training.model, data.train.inputs, data.num_classes, training.device)
        known_n = (~predicted_NK.isnan().any(1)).nonzero().flatten()
        return known_n, lambda: [predicted_NK[known_n]]
    known_n = _seen(data, targets)
    return known_n, lambda: (targets.read(index_n) for index_n in known_n.split(_PIECE))


def _seen(data: Data, targets: TargetStore) -> Tensor:
    """All samples but those whose files are broken and whose targets are what they were before training."""
    broken = data.train.broken
    known_N = torch.ones(len(data.train), dtype=torch.bool)
    candidates = torch.tensor([i for i, name in enumerate(data.train.ids) if name in broken], dtype=torch.int64)
    if len(candidates):
        rows_nK = targets.read(candidates)
        label_nK = one_hot(data.train.labels[candidates], rows_nK.shape[1]).to(rows_nK)
        known_N[candidates] = (rows_nK != label_nK).any(1) & rows_nK.any(1)
    return known_N.nonzero().flatten()


def _label_shares(training: TrainedState, before: Evidence) -> Tensor:
    """What of each target is still its label. In the middle of an epoch some have moved once more than others."""
    after = training.objective.evidence(replace(training.progress, epoch=training.epoch + 1))
    assert after is not None
    return torch.where(training.visited_N, after.label_share, before.label_share)


def _summary(folder: RunFolder, data: Data, parts: Sequence[JudgedPart], quality: ListQuality | None) -> dict[str, Any]:
    """The figures of the audit, of the training split and of each, and what the truth says where it is known."""
    train = parts[0]
    suspect_N, known_n, suspects = train.suspect_N, train.known_n, int(train.suspect_N.sum())
    summary: dict[str, Any] = {
        "suspects": suspects,
        **_expected(folder, suspects, quality),
        "not_judged": len(data.train) - len(known_n),
        "duplicates": len(data.duplicates),
        "classes": _classes(data, train),
    }
    truth = data.train.truth
    if truth is not None:
        known_N = torch.zeros(len(data.train), dtype=torch.bool).index_fill(0, known_n, True)
        wrong_N = (data.train.labels != truth) & known_N
        caught = int((suspect_N & wrong_N).sum())
        summary |= {
            "wrong": int(wrong_N.sum()),
            "precision": caught / suspects if suspects else None,
            "recall": caught / int(wrong_N.sum()) if wrong_N.any() else None,
            "recovery": accuracy(train.suggested_N[known_n], truth[known_n]),
            "average_precision": average_precision(train.order_N[known_N[train.order_N]], wrong_N),
        }
    if quality is not None:
        summary["quality"] = [
            {"depth": depth, "precision": asdict(own), "recall": asdict(found)}
            for depth, own, found in zip(quality.depths, quality.precision, quality.recall, strict=True)
        ]
    return summary


def _expected(folder: RunFolder, suspects: int, quality: ListQuality | None) -> dict[str, Any]:
    """What is shown everywhere (label_figures.py); intervals of the audit where a review measured none."""
    if distributed.rank():  # the first process has written labels.csv, and reports
        return {}
    figures = label_figures(folder)
    own = figures.splits[0]
    precision, recall = (None, None) if quality is None or not suspects else quality.at(suspects)
    return {
        **_interval("estimated_noise_rate", own.error_rate, None if quality is None else quality.noise_rate),
        **_interval("expected_precision", own.precision, precision),
        **_interval("expected_recall", own.recall, recall),
        "parts": {
            split.split: {"labels": split.labels, "suspects": split.likely_errors, **split.to_json()}
            for split in figures.splits
        },
        "summary": " ".join(figures.sentences),
    }


def _interval(name: str, share: Share | None, expected: Interval | None) -> dict[str, float | None]:
    """A share with the interval that was measured or, before that, the one the audit expects."""
    if share is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = share.low, share.high
    if low is None and expected is not None:
        low, high = min(share.value, expected.low), max(share.value, expected.high)
    return {name: share.value, f"{name}_low": low, f"{name}_high": high}


def _classes(data: Data, train: JudgedPart) -> list[dict[str, Any]]:
    """What was found in each class, as it is given."""
    given_K = torch.bincount(data.train.labels, minlength=data.num_classes).tolist()
    wrong_K = torch.bincount(data.train.labels[train.suspect_N], minlength=data.num_classes).tolist()
    few_K = [False] * data.num_classes if train.few_K is None else train.few_K.tolist()
    return [
        {"class": name, "given": given, "judged_wrong": wrong, "too_few": few}
        for name, given, wrong, few in zip(data.classes, given_K, wrong_K, few_K, strict=True)
    ]
