"""The audit of a run: a verdict on every training label, as labels.csv and in numbers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from selfadapt.data.reading import read_batches
from selfadapt.data.samples import Data
from selfadapt.engine.fit import Training
from selfadapt.errors import UserError
from selfadapt.evaluation.accuracy import accuracy, predict
from selfadapt.evaluation.recovery import Verdicts, average_precision, judge, transition_matrix
from selfadapt.objectives.objective import Evidence
from selfadapt.report.figures import contact_sheet
from selfadapt.report.results import RunFolder
from selfadapt.runs.lifecycle import list_unreadable
from selfadapt.targets.store import TargetStore

_PIECE = 65_536
_MOST_CLASSES = 1000  # for which the odds of every pair of classes are written
_SHOWN = 40  # suspects on the contact sheet


def audit_training(folder: RunFolder, data: Data, training: Training) -> tuple[dict[str, Any], Verdicts]:
    """Judge every training label, write labels.csv and transition.csv, and return the summary and the verdicts.

    The evidence is the targets, less what is left of the label in them; a method without targets is judged by its
    predictions on the training images.
    """
    start = training.objective.started(training.history, training.settings.epochs) or 0
    if (training.epoch, training.step) <= (start, 0):
        raise UserError(
            f"{folder.path} knows nothing of its labels yet: {training.epoch} epochs are done, and it begins to learn "
            f"about them after epoch {start}. Train on with: selfadapt train --resume --out {folder.path}"
        )
    list_unreadable(folder, data)  # so that all processes know of the same files
    verdicts, known_n = _judged(data, training)
    list_unreadable(folder, data)
    _write_labels(folder, data, verdicts)
    summary = {**_summary(data, verdicts, known_n), "labels": str(folder.labels_file)}
    if data.num_classes <= _MOST_CLASSES:
        transition_KK = transition_matrix(verdicts.suggested_N[known_n], data.train.labels[known_n], data.num_classes)
        folder.write_transition(data.classes, transition_KK.tolist())
        summary["transition"] = str(folder.transition_file)
    return summary, verdicts


def judge_labels(data: Data, training: Training) -> Verdicts:
    """A verdict on every training label. One whose file was never read stays as it is, at the end of the ranking."""
    return _judged(data, training)[0]


def _judged(data: Data, training: Training) -> tuple[Verdicts, Tensor]:
    """The verdicts, and the samples of which there is something to judge by."""
    evidence = training.objective.evidence(training.progress)
    labels, (known_n, rows) = data.train.labels, _beliefs(data, training, evidence)
    share_n = None if evidence is None else _label_shares(training, evidence)[known_n]
    weighted = evidence is not None and evidence.weighed
    found = judge(rows, labels[known_n], weighted=weighted, label_share_N=share_n)
    if len(known_n) == len(labels):
        return found, known_n
    ones_N = torch.ones(len(labels))
    verdicts = Verdicts(
        suggested_N=labels.index_copy(0, known_n, found.suggested_N),
        confidence_N=(ones_N / 2).index_copy(0, known_n, found.confidence_N),
        weight_N=ones_N.index_copy(0, known_n, found.weight_N),
        support_N=ones_N.index_copy(0, known_n, found.support_N),
    )
    return verdicts, known_n


def _beliefs(
    data: Data, training: Training, evidence: Evidence | None
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


def _label_shares(training: Training, before: Evidence) -> Tensor:
    """What of each target is still its label. In the middle of an epoch some have moved once more than others."""
    after = training.objective.evidence(replace(training.progress, epoch=training.epoch + 1))
    assert after is not None
    visited_N = training.accumulator.predicted_N.cpu() >= 0
    return torch.where(visited_N, after.label_share, before.label_share)


def _suspects(data: Data, verdicts: Verdicts) -> Tensor:
    return verdicts.suggested_N != data.train.labels


def _summary(data: Data, verdicts: Verdicts, known_n: Tensor) -> dict[str, Any]:
    """The metrics of the audit, over the samples that were judged."""
    suspect_N = _suspects(data, verdicts)
    summary: dict[str, Any] = {
        "suspects": int(suspect_N.sum()),
        "estimated_noise_rate": suspect_N[known_n].double().mean().item(),
        "not_judged": len(data.train) - len(known_n),
    }
    truth = data.train.truth
    if truth is not None:
        known_N = torch.zeros(len(data.train), dtype=torch.bool).index_fill(0, known_n, True)
        wrong_N = (data.train.labels != truth) & known_N
        caught = int((suspect_N & wrong_N).sum())
        summary |= {
            "wrong": int(wrong_N.sum()),
            "precision": caught / int(suspect_N.sum()) if suspect_N.any() else None,
            "recall": caught / int(wrong_N.sum()) if wrong_N.any() else None,
            "recovery": accuracy(verdicts.suggested_N[known_n], truth[known_n]),
            "average_precision": average_precision(verdicts.order_N[known_N[verdicts.order_N]], wrong_N),
        }
    return summary


def _write_labels(folder: RunFolder, data: Data, verdicts: Verdicts) -> None:
    train, suspect_N = data.train, _suspects(data, verdicts)

    def rows() -> Iterator[tuple[str, ...]]:
        for i in verdicts.order_N.tolist():
            row = (
                train.ids[i],
                "" if train.paths is None else train.paths[i],
                data.classes[int(train.labels[i])],
                data.classes[int(verdicts.suggested_N[i])],
                f"{float(verdicts.confidence_N[i]):.6f}",
                f"{float(verdicts.weight_N[i]):.6f}",
                str(int(suspect_N[i])),
            )
            yield row if train.truth is None else (*row, data.classes[int(train.truth[i])])

    folder.write_labels(rows(), truth_known=train.truth is not None)


def draw_suspects(folder: RunFolder, data: Data, verdicts: Verdicts) -> None:
    """A sheet of the most suspicious images, as figures/suspects.svg."""
    suspect_N = _suspects(data, verdicts)
    chosen = [i for i in verdicts.order_N.tolist() if suspect_N[i]][:_SHOWN]
    path = folder.figures / "suspects.svg"
    if not chosen:
        path.unlink(missing_ok=True)
        return
    (read,) = read_batches(data.train.inputs, [torch.tensor(chosen)], workers=0)
    images = [image.permute(1, 2, 0).numpy() for image in read.images_BCHW]
    captions = [
        f"{data.classes[int(data.train.labels[i])]} → {data.classes[int(verdicts.suggested_N[i])]}"
        for i in read.index_B.tolist()
    ]
    if images:  # none, if the files broke meanwhile
        contact_sheet(images, captions, path)
