"""Other random numbers for the whole suite: `SELFADAPT_TEST_SALT=1 make test`.

A test that passes by luck with its own seeds fails under one salt or another. `make test-matrix` runs the numerical
tests under several.
"""

import hashlib
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from selfadapt.core import rng

SALT = int(os.environ.get("SELFADAPT_TEST_SALT") or 0)
_APART = 1_000_003

unsalted = pytest.mark.skipif(SALT != 0, reason="compares with a fresh program, which takes no salt")


def apply_salt() -> None:
    """Shift the seeds of numpy and of the program's named streams by the salt."""
    if SALT and vars(rng)["hashlib"] is hashlib:
        default_rng = np.random.default_rng

        def salted_rng(seed: Any = None) -> np.random.Generator:
            return default_rng(seed + _APART * SALT if isinstance(seed, int) else seed)

        salted_sha256 = SimpleNamespace(sha256=lambda name: hashlib.sha256(name + str(SALT).encode()))
        vars(rng)["hashlib"] = salted_sha256
        np.random.default_rng = salted_rng
