"""JSON objects on one line that hold a checksum of their values, so that an accidental change is noticed.

{"epoch": 1, "train_loss": 0.93, "crc32": 2212294583}
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from selfadapt.core.typed_json import parse

_KEY = "crc32"


def to_line(content: Mapping[str, Any]) -> str:
    return json.dumps({**content, _KEY: _checksum(content)}) + "\n"


def from_line(line: bytes, *, required: bool = True) -> dict[str, Any]:
    """Parse a line. Raises a ValueError that says what is wrong, also if a `required` checksum is missing."""
    content = parse(line)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    if (required or _KEY in content) and content.pop(_KEY, None) != _checksum(content):
        raise ValueError("it does not match its checksum")
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())
