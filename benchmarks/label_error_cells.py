"""Labels with known errors on fixed features: the cells of the label error benchmark.

A cell is a data set, a type of label noise with its rate, and optionally a subset of the samples. Types of noise:

    symmetric:R   redrawn uniformly over all classes, with probability R
    next:R        the next class (cyclic), with probability R
    confusion:R   R·N samples drawn in proportion to a weak model's probability of other classes; the wrong label is
                  drawn from these. The model is a shrunk linear discriminant on 48 random features (a third of them,
                  if there are fewer than 144), cross-validated
    human         labels by human annotators (CIFAR-10N): `aggre`, a vote of three, or `worse`, the worst of three
    natural       CIFAR10's test labels; a label is wrong if fewer than three of five reviewers confirm it

Shapes: N samples, F features, K classes.
"""

import json
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.rng import seeded
from selfadapt.data.duplicates.groups import find_duplicates

TABLES = ("digits", "wine", "breast_cancer")
_MOST = {"cifar10": 5000}  # only the first samples are used
_WEAK_FEATURES = 48
_RATIO = 20  # of the largest to the smallest class of an "unequal" subset
_LEAST = 5  # samples; `find_label_errors` does not judge smaller classes
_PHOTO_SEEDS = (7, 11, 12, 13, 14)


@dataclass(frozen=True)
class Cell:
    """An experiment, run once per seed."""

    data: str
    noise: str
    subset: str = ""  # "20 per class" or "unequal"
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.data, self.noise, self.subset)))


@dataclass(frozen=True)
class Labelled:
    """Features, given labels, and which of the labels are wrong."""

    features_NF: Tensor
    labels_N: Tensor
    wrong_N: Tensor
    contradicted_N: Tensor  # a duplicate has another label in the original data


FIVE = (0, 1, 2, 3, 4)
CELLS = (
    *(Cell("wine", noise) for noise in ("none:0", "symmetric:0.2", "next:0.2", "confusion:0.1")),
    *(Cell("breast_cancer", noise) for noise in ("none:0", "symmetric:0.1", "confusion:0.05")),
    *(Cell("digits", noise) for noise in ("none:0", "symmetric:0.2", "next:0.4", "confusion:0.03")),
    Cell("digits", "symmetric:0.1", "20 per class"),
    Cell("digits", "symmetric:0.1", "50 per class"),
    Cell("digits", "symmetric:0.1", "unequal"),
    *(Cell("plants", f"confusion:{rate}", seeds=FIVE) for rate in (0.01, 0.03, 0.05)),
    *(Cell("plants", noise) for noise in ("symmetric:0.2", "next:0.4", "none:0")),
    *(Cell("text", noise) for noise in ("confusion:0.03", "symmetric:0.2", "none:0")),
    *(Cell("cifar10", noise) for noise in ("confusion:0.03", "none:0")),
    *(Cell("photos", noise, seeds=_PHOTO_SEEDS) for noise in ("symmetric:0.2", "asymmetric:0.4")),
    Cell("cifar10", "human:aggre", seeds=(0,)),
    Cell("cifar10", "human:worse", seeds=(0,)),
    Cell("cifar10_test", "natural", seeds=(0,)),
    *(Cell("cifar10", "confusion:0.05", f"{count} per class") for count in (20, 50, 200)),
    Cell("cifar10", "confusion:0.05", "unequal"),
    Cell("plants", "confusion:0.05", "20 per class"),
    Cell("plants", "symmetric:0.1", "unequal"),
    *(Cell("plants", noise) for noise in ("confusion:0.1", "symmetric:0.05", "next:0.1")),
    Cell("text", "next:0.1"),
    *(Cell("cifar10", noise) for noise in ("symmetric:0.05", "next:0.4")),
)


def lacking(cell: Cell, folder: Path | None, photos: Path | None) -> str | None:
    """The missing file or folder that this cell needs, or None."""
    if cell.data in TABLES:
        return None
    if folder is None:
        return "--features FOLDER"
    needed = ["plants.npz" if cell.data == "photos" else f"{cell.data}.npz"]
    needed += {"human": ["CIFAR-10_human.pt"], "natural": ["cifar10_mturk.json"]}.get(cell.noise.split(":")[0], [])
    missing = [name for name in needed if not (folder / name).exists()]
    if cell.data == "photos" and photos is None:
        missing.append("--photos FOLDER")
    return ", ".join(missing) or None


def labelled(cell: Cell, seed: int, folder: Path | None) -> Labelled:
    """The samples of a cell with label errors."""
    features_NF, truth_N = _read(cell.data, folder)
    if cell.noise.startswith("human"):
        assert folder is not None
        labels_N = _human_labels(folder / "CIFAR-10_human.pt", f"{cell.noise.split(':')[1]}_label")[: len(truth_N)]
        return Labelled(features_NF, labels_N, labels_N != truth_N, torch.zeros(len(truth_N), dtype=torch.bool))
    if cell.noise == "natural":
        assert folder is not None
        wrong_N = _refuted(folder / "cifar10_mturk.json", len(truth_N))
        return Labelled(features_NF, truth_N, wrong_N, torch.zeros_like(wrong_N))
    chosen_n = _subset(truth_N, cell.subset, seed)
    features_nF, truth_n = features_NF[chosen_n], truth_N[chosen_n]
    labels_n = with_errors(features_nF, truth_n, cell.noise, seed)
    return Labelled(features_nF, labels_n, labels_n != truth_n, contradicted(features_nF, truth_n))


def contradicted(features_NF: Tensor, truth_N: Tensor) -> Tensor:
    """Samples with a duplicate of another class before errors are injected: one of the two is already wrong."""
    found_N = torch.zeros(len(truth_N), dtype=torch.bool)
    for group in find_duplicates(features_NF):
        members = list(group.members)
        found_N[members] = len(truth_N[members].unique()) > 1
    return found_N


def read_features(path: Path) -> dict[str, Tensor]:
    """The features in a file written by `selfadapt embed`, by sample id."""
    with np.load(path) as file:
        rows = {split: torch.from_numpy(file[f"x_{split}"]).float() for split in ("train", "test")}
        return {str(name): rows[split][i] for split in rows for i, name in enumerate(file[f"id_{split}"])}


def _read(name: str, folder: Path | None) -> tuple[Tensor, Tensor]:
    if name in TABLES:
        import sklearn.datasets

        x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    else:
        assert folder is not None
        with np.load(folder / f"{name}.npz") as file:
            x, y = file["x_train"], file["y_train"]
    y = np.unique(y, return_inverse=True)[1]
    most = _MOST.get(name, len(y))
    return torch.from_numpy(x[:most]).float(), torch.from_numpy(y[:most]).long()


def _subset(truth_N: Tensor, subset: str, seed: int) -> Tensor:
    """The rows of a subset: the same number per class, or numbers that decrease geometrically with the class rank."""
    if not subset:
        return torch.arange(len(truth_N))
    sizes_K = torch.bincount(truth_N)
    largest, classes = int(sizes_K.max()), len(sizes_K)
    keep = [0] * classes
    for rank, k in enumerate(sizes_K.argsort(descending=True, stable=True).tolist()):
        geometric = max(_LEAST, round(largest * _RATIO ** (-rank / (classes - 1))))
        keep[k] = geometric if subset == "unequal" else int(subset.split()[0])
    drawn_N = torch.randperm(len(truth_N), generator=seeded(seed, "subset", subset))
    return torch.cat([drawn_N[truth_N[drawn_N] == k][: keep[k]] for k in range(classes)]).sort().values


def with_errors(features_NF: Tensor, truth_N: Tensor, noise: str, seed: int) -> Tensor:
    """The labels after injecting noise of this type."""
    kind, rate = noise.split(":")[0], float(noise.split(":")[1])
    classes, generator = int(truth_N.max()) + 1, seeded(seed, "noise", noise)
    if kind == "confusion":
        return _confused(features_NF, truth_N, rate, generator)
    drawn_N = {
        "none": truth_N,
        "symmetric": torch.randint(classes, truth_N.shape, generator=generator),
        "next": (truth_N + 1) % classes,
    }[kind]
    return torch.where(torch.rand(len(truth_N), generator=generator) < rate, drawn_N, truth_N)


def _confused(features_NF: Tensor, truth_N: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    width = features_NF.shape[1]
    columns = torch.randperm(width, generator=generator)[: min(_WEAK_FEATURES, max(2, width // 3))]
    folds = StratifiedKFold(5, shuffle=True, random_state=int(torch.randint(2**31, (1,), generator=generator)))
    weak = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    probabilities: Any = cross_val_predict(
        weak, features_NF[:, columns].numpy(), truth_N.numpy(), cv=folds, method="predict_proba"
    )
    probabilities_NK = torch.from_numpy(probabilities).double().clamp_min(1e-12).scatter(1, truth_N.unsqueeze(1), 0.0)
    chosen_n = torch.multinomial(probabilities_NK.sum(1), round(rate * len(truth_N)), generator=generator)
    labels_N = truth_N.clone()
    labels_N[chosen_n] = torch.multinomial(probabilities_NK[chosen_n], 1, generator=generator).squeeze(1)
    return labels_N


def _human_labels(path: Path, key: str) -> Tensor:
    """An array of the CIFAR-10N file, read from its pickle without executing it."""
    with zipfile.ZipFile(path) as archive:
        items = [item for _, item, _ in pickletools.genops(archive.read("archive/data.pkl")) if isinstance(item, str)]
    after = items[items.index(key) + 1 :]
    content = next(item for item in after if len(item) > 1000).encode("latin1")
    return torch.from_numpy(np.frombuffer(content, "<i8").copy())


def _refuted(path: Path, count: int) -> Tensor:
    wrong_N = torch.zeros(count, dtype=torch.bool)
    for row in json.loads(path.read_text()):
        wrong_N[row["id"]] = row["mturk"]["given"] < 3
    return wrong_N
