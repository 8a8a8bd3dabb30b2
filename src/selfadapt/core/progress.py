"""Progress callbacks for long-running work."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]  # steps done, total steps


def no_progress(done: int, total: int) -> None:
    """Ignore progress updates."""
