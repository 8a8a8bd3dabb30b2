"""The audit of features: an assessment of every label, as labels.csv and in numbers, without a training.

Shapes: N samples.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import StageProgress, no_stages
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.labels.class_names import class_names
from selfadapt.data.labels.overrides import apply_labels, check_labels_file, labels_by_id, labels_in_order
from selfadapt.data.shards.feature_shards import FeatureShards
from selfadapt.data.sources.shard_folder import sample_ids, stored_labels
from selfadapt.data.tabular.vectors import VectorInputs
from selfadapt.evaluation.label_errors.report import Array
from selfadapt.label_errors import find_label_errors
from selfadapt.review.statistics.label_figures import LabelFigures, figures_of
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.audit.audit_summary import MOST_CLASSES, audit_summary
from selfadapt.runs.inspect.label_table import table_rows


@dataclass(frozen=True)
class FeatureAudit:
    summary: dict[str, Any]
    figures: LabelFigures


def audit_features(path: Path, labels: Path | None, out: Path, *, on_pass: StageProgress = no_stages) -> FeatureAudit:
    """Assess the label of each sample, write labels.csv and transition.csv, and return the results.

    Args:
        path: A folder of shards, or a file of features.
        labels: A .npy or .csv file with the given labels; those in the shards then count as the truth.
        out: The folder to write to.
        on_pass: Called with the name of a pass over large features, the number of samples done, and of all.

    Raises:
        UserError: If features or labels are missing, cannot be read, or do not suffice to judge labels.
    """
    folder = RunFolder(out)
    if folder.exists:
        raise UserError(f"{out} is a run; give another --out")
    folder.check_writable()
    shards = FeatureShards.of(path)
    classes, labels_N, truth_N = _labelled(path, shards, labels)
    try:
        report = find_label_errors(labels_N, features=shards, class_names=range(len(classes)), on_pass=on_pass)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    report = replace(report, class_names=np.array(classes, object))
    found = figures_of(report, {}, {})
    figures = replace(found, splits=[replace(own, further_checks=0) for own in found.splits])  # a review needs a run
    summary = {
        **audit_summary(report, figures, len(report.summary.duplicate_groups), truth_N),
        "labels": str(folder.labels_file),
    }
    truth = [] if truth_N is None else truth_N.tolist()
    rows = table_rows(report, [""] * len(report), truth, truth_known=truth_N is not None)
    folder.write_labels(rows if distributed.rank() == 0 else (), truth_known=truth_N is not None)
    if len(classes) <= MOST_CLASSES:
        folder.write_transition(classes, report.summary.noise_matrix.tolist())
        summary["transition"] = str(folder.transition_file)
    return FeatureAudit(summary, figures)


def _labelled(path: Path, shards: FeatureShards, file: Path | None) -> tuple[tuple[str, ...], Tensor, Tensor | None]:
    """The classes, and the given and the true label of each sample."""
    own = stored_labels(path, shards)
    if file is None:
        if own is None:
            raise UserError(f"{path} has no labels; give them with --labels FILE, a .npy or .csv file")
        return *_coded(path, own), None
    check_labels_file(file)
    ids = sample_ids(path, shards) if file.suffix == ".csv" else []
    if own is None:
        return *_coded(file, labels_by_id(file, ids) if ids else labels_in_order(file, len(shards))), None
    classes, truth_N = _coded(path, own)
    samples = Samples(inputs=VectorInputs(torch.zeros(len(truth_N), 0)), labels=truth_N, truth=None, ids=ids)
    data = Data(name=path.stem, classes=classes, train=samples, validation=None, test=None)
    return classes, apply_labels(data, file).train.labels, truth_N


def _coded(path: Path, labels: Array) -> tuple[tuple[str, ...], Tensor]:
    """The classes, and each label as a number among them."""
    names, code_N = np.unique(labels, return_inverse=True)
    classes = class_names(str(path), [str(name) for name in names.tolist()])
    position = {name: k for k, name in enumerate(classes)}
    return classes, torch.tensor([position[str(name)] for name in names.tolist()])[torch.from_numpy(code_N)]
