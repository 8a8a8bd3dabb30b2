"""Progress callbacks: how work that takes long tells how far it is."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]  # done, of how many


def no_progress(done: int, total: int) -> None:
    """For work that nobody looks at."""
