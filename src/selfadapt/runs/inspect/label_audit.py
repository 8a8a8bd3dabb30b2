"""The audit of a run: an assessment of every label of every split, as labels.csv and in numbers.

Training labels are assessed by the evidence of the method. Validation and test labels, which no method trains on, are
assessed by the predictions of the finished network. Where training labels are judged by out-of-sample predictions, all
splits are judged by P(wrong) and share one ranking.

Shapes: N samples, K classes.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.duplicates.groups import single_image_classes
from selfadapt.evaluation.classification import UNKNOWN, outputs, predict, predicted_classes
from selfadapt.evaluation.label_errors.build_report import expand, in_conflict, join_splits
from selfadapt.evaluation.label_errors.confusion import transition_matrix
from selfadapt.evaluation.label_errors.other_splits import with_errors_of_each
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.outliers import outlier_scores
from selfadapt.evaluation.label_errors.recovery import WITH_PATTERN, judge, judge_by_verdicts, verdict_of_each
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.models.backbone import unwrapped
from selfadapt.objectives.objective import Evidence
from selfadapt.review.statistics.label_figures import label_figures
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.audit.audit_summary import MOST_CLASSES, audit_summary
from selfadapt.runs.inspect.label_table import write_label_table
from selfadapt.runs.lifecycle.data_duplicates import places_of
from selfadapt.runs.lifecycle.lifecycle import list_unreadable
from selfadapt.runs.lifecycle.opened_run import TrainedState
from selfadapt.targets.store import TargetStore

_BLOCK = 2**26  # numbers of targets that are read at a time


@dataclass(frozen=True, kw_only=True)
class Audit:
    report: LabelErrorReport  # on all splits, training first
    summary: dict[str, Any]


def audit_training(folder: RunFolder, data: Data, training: TrainedState) -> Audit:
    """Assess every label, write labels.csv and transition.csv, and return the results."""
    start = training.objective.started(training.history, training.epochs) or 0
    if (training.epoch, training.step) <= (start, 0):
        raise UserError(
            f"{folder.path} cannot be audited yet: {training.epoch} epochs are done, and more than {start} are needed. "
            f"Resume training with: selfadapt train --resume --out {folder.path}"
        )
    list_unreadable(folder, data)  # so that all processes know of the same files
    evidence, targets = training.objective.evidence(training.progress), training.targets
    if evidence is not None and evidence.held_out and targets is not None:
        report = _about_samples(data, _judge_out_of_sample(data, training, targets))
    else:
        report = _about_samples(data, _judge_splits(data, training))
    list_unreadable(folder, data)
    write_label_table(folder, data, report)
    train = report.of_split("train")
    figures = None if distributed.rank() else label_figures(folder)  # the first process wrote labels.csv, and reports
    summary = {
        **audit_summary(train, figures, len(data.duplicates), data.train.truth), "labels": str(folder.labels_file)
    }  # fmt: skip
    if data.num_classes <= MOST_CLASSES:
        suggested_n = torch.from_numpy(train.suggested_codes[train.is_judged])
        given_n = torch.from_numpy(train.given_codes[train.is_judged])
        folder.write_transition(data.classes, transition_matrix(suggested_n, given_n, data.num_classes).tolist())
        summary["transition"] = str(folder.transition_file)
    return Audit(report=report, summary=summary)


def _about_samples(data: Data, report: LabelErrorReport) -> LabelErrorReport:
    """The report with the ids, paths, class names and duplicates of the data."""
    ids = data.ids
    paths = [path for own in data.splits.values() for path in own.paths or [""] * len(own)]
    evidence = [group.members for group in places_of(ids, data.duplicates) if group.is_evidence]
    number: dict[str, int] = {}  # as in duplicates.csv; a sample of two groups belongs to the closer one, the first
    for group_number, group in enumerate(data.duplicates, start=1):
        for sample_id in group.members:
            number.setdefault(sample_id, group_number)
    return replace(
        report,
        class_names=np.array(data.classes, object),
        ids=np.array(ids, object),
        paths=np.array(paths, object),
        duplicate_group=np.array([number.get(sample_id, -1) for sample_id in ids]),
        in_conflict=in_conflict(torch.from_numpy(report.given_codes), evidence).numpy(),
    )


def _judge_out_of_sample(data: Data, training: TrainedState, targets: TargetStore) -> LabelErrorReport:
    """All splits by out-of-sample predictions: those of the folds, and those of the finished head.

    Estimates come from the training labels alone, as `find_label_errors` on them would give.
    """
    matrix_KK = unwrapped(training.model).get_buffer("transition_KK").cpu()
    train_NK = torch.cat([targets.read(index_n) for index_n in torch.arange(len(data.train)).split(_rows(data))])
    splits = data.splits
    others = [samples for name, samples in splits.items() if name != "train"]
    predicted_NK = torch.cat(
        [train_NK, *(predict(training.model, own.inputs, data.num_classes, training.device) for own in others)]
    )
    labels_N = torch.cat([own.labels for own in splits.values()])
    vectors_ND = torch.cat([own.inputs.read(torch.arange(len(own))) for own in splits.values()])
    duplicates = [group.members for group in places_of(data.ids, data.duplicates) if group.is_evidence]
    found = judge_out_of_sample(
        predicted_NK, labels_N, matrix_KK, duplicates, estimated_on=len(data.train), unjudged_K=_unjudged(data)
    )
    sizes = [len(own) for own in splits.values()]
    ends = list(accumulate(sizes))
    later_splits = [slice(start, end) for start, end in pairwise(ends)]
    found = with_errors_of_each(found, predicted_NK, labels_N, matrix_KK, later_splits)
    predicted_codes = predicted_classes(predicted_NK).numpy()
    predicted_codes[: len(data.train)] = -1
    return replace(
        found,
        outlier_score=outlier_scores(vectors_ND, predicted_NK, torch.from_numpy(found.suggested_codes)).numpy(),
        predicted_codes=predicted_codes,
        split_names=tuple(splits),
        split_codes=np.repeat(np.arange(len(sizes), dtype=np.int8), sizes),
    )


def _unjudged(data: Data) -> Tensor:
    """The classes whose training samples are all duplicates of one."""
    groups = [group.members for group in places_of(data.train.ids, data.duplicates)]
    return single_image_classes(groups, data.train.labels, data.num_classes)


def _judge_splits(data: Data, training: TrainedState) -> LabelErrorReport:
    """Training labels by the evidence of the method, the others by the predictions of the network."""
    reports = {"train": judge_labels(data, training)}
    for name, samples in data.splits.items():
        if name != "train":
            reports[name] = judge_by_network(samples, training.model, data.num_classes, training.device)
    return join_splits(reports)


def judge_by_network(samples: Samples, model: nn.Module, num_classes: int, device: torch.device) -> LabelErrorReport:
    """Judge labels by the predictions of a network. With many classes, predictions are not held for all samples."""
    labels_N = samples.labels
    if num_classes <= WITH_PATTERN:
        predicted_NK = predict(model, samples.inputs, num_classes, device)
        predicted_N = predicted_classes(predicted_NK)
        known_n = (predicted_N != UNKNOWN).nonzero().flatten()
        rows = [predicted_NK if len(known_n) == len(samples) else predicted_NK[known_n]]
        found = judge(lambda: rows, labels_N[known_n], weighted=False)
    else:

        def keep(index_B: Tensor, outputs_BO: Tensor) -> Tensor:
            predicted_BK = outputs_BO[:, :num_classes].softmax(1)
            classes_B = predicted_classes(predicted_BK).double()
            return torch.cat([classes_B.unsqueeze(1), verdict_of_each(predicted_BK, labels_N[index_B])], 1)

        kept_NC = outputs(model, samples.inputs, device, keep=keep)
        predicted_N = kept_NC[:, 0].nan_to_num(UNKNOWN).long()
        known_n = (predicted_N != UNKNOWN).nonzero().flatten()
        found = judge_by_verdicts(kept_NC[known_n, 1:], labels_N[known_n], num_classes)
    return replace(expand(found, labels_N, known_n), predicted_codes=predicted_N.numpy())


def judge_labels(data: Data, training: TrainedState) -> LabelErrorReport:
    """Assess every training label, by targets or else by predictions of the network.

    One whose file was never read keeps its label and ranks last.
    """
    evidence, targets = training.objective.evidence(training.progress), training.targets
    if targets is None or evidence is None:
        found = judge_by_network(data.train, training.model, data.num_classes, training.device)
        return replace(found, predicted_codes=np.full(len(data.train), UNKNOWN))
    labels, known_n = data.train.labels, _visited(data, targets)
    found = judge(
        lambda: (targets.read(index_n) for index_n in known_n.split(_rows(data))),
        labels[known_n],
        weighted=evidence.reweighted,
        label_share_N=_label_shares(training, evidence)[known_n],
    )
    return expand(found, labels, known_n)


def _rows(data: Data) -> int:
    """Return the number of targets that are read at a time."""
    return max(1, _BLOCK // data.num_classes)


def _visited(data: Data, targets: TargetStore) -> Tensor:
    """All samples except those with broken files whose targets never moved."""
    broken = data.train.broken
    known_N = torch.ones(len(data.train), dtype=torch.bool)
    candidates = torch.tensor([i for i, name in enumerate(data.train.ids) if name in broken], dtype=torch.int64)
    if len(candidates):
        rows_nK = targets.read(candidates)
        label_nK = one_hot(data.train.labels[candidates], rows_nK.shape[1]).to(rows_nK)
        known_N[candidates] = (rows_nK != label_nK).any(1) & rows_nK.any(1)
    return known_N.nonzero().flatten()


def _label_shares(training: TrainedState, before: Evidence) -> Tensor:
    """The share of each target that is still its label. Within an epoch, some have moved once more than others."""
    after = training.objective.evidence(replace(training.progress, epoch=training.epoch + 1)) or before
    return torch.where(training.visited_N, after.label_share, before.label_share)
