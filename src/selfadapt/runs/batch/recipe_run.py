"""Run a recipe: train and evaluate its trials, skip what is already done, and write the table or figure.

The output folder has a run folder for each trial and seed, with the results of its evaluations in answers/, and
rows.csv, table.md, the figure and report.html. Trials that are only timed write times-SEED.json instead.
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.sources.catalog import check_available, open_data
from selfadapt.data.sources.pasted_voc import write_pasted
from selfadapt.evaluation.probe_settings import ProbeSettings
from selfadapt.recipes.claim import judge
from selfadapt.recipes.paper_claims import PAPER_CLAIMS
from selfadapt.recipes.recipe import Evaluation, Experiment, Recipe, Timing, Trial
from selfadapt.report.reproduction import write_reproduction
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.metrics_file import measured_seconds, write_records
from selfadapt.runs.batch.commands import Command, check_numbers, train_by_commands
from selfadapt.runs.batch.result_cache import cached_result
from selfadapt.runs.batch.timing import time_trials
from selfadapt.runs.config.facts import inspect_source
from selfadapt.runs.config.planning import plan_reading
from selfadapt.runs.config.request import Kind, Request
from selfadapt.runs.inspect.abstention import measure_coverage
from selfadapt.runs.inspect.inspection_settings import AttackSettings, ShiftSettings
from selfadapt.runs.inspect.linear_evaluation import probe
from selfadapt.runs.inspect.robust_accuracy import attack_run
from selfadapt.runs.inspect.shift_accuracy import shift_run
from selfadapt.runs.lifecycle.lifecycle import check_same
from selfadapt.runs.lifecycle.opened_run import open_folder
from selfadapt.runs.train.train_or_load import ProgressBar, train_or_load
from selfadapt.runs.transfer.fine_tune import transfer
from selfadapt.runs.transfer.transfer_settings import TransferSettings
from selfadapt.theory import simulate

Outcome = dict[str, Any]  # of a trial: the result, the metrics of the last epoch, and each evaluation by name
_NOT_RUN: Outcome = {"result": {}, "run": None, "commit": None}
CountBar = Callable[[str], AbstractContextManager[ProgressCallback]]  # description -> progress bar
PUBLISHED_SHIFT, VOC_FOLDERS = "cifar10-c", "VOCdevkit"  # folders below `data` of the cache


def reproduce(
    recipe: Recipe,
    scale: str,
    path: Path,
    seeds: int | None,
    progress_bar: ProgressBar,
    *,
    count_bar: CountBar = lambda description: nullcontext(no_progress),
    first_seed: int = 0,
    devices: int = 1,
    jobs: int = 1,
    rows: Collection[str] = (),
    precision: str | None = None,
) -> dict[str, Any]:
    """Train and evaluate what is missing below `path`, write the table, figure and report, and return what they show.

    Args:
        recipe: The table or figure.
        scale: "paper" or "laptop".
        path: Folder for the runs and the table.
        seeds: Number of seeds, starting with `first_seed`; None for as many as the authors average over.
        progress_bar: Progress bar of a training.
        count_bar: Progress bar of everything else.
        first_seed: The first seed.
        devices: Number of processes of each training.
        jobs: Number of trainings to run at once, each in one process. Everything else runs in this process.
        rows: Rows of the table to run; all if empty.
        precision: Precision of every training, instead of that of the recipe.

    Raises:
        UserError: If an option is wrong, or data are missing.
    """
    experiment = recipe.at(scale)
    seeds = experiment.seeds if seeds is None else seeds
    if rows:
        experiment = experiment.select_rows(rows)
    experiment = experiment.with_precision(precision)
    check_numbers(seeds, devices, jobs)
    check_ready(experiment)
    own_seeds = range(first_seed, first_seed + seeds)
    if experiment.timing is None:
        plan = [(trial, seed) for seed in own_seeds for trial in experiment.trials]
        _check_started(plan, path)
        commands = (_command(path, *cell) for cell in plan if cell[0].kind != "linear-regression")
        with count_bar("trainings") if jobs > 1 else nullcontext(no_progress) as on_progress:
            train_by_commands(commands, devices, jobs, on_progress)
        outcomes = _trained(plan, path, progress_bar, count_bar)
    else:
        outcomes = _timed(experiment.trials, experiment.timing, path, own_seeds, count_bar)
    found_rows = _rows(recipe, scale, experiment, outcomes)
    command = ["selfadapt", "reproduce", recipe.name, "--scale", scale]
    command += ["--seed", str(first_seed)] if first_seed else []
    command += ["--seeds", str(seeds)] if seeds != experiment.seeds else []
    command += ["--devices", str(devices)] if devices > 1 else []
    command += [word for row in rows for word in ("--row", row)]
    command += ["--precision", precision] if precision else []
    verdicts = [judge(claim, found_rows) for claim in PAPER_CLAIMS.get(recipe.name, ())]
    written = write_reproduction(recipe, scale, experiment, found_rows, verdicts, path, shlex.join(command))
    return {
        "name": recipe.name,
        "scale": scale,
        "seeds": seeds,
        "rows": found_rows,
        "verdicts": [verdict.as_json() for verdict in verdicts],
        **written,
    }


def check_ready(experiment: Experiment) -> None:
    """Raise a UserError if something is missing or wrong, before hours of training."""
    for trial in experiment.trials:
        if trial.kind != "linear-regression":
            request = Request.of(trial.kind, **trial.settings)
            plan_reading(request, inspect_source(request))
            check_available(trial.settings["data"])
        for evaluation in trial.evaluations:
            _check_evaluation(evaluation)


def _check_started(plan: Sequence[tuple[Trial, int]], path: Path) -> None:
    """Check that existing runs have these settings, before hours of training the others."""
    for trial, seed in plan:
        folder = RunFolder(path / trial.folder(seed))
        if trial.kind != "linear-regression" and folder.exists:
            check_same(folder, trial.kind, Request.of(trial.kind, **trial.settings, seed=seed).required())


def _check_evaluation(evaluation: Evaluation) -> None:
    if evaluation.kind == "attack":
        AttackSettings(**evaluation.settings).attack()
    if evaluation.settings.get("published") and not (cache_dir() / "data" / PUBLISHED_SHIFT).is_dir():
        raise UserError(
            "the published arrays of CIFAR-10-C are not on this machine; unpack CIFAR-10-C.tar so that "
            f"{cache_dir() / 'data' / PUBLISHED_SHIFT}/labels.npy exists"
        )
    if evaluation.kind == "transfer":
        _transfer_settings(evaluation).resolved()
        for name in evaluation.settings.get("folders", ()):
            if not (cache_dir() / "data" / VOC_FOLDERS / name / "ImageSets").is_dir():
                raise UserError(
                    f"Pascal {name} is not on this machine; unpack its archives so that "
                    f"{cache_dir() / 'data' / VOC_FOLDERS / name}/ImageSets exists"
                )


def _command(path: Path, trial: Trial, seed: int) -> Command:
    kind: Kind = "labels" if trial.kind == "labels" else "pretraining"
    return Command(RunFolder(path / trial.folder(seed)), kind, {**trial.settings, "seed": seed})


def _trained(
    plan: Sequence[tuple[Trial, int]], path: Path, progress_bar: ProgressBar, count_bar: CountBar
) -> dict[tuple[str, int], Outcome]:
    outcomes = {}
    for number, (trial, seed) in enumerate(plan, start=1):
        description = f"{number}/{len(plan)} {trial.name}, seed {seed}"
        outcomes[trial.name, seed] = _outcome(path, trial, seed, progress_bar, count_bar, description)
    return outcomes


def _timed(
    trials: Sequence[Trial], timing: Timing, path: Path, seeds: range, count_bar: CountBar
) -> dict[tuple[str, int], Outcome]:
    outcomes: dict[tuple[str, int], Outcome] = {}
    for number, seed in enumerate(seeds, start=1):
        with count_bar(f"{number}/{len(seeds)} all trials alternately, seed {seed}") as on_progress:
            times = time_trials(trials, timing, seed, path / f"times-{seed}.json", on_progress)
        outcomes |= {(name, seed): own for name, own in times.items()}
    return outcomes


def _outcome(
    path: Path, trial: Trial, seed: int, progress_bar: ProgressBar, count_bar: CountBar, description: str
) -> Outcome:
    folder = RunFolder(path / trial.folder(seed))
    if trial.kind == "linear-regression":
        return _simulated(folder, trial, seed)
    result = train_or_load(folder, {**trial.settings, "seed": seed}, progress_bar, description, trial.kind)
    metrics, content = folder.read_metrics(), folder.read_run()
    result = {"seconds": round(sum(measured_seconds(metrics)), 3), **result}
    last = metrics[result.get("result_epoch", len(metrics)) - 1]
    evaluated = {}
    for evaluation in trial.evaluations:
        with count_bar(f"{description}, {evaluation.name}") as on_progress:
            evaluated[evaluation.name] = _evaluate(folder, evaluation, seed, on_progress)
    curves = {"last": last, **_over_epochs(metrics)}
    return {"result": result, **curves, "run": folder.path.name, "commit": content.get("commit"), **evaluated}


def _over_epochs(metrics: Sequence[Mapping[str, Any]]) -> Outcome:
    """The highest value of each metric, and the metrics of the epoch that is best on given validation labels."""
    numbers = {key for record in metrics for key, value in record.items() if isinstance(value, float)}
    peak = {key: max(record[key] for record in metrics if record.get(key) is not None) for key in sorted(numbers)}
    judge = "validation_accuracy_given"
    best = max(metrics, key=lambda record: record[judge]) if judge in metrics[-1] else {}
    return {"peak": peak, "early_stopping": best}


def _simulated(folder: RunFolder, trial: Trial, seed: int) -> Outcome:
    result, residuals = simulate(**trial.settings, seed=seed)
    write_records(folder.metrics_file, ({"epoch": step, "residual": own} for step, own in enumerate(residuals)))
    return {"result": result, "run": folder.path.name, "commit": None}


def _evaluate(folder: RunFolder, evaluation: Evaluation, seed: int, on_progress: ProgressCallback) -> Outcome:
    """Evaluate a trained run once; the results are cached in its folder."""
    file = folder.path / "answers" / f"{evaluation.name}.json"
    asked = {"what": evaluation.kind, **evaluation.settings}
    return cached_result(file, asked, "answer", lambda: _run_evaluation(folder, evaluation, seed, on_progress))


def _run_evaluation(folder: RunFolder, evaluation: Evaluation, seed: int, on_progress: ProgressCallback) -> Outcome:
    own = dict(evaluation.settings)
    if evaluation.kind == "probe":
        limits = {word: own.pop(word, None) for word in ("limit", "test_limit")}
        return probe(folder, own.pop("data", None), ProbeSettings(seed=seed, **own), **limits, on_progress=on_progress)
    if evaluation.kind == "transfer":
        settings = _transfer_settings(evaluation, seed)
        return transfer(folder, _voc_folders(folder, evaluation), settings, "auto", on_progress)
    run = open_folder(folder)
    if evaluation.kind == "coverage":
        return measure_coverage(run, **own, on_progress=on_progress)
    if evaluation.kind == "attack":
        return attack_run(run, AttackSettings(checks=False, **own), on_progress=on_progress)
    if own.pop("published", False):
        own["data"] = str(cache_dir() / "data" / PUBLISHED_SHIFT)
    return shift_run(run, ShiftSettings(**own), on_progress)


def _transfer_settings(evaluation: Evaluation, seed: int = 0) -> TransferSettings:
    own = {word: value for word, value in evaluation.settings.items() if word not in ("folders", "pasted")}
    return TransferSettings(seed=seed, **own)


def _voc_folders(folder: RunFolder, evaluation: Evaluation) -> list[Path]:
    """Folders of Pascal VOC, or one with test images pasted onto canvases, shared by all runs."""
    if "pasted" not in evaluation.settings:
        return [cache_dir() / "data" / VOC_FOLDERS / name for name in evaluation.settings["folders"]]
    sizes = evaluation.settings["pasted"]
    root = folder.path.parent / "-".join(["pasted", *(str(size) for size in sizes.values())])
    if not root.exists():
        data = open_data(folder.read_run()["settings"]["data"]["source"])
        if data.test is None:
            raise UserError(f"{data.name} lacks a test split whose images could be pasted")
        write_pasted(root, data.test, data.classes, **sizes)
    return [root]


def _rows(
    recipe: Recipe, scale: str, experiment: Experiment, outcomes: Mapping[tuple[str, int], Outcome]
) -> list[dict[str, Any]]:
    """One row for each entry and seed, and a single row for an entry that is not run."""
    in_percent = recipe.unit == "%"
    rows = []
    for entry in experiment.entries:
        own = {"name": recipe.name, "scale": scale, "part": entry.part, "row": entry.row, "column": entry.column}
        of_seeds: dict[int | None, Outcome] = {
            seed: outcome for (trial, seed), outcome in outcomes.items() if trial == entry.trial
        }
        for seed, outcome in (of_seeds or {None: _NOT_RUN}).items():
            number = None if seed is None else value_at(outcome, entry.value)
            result = outcome["result"]
            rows.append(
                {
                    **own,
                    "seed": seed,
                    "measured": round(100 * number, 6) if in_percent and number is not None else number,
                    "published": entry.published,
                    "unit": recipe.unit,
                    "actual_noise": (result.get("noise") or {}).get("actual"),
                    "seconds": result.get("seconds"),
                    "run": outcome["run"],
                    "commit": outcome["commit"],
                }
            )
    return rows


def value_at(outcome: Mapping[str, Any], value: str) -> float | None:
    """The number that `Entry.value` refers to: a path, a number, or a difference of these; None if it is missing."""
    first, *others = (_number_at(outcome, term) for term in value.split(" - "))
    if first is None or None in others:
        return None
    return first - sum(other for other in others if other is not None)


def _number_at(outcome: Mapping[str, Any], path: str) -> float | None:
    try:
        return float(path)
    except ValueError:
        pass
    node: Any = outcome
    for key in path.split("/"):
        node = node[key]
    return None if node is None else float(node)
