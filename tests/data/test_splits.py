"""Splits: class proportions are kept, groups are never divided, and folds depend on what they claim to depend on."""

from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.splits import assign_folds, content_keys, split_off
from selfadapt.data.tabular.vectors import VectorInputs


def _samples(labels: list[int], groups: list[str] | None = None) -> Samples:
    count = len(labels)
    ids = [str(i) for i in range(count)]
    inputs = VectorInputs(torch.arange(float(count)).unsqueeze(1))
    return Samples(inputs=inputs, labels=torch.tensor(labels), truth=None, ids=ids, groups=groups)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(3, 30), min_size=2, max_size=4), fraction=st.sampled_from([0.25, 0.5]))
def test_each_class_gives_its_share(sizes: list[int], fraction: float) -> None:
    labels = [k for k, size in enumerate(sizes) for _ in range(size)]
    rest, held_out = split_off(_samples(labels), fraction, seeded("split"))
    assert sorted([*rest.ids, *held_out.ids], key=int) == [str(i) for i in range(len(labels))]
    expected = {k: round(fraction * size) for k, size in enumerate(sizes)}
    assert Counter(held_out.labels.tolist()) == Counter({k: count for k, count in expected.items() if count})
    assert list(held_out.ids) == sorted(held_out.ids, key=int), "the order of the samples is kept"


def test_groups_are_never_divided() -> None:
    labels = [i % 3 for i in range(60)]
    groups = [f"g{i // 4}" for i in range(60)]
    rest, held_out = split_off(_samples(labels, groups), 0.3, seeded("split"))
    assert rest.groups is not None
    assert held_out.groups is not None
    assert not set(rest.groups) & set(held_out.groups)
    assert set(rest.labels.tolist()) == {0, 1, 2}


def test_a_group_that_is_a_whole_class_stays_in_the_rest() -> None:
    labels = [0] * 10 + [1] * 3
    groups = [f"g{i}" for i in range(10)] + ["whole"] * 3
    for seed in range(5):
        rest, _ = split_off(_samples(labels, groups), 0.5, seeded(seed))
        assert set(rest.labels.tolist()) == {0, 1}


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(UserError, match=r"3 samples are too few to hold out 10% .*--validation 0"):
        split_off(_samples([0, 0, 1]), 0.1, seeded("split"))
    with pytest.raises(UserError, match=r"4 samples with groups that stay together are too few"):
        split_off(_samples([0, 0, 1, 1], ["a", "a", "a", "a"]), 0.5, seeded("split"))


@settings(max_examples=30)
@given(labels=st.lists(st.integers(0, 3), min_size=6, max_size=60), folds=st.integers(2, 5))
def test_folds_are_balanced_in_total_and_in_each_class(labels: list[int], folds: int) -> None:
    fold = assign_folds(torch.tensor(labels), folds, seed=1).tolist()
    by_class: dict[int, Counter[int]] = defaultdict(Counter)
    for label, own in zip(labels, fold, strict=True):
        by_class[label][own] += 1
    for counts in by_class.values():
        assert max(counts[f] for f in range(folds)) - min(counts[f] for f in range(folds)) <= 1


def test_folds_by_content_hardly_change_when_samples_are_left_out_or_grouped() -> None:
    values, labels = torch.randn(600, 3, generator=torch.Generator().manual_seed(0)), torch.arange(600) % 3
    whole = assign_folds(labels, 5, seed=2, keys_N=content_keys(values))
    few = assign_folds(labels[7:], 5, seed=2, keys_N=content_keys(values[7:]))
    assert (few == whole[7:]).float().mean() > 0.9
    groups = torch.arange(600).clamp_min(1)  # samples 0 and 1 belong together
    grouped = assign_folds(labels, 5, seed=2, groups_N=groups, keys_N=content_keys(values))
    assert (grouped == whole).float().mean() > 0.9


def test_folds_by_content_spread_equal_samples() -> None:
    values, labels = torch.arange(200).unsqueeze(1) % 2, torch.arange(200) % 4
    fold = assign_folds(labels, 5, seed=2, keys_N=content_keys(values.float()))
    assert all(len(fold[labels == label].unique()) == 5 for label in range(4))


def test_folds_by_content_follow_the_samples_when_they_are_reordered() -> None:
    values = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 3
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    fold = assign_folds(labels, 4, seed=2, keys_N=content_keys(values))
    moved = assign_folds(labels[order], 4, seed=2, keys_N=content_keys(values[order]))
    assert torch.equal(moved, fold[order])
    assert torch.equal(assign_folds(2 - labels, 4, seed=2, keys_N=content_keys(values)), fold), "names do not count"
    assert not torch.equal(assign_folds(labels, 4, seed=3, keys_N=content_keys(values)), fold)
