"""The demo next to one busy single-threaded program, against the demo alone on an idle machine.

Both use the default number of threads; OpenMP variables of the environment are ignored. The ratio is the median over
three rounds of the first side's time over the second's, alternating, each in a separate process. It should be at most
1.5. "load before" is the load average of the machine at the start, which must be near 0 for the ratio to be meaningful.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.timing import time_ratio

ROUNDS = int(os.environ.get("SELFADAPT_ROUNDS", "3"))


def _demo() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "selfadapt", "demo", "--quiet", "--out", f"{folder}/demo"]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


@contextmanager
def _busy_program() -> Iterator[None]:
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def _beside_a_busy_program() -> None:
    with _busy_program():
        _demo()


def run() -> dict[str, float]:
    load = os.getloadavg()[0]
    ratio = time_ratio(_beside_a_busy_program, _demo, rounds=ROUNDS, warm_up=0)
    return {"demo beside a busy program / alone": ratio, "load before": load}
