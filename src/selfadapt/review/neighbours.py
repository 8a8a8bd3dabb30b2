"""The training samples that are most like a sample, by the network's features.

    review/features.npy    a row for each sample of labels.csv, of length 1, as float16; mapped, not read
    review/features.json   whose they are: ids, and the checkpoint of the network

Shapes: N samples, F features, M members of a class.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfadapt.core.atomic_files import atomic_write
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import Verdicts

_BLOCK = 4096  # members that are compared at once, to need little memory


def write_features(folder: RunFolder, ids: Sequence[str], features_NF: Any, checkpoint: str) -> None:
    """Keep features for reviews. The file that says whose they are comes last."""
    path = _rows_file(folder)
    path.parent.mkdir(exist_ok=True)
    features_NF = np.nan_to_num(np.asarray(features_NF, np.float32))
    length_N1 = np.linalg.norm(features_NF, axis=1, keepdims=True)
    draft = path.with_name(f".draft-{path.name}")
    with open(draft, "wb") as file:
        np.save(file, (features_NF / np.maximum(length_N1, 1e-12)).astype(np.float16))
    draft.replace(path)
    with atomic_write(_about_file(folder)) as text:
        json.dump({"checkpoint": checkpoint, "ids": list(ids)}, text)


def newest_checkpoint(folder: RunFolder) -> str:
    """The name of the newest checkpoint: with another one, features are others."""
    found = [path.name for path in folder.checkpoints.glob("*") if not path.name.startswith(".")]
    return max(found, default="")


def has_features(folder: RunFolder) -> bool:
    about = folder.read_if_there(_about_file(folder))
    return about is not None and about["checkpoint"] == newest_checkpoint(folder)


def _rows_file(folder: RunFolder) -> Path:
    return folder.review / "features.npy"


def _about_file(folder: RunFolder) -> Path:
    return folder.review / "features.json"


class Similar:
    """Finds training samples of a class that are like another sample. Those whose labels are suspect do not vouch."""

    def __init__(self, folder: RunFolder, verdicts: Verdicts) -> None:
        about = folder.read_if_there(_about_file(folder))
        assert about is not None
        self._features_NF = np.load(_rows_file(folder), mmap_mode="r")
        self._place_N = np.full(len(verdicts), -1)  # of the rows of labels.csv among the features
        for place, sample_id in enumerate(about["ids"]):
            row = verdicts.place.get(sample_id)
            if row is not None:
                self._place_N[row] = place
        train_N = (verdicts.part_N == verdicts.parts.index("train")) & (self._place_N >= 0)
        self._members = []
        for label in range(len(verdicts.classes)):
            own_N = train_N & (verdicts.given_N == label)
            trusted_N = own_N & ~verdicts.suspect_N
            self._members.append(np.flatnonzero(trusted_N if trusted_N.any() else own_N))

    def of_class(self, row: int, label: int, count: int) -> list[int]:
        """The rows of the training samples of this class that are most like this one, most alike first."""
        members_M = self._members[label]
        members_M = members_M[members_M != row]
        if self._place_N[row] < 0 or not len(members_M):
            return []
        own_F = self._features_NF[self._place_N[row]].astype(np.float32)
        likeness_M = np.concatenate(
            [
                self._features_NF[self._place_N[block]].astype(np.float32) @ own_F
                for block in np.array_split(members_M, -(-len(members_M) // _BLOCK))
            ]
        )
        return [int(members_M[i]) for i in np.argsort(-likeness_M, kind="stable")[:count]]
