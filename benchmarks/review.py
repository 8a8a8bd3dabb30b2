"""The review page with 50,000 likely errors, against limits for comfortable use.

A run folder of 50,000 image files (JPEG, 240 by 180 pixels), all of them likely errors, in 100 classes, with 1,280
features each. The server starts as a new process; a headless Chromium opens the page. Limits: the first image within 2
seconds of opening the page, a decision confirmed (and on disk) within 50 ms at the median, 300 MB of memory beyond the
libraries (the peak with a run of 100 likely errors), and 50 ms between two frames while scrolling through all. The last
row is the time to find the six most similar samples of two classes, against 100 ms.
"""

import http.client
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from selfadapt.review.neighbours import write_features
from selfadapt.run_folder.folder import RunFolder

SUSPECTS, FEW, CLASSES, FEATURES = 50_000, 100, 100, 1280
DECISIONS = 300
SECONDS, CONFIRMED, MEMORY, FRAME, SIMILAR = 2.0, 0.050, 300e6, 0.050, 0.100
_NAMES = [f"class {k:03d}" for k in range(CLASSES)]


def write_run(folder: Path, suspects: int) -> RunFolder:
    """A run folder with this number of likely errors, as if it had been trained."""
    generator = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    encoded = []
    for _ in range(200):
        content = io.BytesIO()
        coarse = Image.fromarray(generator.integers(0, 256, (9, 12, 3), np.uint8))
        coarse.resize((240, 180), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
        encoded.append(content.getvalue())
    run = RunFolder(folder / "run")
    run.path.mkdir()
    rows = []
    for number in range(suspects):
        path = folder / "images" / f"{number:05d}.jpg"
        path.write_bytes(encoded[number % len(encoded)])
        given, suggested = _NAMES[number % CLASSES], _NAMES[(number + 1 + number // CLASSES % 7) % CLASSES]
        confidence = f"{1 - number / 2 / suspects:.6f}"
        name = f"images/{path.name}"
        rows.append((name, str(path), "train", given, suggested, confidence, "1", "1", *[""] * 6, name))
    run.write_labels(rows, truth_known=False)
    settings = {
        "kind": "labels",
        "data": {"source": str(folder / "images"), "noise": None, "image_size": None},
        "model": {"name": "tf_efficientnet_lite0", "tune": "head"},
        "fit": {"epochs": 1},
        "method": {"name": "sat-folds"},
        "seed": 0,
        "views": 1,
        "device": "cpu",
    }
    data = {
        "name": "photos",
        "classes": _NAMES,
        "fingerprint": "",
        "shape": [FEATURES],
        "white": None,
        "reader": None,
        "samples": {"train": suspects, "validation": None, "test": None},
        "samples_sha256": "",
    }
    described = {"settings": settings, "data": data, "method": "", "seed": 0, "start_epoch": None, "noise": None}
    run.write_run({**described, "threads": 1, "processes": 1, "versions": {}, "parameters": 0})
    features_NF = generator.normal(size=(suspects, FEATURES)).astype(np.float32)
    write_features(run, [f"images/{number:05d}.jpg" for number in range(suspects)], features_NF, "")
    return run


class Review:
    """`selfadapt review` as a new process."""

    def __init__(self, folder: RunFolder) -> None:
        command = [sys.executable, "-m", "selfadapt", "review", str(folder.path), "--no-browser", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]
        address = urlsplit(self.url)
        self.connection = http.client.HTTPConnection(address.netloc, timeout=60)
        self.token = address.query.removeprefix("token=")
        self.ask("api/about")

    def ask(self, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content)
        headers = {} if body is None else {"Content-Type": "application/json"}
        self.connection.request("GET" if body is None else "POST", f"/{self.token}/{path}", body, headers)
        answer = self.connection.getresponse()
        found = answer.read()
        assert answer.status == 200, found
        return json.loads(found) if answer.getheader("Content-Type") == "application/json" else found

    def peak(self) -> int:
        """Peak resident memory so far, in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def _use(review: Review, suspects: int) -> dict[str, float]:
    """What a reviewer does: look, decide, filter, search, accept a whole pair, undo."""
    seconds = []
    for number in range(min(DECISIONS, suspects // 2)):
        began = time.perf_counter()
        review.ask("api/decide", {"what": "accept" if number % 3 else "keep", "rows": [number]})
        seconds.append(time.perf_counter() - began)
    alike = []
    for row in range(0, suspects, max(1, suspects // 40)):
        review.ask(f"image/{row}/large")
        began = time.perf_counter()
        review.ask(f"api/similar/{row}")
        alike.append(time.perf_counter() - began)
    rows = review.ask("api/rows?show=all&state=any&sort=class")["rows"]
    assert len(rows) == suspects
    review.ask("api/rows?search=0000")
    review.ask("api/decide", {"what": "accept", "rows": rows[: suspects // 2]})
    review.ask("api/undo", {})
    review.ask("api/draw", {"of": "suggestions"})
    review.ask("api/measured")
    return {"decision": statistics.median(seconds), "similar": statistics.median(alike)}


def _look(review: Review) -> dict[str, float]:
    """Time in a browser until the first image is shown, and between frames while scrolling through all."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("this benchmark needs Chromium")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto("about:blank")
        began = time.perf_counter()
        page.goto(review.url, wait_until="commit")
        page.wait_for_selector(".cell img.seen, .cell img", state="visible")
        page.wait_for_function("() => [...document.querySelectorAll('.cell img')].some(own => own.naturalWidth)")
        first = time.perf_counter() - began
        between = page.evaluate(
            """async () => {
                const grid = document.getElementById('grid'), times = [], steps = 240;
                for (let step = 0; step <= steps; step++) {
                    grid.scrollTop = step % 40 === 39 ? grid.scrollHeight * step / steps : grid.scrollTop + 90;
                    times.push(await new Promise(requestAnimationFrame));
                }
                return times.slice(1).map((time, k) => time - times[k]);
            }"""
        )
        browser.close()
    return {"first": first, "frame": statistics.quantiles(between, n=20)[-1] / 1000}


def run() -> dict[str, float]:
    peaks, found = {}, {}
    for suspects in (FEW, SUSPECTS):
        with tempfile.TemporaryDirectory() as folder:
            review = Review(write_run(Path(folder), suspects))
            try:
                found = {**_look(review), **_use(review, suspects)}
                peaks[suspects] = review.peak()
            finally:
                review.stop()
    return {
        f"first image / {SECONDS:g} s": found["first"] / SECONDS,
        f"a decision confirmed, median / {1000 * CONFIRMED:g} ms": found["decision"] / CONFIRMED,
        f"memory beyond the libraries / {MEMORY / 1e6:g} MB": (peaks[SUSPECTS] - peaks[FEW]) / MEMORY,
        f"between frames while scrolling, 95 % / {1000 * FRAME:g} ms": found["frame"] / FRAME,
        f"similar samples found, median / {1000 * SIMILAR:g} ms": found["similar"] / SIMILAR,
    }
