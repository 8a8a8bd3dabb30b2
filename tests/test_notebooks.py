"""The notebooks run cell by cell, and what is displayed is complete HTML with escaped text."""

import ast
import base64
import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from selfadapt import SelfAdaptiveClassifier, find_label_errors

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"
_VOID = {"img", "br", "circle", "input", "link", "meta", "path", "rect"}


class Page(HTMLParser):
    """The elements of a piece of HTML, whose tags must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def _run(path: Path) -> Iterator[tuple[Any, str]]:
    """What each cell evaluates to and prints, as in Jupyter, in one namespace."""
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"], "clear the outputs of the notebook"
        body = ast.parse("".join(cell["source"])).body
        last, value = body[-1], None
        printed = io.StringIO()
        with redirect_stdout(printed):
            if isinstance(last, ast.Expr):
                exec(compile(ast.Module(body[:-1], []), path.name, "exec"), names)
                value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
            else:
                exec(compile(ast.Module(body, []), path.name, "exec"), names)
        yield value, printed.getvalue()


def _displayed(value: Any) -> Page:
    return Page(value._repr_html_())


def _shares(printed: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)%", printed)]


def test_the_notebook_on_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    shown = list(_run(NOTEBOOKS / "table.ipynb"))
    before, after = _shares(shown[2][1])
    assert after > before + 4
    page = _displayed(shown[1][0])
    assert "bottle" in page.text
    assert len(page.all("circle")) == 178
    assert "likely errors" in _displayed(shown[3][0]).text


@pytest.mark.slow
def test_the_notebook_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, (run, _), (_, printed) = _run(NOTEBOOKS / "photos.ipynb")
    right = int(printed.split()[0])
    assert right > 76
    page = _displayed(run)
    images = page.all("img")
    assert images
    for image in images:
        header, _, content = str(image["src"]).partition(",")
        assert header.startswith("data:image/")
        Image.open(io.BytesIO(base64.b64decode(content))).verify()
    assert len(page.all("circle")) == 80


@pytest.mark.slow
def test_the_notebook_on_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    _, (run, _), (_, printed) = _run(NOTEBOOKS / "text.ipynb")
    before, after = _shares(printed)
    assert after > before + 3
    assert "text: " in _displayed(run).text


@pytest.mark.door
@pytest.mark.parametrize("name", ["table", "photos", "text"])
def test_a_notebook_in_jupyter_shows_progress_and_tables(name: str, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pages = [Page(output.data["text/html"]) for output in outputs if "text/html" in output.get("data", {})]
    assert any(page.all("table") and "Likely label errors" in page.text for page in pages)
    bars = [page for page in pages if page.all("progress")]
    assert len(bars) == (name != "table")  # it trains no network
    for page in bars:
        (bar,) = page.all("progress")
        assert bar["value"] == bar["max"]  # the last of the updates
        assert re.search(r"runs/\w+ +\w+", page.text)


EVIL = "<script>alert(1)</script>&\"'"


@lru_cache(maxsize=1)
def _assessed() -> Any:
    random = np.random.default_rng(0)
    codes = np.arange(90) % 3
    features = random.normal(size=(90, 5)) + 6 * np.eye(5)[codes]
    labels = np.array([f"{EVIL}{k}" for k in codes], object)
    labels[[4, 31, 80]] = labels[[5, 32, 79]]
    return labels, features, find_label_errors(labels, features=features, ids=[f"{EVIL}{i}" for i in range(90)])


def _blobs(samples: Any = None) -> Any:
    labels, features, report = _assessed()
    return labels, features, replace(report, samples=samples)


def test_names_ids_and_texts_are_escaped() -> None:
    labels, features, report = _blobs([f"{EVIL} text {i}" for i in range(90)])
    page = _displayed(report)
    assert not page.all("script")
    assert f"{EVIL} text 4" in page.text
    model = SelfAdaptiveClassifier().fit(features, labels)
    html = model._repr_mimebundle_()["text/html"]
    assert "<script>alert" not in html
    assert "Likely label errors" in html


def test_images_of_every_kind_are_shown(tmp_path: Path) -> None:
    grey = np.full((10, 10), 120, np.uint8)
    Image.fromarray(grey).save(tmp_path / "a.png")
    broken = tmp_path / "broken.png"
    broken.write_text("no image")
    kinds: list[Any] = [grey, grey / 255, Image.fromarray(grey), tmp_path / "a.png", str(tmp_path / "a.png"),
                        np.zeros((3, 200, 100), np.uint8)]  # fmt: skip
    for kind in kinds:
        report = _blobs([kind] * 90)[2]
        assert len(_displayed(report).all("img")) == report.is_error.sum()
    assert "broken.png" in _displayed(_blobs([broken] * 90)[2]).text


def test_the_map_shows_what_numpy_finds() -> None:
    _, features, report = _blobs()
    page = _displayed(report)
    places = np.array([[float(str(own["cx"])), float(str(own["cy"]))] for own in page.all("circle")])
    order = np.concatenate([np.flatnonzero(~report.is_error), np.flatnonzero(report.is_error)])
    centred = features - features.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    components = centred[order] @ vectors[:, np.argsort(-values)[:2]]
    for k in range(2):
        assert abs(np.corrcoef(places[:, k], components[:, k])[0, 1]) > 0.999
    larger = sum(own["r"] == "5" for own in page.all("circle"))
    assert larger == report.is_error.sum()


def test_the_confusion_counts_the_suggestions() -> None:
    report = _blobs()[2]
    html = report._repr_html_()
    table = html[html.index("Given (rows)") :].partition("</table>")[0]
    counts = sum(int(number) for number in re.findall(r">(\d+)</span>", table))
    assert counts == report.is_error.sum()


def test_without_errors_the_report_says_so() -> None:
    codes = np.arange(60) % 3
    report = find_label_errors(
        codes, features=np.random.default_rng(0).normal(size=(60, 5)) / 10 + 9 * np.eye(5)[codes]
    )
    if not report.is_error.any():
        assert "No likely label errors" in _displayed(report).text
    with pytest.raises(ValueError, match="90 labels but 2 samples"):
        find_label_errors(*_blobs()[:2], samples=["a", "b"])
