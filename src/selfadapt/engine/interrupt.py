"""Graceful shutdown on SIGINT and SIGTERM: finish the step, save, stop. A second signal stops immediately,
with what was saved before."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from selfadapt.core.errors import Interrupted


class StopRequest:
    """True after a signal."""

    def __init__(self) -> None:
        self.requested = False

    def __bool__(self) -> bool:
        return self.requested


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request inside this block. Has no effect outside the main thread."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request.requested:
            raise Interrupted("stopped at once by a second signal")
        request.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
