"""Several processes on one machine: a data-parallel training, or several independent trainings.

If a process of a data-parallel training is lost, all of them restart from the last checkpoint. On several machines the
same program runs under torchrun, which sets the same environment variables and also restarts.
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
_JOBS = "SELFADAPT_JOBS"  # number of concurrent trainings, by which distributed.usable_cores() divides the cores
_POLL = 0.05  # seconds between checks of the processes
_GRACE = 20.0  # seconds that a terminated process has to save


def is_launched() -> bool:
    """Return whether this process is one of several that a launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_restarted() -> bool:
    """Return whether the launcher restarted the processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def follow_launcher() -> None:
    """Terminate this process if the launcher is killed (Linux only)."""
    if "SELFADAPT_LAUNCHER" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ["SELFADAPT_LAUNCHER"]):
            os._exit(1)


def launch(count: int, arguments: Sequence[str], *, prints: bool = True) -> int:
    """Run `selfadapt` with these arguments in `count` processes, and return the exit code.

    Without `prints` their standard output is discarded; progress and errors are still shown.
    """
    code = 0
    for restart in range(_RESTARTS + 1):
        workers = _start(count, arguments, restart, None if prints else subprocess.DEVNULL)
        try:
            code = _wait(workers)
        except Interrupted:
            _stop(workers, _GRACE)
            raise
        if code >= 0:  # negative if a signal killed a process
            return code
        lost = f"a process was lost ({signal.Signals(-code).name})"
        print(f"{lost}; restarting" if restart < _RESTARTS else f"error: {lost} too often", file=sys.stderr)
    return 1


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
                    arguments, variables = waiting.pop(0), {_JOBS: str(at_once), "LOCAL_RANK": str(slot)}
                    running[slot] = arguments, _start_one(arguments, variables, at_once, subprocess.DEVNULL)
            time.sleep(_POLL)
            for arguments, worker in running.values():
                if worker.poll():
                    return worker.poll() or 1, arguments
            running = {slot: job for slot, job in running.items() if job[1].poll() is None}
            on_progress(len(commands) - len(waiting) - len(running), len(commands))
    finally:
        _stop([worker for _, worker in running.values()], _GRACE)
    return None


def is_concurrent_job() -> bool:
    """Return whether this process is one of several concurrent trainings, whose launcher reports for them."""
    return _JOBS in os.environ


def _start(count: int, arguments: Sequence[str], restart: int, stdout: int | None) -> list[subprocess.Popen[bytes]]:
    shared = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "TORCHELASTIC_RESTART_COUNT": str(restart),
    }
    return [
        _start_one(arguments, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, count, stdout)
        for rank in range(count)
    ]


def _start_one(
    arguments: Sequence[str], variables: Mapping[str, str], count: int, stdout: int | None
) -> subprocess.Popen[bytes]:
    """Start one of `count` processes that share the cores (runs/lifecycle/threads.py).

    It runs in a new session, so that Ctrl-C reaches only the launcher, which forwards it once.
    """
    shared = {"LOCAL_WORLD_SIZE": str(count), "SELFADAPT_LAUNCHER": str(os.getpid())}
    return subprocess.Popen(
        [sys.executable, "-m", "selfadapt", *arguments],
        env={**os.environ, **shared, **variables},
        start_new_session=True,
        stdout=stdout,
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(workers: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Return the exit code of the first process to fail, or zero when all have finished."""
    while True:
        codes = [worker.poll() for worker in workers]
        failed = [code for code in codes if code]
        if failed:
            _stop(workers, 5.0)
            return min(failed)  # a lost process also makes the waiting others fail
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
