"""The processes of a data-parallel command on this machine, under the elastic agent of torch.distributed.run.

The agent assigns ranks, watches the processes and, if one is lost, restarts all from the last checkpoint. On several
machines the same program runs under torchrun, which uses the same agent. This one differs in three points: a process
that ends with an error is not restarted, because it would fail again; a signal reaches the processes but not their
workers, so that they can save; and if a process is lost, the others are killed at once, because they would only wait
for it.
"""

import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, SignalException
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from selfadapt.core.errors import INTERRUPTED, Interrupted
from selfadapt.core.launched import LAUNCHER
from selfadapt.engine.jobs import end_processes

_RESTARTS = 3
_POLL = 0.05  # seconds between checks of the processes
_SAVE_SECONDS = 60.0  # that interrupted processes have to save
_FAIL_SECONDS = 5.0  # that the others have after one has failed
_HOST = "127.0.0.1"


def launch(count: int, arguments: Sequence[str], *, prints: bool = True) -> int:
    """Run `selfadapt` with these arguments in `count` processes, and return the exit code.

    Without `prints` their standard output is discarded; progress and errors are still shown.
    """
    rendezvous = RendezvousParameters("c10d", f"{_HOST}:0", uuid.uuid4().hex, 1, 1, _HOST)
    spec = WorkerSpec(
        role="selfadapt",
        local_world_size=count,
        rdzv_handler=get_rendezvous_handler(rendezvous),
        entrypoint=sys.executable,
        args=("-m", "selfadapt", *arguments),
        max_restarts=_RESTARTS,
        monitor_interval=_POLL,
        local_addr=_HOST,
    )
    agent = _Agent(spec, _Logs(prints))
    with _as_launcher():
        try:
            agent.run()
        except SignalException:
            if INTERRUPTED in agent.codes:  # the first process has said how to resume
                return INTERRUPTED
            raise Interrupted("stopped by a signal") from None
        finally:
            spec.rdzv_handler.shutdown()
    return agent.code


@contextmanager
def _as_launcher() -> Iterator[None]:
    """Identify this process to those it starts, silence the agent's log, and restore the signal handlers it changes."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    log, silence = logging.getLogger("torch.distributed.elastic"), logging.NullHandler()
    log.addHandler(silence)
    log.propagate = False
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[LAUNCHER]
        log.propagate = True
        log.removeHandler(silence)
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Agent(LocalElasticAgent):
    code = 0  # exit code of the command

    @property
    def _processes(self) -> list["subprocess.Popen[bytes]"]:
        context = cast(SubprocessContext | None, self._pcontext)
        return [] if context is None else [handler.proc for handler in context.subprocess_handlers.values()]

    @property
    def codes(self) -> list[int | None]:
        """The exit code of each process; negative if a signal killed it, None if it is running."""
        return [process.poll() for process in self._processes]

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        failed = [code for code in self.codes if code]
        if failed:
            code = min(failed)  # a lost process, whose code is negative, also makes the waiting others fail
            end_processes(self._processes, _FAIL_SECONDS if code > 0 else 0.0)
            if code > 0:
                self.code, self._remaining_restarts = code, 0
            else:
                lost = f"a process was lost ({signal.Signals(-code).name})"
                again, self.code = self._remaining_restarts > 0, 1
                print(f"{lost}; restarting" if again else f"error: {lost} too often", file=sys.stderr)
        result = cast(RunResult, super()._monitor_workers(worker_group))
        if not result.is_failed() and None not in self.codes:
            self.code = 0
        return result

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        end_processes(self._processes, _SAVE_SECONDS)
        super()._shutdown(signal.SIGKILL, timeout)


class _Logs(DefaultLogsSpecs):
    """Pass standard output through, or discard it. Writes no log files."""

    def __init__(self, prints: bool) -> None:
        super().__init__(os.devnull)
        self.prints = prints

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        shown = super().reify(envs)
        return shown if self.prints else replace(shown, stdouts=dict.fromkeys(envs, os.devnull))
