"""Images for the docs: `python docs/images/screenshots.py [FOLDER [RUN]]`.

Runs the demo and draws its first suggestions. Then trains on handwritten digits of which a fifth are in a wrong folder,
reviews some of them, and takes screenshots of the review and of the report, in light and dark and at the width of a
phone. Needs Chromium and playwright. Images that the docs show are written beside this file;
with a FOLDER, all are written there. With a RUN, a copy of it is shown instead of a new one.
"""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from selfadapt.report.contact_sheet import Cell, SheetImage, contact_sheet, read_sheet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIZES = {"": (1280, 860), "phone-": (390, 780)}
LOOKS = 130


def main(out: Path, given: Path | None) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("screenshots need Chromium")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        run = Path(folder) / "digits"
        if given is None:
            example = [
                sys.executable,
                str(ROOT / "examples" / "noisy_folder.py"),
                f"{folder}/digits-photos",
                "0.2",
                "300",
            ]
            subprocess.run(example, check=True)
            _selfadapt("train", f"{folder}/digits-photos", "--out", str(run), "--quiet")
        else:
            shutil.copytree(given, run)
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        _show_demo(Path(folder) / "demo", out)
        command = [sys.executable, "-m", "selfadapt", "review", str(run), "--no-browser", "--json"]
        reviewer = {**os.environ, "LOGNAME": "ann"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=reviewer) as server:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            try:
                _prepare(browser, url)
                for scheme in ("light", "dark"):
                    for prefix, (width, height) in SIZES.items():
                        page = _page(browser, scheme, width, height)
                        _show_review(page, url, out, f"{prefix}{scheme}")
            finally:
                server.terminate()
        for scheme in ("light", "dark"):
            for prefix, (width, height) in SIZES.items():
                page = _page(browser, scheme, width, height)
                page.goto((run / "report.html").as_uri())
                heading = page.get_by_role("heading", name="Reviewed labels")
                heading.evaluate("own => window.scrollTo(0, own.getBoundingClientRect().top - 24)")
                _shoot(page, out / f"report-{prefix}{scheme}.png")
        browser.close()


def _show_demo(folder: Path, out: Path) -> None:
    _selfadapt("demo", "--out", str(folder), "--quiet")
    first = read_sheet(folder / "sat" / "figures" / "suspects.svg")[0][:16]
    contact_sheet([[Cell(_pixels(image), image.caption) for image in first]], out / "demo-suspects.svg")


def _pixels(image: SheetImage) -> Any:
    with Image.open(io.BytesIO(base64.b64decode(image.source.partition(",")[2]))) as opened:
        return np.asarray(opened)[..., None]


def _selfadapt(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "selfadapt", *arguments], check=True, stdout=subprocess.DEVNULL)


def _page(browser: "Browser", scheme: str, width: int, height: int) -> "Page":
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})  # type: ignore[arg-type]
    return context.new_page()


def _prepare(browser: "Browser", url: str) -> None:
    """Decide about some labels, as a reviewer who trusts the file names."""
    page = _page(browser, "light", 1280, 860)
    page.goto(url)
    page.wait_for_selector(".cell p")
    page.focus("#grid")
    for _ in range(4):
        page.keyboard.press("a")
    page.keyboard.press("x")
    page.keyboard.press("k")
    page.wait_for_function("() => document.getElementById('progress').textContent.includes('; 6 decisions')")
    page.click("#queue-measure")
    page.click("#draw")
    page.wait_for_selector("#one .facts")
    drawn = int(page.inner_text("#one .facts").split(" ")[2].replace(",", ""))
    for number in range(min(LOOKS, drawn - 5)):
        facts = page.inner_text("#one .facts")
        truth = facts.partition("-is-")[2][:1]
        suggested = page.inner_text(".suggested .word")
        page.keyboard.press("a" if truth in ("", suggested) else "k")
        page.wait_for_function(
            """number => { const one = document.getElementById('one');
                return one.getAttribute('aria-busy') === 'false' && one.innerText.includes(`${number} of `); }""",
            arg=number + 2,
        )
    for _ in range(60):  # features are computed in the background
        if page.query_selector(".strip img"):
            break
        time.sleep(1)
    page.close()


def _show_review(page: "Page", url: str, out: Path, name: str) -> None:
    page.goto(url)
    page.wait_for_selector(".cell p")
    page.select_option("#state", "any")
    page.wait_for_selector(".cell.done")
    _shoot(page, out / f"review-grid-{name}.png")
    page.select_option("#state", "undecided")
    page.wait_for_function("() => !document.querySelector('.cell.done') && document.querySelector('.cell p')")
    page.keyboard.press("Escape")
    page.click("#view-one")
    page.wait_for_selector(".strip img")
    _shoot(page, out / f"review-one-{name}.png")
    page.click("#queue-measure")
    page.wait_for_selector("#guarantee")
    page.fill("#precision", "0.8")
    page.press("#precision", "Tab")
    page.wait_for_function("() => document.getElementById('guarantee').textContent.includes('0.8')")
    _shoot(page, out / f"review-measure-{name}.png")


def _shoot(page: "Page", path: Path) -> None:
    if path.parent == HERE and path.name not in (HERE.parent / "review.md").read_text(encoding="utf-8"):
        return
    page.wait_for_function("() => [...document.images].every(image => image.complete)")
    time.sleep(0.3)
    page.screenshot(path=path)


if __name__ == "__main__":
    folder, run = (*map(Path, sys.argv[1:3]), *(HERE, None)[len(sys.argv[1:3]) :])
    main(folder, run)
