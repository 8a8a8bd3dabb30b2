"""Arrays from .npy and .npz files. Pickles in them are refused, so that no file can run code."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import check_regular

Array = np.ndarray[Any, np.dtype[Any]]


def read_array(path: Path, *, member: str | None = None) -> Array:
    """Read the array of an .npy file, or the array `member` of an .npz file. Raises a UserError for anything else."""
    with _opened(path) as loaded:
        if isinstance(loaded, np.ndarray):
            return loaded
        if member is None:
            raise ValueError("it is an archive of arrays")
        if member not in loaded.files:
            raise UserError(f"{path} contains {sorted(loaded.files)}, no {member}; name the array to read {member}")
        array: Array = loaded[member]
        return array


def read_arrays(path: Path) -> dict[str, Array]:
    """Read all arrays of an .npz file, by name. Raises a UserError for anything else."""
    with _opened(path) as loaded:
        if isinstance(loaded, np.ndarray):
            raise ValueError("it is a single array")
        return {name: loaded[name] for name in loaded.files}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    check_regular(path)
    try:
        loaded = np.load(path, allow_pickle=False)
        with nullcontext(loaded) if isinstance(loaded, np.ndarray) else loaded:
            yield loaded
    except UserError:
        raise
    except Exception as error:  # numpy and zipfile raise many types of errors on invalid files
        reason = str(error) or type(error).__name__
        if "pickle" in reason:
            reason = "it is damaged, or holds Python objects, which could run code"
        raise UserError(f"{path} cannot be read as an {path.suffix} file of plain arrays: {reason}") from error
