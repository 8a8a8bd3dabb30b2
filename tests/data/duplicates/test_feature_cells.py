"""Duplicates in cells are those of the comparison of all pairs."""

import torch
from torch import Tensor

from selfadapt.core.rng import seeded
from selfadapt.data.duplicates.feature_cells import duplicates_in_cells
from selfadapt.data.duplicates.groups import find_duplicates
from selfadapt.data.shards.feature_shards import FeatureShards
from selfadapt.data.shards.passes import Passes
from selfadapt.data.shards.scan import scan


def _found(features_NF: Tensor) -> list[tuple[int, ...]]:
    passes = Passes.over(FeatureShards.of(features_NF), 10**5)
    sample_n = torch.arange(0, len(features_NF), 3)
    return [group.members for group in duplicates_in_cells(passes, scan(passes), sample_n)]


def _with_duplicates(width: int) -> Tensor:
    generator = seeded(0, "cells")
    features_NF = torch.randn(4000, width, generator=generator)
    features_NF += torch.randn(20, width, generator=generator)[torch.arange(4000) % 20]
    features_NF[1000:1100] = features_NF[:100]
    features_NF[2000:2200] = features_NF[200:400] + 0.25 * torch.randn(200, width, generator=generator)
    features_NF[2200:2300] = 1.5 * features_NF[400:500]  # the same direction, another length
    return features_NF


def test_the_groups_are_those_of_all_pairs() -> None:
    features_NF = _with_duplicates(300)
    expected = [group.members for group in find_duplicates(features_NF)]
    assert len(expected) == 300
    assert len(set(expected) & set(_found(features_NF))) >= 0.98 * len(expected)
    assert set(_found(features_NF)) <= set(expected)


def test_with_few_features_only_equal_rows_are_duplicates() -> None:
    features_NF = _with_duplicates(40)
    assert _found(features_NF) == [(first, first + 1000) for first in range(100)]


def test_equal_rows_of_a_coarse_table_are_not_duplicates() -> None:
    generator = seeded(0, "coarse")
    assert not _found(torch.randint(2, (4000, 6), generator=generator).float())
