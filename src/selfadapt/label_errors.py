"""The list of wrong labels, for people who have features or predictions already.

    from selfadapt import find_label_errors
    found = find_label_errors(labels, features=features)
    print(found.summary)
    found.to_csv("labels.csv")

With `features` a head is fitted by folds (objectives/cross_fitting.py). With `probabilities`, predictions for each
sample by a model of your own that did not see it, nothing is fitted: the same posterior and the same estimate of how
labels go wrong are applied to them.

Shapes: N samples, F features, K classes.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from selfadapt.data.duplicates import find_duplicates, group_numbers, joined_groups
from selfadapt.data.folds import deal_into_folds
from selfadapt.evaluation.held_out import HeldOutVerdicts
from selfadapt.evaluation.label_quality import Interval, ListQuality
from selfadapt.evaluation.outsiders import outsiders
from selfadapt.objectives.cross_fitting import (
    LEAST_SAMPLES,
    CrossFitted,
    CrossFitting,
    check_enough,
    check_features,
    check_spread,
    cross_fit,
)
from selfadapt.objectives.transition import Transition, estimate_transition
from selfadapt.report.results import whole_file

Array = np.ndarray[Any, np.dtype[Any]]
_FOLDS = 5
_ROUNDING = 0.01  # in the sum of probabilities
_STEPS = 20  # of EM, where nothing else is done


class LabelVerdict(NamedTuple):
    """One row of the list."""

    id: str
    given: str
    suggested: str
    confidence: float
    weight: float
    suspect: bool
    outsider: float


@dataclass(frozen=True)
class ClassVerdict:
    """What was found in one class, as it is given."""

    name: str
    given: int
    judged_wrong: int
    too_few: bool  # to judge any of its labels


@dataclass(frozen=True)
class LabelSummary:
    samples: int
    suspects: int
    noise_rate: Interval
    expected_precision: Interval | None  # of the suspects; None without any
    expected_recall: Interval | None
    quality: ListQuality  # at each depth of the list
    duplicates: tuple[tuple[str, ...], ...]
    conflicts: int  # duplicates with different labels
    classes: tuple[ClassVerdict, ...]
    transition: Array  # K×K: the odds of each given label for each true class

    def __str__(self) -> str:
        rate = self.noise_rate
        lines = [
            f"{self.suspects} of {self.samples} labels look wrong; "
            f"about {rate.value:.1%} are (between {rate.low:.1%} and {rate.high:.1%})"
        ]
        if self.expected_precision is not None and self.expected_recall is not None:
            lines.append(f"how many of the suspects are wrong: {self.expected_precision}")
            lines.append(f"how many of the wrong labels are suspect: {self.expected_recall}")
        if self.duplicates:
            lines.append(f"{len(self.duplicates)} groups of duplicates, {self.conflicts} of them with several labels")
        few = [row.name for row in self.classes if row.too_few]
        if few:
            lines.append(f"too few samples to judge: {', '.join(few)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LabelErrors:
    """A verdict on each label, most suspicious first. `order` holds the positions in what was given."""

    order: Array
    id: Array
    given: Array
    suggested: Array
    confidence: Array  # of the suggested class
    weight: Array  # of the sample in training: the largest entry of its target
    suspect: Array
    outsider: Array
    summary: LabelSummary

    def __len__(self) -> int:
        return len(self.order)

    def __repr__(self) -> str:
        return f"LabelErrors: {self.summary}"

    def __iter__(self) -> Iterator[LabelVerdict]:
        columns = (getattr(self, name).tolist() for name in LabelVerdict._fields)
        return (LabelVerdict(*row) for row in zip(*columns, strict=True))

    def to_csv(self, path: str | Path) -> None:
        with whole_file(Path(path)) as file:
            writer = csv.writer(file)
            writer.writerow(LabelVerdict._fields)
            for row in self:
                numbers = (f"{row.confidence:.6f}", f"{row.weight:.6f}", int(row.suspect), f"{row.outsider:.6f}")
                writer.writerow((row.id, row.given, row.suggested, *numbers))

    def to_pandas(self) -> Any:
        """The list as a data frame; needs pandas."""
        import pandas

        return pandas.DataFrame({name: getattr(self, name) for name in LabelVerdict._fields})


def find_label_errors(
    labels: Any,
    features: Any = None,
    probabilities: Any = None,
    groups: Any = None,
    *,
    ids: Sequence[str] | None = None,
    classes: Sequence[Any] | None = None,
    duplicates: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
) -> LabelErrors:
    """Judge every label, by `features` (N×F) or out-of-sample `probabilities` (N×K).

    `groups` names what must not be split among folds (patient, video). `classes` are the names of the columns of
    `probabilities`; without them the columns stand for the sorted labels. `duplicates` are groups of positions that are
    copies of each other; without them they are looked for among the features.
    """
    given_N = _array(labels, "labels")
    if given_N.ndim != 1:
        raise ValueError(f"labels must be one for each sample, but their shape is {given_N.shape}")
    if (features is None) == (probabilities is None):
        raise ValueError("pass either features= (N×F) or probabilities= (N×K, each by a model that did not see it)")
    if len(given_N) < LEAST_SAMPLES:
        raise ValueError(f"{len(given_N)} samples are too few to judge labels; pass at least {LEAST_SAMPLES}")
    values_NX = _table(probabilities if features is None else features, len(given_N), features is None)
    names, labels_N = _coded(given_N, classes, values_NX.shape[1] if features is None else None)
    if ids is not None and len(ids) != len(given_N):
        raise ValueError(f"there are {len(given_N)} labels but {len(ids)} ids")
    name_N = np.array(
        [str(position) for position in range(len(given_N))] if ids is None else [str(name) for name in ids]
    )
    if features is not None:
        return fit_and_judge(values_NX, labels_N, names, name_N, groups, duplicates, seed)[1]
    check_enough(labels_N)
    duplicates = _checked([] if duplicates is None else duplicates, len(given_N))
    fold_N = _dealt(labels_N, duplicates, groups, seed)
    predicted_NK = values_NX / values_NX.sum(1, keepdim=True)
    transition = estimate_transition(predicted_NK, labels_N, fold_N, steps=_STEPS)
    return _listed(predicted_NK, predicted_NK, labels_N, transition, names, name_N, duplicates, seed)


def fit_and_judge(
    features_NF: Tensor,
    labels_N: Tensor,
    names: Array,
    name_N: Array,
    groups: Any,
    duplicates: Sequence[Sequence[int]] | None,
    seed: int,
    settings: CrossFitting | None = None,
) -> tuple[CrossFitted, LabelErrors]:
    """A head that is fitted by folds to labels 0, 1, … (their names and the samples' beside them), and its verdicts."""
    check_enough(labels_N)
    check_features(features_NF)
    found = _checked(find_duplicates(features_NF) if duplicates is None else duplicates, len(labels_N))
    fold_N = _dealt(labels_N, found, groups, seed)
    check_spread(labels_N, fold_N, [str(name) for name in names])
    fitted = cross_fit(features_NF, labels_N, fold_N, len(names), settings)
    predicted_NK, transition = fitted.predicted_NK, fitted.transition
    return fitted, _listed(features_NF, predicted_NK, labels_N, transition, names, name_N, found, seed)


def _checked(duplicates: Sequence[Sequence[int]], count: int) -> Sequence[Sequence[int]]:
    for group in duplicates:
        if len(set(group)) < 2 or min(group) < 0 or max(group) >= count:
            raise ValueError(f"duplicates= holds {list(group)}; a group is two or more positions from 0 to {count - 1}")
    return duplicates


def _dealt(labels_N: Tensor, duplicates: Sequence[Sequence[int]], groups: Any, seed: int) -> Tensor:
    """The fold of each sample; duplicates, and what belongs to one group, share theirs."""
    groups_N = group_numbers([list(members) for members in duplicates], len(labels_N))
    if groups is not None:
        groups_N = joined_groups(groups_N, _group_codes(groups, len(labels_N)))
    return deal_into_folds(labels_N, _folds(groups_N), seed, groups_N)


def _listed(
    seen_NX: Tensor,
    predicted_NK: Tensor,
    labels_N: Tensor,
    transition: Transition,
    names: Array,
    name_N: Array,
    duplicates: Sequence[Sequence[int]],
    seed: int,
) -> LabelErrors:
    """The list, from predictions that saw no label. Outsiders are told by `seen_NX`: features, or the predictions."""
    verdicts = HeldOutVerdicts.of(predicted_NK, labels_N, transition.matrix_KK, seed)
    verdicts = verdicts.with_duplicates(predicted_NK, labels_N, transition.matrix_KK, duplicates)
    far_N = outsiders(seen_NX, predicted_NK, verdicts.suggested_N)
    order = verdicts.order_N.numpy()
    return LabelErrors(
        order=order,
        id=name_N[order],
        given=names[labels_N.numpy()][order],
        suggested=names[verdicts.suggested_N.numpy()][order],
        confidence=verdicts.confidence_N.numpy()[order],
        weight=verdicts.weight_N.numpy()[order],
        suspect=verdicts.suspect_N.numpy()[order],
        outsider=far_N.numpy()[order],
        summary=_summary(verdicts, labels_N, names, name_N, duplicates, transition.matrix_KK),
    )


def _summary(
    verdicts: HeldOutVerdicts,
    labels_N: Tensor,
    names: Array,
    name_N: Array,
    duplicates: Sequence[Sequence[int]],
    matrix_KK: Tensor,
) -> LabelSummary:
    suspects = int(verdicts.suspect_N.sum())
    precision, recall = verdicts.quality.at(suspects) if suspects else (None, None)
    given_K = torch.bincount(labels_N, minlength=len(names)).tolist()
    wrong_K = torch.bincount(labels_N[verdicts.suspect_N], minlength=len(names)).tolist()
    rows = zip(names, given_K, wrong_K, verdicts.few_K.tolist(), strict=True)
    return LabelSummary(
        samples=len(labels_N),
        suspects=suspects,
        noise_rate=verdicts.quality.noise_rate,
        expected_precision=precision,
        expected_recall=recall,
        quality=verdicts.quality,
        duplicates=tuple(tuple(name_N[list(group)].tolist()) for group in duplicates),
        conflicts=sum(len(labels_N[list(group)].unique()) > 1 for group in duplicates),
        classes=tuple(ClassVerdict(str(name), given, wrong, few) for name, given, wrong, few in rows),
        transition=matrix_KK.numpy(),
    )


def _array(values: Any, name: str) -> Array:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(f"{name} hold NaN or infinity; leave those samples out")
        if not (array == np.round(array)).all():
            raise ValueError(f"{name} must be class names or whole numbers, but they hold fractions")
        array = array.astype(np.int64)
    if array.dtype.kind == "O":
        array = _words(array)
    if array.dtype.kind == "U":
        _check_none_missing(array, name, "leave those samples out")
    return array


def _words(values_N: Array) -> Array:
    """Objects as words; what is missing as the empty one."""
    return np.array(["" if _is_missing(value) else str(value) for value in values_N])


def _is_missing(value: Any) -> bool:
    # By their words first: pandas.NA does not say whether it differs from itself, but raises.
    return value is None or str(value) in ("<NA>", "NaT") or value != value


def _check_none_missing(words_N: Array, name: str, remedy: str) -> None:
    missing_N = np.char.strip(words_N) == ""
    if missing_N.any():
        raise ValueError(f"{name} are missing in {missing_N.sum()} places, first in {missing_N.argmax()}; {remedy}")


def _table(values: Any, count: int, of_odds: bool) -> Tensor:
    name = "probabilities" if of_odds else "features"
    try:
        array = np.array(values.detach().cpu().numpy() if isinstance(values, Tensor) else values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a table of numbers: {error}") from error
    table_NX = torch.from_numpy(array.astype(np.float32))
    if table_NX.dim() != 2 or len(table_NX) != count:
        raise ValueError(f"{name} must be {count} rows, one for each label, but their shape is {tuple(table_NX.shape)}")
    bad = (~table_NX.isfinite()).any(1).nonzero().flatten()
    if len(bad):
        raise ValueError(f"{name} hold no finite float32 in {len(bad)} rows, first in row {int(bad[0])}")
    if of_odds:
        table_NX = table_NX.clamp_min(0) if table_NX.min() > -_ROUNDING else table_NX
        wrong = ((table_NX < 0).any(1) | ((table_NX.sum(1) - 1).abs() > _ROUNDING)).nonzero().flatten()
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"probabilities must be from 0 on and sum to 1, but row {row} sums to {float(table_NX[row].sum()):g}, "
                f"with {float(table_NX[row].min()):g} as the least; pass softmax outputs"
            )
    return table_NX


def _coded(given_N: Array, classes: Sequence[Any] | None, columns: int | None) -> tuple[Array, Tensor]:
    """The names of the classes, and each label as a number among them."""
    names = np.unique(given_N) if classes is None else np.array(list(classes))
    whole = given_N.dtype.kind in "iu"
    if classes is None and columns is not None and whole and given_N.min() >= 0 and given_N.max() < columns:
        names = np.arange(columns)
    if len(np.unique(given_N)) < 2:
        raise ValueError("all labels are the same; there must be at least two classes")
    if len(set(names.tolist())) < len(names):
        raise ValueError("classes= names a class twice")
    if columns is not None and columns != len(names):
        raise ValueError(f"probabilities have {columns} columns but there are {len(names)} classes; pass classes=")
    place = {name: position for position, name in enumerate(names.tolist())}
    unknown = [label for label in given_N.tolist() if label not in place]
    if unknown:
        raise ValueError(f"label {unknown[0]!r} is not among classes={names.tolist()[:5]}…; they must be of one type")
    return names, torch.tensor([place[label] for label in given_N.tolist()])


def _group_codes(groups: Any, count: int) -> Tensor:
    # As objects: numpy would make words of a list that holds words and NaN, and NaN one more group.
    values = np.asarray(groups.detach().cpu().numpy() if isinstance(groups, Tensor) else groups, dtype=object)
    if values.shape != (count,):
        raise ValueError(f"groups must be one for each of the {count} labels, but their shape is {values.shape}")
    words_N = _words(values)
    _check_none_missing(words_N, "groups", "give a sample that belongs to no other a group of its own")
    return torch.from_numpy(np.unique(words_N, return_inverse=True)[1])


def _folds(groups_N: Tensor) -> int:
    apart = len(groups_N.unique())
    if apart < 3:
        raise ValueError(f"the samples fall into {apart} groups; there must be at least three to hold some out")
    return min(_FOLDS, apart)
