"""JSON files, written whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.errors import UserError


def write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write an object, and create the folder of the file if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        json.dump(content, file, indent=indent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read an object. Returns None if the file does not exist."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; delete it and run the command that wrote it again") from error
