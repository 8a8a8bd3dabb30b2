"""Samples dealt out to folds, so that each class, and all samples together, are spread evenly.

Never in the order of the files: where a folder is sorted, wrong labels stand together. Samples of one group (copies of
one picture, photos of one patient) stay together, else one of them answers for the other.

Shapes: N samples.
"""

import torch
from torch import Tensor

from selfadapt.data.seeds import seeded


def deal_into_folds(labels_N: Tensor, folds: int, seed: int, groups_N: Tensor | None = None) -> Tensor:
    """The fold of each sample. `groups_N` holds a number for each group; without it every sample is alone."""
    count = len(labels_N)
    generator = seeded(seed, "folds")
    shuffled_N = torch.randperm(count, generator=generator)
    fold_N = torch.full((count,), -1)
    loads = [0] * folds
    loads_of_class = [[0] * folds for _ in range(int(labels_N.max()) + 1)]
    if groups_N is not None:
        number_N = groups_N.unique(return_inverse=True)[1]
        together = number_N.argsort(stable=True).split(torch.bincount(number_N).tolist())
        for members in sorted((members for members in together if len(members) > 1), key=len, reverse=True):
            main = int(labels_N[members].mode().values)
            fold = min(range(folds), key=lambda f: (loads_of_class[main][f], loads[f]))
            fold_N[members] = fold
            loads[fold] += len(members)
            for label in labels_N[members].tolist():
                loads_of_class[label][fold] += 1
    alone_n = shuffled_N[fold_N[shuffled_N] < 0]
    by_class_n = alone_n[labels_N[alone_n].argsort(stable=True)]
    for sample, label in zip(by_class_n.tolist(), labels_N[by_class_n].tolist(), strict=True):
        of_class = loads_of_class[label]
        fold = min(range(folds), key=lambda f: (of_class[f], loads[f]))
        fold_N[sample] = fold
        of_class[fold] += 1
        loads[fold] += 1
    return fold_N
