"""Several independent trainings at once, each as a command in a process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from selfadapt.core.launched import JOBS, LAUNCHER
from selfadapt.core.progress import ProgressCallback

_POLL = 0.05  # seconds between checks of the processes
_GRACE = 20.0  # seconds that a terminated process has to save


def launch_each(
    commands: Sequence[Sequence[str]], at_once: int, on_progress: ProgressCallback
) -> tuple[int, Sequence[str]] | None:
    """Run `selfadapt` with each of these lists of arguments, `at_once` at a time, until one fails.

    Each process gets its slot as LOCAL_RANK, which selects a GPU. Standard output is discarded; errors are shown.

    Returns:
        The exit code and the arguments of the process that failed; None if all succeeded.
    """
    at_once = min(at_once, len(commands))
    waiting = list(commands)
    running: dict[int, tuple[Sequence[str], subprocess.Popen[bytes]]] = {}  # by slot
    on_progress(0, len(commands))
    try:
        while waiting or running:
            for slot in range(at_once):
                if waiting and slot not in running:
                    arguments = waiting.pop(0)
                    running[slot] = arguments, _start(arguments, slot, at_once)
            time.sleep(_POLL)
            for arguments, process in running.values():
                if process.poll():
                    return process.poll() or 1, arguments
            running = {slot: job for slot, job in running.items() if job[1].poll() is None}
            on_progress(len(commands) - len(waiting) - len(running), len(commands))
    finally:
        end_processes([process for _, process in running.values()], _GRACE)
    return None


def _start(arguments: Sequence[str], slot: int, at_once: int) -> "subprocess.Popen[bytes]":
    """Start one of `at_once` processes that share the cores (runs/lifecycle/threads.py).

    It runs in a new session, so that Ctrl-C reaches only this process, which forwards it once.
    """
    count = str(at_once)
    variables = {JOBS: count, "LOCAL_RANK": str(slot), "LOCAL_WORLD_SIZE": count, LAUNCHER: str(os.getpid())}
    return subprocess.Popen(
        [sys.executable, "-m", "selfadapt", *arguments],
        env={**os.environ, **variables},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )


def end_processes(processes: Sequence["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Terminate processes, each in a separate session, and after this time kill them and their workers."""
    for process in processes:
        if process.poll() is None and seconds:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
