"""The table of docs/results/label-errors-features.md: the list of label errors that users get, against baselines.

    python -m benchmarks.label_errors_features --features FOLDER [--photos FOLDER] [--only plants] [--seeds 1] [--page]

Needs `pip install cleanlab`. Each cell and seed adds a line of JSON to docs/results/rows/label-errors-features.jsonl.
Existing lines are not measured again, except our lists with `--again` if they are of another commit. The report is made
from this file. FOLDER holds the features that benchmarks.label_error_data writes, CIFAR-10_human.pt of
UCSC-REAL/cifar-10-100n and cifar10_mturk.json of cleanlab/label-errors. A cell whose files are missing is skipped.

Shapes: N samples, F features, K classes.
"""

import argparse
import csv
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.grid import program
from benchmarks.label_error_baselines import (
    cleanlab_issues,
    cleanlab_scores,
    logistic_regression,
    simifeat,
)
from benchmarks.label_error_cells import CELLS, TABLES, Cell, Labelled, contradicted, labelled, lacking, read_features
from benchmarks.label_error_page import read_rows, write_page, write_row
from selfadapt import find_label_errors
from selfadapt.evaluation.label_errors.recovery import average_precision
from selfadapt.objectives.cross_fitting.cross_fit import cross_fit
from selfadapt.runs.lifecycle.environment import commit

_BINS = 10
_ROWS_OF_BIN = 20  # minimum at the top of the list, which may be short


@dataclass(frozen=True)
class Delivered:
    """The list that a user gets. Arrays are in the order of the samples."""

    ranked_N: Tensor
    is_error_N: Tensor
    p_wrong_N: Tensor | None
    predicted_NK: Tensor | None  # out-of-sample predictions that the list is computed from
    seconds: float | None  # CPU time


def from_python(samples: Labelled, seed: int) -> Delivered:
    """The list that `find_label_errors` returns."""
    predictions = []

    def fit_and_remember(*arguments: Any, **options: Any) -> Any:
        fitted = cross_fit(*arguments, **options)
        predictions.append(fitted.predicted_NK)
        return fitted

    start = time.process_time()
    with patch("selfadapt.label_errors.cross_fit", fit_and_remember):
        report = find_label_errors(samples.labels_N.numpy(), features=samples.features_NF.numpy(), seed=seed)
    seconds = time.process_time() - start
    return Delivered(
        torch.from_numpy(report.ranked_indices),
        torch.from_numpy(report.is_error),
        torch.from_numpy(report.p_wrong),
        predictions[0],
        seconds,
    )


def from_photos(photos: Path, noise: str, seed: int, features: Path) -> tuple[Labelled, Delivered]:
    """The list that `selfadapt train` writes to labels.csv for the training split, and the features of its samples."""
    with tempfile.TemporaryDirectory() as folder:
        program("train", photos, "--noise", noise, "--seed", str(seed), "--out", Path(folder) / "run")
        with open(Path(folder) / "run" / "labels.csv", newline="") as file:
            ranked = [row for row in csv.DictReader(file) if row["part"] == "train"]
    order_N = torch.tensor(sorted(range(len(ranked)), key=lambda i: ranked[i]["id"]))
    rows = [ranked[i] for i in order_N.tolist()]
    feature_of, names = read_features(features), sorted({row["truth"] for row in rows})
    labels_N = torch.tensor([names.index(row["given"]) for row in rows])
    wrong_N = torch.tensor([row["given"] != row["truth"] for row in rows])
    truth_N = torch.tensor([names.index(row["truth"]) for row in rows])
    features_NF = torch.stack([feature_of[row["id"]] for row in rows])
    samples = Labelled(features_NF, labels_N, wrong_N, contradicted(features_NF, truth_N))
    is_error_N = torch.tensor([row["suspect"] == "1" for row in rows])
    p_wrong_N = torch.tensor([float(row["p_wrong"]) for row in rows]) if "p_wrong" in rows[0] else None
    return samples, Delivered(order_N.argsort(), is_error_N, p_wrong_N, None, None)


def measure(
    cell: Cell, seed: int, folder: Path | None, photos: Path | None, earlier: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One row: our list and the baselines on the same labels; those of an `earlier` row if given."""
    if cell.data == "photos":
        assert folder is not None
        assert photos is not None
        samples, ours = from_photos(photos, cell.noise, seed, folder / "plants.npz")
    else:
        samples = labelled(cell, seed, folder)
        ours = from_python(samples, seed)
    labels_N, wrong_N = samples.labels_N, samples.wrong_N
    others: dict[str, Tensor] = {}
    if earlier is None:
        start = time.process_time()
        logistic = logistic_regression(samples.features_NF, labels_N, seed)
        scores = cleanlab_scores(logistic.predicted_NK, labels_N)
        issue_N = cleanlab_issues(logistic.predicted_NK, labels_N)
        seconds = time.process_time() - start
        others |= {f"cleanlab: {name}": score_N for name, score_N in scores.items()}
        votes = simifeat(samples.features_NF, labels_N, standardised=cell.data in TABLES)
        others |= {f"SimiFeat: {name}": score_N for name, score_N in votes.items()}
        kept = {
            "cleanlab found": _found(issue_N, wrong_N),
            "seconds": ours.seconds,
            "scikit-learn and cleanlab seconds": seconds,
            "C": logistic.inverse_decay,
        }
    else:  # times are comparable only if they were measured together
        kept = {name: earlier[name] for name in ("cleanlab found", "seconds", "scikit-learn and cleanlab seconds", "C")}
    if ours.predicted_NK is not None:
        own = cleanlab_scores(ours.predicted_NK, labels_N)
        others |= {f"cleanlab on ours: {name}": score_N for name, score_N in own.items()}
    every, uncontradicted = (
        _precisions(ours, others, wrong_N, counted_N)
        for counted_N in (torch.ones_like(wrong_N), ~samples.contradicted_N)
    )
    if earlier is not None:
        every["others"] = earlier["others"] | every["others"]
        uncontradicted["others"] = earlier["without contradicted"]["others"] | uncontradicted["others"]
    return {
        "cell": cell.name,
        "seed": seed,
        "samples": len(labels_N),
        "features": samples.features_NF.shape[1],
        "classes": int(labels_N.max()) + 1,
        "wrong": int(wrong_N.sum()),
        **every,
        "contradicted": int(samples.contradicted_N.sum()),
        "without contradicted": uncontradicted,
        "found": _found(ours.is_error_N, wrong_N),
        "calibration": None if ours.p_wrong_N is None else calibration(ours.p_wrong_N, ours.ranked_N, wrong_N),
        **kept,
        "commit": commit(),
    }


def _precisions(ours: Delivered, others: dict[str, Tensor], wrong_N: Tensor, counted_N: Tensor) -> dict[str, Any]:
    """Average precision of every list, restricted to the samples in `counted_N`."""

    def precision(ranked_N: Tensor) -> float:
        return average_precision(ranked_N[counted_N[ranked_N]], wrong_N) or 0.0

    by_score = {name: score_N.argsort(descending=True, stable=True) for name, score_N in others.items()}
    return {
        "ours": precision(ours.ranked_N),
        "others": {name: precision(ranked_N) for name, ranked_N in by_score.items()},
    }


def _found(is_error_N: Tensor, wrong_N: Tensor) -> dict[str, float | int | None]:
    """The number of likely errors, and their precision and recall where defined."""
    named, wrong, both = int(is_error_N.sum()), int(wrong_N.sum()), int((is_error_N & wrong_N).sum())
    return {"count": named, "precision": both / named if named else None, "recall": both / wrong if wrong else None}


def calibration(p_wrong_N: Tensor, ranked_N: Tensor, wrong_N: Tensor) -> dict[str, Any]:
    """Brier score, expected calibration errors, and the sums of a reliability diagram."""
    p_N, hit_N = p_wrong_N.double(), wrong_N.double()
    rate = float(hit_N.mean())
    top_n = ranked_N[: max(1, round(2 * float(hit_N.sum())))]
    bin_N = (p_N * _BINS).long().clamp_max(_BINS - 1)
    sums = {name: torch.zeros(_BINS, dtype=torch.double).index_add_(0, bin_N, values) for name, values in
            {"count": torch.ones_like(p_N), "p_wrong": p_N, "wrong": hit_N}.items()}  # fmt: skip
    return {
        "brier": float((p_N - hit_N).square().mean()),
        "brier of the base rate": rate * (1 - rate),
        "error": calibration_error(p_N, hit_N, _BINS),
        "error at the top": calibration_error(p_N[top_n], hit_N[top_n], min(_BINS, max(1, len(top_n) // _ROWS_OF_BIN))),
        "expected wrong": float(p_N.sum()),
        "bins": {name: values.tolist() for name, values in sums.items()},
    }


def calibration_error(p_N: Tensor, hit_N: Tensor, bins: int) -> float:
    """Expected calibration error over bins of equal mass."""
    order_N = p_N.argsort(stable=True)
    parts = zip(p_N[order_N].tensor_split(bins), hit_N[order_N].tensor_split(bins), strict=True)
    return sum(abs(float(p_n.sum() - hit_n.sum())) for p_n, hit_n in parts) / len(p_N)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", type=Path)
    parser.add_argument("--photos", type=Path, help="a folder of photos whose features are plants.npz")
    parser.add_argument("--only", default="", help="prefix of the cell names to run")
    parser.add_argument("--seeds", type=int, help="maximum number of seeds per cell")
    parser.add_argument("--again", action="store_true", help="only our lists of existing rows; times are kept")
    parser.add_argument("--page", action="store_true", help="only write the report from existing rows")
    chosen = parser.parse_args()
    for cell in () if chosen.page else CELLS:
        if not cell.name.startswith(chosen.only):
            continue
        if missing := lacking(cell, chosen.features, chosen.photos):
            print(f"{cell.name}: skipped, {missing} is missing", flush=True)
            continue
        for seed in cell.seeds[: chosen.seeds]:
            earlier = next((row for row in read_rows() if (row["cell"], row["seed"]) == (cell.name, seed)), None)
            if (earlier is not None) != chosen.again or (earlier is not None and earlier["commit"] == commit()):
                continue
            row = measure(cell, seed, chosen.features, chosen.photos, earlier)
            write_row(row)
            best = max(row["others"], key=row["others"].__getitem__)
            print(f"{cell.name} {seed}: {row['ours']:.3f}, {best} {row['others'][best]:.3f}", flush=True)
    write_page()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
