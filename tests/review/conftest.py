"""A run of small images, trained once, and copies of it to decide about."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.program import run_json
from review.reviewed import Server, serving, write_shapes
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.review_features import compute_features

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SETTINGS = ("--method", "sat-paper", "--epochs", "4", "--start-epoch", "2")


@pytest.fixture(scope="session")
def trained_shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, with the features that a review takes in the background. Leave it as it is."""
    folder = tmp_path_factory.mktemp("shapes")
    write_shapes(folder, {"train": 150, "val": 30, "test": 45})
    run_json("train", "shapes.csv", *SETTINGS, "--out", "run", folder=folder)
    compute_features(RunFolder(folder / "run"))
    return folder / "run"


@pytest.fixture
def shapes_run(trained_shapes: Path, tmp_path: Path) -> Path:
    """A run to decide about."""
    shutil.copytree(trained_shapes, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def server(shapes_run: Path) -> Iterator[Server]:
    with serving(shapes_run) as own:
        yield own


@pytest.fixture(scope="module")
def idle(trained_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that several tests share, as none of them changes anything."""
    folder = tmp_path_factory.mktemp("idle")
    shutil.copytree(trained_shapes, folder / "run")
    with serving(folder / "run") as own:
        yield own


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        own = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield own
        own.close()
