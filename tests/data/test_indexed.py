"""Each item of a dataset gets the position that a loader asked for, whatever the item is."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from selfadapt import with_index
from selfadapt.data.indexed import has_index, split_index

VALUES = torch.arange(10.0) * 3


class Items(Dataset[Any]):
    """Items of one kind, each made from its position."""

    classes = ("cat", "dog")

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        value = VALUES[index]
        return {"tuple": (value, index % 2), "dict": {"x": value, "y": index % 2}, "bare": value}[self.kind]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["tuple", "dict", "bare"])
def test_a_shuffled_loader_gives_each_sample_its_index(kind: str, workers: int) -> None:
    loader = DataLoader(with_index(Items(kind)), batch_size=4, shuffle=True, num_workers=workers)
    seen = []
    for batch in loader:
        rest, index = split_index(batch)
        values = rest if kind == "bare" else rest["x" if kind == "dict" else 0]
        assert torch.equal(values, VALUES[index])
        assert not (kind == "dict" and "index" in rest)
        seen += index.tolist()
    assert sorted(seen) == list(range(10))
    assert seen != sorted(seen)


def test_positions_are_those_of_the_dataset_that_is_wrapped() -> None:
    split = Subset(TensorDataset(VALUES, torch.zeros(10)), [7, 2, 5])
    items = [with_index(split)[position] for position in range(3)]
    assert [(float(value), index) for value, _, index in items] == [(21, 0), (6, 1), (15, 2)]
    assert with_index(split)[-1][-1] == 2
    batches = DataLoader(with_index(split), batch_size=3)  # a Subset fetches a batch at once
    assert [batch[-1].tolist() for batch in batches] == [[0, 1, 2]]


def test_what_else_a_dataset_has_stays() -> None:
    dataset = with_index(Items("tuple"))
    for same in (dataset, copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert (same.classes, len(same), same[3][-1]) == (("cat", "dog"), 10, 3)
    assert has_index(dataset)
    assert has_index(Subset(dataset, [1]))
    assert not has_index(Subset(Items("tuple"), [1]))
    with pytest.raises(AttributeError, match="nothing"):
        _ = dataset.nothing
    assert repr(with_index([1, 2])) == "with_index([1, 2])"


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_mistakes() -> None:
    for wrong in (Stream(), iter([1, 2]), 3):
        with pytest.raises(ValueError, match="needs a map-style dataset"):
            with_index(wrong)
    with pytest.raises(ValueError, match=r"have a 'x' already; choose another: with_index\(dataset, key"):
        _ = with_index(Items("dict"), key="x")[0]
    for batch in ({"x": VALUES}, [VALUES], VALUES):
        with pytest.raises(ValueError, match="this batch has no index; wrap the training dataset"):
            split_index(batch)
