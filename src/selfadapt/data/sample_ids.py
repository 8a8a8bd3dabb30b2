"""Sample ids derived from content, which survive reordering."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np


def content_ids(prefix: str, values: "np.ndarray[Any, np.dtype[Any]] | Sequence[bytes]") -> list[str]:
    """Return PREFIX/HASH for each value; the second of equal values gets the suffix -2, and so on."""
    seen: Counter[str] = Counter()
    ids = []
    for value in np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values:
        digest = hashlib.sha1(value, usedforsecurity=False).hexdigest()[:16]
        seen[digest] += 1
        ids.append(f"{prefix}/{digest}" + (f"-{seen[digest]}" if seen[digest] > 1 else ""))
    return ids
