"""Fifty times kill -9 on a training in two processes: no finished epoch is lost, and the result has the same bits.

Each time, one of the two workers or the launcher is killed, at a random moment after the run has saved another
checkpoint. The launcher restarts a killed worker; if the launcher was killed, the same command is run again. After half
of the kills, metrics.jsonl is deleted, cut at a random place, or gets a random byte. Ratios that should be 1: kills
over planned kills; files of the last checkpoint that equal those of an undisturbed run, over all files; and the same
for the lines of metrics.jsonl, seconds aside. "epochs lost", finished ones that had to be trained again after the other
kills, should be 0.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from selfadapt.run_folder.folder import RunFolder

KILLS = int(os.environ.get("SELFADAPT_KILLS", "50"))
SETTINGS = (
    "digits", "--method", "sat", "--noise", "symmetric:0.4", "--limit", "500", "--width", "8", "--targets",
    "sharded:float16", "--devices", "2", "--resume", "--quiet",
)  # fmt: skip


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "selfadapt", "train", *SETTINGS, "--epochs", str(2 * KILLS), "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _workers(launcher: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = status.read_text().partition(" ")
            if int(rest.rpartition(")")[2].split()[1]) == launcher:
                found.append(int(number))
        except (OSError, ValueError, IndexError):
            continue
    return found


def _saved(folder: Path) -> tuple[int, ...]:
    """Epoch and step of the newest checkpoint."""
    names = [path.name for path in (folder / "checkpoint").glob("*-*") if path.name[0] != "."]
    return max((tuple(int(number) for number in name.split("-")) for name in names), default=(0, 0))


def _lines(folder: Path) -> int:
    """The lines of metrics.jsonl, which a resumed run truncates to the epochs that it resumes from."""
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def _damage(path: Path, chance: random.Random) -> None:
    content = path.read_bytes() if path.exists() else b""
    kind, place = chance.choice(("delete", "cut", "change")), chance.randrange(len(content) + 1)
    if kind == "delete":
        path.unlink(missing_ok=True)
    elif kind == "cut":
        path.write_bytes(content[:place])
    else:
        path.write_bytes(content[:place] + chance.randbytes(1) + content[place + 1 :])


def _outcome(folder: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    newest = max(path for path in (folder / "checkpoint").iterdir() if path.name[0] != ".")
    lines = [{**line, "seconds": 0} for line in RunFolder(folder).read_metrics()]
    return json.loads((newest / "manifest.json").read_text())["sha256"], lines


def run() -> dict[str, float]:
    chance, kills, damaged, lost = random.Random(0), 0, 0, 0
    with tempfile.TemporaryDirectory() as home:
        whole, killed = Path(home) / "whole", Path(home) / "killed"
        if _start(whole).wait():
            raise RuntimeError("the run that is left alone failed")
        launcher, seen, is_damaged = _start(killed), _saved(killed), False
        while kills < KILLS:
            if launcher.poll() == 0:
                break  # it finished before the last kill
            if launcher.poll() is not None:
                launcher = _start(killed)
            least = seen[0]
            while _saved(killed) <= seen and launcher.poll() is None:
                least = min(least, _lines(killed))
                time.sleep(0.005)
            lost += 0 if is_damaged else seen[0] - least
            time.sleep(chance.uniform(0, 0.5))
            if launcher.poll() is not None:
                continue
            seen = _saved(killed)
            victims = _workers(launcher.pid)
            victim = chance.choice([launcher.pid, *victims])
            os.kill(victim, signal.SIGKILL)
            kills += 1
            if victim == launcher.pid:
                launcher.wait()
            is_damaged = chance.random() < 0.5
            if is_damaged:
                _damage(killed / "metrics.jsonl", chance)
                damaged += 1
            is_damaged = is_damaged or _lines(killed) < seen[0]  # not rebuilt yet after the damage before
        while launcher.wait() != 0:
            launcher = _start(killed)
        (files, lines), (whole_files, whole_lines) = _outcome(killed), _outcome(whole)
    return {
        "kills / kills asked for": kills / KILLS,
        "times that metrics.jsonl was damaged": float(damaged),
        "epochs lost": float(lost),
        "equal files of the last checkpoint / all": sum(files.get(k) == v for k, v in whole_files.items())
        / len(whole_files),
        "equal lines of metrics.jsonl / all": sum(a == b for a, b in zip(lines, whole_lines, strict=True))
        / len(whole_lines),
    }
