"""The audit of a run: a verdict on every label of every part, as labels.csv and in numbers.

Training labels are judged by what the method knows of them (its `evidence`); validation and test labels, which no
method trains on, by the predictions of the finished network. Where training labels are judged by predictions that never
saw them, all parts are judged alike, by the odds that a label is wrong, and one ranking holds for all.

Shapes: N samples, K classes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from selfadapt.data.images import ImageFiles
from selfadapt.data.reading import read_batches
from selfadapt.data.samples import Data, Samples
from selfadapt.engine.fit import Training
from selfadapt.errors import UserError
from selfadapt.evaluation.accuracy import UNKNOWN, accuracy, predict, predicted_classes
from selfadapt.evaluation.held_out import HeldOutVerdicts
from selfadapt.evaluation.label_quality import Interval, ListQuality
from selfadapt.evaluation.outsiders import outsiders
from selfadapt.evaluation.recovery import Verdicts, average_precision, judge, transition_matrix
from selfadapt.models.heads import unwrapped
from selfadapt.objectives.objective import Evidence
from selfadapt.report.contact_sheet import contact_sheet
from selfadapt.report.results import RunFolder
from selfadapt.runs.copies import places_of
from selfadapt.runs.lifecycle import list_unreadable
from selfadapt.targets.store import TargetStore

_PIECE = 65_536
_MOST_CLASSES = 1000  # for which the odds of every pair of classes are written
_SHOWN = 40  # suspects on the contact sheet
_SHOWN_SIZE = 96  # pixels, of pictures that come from files


@dataclass(frozen=True, kw_only=True)
class JudgedPart:
    """Verdicts on the labels of one part."""

    name: str
    samples: Samples
    suggested_N: Tensor
    confidence_N: Tensor
    weight_N: Tensor
    suspect_N: Tensor
    suspicion_N: Tensor  # larger where the label is more doubtful, on one scale for all parts
    known_n: Tensor  # the samples of which there is something to judge by
    predicted_N: Tensor | None = None  # by the network, where it was not trained on the labels
    outsider_N: Tensor | None = None
    few_K: Tensor | None = None  # classes too small to be judged

    @property
    def order_N(self) -> Tensor:
        return self.suspicion_N.argsort(descending=True, stable=True)


@dataclass(frozen=True, kw_only=True)
class Audit:
    parts: Sequence[JudgedPart]  # training first
    quality: ListQuality | None  # what to expect of the list of training labels, where that can be told
    summary: dict[str, Any]


def audit_training(folder: RunFolder, data: Data, training: Training) -> Audit:
    """Judge every label, write labels.csv and transition.csv, and return what was found."""
    start = training.objective.started(training.history, training.settings.epochs) or 0
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
    _write_labels(folder, data, parts)
    train = parts[0]
    summary = {**_summary(data, parts, quality), "labels": str(folder.labels_file)}
    if data.num_classes <= _MOST_CLASSES:
        known_n = train.known_n
        transition_KK = transition_matrix(train.suggested_N[known_n], data.train.labels[known_n], data.num_classes)
        folder.write_transition(data.classes, transition_KK.tolist())
        summary["transition"] = str(folder.transition_file)
    return Audit(parts=parts, quality=quality, summary=summary)


def _judge_held_out(data: Data, training: Training) -> tuple[list[JudgedPart], ListQuality]:
    """All parts by predictions that never saw the labels: those of the folds, and those of the finished head."""
    assert training.targets is not None
    matrix_KK = unwrapped(training.model).get_buffer("transition_KK").cpu()
    train_NK = torch.cat([training.targets.read(index_n) for index_n in torch.arange(len(data.train)).split(_PIECE)])
    others = [samples for name, samples in data.parts.items() if name != "train"]
    predicted_NK = torch.cat(
        [train_NK, *(predict(training.model, own.inputs, data.num_classes, training.device) for own in others)]
    )
    labels_N = torch.cat([data.train.labels, *(own.labels for own in others)])
    vectors_ND = torch.cat([own.inputs.read(torch.arange(len(own))) for own in (data.train, *others)])
    ids = [sample_id for own in (data.train, *others) for sample_id in own.ids]
    seed = 0
    verdicts = HeldOutVerdicts.of(predicted_NK, labels_N, matrix_KK, seed)
    copies = places_of(ids, data.duplicates)
    verdicts = verdicts.with_duplicates(predicted_NK, labels_N, matrix_KK, copies)
    quality = HeldOutVerdicts.of(train_NK, data.train.labels, matrix_KK, seed).quality
    outsider_N = outsiders(vectors_ND, predicted_NK, verdicts.suggested_N)
    rank_N = torch.empty(len(ids))
    rank_N[verdicts.order_N] = torch.arange(len(ids), 0, -1).float()
    parts, begin = [], 0
    for name, samples in data.parts.items():
        own = slice(begin, begin + len(samples))
        begin += len(samples)
        parts.append(
            JudgedPart(
                name=name,
                samples=samples,
                suggested_N=verdicts.suggested_N[own],
                confidence_N=verdicts.confidence_N[own],
                weight_N=verdicts.weight_N[own],
                suspect_N=verdicts.suspect_N[own],
                suspicion_N=rank_N[own],
                known_n=torch.arange(len(samples)),
                predicted_N=None if name == "train" else predicted_classes(predicted_NK[own]),
                outsider_N=outsider_N[own],
                few_K=verdicts.few_K,
            )
        )
    return parts, quality


def _judge_parts(data: Data, training: Training) -> list[JudgedPart]:
    """Training labels by the method's evidence, the others by the network's predictions."""
    verdicts, known_n = _judged(data, training)
    parts = [_part("train", data.train, verdicts, known_n)]
    for name, samples in data.parts.items():
        if name != "train":
            predicted_NK = predict(training.model, samples.inputs, data.num_classes, training.device)
            known_n = (~predicted_NK.isnan().any(1)).nonzero().flatten()
            rows = [predicted_NK[known_n]]
            found = judge(lambda rows=rows: rows, samples.labels[known_n], weighted=False)  # type: ignore[misc]
            part = _part(name, samples, _for_all(samples, found, known_n), known_n)
            parts.append(replace(part, predicted_N=predicted_classes(predicted_NK)))
    return parts


def _part(name: str, samples: Samples, verdicts: Verdicts, known_n: Tensor) -> JudgedPart:
    return JudgedPart(
        name=name,
        samples=samples,
        suggested_N=verdicts.suggested_N,
        confidence_N=verdicts.confidence_N,
        weight_N=verdicts.weight_N,
        suspect_N=verdicts.suggested_N != samples.labels,
        suspicion_N=-verdicts.support_N,
        known_n=known_n,
    )


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
    )


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


def _summary(data: Data, parts: Sequence[JudgedPart], quality: ListQuality | None) -> dict[str, Any]:
    """The figures of the audit, over the training samples that were judged, and what was found in each part."""
    train = parts[0]
    suspect_N, known_n, suspects = train.suspect_N, train.known_n, int(train.suspect_N.sum())
    precision, recall = (None, None) if quality is None or not suspects else quality.at(suspects)
    rate = suspect_N[known_n].double().mean().item()
    summary: dict[str, Any] = {
        "suspects": suspects,
        **_interval("estimated_noise_rate", None if quality is None else quality.noise_rate, rate),
        **_interval("expected_precision", precision),
        **_interval("expected_recall", recall),
        "not_judged": len(data.train) - len(known_n),
        "duplicates": len(data.duplicates),
        "parts": {own.name: {"labels": len(own.samples), "suspects": int(own.suspect_N.sum())} for own in parts},
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


def _interval(name: str, found: Interval | None, otherwise: float | None = None) -> dict[str, float | None]:
    if found is None:
        return {name: otherwise, f"{name}_low": None, f"{name}_high": None}
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _classes(data: Data, train: JudgedPart) -> list[dict[str, Any]]:
    """What was found in each class, as it is given."""
    given_K = torch.bincount(data.train.labels, minlength=data.num_classes).tolist()
    wrong_K = torch.bincount(data.train.labels[train.suspect_N], minlength=data.num_classes).tolist()
    few_K = [False] * data.num_classes if train.few_K is None else train.few_K.tolist()
    return [
        {"class": name, "given": given, "judged_wrong": wrong, "too_few": few}
        for name, given, wrong, few in zip(data.classes, given_K, wrong_K, few_K, strict=True)
    ]


def _write_labels(folder: RunFolder, data: Data, parts: Sequence[JudgedPart]) -> None:
    truth_known = data.train.truth is not None
    places = [(own, i) for own in parts for i in range(len(own.samples))]
    suspicion_N = torch.cat([own.suspicion_N for own in parts])

    def rows() -> Iterator[tuple[str, ...]]:
        for place in suspicion_N.argsort(descending=True, stable=True).tolist():
            own, i = places[place]
            samples = own.samples
            row = (
                samples.ids[i],
                "" if samples.paths is None else samples.paths[i],
                own.name,
                data.classes[int(samples.labels[i])],
                data.classes[int(own.suggested_N[i])],
                f"{float(own.confidence_N[i]):.6f}",
                f"{float(own.weight_N[i]):.6f}",
                str(int(own.suspect_N[i])),
                "" if own.outsider_N is None else f"{float(own.outsider_N[i]):.6f}",
                _predicted(data, own, i),
            )
            truth = samples.labels if samples.truth is None else samples.truth
            yield (*row, data.classes[int(truth[i])]) if truth_known else row

    folder.write_labels(rows(), truth_known=truth_known)


def _predicted(data: Data, part: JudgedPart, i: int) -> str:
    number = UNKNOWN if part.predicted_N is None else int(part.predicted_N[i])
    return "" if number == UNKNOWN else data.classes[number]


def draw_suspects(folder: RunFolder, data: Data, audit: Audit) -> None:
    """A sheet of the most suspicious training images, as figures/suspects.svg."""
    train = audit.parts[0]
    chosen = [i for i in train.order_N.tolist() if train.suspect_N[i]][:_SHOWN]
    path = folder.figures / "suspects.svg"
    pictures = data.train.pictures or data.train.inputs
    if not chosen or len(pictures.shape) == 1:  # vectors have nothing to show
        path.unlink(missing_ok=True)
        return
    if isinstance(pictures, ImageFiles):
        pictures = replace(pictures, shape=(pictures.shape[0], _SHOWN_SIZE, _SHOWN_SIZE), resize=_SHOWN_SIZE)
    (read,) = read_batches(pictures, [torch.tensor(chosen)], workers=0)
    images = [image.permute(1, 2, 0).numpy() for image in read.images_BCHW]
    captions = [
        f"{data.classes[int(data.train.labels[i])]} → {data.classes[int(train.suggested_N[i])]}"
        for i in read.index_B.tolist()
    ]
    if images:  # none, if the files broke meanwhile
        contact_sheet(images, captions, path)
