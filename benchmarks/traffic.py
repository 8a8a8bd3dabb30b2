"""What a target store takes in memory, and what its steps send to other processes: the formulas of docs/scale.md.

N samples, K classes, P processes, B samples of a step over all processes, R bytes of a row. With `--shuffle shards`,
each process stores the rows of its own samples, and sends none.
"""

from typing import Literal

from selfadapt.core.errors import UserError

Shuffle = Literal["global", "shards"]


def row_bytes(targets: str, num_columns: int) -> int:
    """Return R, for a value of `--targets`."""
    kind = targets.removeprefix("sharded:").removeprefix("pinned:")
    if kind.startswith("topk:"):
        return int(kind.removeprefix("topk:")) * (6 if num_columns <= 32_767 else 8)
    sizes = {"float32": 4 * num_columns, "file": 4 * num_columns, "float16": 2 * num_columns, "int8": num_columns + 4}
    if kind not in sizes:
        raise UserError(f"--targets {targets!r} is not known; choose float32, float16, file, topk:K or int8")
    return sizes[kind]


def table_bytes(targets: str, num_samples: int, num_columns: int, processes: int = 1) -> int:
    """Return the bytes of the rows that a process stores: R N, or R N / P if they are sharded."""
    rows = -(-num_samples // processes) if targets.startswith("sharded:") else num_samples
    return rows * row_bytes(targets, num_columns)


def order_bytes(num_samples: int, processes: int, shuffle: Shuffle = "global") -> int:
    """Return the bytes of the order of an epoch in a process, 8 N or 8 N / P; labels on its device take as many."""
    return 8 * (num_samples if shuffle == "global" else -(-num_samples // processes))


def step_collectives(targets: str, processes: int, shuffle: Shuffle = "global") -> int:
    """Return the number of collectives of a step of the training loop."""
    if processes == 1 or shuffle == "shards":
        return 0
    return 2 if targets.startswith("sharded:") else 1


def step_bytes(targets: str, batch: int, num_columns: int, processes: int, shuffle: Shuffle = "global") -> float:
    """Return the bytes that a process sends to others in a step, on average over steps; it receives as many.

    Replicated rows go to all other processes, R B/P (P - 1). Sharded rows come from their owners and go back; a share
    of (P - 1)/P of them has another owner, 2 R B/P (P - 1)/P.
    """
    if shuffle == "shards":
        return 0
    own = row_bytes(targets, num_columns) * batch / processes * (processes - 1)
    return 2 * own / processes if targets.startswith("sharded:") else own
