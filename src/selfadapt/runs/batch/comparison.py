"""Compare methods on the same data, noise, network and seeds."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.core.settings import settings_in
from selfadapt.objectives.methods import NOISY_LABELS, ORDINARY
from selfadapt.report.comparison_page import write_comparison_page
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.batch.commands import Command, check_numbers, train_by_commands
from selfadapt.runs.config.request import Request, method_class, shared_settings
from selfadapt.runs.lifecycle.lifecycle import open_and_plan
from selfadapt.runs.train.train_or_load import ProgressBar, train_or_load


def compare(
    path: Path,
    methods: Sequence[str],
    seeds: int,
    given: Mapping[str, Any],
    progress_bar: ProgressBar,
    count_bar: Callable[[str], AbstractContextManager[ProgressCallback]],
    jobs: int = 1,
) -> dict[str, Any]:
    """Train what is missing below `path`, `jobs` at once, write the report, and return one row per method."""
    methods = list(NOISY_LABELS) if list(methods) == ["all"] else [method.strip() for method in methods]
    check_numbers(seeds, 1, jobs)
    if len(set(methods)) < len(methods):
        raise UserError("--methods names a method twice")
    first = given.get("seed", 0)
    plan = [
        (RunFolder(path / f"{method}-{seed}"), {**_of_method(given, method), "method": method, "seed": seed})
        for seed in range(first, first + seeds)
        for method in methods
    ]
    with count_bar("reading data") as on_progress:
        for folder, settings in plan:  # mistakes show before hours of training
            checked = Request.of(**settings)
            if checked.general.seed == first and not folder.exists:
                open_and_plan(checked, on_progress)
    with count_bar("trainings") as on_progress:
        train_by_commands([Command(folder, "labels", own) for folder, own in plan], 1, jobs, on_progress)
    results: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    for number, (folder, settings) in enumerate(plan, start=1):
        words = f"{number}/{len(plan)} {settings['method']}, seed {settings['seed']}"
        results[settings["method"]].append(train_or_load(folder, settings, progress_bar, words))
    ordinary = _mean(results.get(ORDINARY, []), "seconds")
    rows = [_row(method, own, ordinary) for method, own in results.items()]
    page = write_comparison_page([folder for folder, _ in plan], path / "report.html")
    return {"rows": rows, "seeds": seeds, "noise": results[methods[0]][0]["noise"], "report": str(page)}


def _of_method(given: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The given settings that apply to every run or to this method."""
    known = {"data", *shared_settings("labels"), *settings_in(method_class("labels", method))}
    return {word: value for word, value in given.items() if word in known}


def _row(method: str, results: Sequence[Mapping[str, Any]], ordinary_seconds: float | None) -> dict[str, Any]:
    accuracies = [result["test_accuracy"] for result in results]
    seconds = _mean(results, "seconds")
    return {
        "method": method,
        "told": results[0].get("told"),  # missing in old runs
        "test_accuracy_mean": _mean(results, "test_accuracy"),
        "test_accuracy_std": statistics.stdev(accuracies) if None not in accuracies and len(accuracies) > 1 else None,
        "test_accuracies": accuracies,
        "validation_accuracy_mean": _mean(results, "validation_accuracy"),
        "label_recovery": _mean(results, "label_recovery"),
        "seconds_relative_to_erm": None if seconds is None or not ordinary_seconds else seconds / ordinary_seconds,
        "start_epochs": [result["start_epoch"] for result in results],
    }


def _mean(results: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [result[key] for result in results]
    return None if not values or None in values else statistics.fmean(values)
