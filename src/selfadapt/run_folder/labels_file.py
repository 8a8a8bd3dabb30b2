"""labels.csv read back as a `LabelErrorReport`, in the order of its lines.

A row is identified by its position in that order. Columns of small numbers keep hundreds of thousands of labels small.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from selfadapt.core.errors import UserError
from selfadapt.evaluation.label_errors.list_quality import expected_quality
from selfadapt.evaluation.label_errors.report import Array, LabelErrorReport
from selfadapt.run_folder.folder import RunFolder

_LARGEST = float(np.finfo(np.float32).max)
SPLITS = ("train", "validation", "test")


def read_report(folder: RunFolder) -> LabelErrorReport:
    """The report of an audited run.

    Raises:
        UserError: If the run is without labels, was not audited, or labels.csv was damaged by hand.
    """
    run = folder.read_run()
    if run["settings"]["kind"] != "labels":
        raise UserError(f"{folder.path} is a run without labels; there is nothing to review")
    if not folder.labels_file.exists():
        raise UserError(
            f"{folder.labels_file} does not exist: the run was not audited yet; do that first: selfadapt audit "
            f"{folder.path}"
        )
    rows = folder.read_labels()

    def column(name: str, parse: Callable[[str], Any], kind: Any) -> Array:
        values = []
        for line, row in enumerate(rows, start=2):
            try:
                values.append(parse(row[name]))
            except ValueError as error:
                remedy = f"write it again with: selfadapt audit {folder.path}"
                raise UserError(f"{folder.labels_file}, line {line}, column {name}: {error}; {remedy}") from None
        return np.array(values, kind)

    classes = run["data"]["classes"]
    codes = {name: k for k, name in enumerate(classes)}
    known, known_or_empty = _member(codes, "a class of the data"), _member(codes | {"": -1}, "a class of the data")
    split_codes = column(
        "part", _member({name: k for k, name in enumerate(SPLITS)}, f"one of {', '.join(SPLITS)}"), np.int8
    )
    p_wrong, is_error = column("p_wrong", _share_or_nan, np.float64), column("suspect", _mark, np.bool_)
    if rows and "truth" in rows[0]:
        column("truth", known, np.int32)
    ids = column("id", _unique(), object)
    if folder.samples_file.exists():  # which does not list test samples
        samples = {row["id"] for row in folder.recorded_samples()} | set(ids[split_codes == SPLITS.index("test")])
        column("id", _member(dict.fromkeys(samples, 0), "a sample of the run"), np.int8)
    judged = np.isfinite(p_wrong) & (split_codes == 0)
    judged_p, judged_errors = torch.from_numpy(p_wrong[judged]), torch.from_numpy(is_error[judged])
    return LabelErrorReport(
        class_names=np.array(classes, object),
        given_codes=column("given", known, np.int32),
        suggested_codes=column("suggested", known, np.int32),
        runner_up_codes=column("runner_up", known_or_empty, np.int32),
        predicted_codes=column("predicted", known_or_empty, np.int32),
        is_error=is_error,
        p_wrong=p_wrong,
        rank_score=-np.arange(len(rows)),
        confidence=column("confidence", _share, np.float32),
        sample_weight=column("weight", _weight, np.float32),
        outlier_score=column("outsider", _number_or_nan, np.float32),
        duplicate_group=column("duplicate_group", _group, np.int32),
        in_conflict=column("reason", "duplicate".__eq__, np.bool_),
        too_few=np.zeros(len(classes), bool),
        quality=expected_quality(judged_p, judged_p, judged_errors),
        ids=ids,
        index=None,
        noise_matrix=None,
        paths=np.array([row["path"] for row in rows], object),
        split_names=SPLITS,
        split_codes=split_codes,
    )


def _member(codes: Mapping[str, int], what: str) -> Callable[[str], int]:
    def code(text: str) -> int:
        if text not in codes:
            raise ValueError(f"{text!r} is not {what}" if text else "the value is missing")
        return codes[text]

    return code


def _unique() -> Callable[[str], str]:
    seen: set[str] = set()

    def check(text: str) -> str:
        if text in seen:
            raise ValueError(f"{text!r} occurs in an earlier line already")
        seen.add(text)
        return text

    return check


def _within(least: float, most: float, *, optional: bool = False) -> Callable[[str], float]:
    def number(text: str) -> float:
        if optional and text in ("", "nan"):
            return math.nan
        with suppress(ValueError):
            if least <= (value := float(text)) <= most:
                return value
        raise ValueError(f"{text!r:.40} is not a number from {least:g} to {most:g}")

    return number


_share, _share_or_nan, _weight = _within(0, 1), _within(0, 1, optional=True), _within(0, 1e6, optional=True)
_number_or_nan = _within(-_LARGEST, _LARGEST, optional=True)


def _mark(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"{text!r:.40} is neither 0 nor 1")
    return text == "1"


def _group(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{text!r:.40} is not the number of a group")
    return int(text) if text else -1
