"""The table of memory and traffic in docs/scale.md, from the formulas of benchmarks/traffic.py.

Counted bytes are compared with them in tests/distributed/test_collectives.py.

Print its rows with: python tests/targets/test_traffic.py
"""

from pathlib import Path
from typing import get_args

import pytest
from benchmarks.traffic import Shuffle, order_bytes, row_bytes, step_bytes, step_collectives, table_bytes

from selfadapt.core.errors import UserError

_PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
_SETS = {  # samples, classes, processes, samples of a step
    "ImageNet-1k": (1_281_167, 1_000, 8, 1_024),
    "ImageNet-21k": (14_197_122, 21_841, 64, 4_096),
    "10⁹ samples": (1_000_000_000, 20_000, 64, 8_192),
}
_STORES = ("float32", "float16", "topk:8", "sharded:float32", "sharded:float16", "sharded:topk:8")


def _readable(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def rows() -> list[str]:
    found = [_row(targets, "global") for targets in _STORES]
    found += [_row(targets, "shards") for targets in _STORES if targets.startswith("sharded:")]
    for shuffle in get_args(Shuffle):
        sizes = [order_bytes(samples, processes, shuffle) for samples, _, processes, _ in _SETS.values()]
        found.append(f"| `{shuffle}` | {' | '.join(map(_readable, sizes))} |")
    return found


def _row(targets: str, shuffle: Shuffle) -> str:
    cells = []
    for samples, classes, processes, batch in _SETS.values():
        cells += [_readable(table_bytes(targets, samples, classes, processes))]
        cells += [_readable(step_bytes(targets, batch, classes, processes, shuffle))]
    name = f"`{targets}`" if shuffle == "global" else f"`{targets.removeprefix('sharded:')}`, `--shuffle shards`"
    return f"| {name} | {' | '.join(cells)} | {step_collectives(targets, 8, shuffle)} |"


@pytest.mark.parametrize("row", rows())
def test_the_page_has_the_numbers_of_the_formulas(row: str) -> None:
    assert row in _PAGE.read_text(encoding="utf-8").splitlines()


def test_bytes_by_hand() -> None:
    assert row_bytes("topk:8", 32_767) == 48
    assert row_bytes("topk:8", 32_768) == 64
    assert row_bytes("pinned:int8", 256) == 260
    assert table_bytes("sharded:topk:8", 10**9, 20_000, 64) == 750_000_000
    assert step_bytes("topk:8", 8_192, 20_000, 64) == 48 * 128 * 63
    assert step_bytes("sharded:topk:8", 8_192, 20_000, 64) == 2 * 48 * 128 * 63 / 64
    assert step_collectives("sharded:float32", 1) == 0
    with pytest.raises(UserError, match="not known"):
        row_bytes("float8", 10)


if __name__ == "__main__":
    print("\n".join(rows()))
