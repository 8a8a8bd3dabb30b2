"""Processes that start at once: forks of a server that has torch loaded, each as good as a fresh program.

A fresh interpreter takes about 5 s to import torch and what a training needs; a fork takes 50 ms. The server is
multiprocessing's own. It imports and does nothing else, so that it has no thread that a fork could miss.

What a fork cannot show, because it was settled when the server began: the number of OpenMP's threads (one), the order
of a set of strings (PYTHONHASHSEED), and how long imports take. Tests of these start a fresh program.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

LOADED = [
    "torch", "torch._dynamo", "torch.distributed.nn", "torchvision.transforms.v2", "sklearn.datasets",
    "sklearn.metrics", "matplotlib.figure", "matplotlib.backends.backend_svg", "jinja2", "pydantic",
    "selfadapt.cli.app", "selfadapt.engine.elastic", "selfadapt.runs.train.labelled", "selfadapt.runs.train.unlabelled",
    "selfadapt.report.page",
]  # fmt: skip
PATIENCE = 900.0  # seconds that anything may take, for the machine may be busy


def fork(work: Callable[..., None], *arguments: Any, folder: Path | None = None) -> BaseProcess:
    """Begin `work(…)` in a process of its own, in this folder and with the environment of this moment."""
    _begin_server()
    given = (os.environ.copy(), folder or Path.cwd(), work, arguments)
    process = multiprocessing.get_context("forkserver").Process(target=_as_fresh, args=given)
    process.start()
    return process


def _begin_server() -> None:
    multiprocessing.set_forkserver_preload(LOADED)
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _as_fresh(environment: dict[str, str], folder: Path, work: Callable[..., None], arguments: Sequence[Any]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from salt import apply_salt

    apply_salt()
    work(*arguments)


class Program:
    """`selfadapt` with these arguments in a fork, with what tests use of subprocess.Popen.

    `patch` is called first; what it replaces is replaced in the processes of `--devices` too.
    """

    def __init__(self, *arguments: str | Path, folder: Path, patch: Callable[[], None] | None = None) -> None:
        self._output = Path(tempfile.mkdtemp(prefix="selfadapt-"))
        weakref.finalize(self, shutil.rmtree, self._output, ignore_errors=True)
        self._process = fork(_run, [str(argument) for argument in arguments], self._output, patch, folder=folder)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float = PATIENCE) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise subprocess.TimeoutExpired("selfadapt", timeout)
        return self._process.exitcode

    def said(self) -> str:
        """What it wrote to standard output so far."""
        path = self._output / "stdout"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Wait, and return what it wrote to standard output and to standard error."""
        self.wait(timeout)
        words, errors = ((self._output / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return words, errors

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], output: Path, patch: Callable[[], None] | None) -> None:
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        with open(output / name, "wb") as file:
            os.dup2(file.fileno(), descriptor)
    launch_forks()
    if patch is not None:
        patch()
    _main(arguments)


def launch_forks() -> None:
    """Let the launchers of this process, which is a fork itself, start forks in place of fresh programs."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    from selfadapt.engine import jobs

    stand_in = SimpleNamespace(Popen=_Worker, TimeoutExpired=subprocess.TimeoutExpired, DEVNULL=subprocess.DEVNULL)
    jobs.subprocess = stand_in  # type: ignore[attr-defined, assignment]
    subprocess_handler.Popen = _Worker  # type: ignore[assignment, attr-defined]


def _main(arguments: list[str]) -> None:
    from selfadapt.cli.app import main

    sys.argv = ["selfadapt", *arguments]
    main()


class _Worker:
    """One of the processes that `--devices` starts: a fork of the launcher in place of a fresh program."""

    def __init__(
        self,
        args: Sequence[str],
        env: dict[str, str],
        *,
        start_new_session: bool,
        stdout: int | IO[str] | None = None,
        stderr: None = None,
    ) -> None:
        words = [word for word in args if word != "-u"]  # which torchrun adds: unbuffered output
        assert words[:3] == [sys.executable, "-m", "selfadapt"]
        assert start_new_session
        assert stderr is None
        sys.stdout.flush()
        sys.stderr.flush()
        silent = stdout is not None
        self._process = multiprocessing.get_context("fork").Process(target=_work, args=(words[3:], env, silent))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("selfadapt", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _work(arguments: list[str], environment: dict[str, str], silent: bool) -> None:
    os.setsid()
    if silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _as_fresh(environment, Path.cwd(), _main, (arguments,))
