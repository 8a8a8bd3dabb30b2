"""labels.csv: what the audit found of every label of every split, most likely wrong first."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from selfadapt.data.dataset import Data, Samples
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.run_folder.folder import RunFolder


def write_label_table(folder: RunFolder, data: Data, report: LabelErrorReport) -> None:
    samples = list(data.splits.values())
    relative_paths = [path for own in samples for path in _relative_paths(folder, own)]
    truth = [int(k) for own in samples for k in (own.labels if own.truth is None else own.truth)]
    truth_known = data.train.truth is not None

    def rows() -> Iterator[tuple[str, ...]]:
        for i, row in zip(report.ranked_indices.tolist(), report.rows(), strict=True):
            predicted = int(report.predicted_codes[i])
            yield (
                row.id,
                str(report.paths[i]),
                report.split_names[report.split_codes[i]],
                row.given,
                row.suggested,
                row.confidence,
                row.weight,
                row.suspect,
                row.outsider,
                data.classes[predicted] if predicted >= 0 else "",
                row.p_wrong,
                row.runner_up,
                row.duplicate_group,
                row.reason,
                relative_paths[i],
                *([data.classes[truth[i]]] if truth_known else []),
            )

    folder.write_labels(rows(), truth_known=truth_known)


def _relative_paths(folder: RunFolder, samples: Samples) -> Sequence[str]:
    """Paths relative to the folder of the data, or of the table. A position within a file stays as it is."""
    paths = samples.paths or [""] * len(samples)
    source = Path(folder.read_run()["settings"]["data"]["source"]).absolute()
    if source.exists():
        base = source if source.is_dir() else source.parent
        return [os.path.relpath(path, base) if os.path.isabs(path) else path for path in paths]
    return [  # a named data set, whose ids are paths
        sample_id if os.path.isabs(path) else path for sample_id, path in zip(samples.ids, paths, strict=True)
    ]
