"""The server of a review under random requests, damage and kill -9: no error of its own, and nothing confirmed is lost.

The oracle is a stack of decisions, as `undo` takes them back. Many more requests and kills than in `make test`:

    SELFADAPT_REQUESTS=5000 python -m pytest tests/review/test_requests.py
    python -m benchmarks review_kills
"""

import json
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.review import write_run
from benchmarks.review_kills import Kills
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from review.reviewed import CLASSES, Server, label_rows

REQUESTS = int(os.environ.get("SELFADAPT_REQUESTS", "180"))
STEPS, RESTARTS = 60, 2  # of one server
REMOVED = -2

ROWS = st.integers(0, 224)
HUGE = st.sampled_from([int("9" * 28), -int("9" * 28), 2**31, 2**63, 2**64])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | HUGE | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(["accept", "keep", "choose", "remove", "import", "work", "measure", "test", "suggestions"])
BODY = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("what", "label", "queue", "of"), JSON | WORDS) | {"rows": JSON | st.lists(JSON)}
)
TEXT = st.sampled_from(["9" * 28, "9" * 5000, "-1", "1e999", "nan", "%00", "%ff", "%F0%9F%90%8D", "..%2f", ""])
ADDRESS = st.sampled_from(
    ["image/{}/small", "image/0/{}", "api/values/{}", "api/similar/{}", "static/{}", "{}", "api/{}"]
    + ["api/changes?after={}", "api/measured?precision={}", "api/measured?confidence={}", "api/figures?{}"]
    + [f"api/rows?{name}={{}}" for name in ("given", "suggested", "split", "show", "sort", "state", "search")]
)


class Decided:
    """What a review has confirmed, beside the facts of labels.csv."""

    def __init__(self, run: Path) -> None:
        rows = label_rows(run)
        self.codes = {
            what: [CLASSES.index(row[column]) for row in rows]
            for what, column in (("accept", "suggested"), ("keep", "given"))
        }
        self.stack: list[dict[int, int]] = []
        self.lines = 0  # of the journal

    def __len__(self) -> int:
        return len(self.codes["keep"])

    @property
    def now(self) -> dict[int, int]:
        return {row: code for line in self.stack for row, code in line.items()}

    def decide(self, what: str, rows: list[int], label: int | None) -> bool:
        """Note a decision; False if there is nothing to decide."""
        decided = self.now
        chosen = [row for row in dict.fromkeys(rows) if len(rows) == 1 or row not in decided]
        if chosen:
            codes = self.codes.get(what)
            code = REMOVED if label is None else label
            self.stack.append({row: code if codes is None else codes[row] for row in chosen})
            self.lines += 1
        return bool(chosen)

    def undo(self) -> None:
        if self.stack:
            self.stack.pop()
            self.lines += 1


def standing(server: Server, count: int) -> dict[int, int]:
    """The decisions as the server has them."""
    samples = server.json("api/samples", {"rows": list(range(count))})["samples"]
    return {own["row"]: own["decided"] for own in samples if own["decided"] is not None}


class Review(RuleBasedStateMachine):
    """A client that knows what it has been told."""

    source: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="selfadapt-"))
        self.run = self.folder / "run"
        shutil.copytree(self.source, self.run)
        self.server = Server(self.run)
        self.decided, self.restarts = Decided(self.run), 0

    def teardown(self) -> None:
        self.server.kill()
        shutil.rmtree(self.folder)

    def _restart(self) -> None:
        self.server.kill()
        self.server, self.restarts = Server(self.run), self.restarts + 1

    @rule(
        what=st.sampled_from(["accept", "keep", "choose", "remove"]),
        rows=st.lists(ROWS, min_size=1, max_size=5),
        label=st.integers(0, len(CLASSES) - 1),
    )
    def decide(self, what: str, rows: list[int], label: int) -> None:
        content = {"what": what, "rows": rows, "label": label}
        status, _, body = self.server.ask("api/decide", content)
        expected = self.decided.decide(what, rows, None if what == "remove" else label)
        assert status == (200 if expected else 400), body

    @rule()
    def undo(self) -> None:
        self.server.json("api/undo", {})
        self.decided.undo()

    @rule(path=ADDRESS, text=TEXT | st.text(st.characters(categories=["L", "N"]), max_size=5))
    def look(self, path: str, text: str) -> None:
        self._answered(*self.server.ask(path.format(text.encode().hex() if not text.isascii() else text)))

    @rule(path=st.sampled_from(["samples", "draw", "undo/", "about"]), content=BODY | JSON)
    def send(self, path: str, content: Any) -> None:
        self._answered(*self.server.ask(f"api/{path}", content))

    @rule(content=BODY.filter(lambda content: content.get("what") not in ("accept", "keep", "choose", "remove")))
    def decide_nonsense(self, content: dict[str, Any]) -> None:
        status = self._answered(*self.server.ask("api/decide", content))
        assert status == 400

    def _answered(self, status: int, headers: dict[str, str], body: bytes) -> int:
        assert status < 500, (status, body)
        if "json" in headers.get("content-type", "") and status >= 400:
            assert json.loads(body)["error"]
        return status

    @precondition(lambda self: self.restarts < RESTARTS and len(self.decided.stack) > 3)
    @rule(row=ROWS, delay=st.floats(0, 0.004))
    def kill_at_any_moment(self, row: int, delay: float) -> None:
        """Of a decision that was not confirmed nobody can tell, but it is whole or not there."""
        timer = threading.Timer(delay, self.server.kill)
        timer.start()
        try:
            confirmed = self.server.ask("api/decide", {"what": "keep", "rows": [row]})[0] == 200
        except (OSError, HTTPException):
            confirmed = False
        timer.join()
        self._restart()
        if confirmed or self.server.json("api/about")["line"] > self.decided.lines:
            self.decided.decide("keep", [row], None)

    @precondition(lambda self: self.restarts < RESTARTS and len(self.decided.stack) > 6)
    @rule(damage=st.sampled_from([partial(os.truncate, length=10), Path.unlink]), row=ROWS)
    def damage_the_journal(self, damage: Callable[[Path], None], row: int) -> None:
        journal = self.run / "decisions.jsonl"
        damage(journal)
        for path, content in (("decide", {"what": "keep", "rows": [row]}), ("undo", {})):
            status, _, body = self.server.ask(f"api/{path}", content)
            assert (status, "another program" in json.loads(body)["error"]) == (503, True)
        code, _, errors = self.server.stop()
        assert (code, errors.count("\n")) == (2, 1)
        (self.run / "decisions-rescued.jsonl").rename(journal)
        self._restart()

    @invariant()
    def nothing_confirmed_is_lost(self) -> None:
        assert self.server.json("api/about")["line"] == self.decided.lines
        assert standing(self.server, len(self.decided)) == self.decided.now


def test_random_requests(trained_shapes: Path) -> None:
    Review.source = trained_shapes
    run_state_machine_as_test(
        Review,
        settings=settings(
            max_examples=max(1, REQUESTS // STEPS),
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_kill_at_random_moments(tmp_path: Path) -> None:
    folder = write_run(tmp_path, 60)

    def start() -> tuple[str, int]:
        server = Server(folder.path)
        return server.url, server.program.pid

    kills, chance = Kills(folder.path, start), random.Random(0)
    for _ in range(4):
        kills.kill_once(chance)
    os.kill(kills.process, signal.SIGKILL)
    assert len(kills.confirmed) > kills.unconfirmed
    assert kills.lost == 0
