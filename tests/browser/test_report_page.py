"""The reports in a real browser: they load, request nothing, and fit a desktop and a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from selfadapt.report.comparison_page import write_comparison_page
from selfadapt.report.page import write_run_page
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import start
from selfadapt.runs.train.train_or_load import train

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (1200, 360)
CLASSES = ("Tomato___Tomato_Yellow_Leaf_Curl_Virus_of_the_second_kind", "Pepper,_bell___Bacterial_spot", "healthy")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports of two runs on files with long names, two of which count as duplicates with different labels."""
    root = tmp_path_factory.mktemp("a-folder-with-a-rather-long-name-" + "x" * 60)
    generator = np.random.default_rng(0)
    for number in range(90):
        label = number % 3
        image = (80 * label + generator.integers(0, 60, (10, 10, 3))).astype(np.uint8)
        split = "test" if number > 75 else "train"
        path = root / "photos" / split / CLASSES[label] / f"{number:03}-{'long-name-' * 6}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    folders = []
    for method in ("erm", "sat"):
        folder = RunFolder(root / method)
        data = str(root / "photos")
        settings = Request.of(data=data, method=method, noise="symmetric:0.4", model="mlp", epochs=4)
        train(start(settings, folder))
        folders.append(folder)
    rows = folders[1].read_labels()
    members = [next(row for row in rows if row["given"] == name) for name in CLASSES[:2]]
    folders[1].write_duplicates(
        [("1", row["id"], row["path"], row["part"], row["given"], "same image") for row in members]
    )
    return {
        "run": write_run_page(folders[1]),
        "comparison": write_comparison_page(folders, root / "both.html"),
    }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["run", "comparison"])
def test_nothing_scrolls_sideways_and_every_image_loads(
    name: str, width: int, pages: dict[str, Path], browser: "Browser"
) -> None:
    page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(pages[name].as_uri())
    assert [url for url in requests if not url.startswith("data:")] == [pages[name].as_uri()]
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert page.evaluate("document.images.length") > 12
    assert page.get_by_role("heading", name="Duplicates with different labels").count() == (name == "run")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """() => [...document.querySelectorAll("main *:not(thead, thead *)")].filter(own => {
            const box = own.getBoundingClientRect();
            return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
        }).map(own => `${own.tagName} ${own.textContent.slice(0, 60)}`)"""
    )
    assert not outside


@pytest.mark.parametrize("width", WIDTHS)
def test_given_and_suggested_come_first_and_paths_are_relative(
    width: int, pages: dict[str, Path], browser: "Browser"
) -> None:
    page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
    page.goto(pages["run"].as_uri())
    errors = page.locator("table", has=page.locator("th", has_text="given → suggested"))
    first = errors.locator("tbody tr").first.locator("td")
    assert "→" in first.first.inner_text()
    columns = errors.locator("th").all_text_contents()
    assert columns[0] == "given → suggested"
    sample = first.nth(columns.index("sample")).inner_text()
    assert sample.endswith(".png")
    assert str(pages["run"].parents[1]) not in errors.inner_text()
    sheet = page.locator(".sheet").first.locator("img")
    assert sheet.count() > 5
    assert min(box["width"] for box in (own.bounding_box() for own in sheet.all()) if box) >= 80
