"""Two hundred times kill -9 on the server of a review while it confirms decisions: none is lost, and none is torn.

Four clients decide and undo without a pause until the server is killed, at a random moment after its first answer. Then
decisions.jsonl must hold each confirmed request on the line that the answer named, and no others but those that were
under way. The server starts again, must show the decisions of these lines, and so on. A line that was cut short may end
the file, as it was never confirmed. SELFADAPT_KILLS sets the number of kills. A failing power supply is not tested: for
that, each line is flushed to disk before it is confirmed.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.review import write_run
from selfadapt.cli.app import main
from selfadapt.report import page  # noqa: F401  with all that a review imports, for the forks

KILLS = int(os.environ.get("SELFADAPT_KILLS", "200"))
CLIENTS, SAMPLES, SECONDS = 4, 60, 0.4

Line = tuple[str, Mapping[str, str | None] | None]  # what was decided, and the labels by sample id; undo has none


class Client:
    """One connection to the server of a review."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(address.netloc, timeout=60)
        self._root = f"/{address.query.removeprefix('token=')}/api/"

    def ask(self, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content)
        headers = {"Content-Type": "application/json"}
        self._connection.request("GET" if body is None else "POST", self._root + path, body, headers)
        answer = self._connection.getresponse()
        found = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} {content}: {answer.status} {found!r}")
        return json.loads(found)


class Kills:
    """The servers of one review, and what they confirmed."""

    def __init__(self, run: Path, start: Callable[[], tuple[str, int]]) -> None:
        """`start` starts a server and returns its address and the id of its process."""
        self._journal, self._start = run / "decisions.jsonl", start
        self.confirmed: dict[int, Line] = {}  # by number
        self.unconfirmed = self.lost = self.torn = 0
        self._url, self.process = start()
        about = Client(self._url).ask("about")
        self._classes: list[str] = about["classes"]
        self._samples = self._read_samples(about["labels"])

    def _read_samples(self, count: int) -> list[dict[str, Any]]:
        samples: list[dict[str, Any]] = Client(self._url).ask("samples", {"rows": list(range(count))})["samples"]
        return samples

    def kill_once(self, chance: random.Random) -> None:
        before, clients = len(self.confirmed), [random.Random(chance.random()) for _ in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            under_way = [pool.submit(self._decide, client) for client in clients]
            while len(self.confirmed) == before and not any(own.done() for own in under_way):
                time.sleep(0.001)
            time.sleep(chance.uniform(0, SECONDS))
            os.kill(self.process, signal.SIGKILL)
        self._check_journal([own.result() for own in under_way])
        self._url, self.process = self._start()
        self._check_server()

    def _decide(self, chance: random.Random) -> Line:
        """Decide and undo until the server dies, and return the request that was under way."""
        client = Client(self._url)
        while True:
            row = chance.randrange(len(self._samples))
            sample, label = self._samples[row], chance.randrange(len(self._classes))
            what = chance.choice(("accept", "keep", "choose", "remove", "undo"))
            line: Line = ("undo", None)
            if what != "undo":
                code = {"accept": sample["suggested"], "keep": sample["given"], "choose": label}.get(what)
                line = (what, {sample["id"]: None if code is None else self._classes[code]})
            try:
                content = {} if what == "undo" else {"what": what, "rows": [row], "label": label}
                answer = client.ask("undo" if what == "undo" else "decide", content)
            except (OSError, HTTPException):
                return line
            if what != "undo" or answer["undone"]:
                self.confirmed[answer["line"]] = line

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._journal.read_bytes().split(b"\n")[:-1]]

    def _check_journal(self, under_way: list[Line]) -> None:
        self.torn += not (b"\n" + self._journal.read_bytes()).endswith(b"\n")
        found: dict[int, Line] = {line["line"]: (line["what"], line.get("labels")) for line in self._lines()}
        self.lost += sum(found.get(number) != line for number, line in self.confirmed.items())
        for number in found.keys() - self.confirmed.keys():
            under_way.remove(found[number])  # a ValueError if nobody asked for it
            self.unconfirmed += 1
        self.confirmed = found

    def _check_server(self) -> None:
        lines = self._lines()
        undone = {line.get("undoes") for line in lines}
        standing = {sample["id"]: (False, None) for sample in self._samples}
        for line in lines:
            if line["what"] != "undo" and line["line"] not in undone:
                standing |= {name: (True, label) for name, label in line["labels"].items()}
        for sample in self._read_samples(len(self._samples)):
            code = sample["decided"]
            shown = (code is not None, None if code in (None, -2) else self._classes[code])
            self.lost += shown != standing[sample["id"]]


def start_review(run: Path) -> tuple[str, int]:
    """Start `selfadapt review` as a fork of this process, which has loaded torch; return its address and process id."""
    reading, writing = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_review, args=(run, writing))
    process.start()
    assert process.pid is not None
    os.close(writing)
    with open(reading) as output:
        return json.loads(output.readline())["url"], process.pid


def _review(run: Path, output: int) -> None:
    os.dup2(output, sys.stdout.fileno())
    sys.argv = ["selfadapt", "review", str(run), "--no-browser", "--json"]
    main()


def run() -> dict[str, float]:
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as home:
        folder = write_run(Path(home), SAMPLES)
        kills = Kills(folder.path, lambda: start_review(folder.path))
        for _ in range(KILLS):
            kills.kill_once(chance)
        os.kill(kills.process, signal.SIGKILL)
    return {
        "kills": float(KILLS),
        "confirmed decisions and undos": float(len(kills.confirmed) - kills.unconfirmed),
        "written, but killed before they were confirmed": float(kills.unconfirmed),
        "lost or changed": float(kills.lost),
        "files that ended in a line cut short": float(kills.torn),
    }
