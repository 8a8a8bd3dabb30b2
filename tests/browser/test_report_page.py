"""The page in a real browser: it loads, lays out, and asks for nothing from outside."""

import shutil
import subprocess
from pathlib import Path

import pytest

from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import start
from selfadapt.runs.train.labelled import train

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_loads_and_draws_its_pictures(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(
        start(
            Request.of(
                data="digits", noise="symmetric:0.4", epochs=6, start_epoch=2, model="mlp", momentum=0.5, limit=400
            ),
            folder,
        )
    )
    probe = tmp_path / "probe.html"
    # The page forbids scripts, so a frame around it reports what the browser made of it.
    probe.write_text(
        f'<iframe id="page" src="{folder.page.as_uri()}" width="1200" height="900"></iframe><pre id="out"></pre>'
        '<script>document.getElementById("page").onload = () => {'
        'const page = document.getElementById("page").contentDocument;'
        'const widths = [...page.images].map(image => image.naturalWidth);'
        'document.getElementById("out").textContent = "loaded " + JSON.stringify({widths, title: page.title,'
        'overflow: page.documentElement.scrollWidth > 1200});};</script>'
    )  # fmt: skip
    assert CHROMIUM is not None
    command = [
        CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--allow-file-access-from-files",
        "--virtual-time-budget=8000", "--dump-dom", probe.as_uri(),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert '"overflow":false' in result.stdout.replace("&quot;", '"')
    report = result.stdout.partition('loaded {"widths":[')[2]
    widths = [int(width) for width in report.partition("]")[0].split(",")]
    assert len(widths) == 6
    assert min(widths) > 100
