"""labels.csv: what the audit found of every label of every split, most likely wrong first."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from selfadapt.core.cache_dir import cache_dir
from selfadapt.data.dataset import Data, Samples
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.run_folder.folder import LABEL_COLUMNS, RunFolder


def write_label_table(folder: RunFolder, data: Data, report: LabelErrorReport) -> None:
    """Write labels.csv from a report on all splits."""
    samples = list(data.splits.values())
    relative_paths = [path for own in samples for path in _relative_paths(folder, own)]
    truth = [int(k) for own in samples for k in (own.labels if own.truth is None else own.truth)]
    truth_known = data.train.truth is not None
    folder.write_labels(table_rows(report, relative_paths, truth, truth_known=truth_known), truth_known=truth_known)


def table_rows(
    report: LabelErrorReport, relative_paths: Sequence[str], truth: Sequence[int], *, truth_known: bool
) -> Iterator[Sequence[str]]:
    """The rows of labels.csv; paths and true classes in the order of the report."""
    columns = LABEL_COLUMNS if truth_known else LABEL_COLUMNS[:-1]
    for i, row in zip(report.ranked_indices.tolist(), report.rows(), strict=True):
        predicted = int(report.predicted_codes[i])
        row |= {
            "path": str(report.paths[i]),
            "part": report.split_names[report.split_codes[i]],
            "predicted": str(report.class_names[predicted]) if predicted >= 0 else "",
            "relative_path": relative_paths[i],
            "truth": str(report.class_names[truth[i]]) if truth_known else "",
        }
        yield [row[name] for name in columns]


def _relative_paths(folder: RunFolder, samples: Samples) -> Sequence[str]:
    """Paths relative to the folder of the data, or of the table. A position within a file stays as it is."""
    paths = samples.paths or [""] * len(samples)
    source = Path(folder.read_run()["settings"]["data"]["source"]).absolute()
    base, named, extracted = source if source.is_dir() else source.parent, not source.exists(), str(cache_dir())

    def relative(sample_id: str, path: str) -> str:
        if not named and path.startswith(extracted):
            return sample_id  # images out of a file are named by their ids
        if not os.path.isabs(path):
            return path
        return sample_id if named else os.path.relpath(path, base)  # the ids of a named data set are paths

    return list(map(relative, samples.ids, paths))
