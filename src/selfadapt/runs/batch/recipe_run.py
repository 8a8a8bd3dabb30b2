"""A recipe, run: its trials are trained and asked, what is done is not done again, and the table or figure is written.

In the folder: a run folder for each trial and seed, in it answers/ with what was asked of it, rows.csv, table.md, the
figure and report.html. Trials that are only timed leave times-SEED.json instead.
"""

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from selfadapt.attacks.by_name import named_attack
from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.sources.catalog import check_there, open_data
from selfadapt.data.sources.pasted_voc import write_pasted
from selfadapt.evaluation.linear_probe import ProbeSettings
from selfadapt.recipes.recipe import Ask, Experiment, Recipe, Trial
from selfadapt.report.reproduction import write_reproduction
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.batch.commands import Command, check_numbers, train_by_commands
from selfadapt.runs.batch.timing import time_trials
from selfadapt.runs.config.facts import inspect_source
from selfadapt.runs.config.planning import plan_reading
from selfadapt.runs.config.request import Kind, Request
from selfadapt.runs.inspect.abstention import measure_coverage
from selfadapt.runs.inspect.linear_evaluation import probe
from selfadapt.runs.inspect.robust_accuracy import attack_run
from selfadapt.runs.inspect.shift_accuracy import shift_run
from selfadapt.runs.lifecycle.lifecycle import check_same
from selfadapt.runs.lifecycle.opened_run import open_folder
from selfadapt.runs.train.labelled import ProgressBar, finished, train
from selfadapt.runs.train.unlabelled import pretrain
from selfadapt.runs.transfer.fine_tune import TransferSettings, transfer
from selfadapt.theory import simulate

Found = dict[str, Any]  # what a trial came to: the result, the metrics of the last epoch, and the answers by name
CountBar = Callable[[str], AbstractContextManager[ProgressCallback]]  # under these words; gives its callback
PUBLISHED_SHIFT, VOC_FOLDERS = "cifar10-c", "VOCdevkit"  # folders of the data's home


def reproduce(
    recipe: Recipe,
    scale: str,
    path: Path,
    seeds: int,
    progress_bar: ProgressBar,
    *,
    count_bar: CountBar = lambda words: nullcontext(no_progress),
    first_seed: int = 0,
    devices: int = 1,
    jobs: int = 1,
    rows: Collection[str] = (),
    precision: str | None = None,
) -> dict[str, Any]:
    """Train and ask what is not done yet below `path`, write the table, figure and page, and return the rows.

    With several `devices` each training runs in so many processes, one after the other; with several `jobs` so many
    trainings run at once. The rest is done in this process. `rows` are all that is run, if there are any, and
    `precision` goes before that of the recipe.
    """
    experiment = recipe.at(scale)
    if rows:
        experiment = experiment.of_rows(rows)
    if precision is not None:
        experiment = experiment.in_precision(precision)
    if seeds < 1:
        raise UserError(f"--seeds {seeds} must be at least 1")
    check_numbers(devices, jobs)
    check_ready(experiment)
    own_seeds = range(first_seed, first_seed + seeds)
    if experiment.timing is None:
        plan = [(trial, seed) for seed in own_seeds for trial in experiment.trials]
        _check_begun(plan, path)
        commands = (_command(path, *cell) for cell in plan if cell[0].kind != "linear-regression")
        with count_bar("trainings") if jobs > 1 else nullcontext(no_progress) as on_progress:
            train_by_commands(commands, devices, jobs, on_progress)
        found = _trained(plan, path, progress_bar, count_bar)
    else:
        found = _timed(experiment, path, own_seeds, count_bar)
    found_rows = _rows(recipe, scale, experiment, found)
    command = ["selfadapt", "reproduce", recipe.name, "--scale", scale]
    command += ["--seed", str(first_seed)] if first_seed else []
    command += ["--seeds", str(seeds)] if seeds > 1 else []
    command += ["--devices", str(devices)] if devices > 1 else []
    command += [word for row in rows for word in ("--row", row)]
    command += ["--precision", precision] if precision else []
    written = write_reproduction(recipe, scale, experiment, found_rows, path, shlex.join(command))
    return {"name": recipe.name, "scale": scale, "seeds": seeds, "rows": found_rows, **written}


def check_ready(experiment: Experiment) -> None:
    """Say what is missing or wrong before the first hour of training."""
    for trial in experiment.trials:
        if trial.kind != "linear-regression":
            request = Request.of(trial.kind, **trial.settings)
            plan_reading(request, inspect_source(request))
            check_there(trial.settings["data"])
        for ask in trial.asks:
            _check_ask(ask)


def _check_begun(plan: Sequence[tuple[Trial, int]], path: Path) -> None:
    """Runs that are there already must be of these settings, or the hours of the others would be lost."""
    for trial, seed in plan:
        folder = RunFolder(path / trial.folder(seed))
        if trial.kind != "linear-regression" and folder.exists:
            check_same(folder, trial.kind, Request.of(trial.kind, **trial.settings, seed=seed).required())


def _check_ask(ask: Ask) -> None:
    if ask.what == "attack":
        named_attack(ask.settings["name"])
    if ask.settings.get("published") and not (cache_dir() / "data" / PUBLISHED_SHIFT).is_dir():
        raise UserError(
            "the published arrays of CIFAR-10-C are not on this machine; unpack CIFAR-10-C.tar so that "
            f"{cache_dir() / 'data' / PUBLISHED_SHIFT}/labels.npy exists"
        )
    if ask.what == "transfer":
        _transfer_settings(ask).resolved()
        for name in ask.settings.get("folders", ()):
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
) -> dict[tuple[str, int], Found]:
    found = {}
    for number, (trial, seed) in enumerate(plan, start=1):
        words = f"{number}/{len(plan)} {trial.name}, seed {seed}"
        found[trial.name, seed] = _found(path, trial, seed, progress_bar, count_bar, words)
    return found


def _timed(experiment: Experiment, path: Path, seeds: range, count_bar: CountBar) -> dict[tuple[str, int], Found]:
    found: dict[tuple[str, int], Found] = {}
    for number, seed in enumerate(seeds, start=1):
        with count_bar(f"{number}/{len(seeds)} all trials in turn, seed {seed}") as on_progress:
            times = time_trials(experiment, seed, path / f"times-{seed}.json", on_progress)
        found |= {(name, seed): own for name, own in times.items()}
    return found


def _found(path: Path, trial: Trial, seed: int, progress_bar: ProgressBar, count_bar: CountBar, words: str) -> Found:
    folder = RunFolder(path / trial.folder(seed))
    if trial.kind == "linear-regression":
        return _simulated(folder, trial, seed)
    to_the_end = train if trial.kind == "labels" else pretrain
    given = {**trial.settings, "seed": seed}
    result = finished(folder, trial.kind, to_the_end, given, progress_bar, words)
    metrics, content = folder.read_metrics(), folder.read_run()
    result = {"seconds": round(sum(record["seconds"] for record in metrics), 3), **result}
    last = metrics[result.get("result_epoch", len(metrics)) - 1]
    answers = {}
    for ask in trial.asks:
        with count_bar(f"{words}, {ask.name}") as on_progress:
            answers[ask.name] = _answer(folder, ask, seed, on_progress)
    return {"result": result, "last": last, "run": folder.path.name, "commit": content.get("commit"), **answers}


def _simulated(folder: RunFolder, trial: Trial, seed: int) -> Found:
    result, residuals = simulate(**trial.settings, seed=seed)
    folder.path.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder.metrics_file) as file:
        records = ({"epoch": step, "residual": residual} for step, residual in enumerate(residuals))
        file.writelines(json.dumps(record) + "\n" for record in records)
    return {"result": result, "run": folder.path.name, "commit": None}


def _answer(folder: RunFolder, ask: Ask, seed: int, on_progress: ProgressCallback) -> Found:
    """What a trained run says to a question; kept with the run, so that it is asked once."""
    file = folder.path / "answers" / f"{ask.name}.json"
    asked = {"what": ask.what, **ask.settings}
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["asked"] == asked:
            return dict(kept["answer"])
    answer = _asked(folder, ask, seed, on_progress)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as draft:
        json.dump({"asked": asked, "answer": answer}, draft)
    return answer


def _asked(folder: RunFolder, ask: Ask, seed: int, on_progress: ProgressCallback) -> Found:
    own = dict(ask.settings)
    if ask.what == "probe":
        limits = {word: own.pop(word, None) for word in ("limit", "test_limit")}
        return probe(folder, own.pop("data", None), ProbeSettings(seed=seed, **own), **limits, on_progress=on_progress)
    if ask.what == "transfer":
        return transfer(folder, _voc_folders(folder, ask), _transfer_settings(ask, seed), "auto", on_progress)
    run = open_folder(folder)
    if ask.what == "coverage":
        return measure_coverage(run, **own, on_progress=on_progress)
    if ask.what == "attack":
        name, sizes = own.pop("name"), {word: own.pop(word) for word in ("steps", "queries") if word in own}
        return attack_run(run, name, named_attack(name, **sizes), checks=False, **own, on_progress=on_progress)
    published = cache_dir() / "data" / PUBLISHED_SHIFT if own.pop("published", False) else None
    return shift_run(run, published=published, **own, on_progress=on_progress)


def _transfer_settings(ask: Ask, seed: int = 0) -> TransferSettings:
    own = {word: value for word, value in ask.settings.items() if word not in ("folders", "pasted")}
    return TransferSettings(seed=seed, **own)


def _voc_folders(folder: RunFolder, ask: Ask) -> list[Path]:
    """Pascal VOC's, or pictures of the run's own test part, pasted onto canvases once for all runs."""
    if "pasted" not in ask.settings:
        return [cache_dir() / "data" / VOC_FOLDERS / name for name in ask.settings["folders"]]
    sizes = ask.settings["pasted"]
    root = folder.path.parent / "-".join(["pasted", *(str(size) for size in sizes.values())])
    if not root.exists():
        data = open_data(folder.read_run()["settings"]["data"]["source"])
        if data.test is None:
            raise UserError(f"{data.name} has no test part whose pictures could be pasted")
        write_pasted(root, data.test, data.classes, **sizes)
    return [root]


def _rows(
    recipe: Recipe, scale: str, experiment: Experiment, found: Mapping[tuple[str, int], Found]
) -> list[dict[str, Any]]:
    """A row for each entry and seed; one alone for an entry that is not run."""
    in_percent = recipe.unit == "%"
    rows = []
    for entry in experiment.entries:
        own = {"name": recipe.name, "scale": scale, "part": entry.part, "row": entry.row, "column": entry.column}
        seeds: list[int | None] = [seed for trial, seed in found if trial == entry.trial]
        for seed in seeds or [None]:
            came = None if seed is None or entry.trial is None else found[entry.trial, seed]
            number = None if came is None else value_at(came, entry.value)
            noise = None if came is None else came["result"].get("noise")
            rows.append(
                {
                    **own,
                    "seed": seed,
                    "measured": round(100 * number, 6) if in_percent and number is not None else number,
                    "published": entry.published,
                    "unit": recipe.unit,
                    "actual_noise": None if noise is None else noise["actual"],
                    "seconds": None if came is None else came["result"].get("seconds"),
                    "run": None if came is None else came["run"],
                    "commit": None if came is None else came["commit"],
                }
            )
    return rows


def value_at(found: Mapping[str, Any], words: str) -> float | None:
    """The number that an entry's `value` leads to: a path, a number, or one less another; None where there is none."""
    first, *others = (_number_at(found, word) for word in words.split(" - "))
    if first is None or None in others:
        return None
    return first - sum(other for other in others if other is not None)


def _number_at(found: Mapping[str, Any], path: str) -> float | None:
    try:
        return float(path)
    except ValueError:
        pass
    place: Any = found
    for word in path.split("/"):
        place = place[word]
    return None if place is None else float(place)
