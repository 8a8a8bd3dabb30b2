"""Progress callbacks for long-running work."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]  # steps done, total steps
StageProgress = Callable[[str, int, int], None]  # the current stage, such as "epoch 3/60"; steps done, total steps


def no_progress(done: int, total: int) -> None:
    """Ignore progress updates."""


def no_stages(stage: str, done: int, total: int) -> None:
    """Ignore progress updates."""
