"""Checks of the labels, features, probabilities and groups that users pass. A ValueError says what to pass instead.

Shapes: N samples, F features, K classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.forms.frames import is_array_like, package_of, table_rows
from selfadapt.data.labels.class_names import LEAVE_OUT, ONE_COLUMN_EACH, several_labels
from selfadapt.data.tabular.column_encoder import fit_columns
from selfadapt.data.tabular.row_encoder import Table

Array = np.ndarray[Any, np.dtype[Any]]
_ROUNDING = 0.01  # in the sum of probabilities
_LARGEST = 2.0**53  # from which on a float stands for several whole numbers


def checked_labels(labels: Any) -> Array:
    """One class name or whole number for each sample."""
    given_N = _array(labels)
    if given_N.ndim != 1:
        raise ValueError(f"labels must be one for each sample, but their shape is {given_N.shape}")
    if given_N.dtype.kind == "U" and (several := several_labels(set(given_N.tolist()))) is not None:
        raise ValueError(f"the label {several!r} names several classes; {ONE_COLUMN_EACH}")
    return given_N


def _array(labels: Any) -> Array:
    if isinstance(labels, Tensor):
        labels = _numpy(labels)
    elif not hasattr(labels, "__array__") and (isinstance(labels, str) or not isinstance(labels, Sequence)):
        raise ValueError(f"labels are a {type(labels).__name__}; pass a list, an array, a tensor or a pandas Series")
    if getattr(labels, "ndim", 1) == 2 and labels.shape[1] > 1:
        raise ValueError(f"labels have the shape {labels.shape}; {ONE_COLUMN_EACH}")
    if getattr(getattr(labels, "dtype", None), "kind", "O") == "O" and getattr(labels, "ndim", 1) == 1:
        _check_objects(list(labels))
    array = np.asarray(labels)
    if array.dtype.kind in "fmM":
        _check_none_missing(array != array, "labels", LEAVE_OUT)  # NaN and NaT
    if array.dtype.kind == "c":
        raise ValueError("labels must be class names or whole numbers, but they are complex")
    if array.dtype.kind == "f":
        if not (np.isfinite(array) & (array == np.round(array))).all():
            raise ValueError("labels must be class names or whole numbers, but they hold fractions or infinity")
        if not (abs(array) < _LARGEST).all():
            raise ValueError(
                f"the label {array[abs(array).argmax()]:.0f} is too large to be distinguished from others as a float"
            )
        array = array.astype(np.int64)
    if array.dtype.kind == "O":
        array = _words(array)
    if array.dtype.kind == "U":
        _check_none_missing(np.char.strip(array) == "", "labels", LEAVE_OUT)
        if array is labels:
            remedy = f"numpy writes a missing value among words as 'nan'; {LEAVE_OUT}, or rename that class"
            _check_none_missing(array == "nan", "labels", remedy)
    return array


def _numpy(values: Tensor) -> Array:
    try:
        values = values.detach().cpu()
        # numpy has no bfloat16, and float32 holds each of its values
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    except (TypeError, NotImplementedError) as error:  # sparse, quantised, or without data
        raise ValueError(f"the tensor cannot be read as an array: {error}") from error


def plain(values: Any) -> Any:
    """A masked array with None for each masked value, which counts as missing; anything else as it is."""
    if type(values).__module__.startswith("scipy.sparse"):
        raise ValueError("sparse matrices are not supported; pass an array, such as that of .toarray()")
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        return values
    objects = values.data.astype(object)
    objects[values.mask] = None
    return objects


def _check_objects(labels: Sequence[Any]) -> None:
    """Check items before numpy converts them to text: each must be a label of the same type, and none missing."""
    several = next((i for i, own in enumerate(labels) if isinstance(own, list | tuple | set | np.ndarray)), None)
    if several is not None:
        raise ValueError(f"the label of sample {several} is {labels[several]}; {ONE_COLUMN_EACH}")
    _check_none_missing(np.array([_is_missing(own) for own in labels]), "labels", LEAVE_OUT)
    cut = next((own for own in labels if isinstance(own, str) and own.endswith("\0")), None)
    if cut is not None:
        raise ValueError(f"the label {cut!r} ends in a NUL character, which numpy would drop; rename that class")
    word = next((i for i, own in enumerate(labels) if isinstance(own, str)), None)
    other = next((i for i, own in enumerate(labels) if not isinstance(own, str)), None)
    if word is not None and other is not None:
        raise ValueError(
            f"labels mix words and other values: {labels[word]!r} of sample {word} and {labels[other]!r} of sample "
            f"{other}; make them all words, or all numbers"
        )


def _words(values_N: Array) -> Array:
    """Objects as words; what is missing as the empty one."""
    return np.array(["" if _is_missing(value) else str(value) for value in values_N])


def _is_missing(value: Any) -> bool:
    # By their words first: pandas.NA does not say whether it differs from itself, but raises.
    return value is None or str(value) in ("<NA>", "NaT") or value != value


def _check_none_missing(missing_N: Array, name: str, remedy: str) -> None:
    if missing_N.any():
        raise ValueError(f"{name} are missing in {missing_N.sum()} places, first in {missing_N.argmax()}; {remedy}")


def checked_table(values: Any, count: int, *, probabilities: bool) -> Tensor:
    """Features or probabilities, as many rows as there are labels."""
    name = "pred_probs" if probabilities else "features"
    if not probabilities and package_of(values) is not None and not is_array_like(values):
        values = _encoded(values)
    try:
        array = np.asarray(_numpy(values) if isinstance(values, Tensor) else values)
        if array.dtype.kind == "c":
            raise ValueError("they are complex")
        array = array.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a table of numbers: {error}") from error
    table_NX = torch.from_numpy(array.astype(np.float32))
    if table_NX.dim() != 2 or len(table_NX) != count:
        raise ValueError(f"{name} must be {count} rows, one for each label, but their shape is {tuple(table_NX.shape)}")
    bad = (~table_NX.isfinite()).any(1).nonzero().flatten()
    if len(bad):
        raise ValueError(f"{name} are not finite float32 numbers in {len(bad)} rows, first in row {int(bad[0])}")
    if probabilities:
        table_NX = table_NX.clamp_min(0) if table_NX.min() > -_ROUNDING else table_NX
        wrong = ((table_NX < 0).any(1) | ((table_NX.sum(1) - 1).abs() > _ROUNDING)).nonzero().flatten()
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"pred_probs must be from 0 on and sum to 1, but row {row} sums to {float(table_NX[row].sum()):g}, "
                f"with {float(table_NX[row].min()):g} as the least; pass softmax outputs"
            )
    return table_NX


def _encoded(frame: Any) -> Tensor:
    """A frame with categories or missing numbers, encoded as the columns of a table are."""
    table = Table(rows=table_rows(frame), location=lambda i: f"features, row {i}")
    try:
        return fit_columns(table).encode(table)
    except UserError as error:
        raise ValueError(str(error)) from error


def index_of(labels: Any) -> Any:
    """The index of a pandas Series; None for anything else, such as a list, whose `index` is a method."""
    index = getattr(labels, "index", None)
    return index if hasattr(index, "__len__") else None


def named_columns(probabilities: Any, given_N: Array) -> list[Any] | None:
    """The columns of a frame, if they are named after classes and each label is among them."""
    columns = list(probabilities.columns) if package_of(probabilities) is not None else []
    return columns if set(given_N.tolist()) <= set(columns) else None


def coded_labels(given_N: Array, classes: Sequence[Any] | None, columns: int | None) -> tuple[Array, Tensor]:
    """The names of the classes, and each label as a number among them."""
    values, value_N = np.unique(given_N, return_inverse=True)
    names = values if classes is None else np.array(list(classes))
    whole = given_N.dtype.kind in "iu"
    if classes is None and columns is not None and whole and given_N.min() >= 0 and given_N.max() < columns:
        names = np.arange(columns)
    if len(values) < 2:
        raise ValueError(f"all labels are {given_N.tolist()[0]!r}; pass samples of at least two classes together")
    if len(set(names.tolist())) < len(names):
        raise ValueError("class_names= names a class twice")
    if columns is not None and columns != len(names):
        raise ValueError(f"pred_probs have {columns} columns but there are {len(names)} classes; pass class_names=")
    place = {name: position for position, name in enumerate(names.tolist())}
    known = np.array([value in place for value in values.tolist()])
    if not known.all():
        unknown = given_N[(~known[value_N]).argmax()]
        raise ValueError(
            f"label {unknown.item()!r} is not among class_names={names.tolist()[:5]}…; they must be of one type"
        )
    return names, torch.from_numpy(np.array([place[value] for value in values.tolist()])[value_N])


def check_columns(probabilities_NK: Tensor, labels_N: Tensor) -> None:
    """Raise a ValueError if labels that are column numbers seem to be counted from one."""
    if labels_N.min() > 0:
        as_given, from_one = (
            float(probabilities_NK.gather(1, (labels_N - shift).unsqueeze(1)).mean()) for shift in (0, 1)
        )
        if from_one > as_given:
            raise ValueError(
                "no label is 0, and the labels fit the columns of pred_probs better if they count from 1; subtract 1, "
                "or pass class_names= in the order of the columns"
            )


def group_codes(groups: Any, count: int) -> Tensor:
    """A number for each sample's group."""
    # As objects: numpy would make words of a list that holds words and NaN, and NaN one more group.
    values = np.asarray(_numpy(groups) if isinstance(groups, Tensor) else groups, dtype=object)
    if values.shape != (count,):
        raise ValueError(f"groups must be one for each of the {count} labels, but their shape is {values.shape}")
    words_N = _words(values)
    _check_none_missing(np.char.strip(words_N) == "", "groups", "give a sample that belongs to no group a separate one")
    return torch.from_numpy(np.unique(words_N, return_inverse=True)[1])
