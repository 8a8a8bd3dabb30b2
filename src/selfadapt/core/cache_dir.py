"""The folder for downloaded and cached data: $SELFADAPT_HOME, or the user's cache folder."""

import os
from pathlib import Path


def cache_dir() -> Path:
    if home := os.environ.get("SELFADAPT_HOME"):
        return Path(home).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "selfadapt"
