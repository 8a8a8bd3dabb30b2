"""Rows that are copies of one sample, and rows that are merely alike."""

import tracemalloc

import pytest
import torch

from selfadapt.data.duplicates import find_duplicates
from selfadapt.data.seeds import seeded


@pytest.mark.parametrize("width", [3, 300])
def test_equal_rows_are_copies_where_most_rows_differ(width: int) -> None:
    features_NF = torch.randn(50, width, generator=seeded(0, "rows"))
    features_NF[:, 0] = 0.0
    copies_nF = features_NF[[4, 7, 7]]
    copies_nF[:, 0] = -0.0
    assert find_duplicates(torch.cat([features_NF, copies_nF])) == [[4, 50], [7, 51, 52]]
    assert find_duplicates(features_NF.repeat(2, 1)) == [[row, 50 + row] for row in range(50)]


@pytest.mark.parametrize("width", [3, 300])
def test_equal_rows_are_no_copies_where_few_rows_are_distinct(width: int) -> None:
    kinds_nF = torch.randint(2, (8, width), generator=seeded(0, "kinds")).float()
    chosen_N = torch.randint(8, (1000,), generator=seeded(0, "chosen"))
    assert find_duplicates(kinds_nF[chosen_N]) == []


def test_memory_for_equal_rows_grows_with_rows_not_with_pairs() -> None:
    features_NF = torch.randn(3000, 3, generator=seeded(0, "rows"))
    features_NF[1500:] = features_NF[1499]
    tracemalloc.start()
    try:
        assert find_duplicates(features_NF) == [list(range(1499, 3000))]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1000 * len(features_NF), "bytes; every pair as a tuple would be fifty times as much"
