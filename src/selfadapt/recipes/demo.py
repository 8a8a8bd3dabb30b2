"""The demo: the same network, data, noise and seed, once with ordinary and once with self-adaptive training."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from selfadapt.recipes.run import StepWatch, reopen, start, train
from selfadapt.recipes.settings import RunSettings
from selfadapt.report.page import write_comparison_page
from selfadapt.report.results import RunFolder

METHODS = ("erm", "sat")
NOISE = "symmetric:0.4"


def run_demo(path: Path, seed: int, watcher: Callable[[str], AbstractContextManager[StepWatch]]) -> dict[str, Any]:
    """Train both, write the page over both, and return the comparison."""
    folders = {method: RunFolder(path / method) for method in METHODS}
    began = time.monotonic()
    results = {}
    for method, folder in folders.items():
        settings: dict[str, Any] = {"data": "digits", "method": method, "noise": NOISE, "seed": seed}
        run = reopen(folder, settings) if folder.exists else start(RunSettings.given(**settings), folder)
        with watcher(method) as watch:
            results[method] = train(run, watch)
    page = write_comparison_page(list(folders.values()), path / "report.html")
    shown = ("test_accuracy", "best_validation_accuracy", "label_recovery")
    return {
        "data": "digits",
        "noise": results["sat"]["noise"],
        "methods": {method: {key: result[key] for key in shown} for method, result in results.items()},
        "audit": results["sat"]["audit"],
        "seconds": round(time.monotonic() - began, 1),
        "report": str(page),
    }
