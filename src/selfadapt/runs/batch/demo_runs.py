"""The demo: ordinary and self-adaptive training with the same network, data, noise and seed."""

import time
from pathlib import Path
from typing import Any

from selfadapt.report.comparison_page import write_comparison_page
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.train.train_or_load import ProgressBar, train_or_load

METHODS = ("erm", "sat")
NOISE = "symmetric:0.4"


def run_demo(path: Path, seed: int, progress_bar: ProgressBar) -> dict[str, Any]:
    """Train both, write the report that compares them, and return the comparison."""
    started = time.monotonic()
    results = {}
    for method in METHODS:
        settings: dict[str, Any] = {"data": "digits", "method": method, "noise": NOISE, "seed": seed}
        results[method] = train_or_load(RunFolder(path / method), settings, progress_bar, method)
    page = write_comparison_page([RunFolder(path / method) for method in METHODS], path / "report.html")
    shown = ("test_accuracy", "best_validation_accuracy", "label_recovery")
    return {
        "data": "digits",
        "noise": results["sat"]["noise"],
        "methods": {method: {key: result[key] for key in shown} for method, result in results.items()},
        "audit": results["sat"]["audit"],
        "seconds": round(time.monotonic() - started, 1),
        "report": str(page),
    }
