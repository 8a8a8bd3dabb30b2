"""The training samples most similar to a sample, by cosine similarity of the network's features.

    review/features.npy    a row of unit length for each sample of labels.csv, as float16, memory-mapped
    review/features.json   the ids of the rows, and the checkpoint of the network

Shapes: N samples, F features, M members of a class.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.run_folder.contents import FeaturesAbout
from selfadapt.run_folder.folder import RunFolder

_BLOCK = 4096  # members compared at a time, to limit memory


def write_features(folder: RunFolder, ids: Sequence[str], features_NF: Any, checkpoint: str) -> None:
    """Write the features. features.json is written last, so that it never describes rows that are not there."""
    path = _rows_file(folder)
    features_NF = np.nan_to_num(np.asarray(features_NF, np.float32))
    length_N1 = np.linalg.norm(features_NF, axis=1, keepdims=True)
    with folder.recorded(path) as draft, open(draft, "wb") as file:
        np.save(file, (features_NF / np.maximum(length_N1, 1e-12)).astype(np.float16))
    folder.write_json(_about_file(folder), {"checkpoint": checkpoint, "ids": list(ids)}, indent=None)


def newest_checkpoint(folder: RunFolder) -> str:
    """The name of the newest checkpoint, which the features must come from."""
    found = [path.name for path in folder.checkpoints.glob("*") if not path.name.startswith(".")]
    return max(found, default="")


def has_features(folder: RunFolder) -> bool:
    about = folder.read_json(_about_file(folder), FeaturesAbout)
    folder.check_recorded(_rows_file(folder))
    return about is not None and _rows_file(folder).exists() and about["checkpoint"] == newest_checkpoint(folder)


def read_features(folder: RunFolder) -> tuple[list[str], Any]:
    """The ids of the rows, and the rows, memory-mapped."""
    ids = folder.read_json(_about_file(folder), FeaturesAbout)["ids"]
    return ids, np.load(_rows_file(folder), mmap_mode="r")


def _rows_file(folder: RunFolder) -> Path:
    return folder.review / "features.npy"


def _about_file(folder: RunFolder) -> Path:
    return folder.review / "features.json"


class Similar:
    """Finds training samples of a class that are similar to a sample. Likely errors are left out where possible."""

    def __init__(self, folder: RunFolder, report: LabelErrorReport) -> None:
        ids, self._features_NF = read_features(folder)
        self._feature_row_N = np.full(len(report), -1)  # of each row of labels.csv
        for feature_row, sample_id in enumerate(ids):
            row = report.position.get(sample_id)
            if row is not None:
                self._feature_row_N[row] = feature_row
        trained_N = self._feature_row_N >= 0
        trained_N[report.split_codes != list(report.split_names).index("train")] = False
        self._members = []
        for code in range(len(report.class_names)):
            members_N = trained_N & (report.given_codes == code)
            trusted_N = members_N & ~report.is_error
            self._members.append(np.flatnonzero(trusted_N if trusted_N.any() else members_N))

    def of_class(self, row: int, code: int, count: int) -> list[int]:
        """Rows of the training samples of this class that are most similar to this one, most similar first."""
        members_M = self._members[code]
        members_M = members_M[members_M != row]
        if self._feature_row_N[row] < 0 or not len(members_M):
            return []
        own_F = self._features_NF[self._feature_row_N[row]].astype(np.float32)
        similarity_M = np.concatenate(
            [
                self._features_NF[self._feature_row_N[block]].astype(np.float32) @ own_F
                for block in np.array_split(members_M, -(-len(members_M) // _BLOCK))
            ]
        )
        return [int(members_M[i]) for i in np.argsort(-similarity_M, kind="stable")[:count]]
