"""Graceful shutdown on SIGINT and SIGTERM: finish the step, save, stop. A second signal stops immediately,
with what was saved before.

Several processes agree on the step after which they stop or save.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from selfadapt.core import distributed
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


class Agreement:
    """Whether any process wants to stop or to save.

    Several processes ask each other after each step and get the answer after the next, so that none waits.
    """

    def __init__(self) -> None:
        self._asked: distributed.Maximum | None = None

    def reached(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """Return whether all processes stop and save after this step, given what this one wants."""
        if distributed.world_size() == 1:
            return stop, save
        stopped, saved = self.end()
        if not stopped:
            self._asked = distributed.Maximum([stop, save and not saved])
        return stopped, saved

    def end(self) -> tuple[bool, bool]:
        """Return the answer of the other processes to the last question."""
        asked, self._asked = self._asked, None
        if asked is None:
            return False, False
        stopped, saved = asked.wait()
        return bool(stopped), bool(saved)
