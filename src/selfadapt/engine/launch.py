"""Several processes on one machine: one training in all of them, or one in each.

Where they share a training, a process that is lost restarts all of them from the last checkpoint. On several machines
the same program runs under torchrun, which sets the same environment and restarts likewise.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from selfadapt.core.errors import Interrupted
from selfadapt.core.progress import ProgressCallback

_PR_SET_PDEATHSIG = 1  # of prctl(2)
_RESTARTS = 3
_JOBS = "SELFADAPT_JOBS"  # how many trainings run at once, by which distributed.usable_cores() shares out the cores
_POLL = 0.05  # seconds between two looks at the processes
_GRACE = 20.0  # seconds in which a process that is asked to stop may save


def is_launched() -> bool:
    """Whether this process is one of several that a launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_restarted() -> bool:
    """Whether the launcher had to start the processes anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def follow_launcher() -> None:
    """End with the launcher, should it be killed (Linux)."""
    if "SELFADAPT_LAUNCHER" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ["SELFADAPT_LAUNCHER"]):
            os._exit(1)


def launch(count: int, arguments: Sequence[str], *, prints: bool = True) -> int:
    """Run `selfadapt` with these arguments in so many processes, and return the exit code.

    Without `prints` their results are not shown; progress and errors are.
    """
    code = 0
    for restart in range(_RESTARTS + 1):
        workers = _start(count, arguments, restart, None if prints else subprocess.DEVNULL)
        try:
            code = _wait(workers)
        except Interrupted:
            _stop(workers, _GRACE)
            raise
        if code >= 0:  # an end of its own, good or bad; below zero a signal killed a process
            return code
        lost = f"a process was lost ({signal.Signals(-code).name})"
        print(f"{lost}; starting anew" if restart < _RESTARTS else f"error: {lost} again and again", file=sys.stderr)
    return 1


def launch_each(
    commands: Sequence[Sequence[str]], at_once: int, on_progress: ProgressCallback
) -> tuple[int, Sequence[str]] | None:
    """Run `selfadapt` with each of these lists of arguments, so many at once; the first that fails stops all.

    Each has its place among those that run as its LOCAL_RANK, by which it takes a GPU. Returns the exit code and the
    arguments of the one that failed, or nothing. Results are not shown; errors are.
    """
    at_once = min(at_once, len(commands))
    waiting = list(commands)
    running: dict[int, tuple[Sequence[str], subprocess.Popen[bytes]]] = {}  # by their places
    on_progress(0, len(commands))
    try:
        while waiting or running:
            for place in range(at_once):
                if waiting and place not in running:
                    arguments, own = waiting.pop(0), {_JOBS: str(at_once), "LOCAL_RANK": str(place)}
                    running[place] = arguments, _started(arguments, own, at_once, subprocess.DEVNULL)
            time.sleep(_POLL)
            for arguments, worker in running.values():
                if worker.poll():
                    return worker.poll() or 1, arguments
            running = {place: job for place, job in running.items() if job[1].poll() is None}
            on_progress(len(commands) - len(waiting) - len(running), len(commands))
    finally:
        _stop([worker for _, worker in running.values()], _GRACE)
    return None


def is_a_job() -> bool:
    """Whether this process is one of several trainings at once, whose launcher speaks for them."""
    return _JOBS in os.environ


def _start(count: int, arguments: Sequence[str], restart: int, stdout: int | None) -> list[subprocess.Popen[bytes]]:
    shared = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "TORCHELASTIC_RESTART_COUNT": str(restart),
    }
    return [
        _started(arguments, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, count, stdout)
        for rank in range(count)
    ]


def _started(
    arguments: Sequence[str], own: Mapping[str, str], count: int, stdout: int | None
) -> subprocess.Popen[bytes]:
    """One of `count` processes that share the cores (runs/lifecycle/threads.py).

    It gets a session of its own: Ctrl-C reaches the launcher alone, which passes it on once.
    """
    shared = {"LOCAL_WORLD_SIZE": str(count), "SELFADAPT_LAUNCHER": str(os.getpid())}
    return subprocess.Popen(
        [sys.executable, "-m", "selfadapt", *arguments],
        env={**os.environ, **shared, **own},
        start_new_session=True,
        stdout=stdout,
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(workers: Sequence["subprocess.Popen[bytes]"]) -> int:
    """The exit code: that of the first process to fail, or zero once all are done."""
    while True:
        codes = [worker.poll() for worker in workers]
        failed = [code for code in codes if code]
        if failed:
            _stop(workers, 5.0)
            return min(failed)  # a lost process also fails the others, which wait for it
        if None not in codes:
            return 0
        time.sleep(_POLL)


def _stop(workers: Sequence["subprocess.Popen[bytes]"], grace: float) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for worker in workers:
        try:
            worker.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
