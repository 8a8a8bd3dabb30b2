"""A dataset whose items know their position, which is what the losses with targets need from a loader."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset

INDEX = "index"


def with_index(dataset: Any, key: str = INDEX) -> "IndexedDataset":
    """The same dataset with each sample's index in its items.

    An item that is a tuple or a list becomes a tuple with the index at its end, a dict gets the index under `key`, and
    any other item becomes a pair of item and index:

        loader = DataLoader(with_index(dataset), batch_size=64, shuffle=True)
        for images, labels, index in loader: ...

    The index counts from 0 in `dataset` as it is here: wrap the training split, not what it was split from.
    """
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ValueError(
            f"with_index needs a map-style dataset, with __getitem__ and __len__, and {type(dataset).__name__} is not "
            "one; let your iterator yield each sample's index itself"
        )
    return IndexedDataset(dataset, key)


class IndexedDataset(Dataset[Any]):
    """What `with_index` makes. Other attributes, such as `classes`, are those of the dataset."""

    def __init__(self, dataset: Any, key: str) -> None:
        self.dataset, self.key = dataset, key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        position = int(index)
        return self._added(self.dataset[position], position if position >= 0 else position + len(self))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A batch at once, where the dataset can do that."""
        if not hasattr(self.dataset, "__getitems__"):
            return [self[index] for index in indices]
        items = self.dataset.__getitems__(list(indices))
        return [self._added(item, index) for item, index in zip(items, indices, strict=True)]

    def _added(self, item: Any, index: int) -> Any:
        if isinstance(item, Mapping):
            if self.key in item:
                raise ValueError(f"the items have a {self.key!r} already; choose another: with_index(dataset, key=...)")
            return {**item, self.key: index}
        return (*item, index) if isinstance(item, tuple | list) else (item, index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # asked for while a copy is being made
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __repr__(self) -> str:
        return f"with_index({self.dataset!r})"


def has_index(dataset: Any) -> bool:
    """Whether this dataset, or one that it takes its items from, was made by `with_index`."""
    return isinstance(dataset, IndexedDataset) or (hasattr(dataset, "dataset") and has_index(dataset.dataset))


def split_index(batch: Any, key: str = INDEX) -> tuple[Any, Any]:
    """A batch of such a dataset, as it would be without the index, and the index."""
    if isinstance(batch, Mapping) and key in batch:
        return {name: value for name, value in batch.items() if name != key}, batch[key]
    if isinstance(batch, tuple | list) and len(batch) > 1:
        *rest, index = batch
        return (rest[0] if len(rest) == 1 else type(batch)(rest)), index
    raise ValueError("this batch has no index; wrap the training dataset: DataLoader(with_index(dataset), ...)")
