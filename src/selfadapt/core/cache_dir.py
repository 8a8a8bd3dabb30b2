"""Where fetched and decoded data live on this machine: $SELFADAPT_HOME, or the user's cache folder."""

import os
from pathlib import Path


def cache_dir() -> Path:
    given = os.environ.get("SELFADAPT_HOME")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "selfadapt"
