"""Cache of a result in a JSON file, valid as long as the same thing is asked for."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from selfadapt.core.atomic_files import atomic_write


def cached_result(
    file: Path, asked: Mapping[str, Any], key: str, compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The result under `key` in the file if the file was written for `asked`, otherwise a new one, which is stored."""
    if file.exists():
        cached = json.loads(file.read_text(encoding="utf-8"))
        if cached["asked"] == asked:
            return dict(cached[key])
    result = compute()
    with atomic_write(file) as draft:
        json.dump({"asked": asked, key: result}, draft)
    return result
