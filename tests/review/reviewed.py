"""A run to review, and its review as a real server, for tests."""

import csv
import http.client
import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image

from forks import PATIENCE, Program
from selfadapt.evaluation.label_errors.build_report import new_report
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.run_folder.labels_file import SPLITS

EVIL_CLASS = "<script>alert(1)</script>"
EVIL_FILE = '"><img src=x onerror=alert(1)>.png'
CLASSES = (EVIL_CLASS, "bar", "dot")  # as the run sorts them


def draw_shape(kind: int, generator: np.random.Generator) -> Image.Image:
    """A cross, a bar or a dot of 16 pixels, somewhere, on a noisy ground."""
    pixels = generator.integers(0, 70, (16, 16))
    x, y = generator.integers(4, 11, 2)
    if kind in (0, 1):
        pixels[:, x] += 180
    if kind == 0:
        pixels[y, :] = 250
    if kind == 2:
        pixels[y - 3 : y + 3, x - 3 : x + 3] += 180
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_shapes(folder: Path, counts: dict[str, int], wrong: float = 0.25) -> Path:
    """A table of small images, of whose labels a quarter is wrong; the id tells the truth."""
    generator = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    rows = []
    for part, count in counts.items():
        for number in range(count):
            kind = number % 3
            name = EVIL_FILE if (part, number) == ("train", 0) else f"{part}-{number}.png"
            draw_shape(kind, generator).save(folder / "images" / name)
            given = (kind + int(generator.integers(1, 3))) % 3 if generator.random() < wrong else kind
            rows.append((f"images/{name}", CLASSES[given], f"{part}/{number}/{kind}/{name}", part))
    with open(folder / "shapes.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "id", "split"))
        writer.writerows(rows)
    return folder / "shapes.csv"


def truth(sample_id: str) -> str:
    return CLASSES[int(sample_id.split("/")[2])]


def label_rows(run: Path) -> list[dict[str, str]]:
    with open(run / "labels.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def report_on(
    given: Any, suggested: Any = None, *, classes: Sequence[str], split: str = "train", ids: Sequence[str]
) -> LabelErrorReport:
    """A report on labels of one split. Those with another suggestion are likely errors; nothing else is known."""
    given_N = torch.as_tensor(np.asarray(given))
    suggested_N = given_N if suggested is None else torch.as_tensor(np.asarray(suggested))
    ones_N = torch.ones(len(given_N))
    made = new_report(
        given_N,
        len(classes),
        suggested_N=suggested_N,
        runner_up_N=torch.full_like(given_N, -1),
        is_error_N=suggested_N != given_N,
        p_wrong_N=torch.nan * ones_N,
        confidence_N=ones_N,
        weight_N=ones_N,
    )
    return replace(
        made,
        class_names=np.array(classes, object),
        ids=np.array(ids, object),
        split_names=SPLITS,
        split_codes=np.full(len(ids), SPLITS.index(split)),
    )


class Server:
    """`selfadapt review` in a process of its own."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.program = Program("review", run, "--no-browser", "--json", folder=run.parent)
        deadline = time.monotonic() + PATIENCE
        while "\n" not in self.program.said():
            if self.program.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(self.program.communicate())
            time.sleep(0.02)
        self.url: str = json.loads(self.program.said().splitlines()[0])["url"]
        self.host = urlsplit(self.url).netloc
        self.token = urlsplit(self.url).query.removeprefix("token=")

    def ask(
        self,
        path: str,
        content: Any = None,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
        token: str | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request below the token, sent as it is written."""
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE)
        body = None if content is None else json.dumps(content)
        own = {"Content-Type": "application/json"} if body is not None else {}
        place = f"/{self.token if token is None else token}/{path}"
        try:
            connection.request(method or ("GET" if body is None else "POST"), place, body, {**own, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path: str, content: Any = None) -> Any:
        status, _, body = self.ask(path, content)
        assert status == 200, (status, body)
        return json.loads(body)

    def kill(self) -> None:
        self.program.kill()
        self.program.wait()

    def stop(self) -> tuple[int, str, str]:
        """As Ctrl-C does: exit code, standard output and standard error."""
        self.program.send_signal(signal.SIGINT)
        words, errors = self.program.communicate()
        return self.program.wait(), words, errors


@contextmanager
def serving(run: Path) -> Iterator[Server]:
    server = Server(run)
    try:
        yield server
    finally:
        server.kill()
