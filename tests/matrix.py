"""The numerical tests on machines other than this one, as far as this one can stand in for them: `make test-matrix`.

A setting is an instruction set, a number of threads and a salt for the seeds (tests/salt.py). An instruction set that
the CPU lacks is skipped. `--python python3.12` runs them in another interpreter, in a `.venv-3.12` from the lock files.

    python tests/matrix.py                            every setting once
    python tests/matrix.py --quick                    two instruction sets, one thread
    python tests/matrix.py --repeat 3 --busy 2        three times each, beside two busy programs
    python tests/matrix.py --all                      the whole suite instead of the numerical tests
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parent.parent
INSTRUCTION_SETS = {"default": "SSE41", "avx2": "AVX2", "avx512": "AVX512_CORE"}  # ATen's names and oneDNN's
OWN = "the CPU's own"


@dataclass(frozen=True)
class Setting:
    instructions: str
    threads: int
    salt: int = 0

    def __str__(self) -> str:
        return f"{self.instructions}, {self.threads} thread{'s' * (self.threads > 1)}, salt {self.salt}"

    @property
    def environment(self) -> dict[str, str]:
        own = {"OMP_NUM_THREADS": str(self.threads), "SELFADAPT_TEST_SALT": str(self.salt)}
        if self.instructions != OWN:
            own |= {
                "ATEN_CPU_CAPABILITY": self.instructions,
                "ONEDNN_MAX_CPU_ISA": INSTRUCTION_SETS[self.instructions],
            }
        return {**os.environ, **own}


def settings(quick: bool) -> list[Setting]:
    if quick:
        return [Setting(name, 1) for name in _supported() if name in ("default", "avx2")]
    seen = [Setting(name, threads) for name, threads in product([OWN, *_supported()], (1, 2))]
    return [*seen, *(Setting(OWN, 1, salt) for salt in (1, 2, 3))]


def _supported() -> list[str]:
    """The instruction sets that torch takes on this CPU: it ignores a larger one than there is."""
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    found = []
    for name in INSTRUCTION_SETS:
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": name}
        said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        if said.stdout.strip().lower() == name:
            found.append(name)
    return found


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            program = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(program.kill)
        yield


def run(python: Path, setting: Setting, whole: bool) -> tuple[bool, str]:
    """Whether all passed, and a row of the table."""
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    command += [] if whole else ["-m", "numerical"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=setting.environment, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    counts = re.findall(
        r"(\d+ (?:passed|failed|error|skipped)\w*)", done.stdout.splitlines()[-1] if done.stdout else ""
    )
    said = ", ".join(counts) or f"pytest exited with {done.returncode}: {done.stderr.strip()[-300:]}"
    row = f"| {setting} | {said} | {time.monotonic() - began:.0f} s |"
    return done.returncode == 0, "\n".join([row, *(f"    {name}" for name in failed)])


def interpreter(name: str | None) -> Path:
    if name is None:
        return Path(sys.executable)
    venv = f".venv-{name.removeprefix('python')}"
    subprocess.run(["make", f"{venv}/dev-ready", f"VENV={venv}", f"PYTHON={name}"], cwd=ROOT, check=True)
    return ROOT / venv / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two instruction sets, one thread")
    parser.add_argument("--all", action="store_true", help="the whole suite, not only the numerical tests")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run each setting N times")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="beside N busy programs")
    parser.add_argument("--python", metavar="NAME", help="another interpreter, such as python3.12")
    given = parser.parse_args()
    python, good = interpreter(given.python), True
    print("| setting | tests | time |\n|---|---|---|", flush=True)
    with busy_programs(given.busy):
        for setting in settings(given.quick):
            for _ in range(given.repeat):
                passed, row = run(python, setting, given.all)
                good &= passed
                print(row, flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
