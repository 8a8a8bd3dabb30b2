"""Features in shards as a data set: a folder with the training split, and the other splits in folders below it.

Shapes: N samples, D features.
"""

from pathlib import Path

import numpy as np
import torch

from selfadapt.core.array_files import Array
from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.labels.class_names import check_label_array, class_names, numbered
from selfadapt.data.shards.feature_shards import FeatureShards
from selfadapt.data.shards.manifest import MANIFEST
from selfadapt.data.shards.shard_file import SUFFIXES
from selfadapt.data.tabular.vectors import VectorInputs

SPLIT_NAMES = {"train": "train", "validation": "val", "test": "test"}
OTHER_SPLITS = ("val", "test")  # folders below that of the training split
_BLOCK = 65_536  # samples that are read at a time


def folder_of_split(folder: Path, split: str) -> Path:
    return folder if split == "train" else folder / SPLIT_NAMES[split]


def has_shards(path: Path) -> bool:
    """Whether a path is that of features: an .npy, or a folder of their files, without folders but those of splits."""
    if not path.is_dir():
        return path.suffix == ".npy" and path.is_file()
    listed = any(own.suffix in SUFFIXES and not own.name.startswith(".") for own in path.iterdir())
    return (path / MANIFEST).is_file() or (
        listed and all(own.name in OTHER_SPLITS or own.is_file() for own in path.iterdir())
    )


def shard_data(path: Path) -> Data:
    """Read labelled features into memory, as float32.

    Raises:
        UserError: If shards have no labels, differ in their dimensions, or hold values that are not finite.
    """
    shards = {
        split: FeatureShards.of(folder)
        for split in SPLIT_NAMES
        if (folder := folder_of_split(path, split)) == path or folder.is_dir()
    }
    labels = {split: _labels(folder_of_split(path, split), own) for split, own in shards.items()}
    classes = class_names(str(path), labels["train"])
    splits = {}
    for split, own in shards.items():
        folder = folder_of_split(path, split)
        if own.dimensions != shards["train"].dimensions:
            wanted = shards["train"].dimensions
            raise UserError(f"{folder} has {own.dimensions} features, but the training split {wanted}")
        splits[split] = Samples(
            inputs=VectorInputs(_values(folder, own)),
            labels=numbered(labels[split], classes, lambda i, folder=folder: f"{folder}: sample {i}"),  # type: ignore[misc]
            ids=sample_ids(folder, own, "" if split == "train" else f"{SPLIT_NAMES[split]}/"),
        )
    return Data.of(splits, name=path.stem, classes=classes, augment="none")


def sample_ids(path: Path, shards: FeatureShards, prefix: str = "") -> list[str]:
    """Return the ids of the shards, or the positions of the samples, after the prefix, if they have none."""
    column = shards.column("ids")
    if column is None:
        return [f"{prefix}{position}" for position in range(len(shards))]
    ids = [str(sample_id) for sample_id in column.tolist()]
    if len(set(ids)) < len(ids):
        raise UserError(f"{path}: {len(ids) - len(set(ids))} ids occur more than once; give each sample a unique id")
    return ids


def stored_labels(path: Path, shards: FeatureShards) -> Array | None:
    """Return the labels of the shards, or None if they lack them."""
    column = shards.column("labels")
    if column is not None:
        check_label_array(path, "labels", column)
    return column


def _labels(path: Path, shards: FeatureShards) -> list[str]:
    labels = stored_labels(path, shards)
    if labels is None:
        raise UserError(
            f"{path} has no labels; write them to the shards as an array `labels`, or, without training a network on "
            f"them, give them to: selfadapt audit {path} --labels FILE"
        )
    return [str(label) for label in labels.tolist()]


def _values(path: Path, shards: FeatureShards) -> torch.Tensor:
    values_ND = torch.from_numpy(np.empty((len(shards), shards.dimensions), np.float32))
    for block, rows_BD in shards.blocks(_BLOCK):
        wrong = (~rows_BD.isfinite()).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            raise UserError(
                f"{path}: feature {column} of sample {block.start + row} is {rows_BD[row, column].item()}; correct or "
                "remove such samples"
            )
        values_ND[block] = rows_BD
    return values_ND
