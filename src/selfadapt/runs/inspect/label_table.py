"""labels.csv: what the audit found of every label of every split, most likely wrong first.

Shapes: N samples, K classes.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from selfadapt.data.dataset import Data, Samples
from selfadapt.evaluation.classification import UNKNOWN
from selfadapt.evaluation.label_errors.report import reasons
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.lifecycle.data_duplicates import places_of


@dataclass(frozen=True, kw_only=True)
class JudgedPart:
    """Verdicts on the labels of one part."""

    name: str
    samples: Samples
    suggested_N: Tensor
    confidence_N: Tensor
    weight_N: Tensor
    suspect_N: Tensor
    suspicion_N: Tensor  # larger where the label is more likely wrong, on one scale for all splits; suspects first
    p_wrong_N: Tensor
    runner_up_N: Tensor  # the likeliest class but the suggested one
    known_n: Tensor  # the samples of which there is something to judge by
    predicted_N: Tensor | None = None  # by the network, where it was not trained on the labels
    outsider_N: Tensor | None = None
    few_K: Tensor | None = None  # classes too small to be judged

    @property
    def order_N(self) -> Tensor:
        return self.suspicion_N.argsort(descending=True, stable=True)


def write_label_table(folder: RunFolder, data: Data, parts: Sequence[JudgedPart]) -> None:
    truth_known = data.train.truth is not None
    places = [(own, i) for own in parts for i in range(len(own.samples))]
    suspicion_N = torch.cat([own.suspicion_N for own in parts])
    judged = [set(own.known_n.tolist()) if len(own.known_n) < len(own.samples) else None for own in parts]
    known = [
        kept is None or i in kept for own, kept in zip(parts, judged, strict=True) for i in range(len(own.samples))
    ]
    reason_N, group_N = _reasons(data, parts), _duplicate_groups(data, parts)
    relative = {own.name: _relative_paths(folder, own.samples) for own in parts}

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
                f"{float(own.p_wrong_N[i]):.6f}" if known[place] else "",
                data.classes[int(own.runner_up_N[i])] if known[place] else "",
                group_N[place],
                reason_N[place],
                relative[own.name][i],
            )
            truth = samples.labels if samples.truth is None else samples.truth
            yield (*row, data.classes[int(truth[i])]) if truth_known else row

    folder.write_labels(rows(), truth_known=truth_known)


def _predicted(data: Data, part: JudgedPart, i: int) -> str:
    number = UNKNOWN if part.predicted_N is None else int(part.predicted_N[i])
    return "" if number == UNKNOWN else data.classes[number]


def _reasons(data: Data, parts: Sequence[JudgedPart]) -> list[str]:
    """Why each sample deserves a look, in one word."""
    ids = [sample_id for own in parts for sample_id in own.samples.ids]
    outlier_scores = [torch.zeros(len(own.samples)) if own.outsider_N is None else own.outsider_N for own in parts]
    return reasons(
        torch.cat([own.suspect_N for own in parts]),
        torch.cat(outlier_scores),
        torch.cat([own.samples.labels for own in parts]),
        [group.members for group in places_of(ids, data.duplicates) if group.is_evidence],
    )


def _duplicate_groups(data: Data, parts: Sequence[JudgedPart]) -> list[str]:
    """The number of each sample's group in duplicates.csv. One that is in two belongs to the closer one, the first."""
    number: dict[str, str] = {}
    for group_number, group in enumerate(data.duplicates, start=1):
        for sample_id in group.members:
            number.setdefault(sample_id, str(group_number))
    return [number.get(sample_id, "") for own in parts for sample_id in own.samples.ids]


def _relative_paths(folder: RunFolder, samples: Samples) -> Sequence[str]:
    """Paths from the folder of the data, or of the table; a place within a file stays as it is named."""
    paths = samples.paths or [""] * len(samples)
    source = Path(folder.read_run()["settings"]["data"]["source"]).absolute()
    if source.exists():
        base = source if source.is_dir() else source.parent
        return [os.path.relpath(path, base) if os.path.isabs(path) else path for path in paths]
    return [  # a named data set, whose ids are paths
        sample_id if os.path.isabs(path) else path for sample_id, path in zip(samples.ids, paths, strict=True)
    ]
