"""Every recipe has valid settings at both scales, and each laptop recipe trains for a few steps."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from cli.program import run, run_json
from forks import PATIENCE, fork, launch_forks
from selfadapt.cli import app
from selfadapt.core.errors import UserError
from selfadapt.core.progress import StageProgress, no_stages
from selfadapt.data.dataset import Samples
from selfadapt.evaluation.probe_settings import ProbeSettings
from selfadapt.recipes.figures.fig4 import Growing
from selfadapt.recipes.index import RECIPES, recipe_named
from selfadapt.recipes.recipe import Entry, Experiment, Recipe, Settings, Timing, Trial, experiment
from selfadapt.recipes.tables import table10
from selfadapt.report.reproduction import parts_of
from selfadapt.runs.batch.commands import command_line
from selfadapt.runs.batch.recipe_run import check_ready, reproduce, value_at
from selfadapt.runs.config.facts import inspect_source
from selfadapt.runs.config.planning import plan_reading
from selfadapt.runs.config.request import Kind, Request
from selfadapt.runs.lifecycle.prepare_data import prepare
from selfadapt.runs.transfer.transfer_settings import TransferSettings

NUMBERED = {f"fig{n}" for n in range(1, 16) if n != 8} | {f"table{n}" for n in range(1, 14)}  # 8 shows no experiment
TINY: Settings = {
    "epochs": 1, "start_epoch": 0, "batch_size": 16, "width": 4, "warmup_epochs": 0.0, "warmup_from": 0.0,
    "schedule": "cosine", "cross_entropy_epochs": 0,
    "hidden": 8, "dimensions": 4, "steps": 1, "curve_start": 0, "curve_images": 4, "limit": 48, "test_limit": 12,
    "progressive": "12:0.5",
}  # fmt: skip
FEW: dict[str, Settings] = {
    "attack": {"images": 3, "steps": 1, "queries": 2},
    "probe": {"epochs": 2, "limit": 48},
    "coverage": {"passes": 2},
    "shift": {"images": 3},
    "transfer": {"steps": 1, "batch_size": 2, "pasted": {"train": 3, "test": 2, "size": 48}, "image_size": 48},
}


@contextmanager
def no_bar(words: str) -> Iterator[StageProgress]:
    yield no_stages


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RGB images in three classes."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 60), ("test", 12)):
        labels = np.arange(count) % 3
        arrays[f"x_{part}"] = (labels[:, None, None, None] * 80 + generator.integers(0, 60, (count, 16, 16, 3))).astype(
            np.uint8
        )
        arrays[f"y_{part}"] = labels
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, **arrays)
    return path


def _tiny(recipe: Recipe, data: Path) -> Recipe:
    """The laptop experiment on a few images for a few steps, with trials that no earlier recipe covers."""
    trials = tuple(_shortened(trial, data) for trial in recipe.laptop.trials if trial.name in TRAINED[recipe.name])
    names = {trial.name for trial in trials} | {None}
    entries = tuple(entry for entry in recipe.laptop.entries if entry.trial in names)
    timing = recipe.laptop.timing and Timing(turns=2, steps=1, warm_up=1)
    return replace(recipe, laptop=replace(recipe.laptop, trials=trials, entries=entries, timing=timing))


def _of_each_kind() -> dict[str, set[str]]:
    """The trials that are trained here: one per method and kind of evaluation, and at least one per recipe."""
    seen: set[Any] = set()
    chosen: dict[str, set[str]] = {}
    for name in RECIPES:
        if RECIPES[name].at("laptop").timing:  # compares its trials with each other
            chosen[name] = {trial.name for trial in RECIPES[name].at("laptop").trials}
            continue
        trials: dict[Any, str] = {}
        for trial in RECIPES[name].at("laptop").trials:
            evaluations = tuple(evaluation.kind for evaluation in trial.evaluations)
            trials.setdefault(
                (trial.kind, trial.settings.get("method"), trial.settings.get("views"), evaluations), trial.name
            )
        new = {trial for kind, trial in trials.items() if kind not in seen}
        chosen[name] = new or {list(trials.values())[-1]}
        seen |= set(trials)
    return chosen


TRAINED = _of_each_kind()


def _only(recipe: Recipe, row: str, data: Path) -> Recipe:
    """The recipe with only this row, its trial named like the row."""
    entries = tuple(entry for entry in recipe.laptop.entries if entry.row == row)
    (trial,) = (trial for trial in recipe.laptop.trials if trial.name == entries[0].trial)
    entries = tuple(replace(entry, trial=row) for entry in entries)
    return replace(recipe, laptop=Experiment(trials=(_shortened(replace(trial, name=row), data),), entries=entries))


def _shortened(trial: Trial, data: Path) -> Trial:
    if trial.kind == "linear-regression":
        return trial
    own = {word: TINY.get(word, value) for word, value in trial.settings.items()}
    own |= {"data": str(data), **({} if own.get("tune") == "head" else {"width": 4})}
    if own["method"] == "deep-gamblers":
        own["reward"] = 2.2  # otherwise it trains once per reward
    if own["method"] in ("sat-posterior", "joint-optimization"):
        own["epochs"] = 2  # the least
    evaluations = tuple(
        replace(evaluation, settings={**evaluation.settings, **FEW[evaluation.kind]})
        for evaluation in trial.evaluations
    )
    return replace(trial, settings=own, evaluations=evaluations)


def test_every_table_and_figure_is_there() -> None:
    assert set(RECIPES) == NUMBERED | {"theory", "record-scratch", "record-pretrained", "record-selective"}


@pytest.mark.parametrize("scale", ["paper", "laptop"])
@pytest.mark.parametrize("name", RECIPES)
def test_the_program_knows_the_settings_of_every_trial(name: str, scale: str) -> None:
    experiment = RECIPES[name].at(scale)
    for trial in experiment.trials:
        if trial.kind != "linear-regression":
            request = Request.of(trial.kind, **trial.settings)
            plan_reading(request, inspect_source(request))
            assert {"data", "method", "model", "augment"} <= set(trial.settings)
            if trial.settings["method"] != "sat-folds":  # which takes no steps
                assert trial.settings.get("start_epoch", 0) < trial.settings["epochs"]
                assert {"lr", "weight_decay", "batch_size"} <= set(trial.settings)
    assert all(entry.published is not None for entry in experiment.entries if entry.trial is None)
    most = {"fig2": 80, "table6": 210, "table8": 210, "record-scratch": 70}.get(name, 60)  # as docs/reproduce.md says
    assert scale == "paper" or (experiment.minutes is not None and experiment.minutes < most)


@pytest.mark.parametrize("name", ["table6", "table7", "table8", "table9", "table11", "fig10"])
def test_linear_evaluation_with_augmentation_and_on_frozen_features(name: str) -> None:
    usual, once = "probe/augmented_accuracy", "probe/test_accuracy"
    whole = RECIPES[name].at("paper")
    settings = [ProbeSettings(**evaluation.settings) for trial in whole.trials for evaluation in trial.evaluations]
    assert len(settings) == len(whole.trials)
    assert {own.augment for own in settings} == {"resized-crop"}
    protocol = (100, 512, 2.0, "cosine") if name == "table9" else (100, 512, 0.4, "step")
    assert {(own.epochs, own.batch_size, own.lr, own.schedule) for own in settings} == {protocol}
    run = [entry for entry in whole.entries if entry.trial is not None]
    cells = {value: [(e.trial, e.row, e.column) for e in run if e.value == value] for value in (usual, once)}
    assert cells[usual] == cells[once]
    assert len(run) == 2 * len(cells[usual])
    assert all(entry.published is None for entry in run if entry.value == once)
    assert {entry.value for entry in RECIPES[name].at("laptop").entries if entry.row != "untrained"} == {once}


def test_the_command_line_of_a_trial_says_the_same() -> None:
    """With --devices each trial is a separate command. One trial is tested for each method and set of options."""
    trials: dict[Any, Trial] = {}
    for name in RECIPES:
        for trial in (*RECIPES[name].at("paper").trials, *RECIPES[name].at("laptop").trials):
            if trial.kind != "linear-regression":
                trials[trial.kind, trial.settings["method"], frozenset(trial.settings)] = trial
    for trial in trials.values():
        kind: Kind = "labels" if trial.kind == "labels" else "pretraining"
        command, *arguments = command_line(kind, trial.settings)
        app._register([command, *arguments])
        parsed = typer.main.get_group(app.app).commands[command].make_context(command, arguments).params
        known = {word.split("__")[0]: value for word, value in parsed.items() if value is not None}
        own = {word: known[word] for word in trial.settings if word in known}
        assert Request.of(kind, **own) == Request.of(kind, **trial.settings), trial.name


@pytest.mark.parametrize("name", RECIPES)
def test_every_laptop_recipe_trains_and_writes_its_table(name: str, images: Path, tmp_path: Path) -> None:
    recipe = _tiny(RECIPES[name], images)
    result = reproduce(recipe, "laptop", tmp_path / "out", 1, no_bar)
    assert len(result["rows"]) == len(recipe.laptop.entries)
    for row, entry in zip(result["rows"], recipe.laptop.entries, strict=True):
        assert (row["measured"] is None) == (entry.trial is None), row
        assert row["published"] == entry.published
    with open(tmp_path / "out" / "rows.csv", encoding="utf-8", newline="") as file:
        assert [row["row"] for row in csv.DictReader(file)] == [entry.row for entry in recipe.laptop.entries]
    assert recipe.title in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert (result["figure"] is not None) == (recipe.drawing is not None)


def _at_once(recipe: Recipe, out: Path) -> None:
    launch_forks()
    done: list[tuple[int, int]] = []

    @contextmanager
    def counted(words: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda *count: done.append(count)

    reproduce(recipe, "laptop", out, 2, no_bar, count_bar=counted, jobs=2)
    assert (done[0], done[-1]) == ((0, 4), (4, 4))


def test_trainings_at_once_give_the_same(images: Path, tmp_path: Path) -> None:
    laptop = RECIPES["fig15"].at("laptop")
    tiny = tuple(_shortened(trial, images) for trial in laptop.trials)
    recipe = replace(RECIPES["fig15"], laptop=replace(laptop, trials=tiny))
    worker = fork(_at_once, recipe, tmp_path / "two")
    worker.join(PATIENCE)
    assert worker.exitcode == 0
    at_once = reproduce(recipe, "laptop", tmp_path / "two", 2, _no_training)["rows"]
    one_by_one = reproduce(recipe, "laptop", tmp_path / "one", 2, no_bar)["rows"]
    assert [row["measured"] for row in at_once] == [row["measured"] for row in one_by_one]


def _no_training(words: str) -> Any:
    raise AssertionError(f"{words} was not trained")


def test_what_is_done_is_not_done_again(images: Path, tmp_path: Path) -> None:
    recipe = _only(RECIPES["table5"], "ours", images)
    begun: list[str] = []

    @contextmanager
    def noted(words: str) -> Iterator[StageProgress]:
        begun.append(words)
        yield no_stages

    asked: list[tuple[int, int]] = []

    @contextmanager
    def counted(words: str) -> Iterator[Callable[[int, int], None]]:
        assert words == "1/1 ours, seed 0, coverage"
        yield lambda *count: asked.append(count)

    first = reproduce(recipe, "laptop", tmp_path, 1, noted, count_bar=counted)
    assert asked[-1][0] == asked[-1][1] > 0
    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/answers/*")}
    assert stamps
    again = reproduce(recipe, "laptop", tmp_path, 2, noted)
    assert begun == ["1/1 ours, seed 0", "2/2 ours, seed 1"]
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in stamps.items())
    assert [row for row in again["rows"] if row["seed"] == 0] == first["rows"]
    row = next(row for row in again["rows"] if (row["seed"], row["column"]) == (1, "80"))
    answer = json.loads((tmp_path / "ours-1" / "answers" / "coverage.json").read_text())["answer"]
    assert row["measured"] == pytest.approx(100 * answer["selectors"]["abstain"]["exact_coverage"]["0.80"], abs=1e-5)


def test_a_row_alone_is_trained_alone(images: Path, tmp_path: Path) -> None:
    recipe = _tiny(RECIPES["table5"], images)
    rows = reproduce(recipe, "laptop", tmp_path, 1, no_bar, rows=["ours"])["rows"]
    assert {row["row"] for row in rows} == {"ours"}
    assert "`selfadapt reproduce table5 --scale laptop --row ours`" in (tmp_path / "table.md").read_text()
    assert [folder.name for folder in tmp_path.iterdir() if (folder / "run.json").exists()] == [
        recipe.laptop.trials[0].folder(0)
    ]
    with pytest.raises(UserError, match="--row 'mine' is not in this table; its rows are: ours; "):
        reproduce(recipe, "laptop", tmp_path, 1, no_bar, rows=["ours", "mine"])


def test_a_row_of_times_is_measured_beside_the_others(images: Path, tmp_path: Path) -> None:
    recipe = _tiny(RECIPES["fig9"], images)
    row = recipe.laptop.entries[-1].row
    rows = reproduce(recipe, "laptop", tmp_path, 1, no_bar, rows=[row])["rows"]
    assert {own["row"] for own in rows} == {row}


def test_another_precision_is_asked_for_with_every_training(images: Path, tmp_path: Path) -> None:
    recipe = _only(RECIPES["table5"], "ours", images)
    reproduce(recipe, "laptop", tmp_path, 1, no_bar, precision="bfloat16")
    assert json.loads((tmp_path / "ours-0" / "run.json").read_text())["settings"]["fit"]["precision"] == "bfloat16"
    with pytest.raises(UserError, match="precision"):
        reproduce(recipe, "laptop", tmp_path, 2, _no_training)  # said before the second seed is trained


def test_times_of_imagenets_files_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 9 at paper scale, on a few files in the folders of ImageNet, with a narrow network."""
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    generator = np.random.default_rng(0)
    for place in ("train/n01440764", "train/n01443537", "val/n01440764", "val/n01443537"):
        folder = tmp_path / "home" / "data" / "imagenet" / place
        folder.mkdir(parents=True)
        for number in range(16 if place.startswith("train") else 1):
            pixels = generator.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.JPEG")
    paper = RECIPES["fig9"].paper
    few = {"batch_size": 16, "hidden": 8, "dimensions": 4, "image_size": 32}
    trials = tuple(
        replace(trial, settings={**{word: few.get(word, value) for word, value in trial.settings.items()}, "width": 4})
        for trial in paper.trials
    )
    small = replace(paper, trials=trials, timing=Timing(turns=1, steps=1, warm_up=1))
    recipe = replace(RECIPES["fig9"], paper=small)
    result = reproduce(recipe, "paper", tmp_path / "out", 1, no_bar)
    cells = {(row["row"], row["column"]): row["measured"] for row in result["rows"]}
    for row in {trial.name for trial in trials}:
        assert sum(cells[row, phase] for phase in ("data", "forward", "backward")) == pytest.approx(
            cells[row, "in all"]
        )
    assert cells["BYOL, 2 views", "in all, a view"] == cells["BYOL, 2 views", "in all"] / 2
    assert cells["BYOL, 2 views", "ours, 1 view"] == pytest.approx(
        cells["BYOL, 2 views", "in all"] / cells["ours, 1 view", "in all"]
    )
    assert reproduce(recipe, "paper", tmp_path / "out", 1, no_bar)["rows"] == result["rows"]


@pytest.mark.parametrize("trial", RECIPES["fig1"].laptop.trials[:4], ids=lambda trial: str(trial.name))
def test_the_noise_of_figure_1_is_drawn_before_the_split(trial: Trial, images: Path) -> None:
    """The noisy samples are the same with and without a validation split, and some of them are in it."""

    def splits(validation: float, noise: str) -> dict[str, dict[str, tuple[int, bytes]]]:
        own = {**trial.settings, "data": str(images), "limit": None, "validation": validation, "noise": noise}
        request = Request.of("labels", **own)
        data = prepare(plan_reading(request, inspect_source(request)))
        return {name: _contents(samples) for name, samples in data.splits.items()}

    noise = trial.settings["noise"]
    whole, split, clean = splits(0.0, noise), splits(0.5, noise), splits(0.0, "symmetric:0")
    assert split["train"] | split["validation"] == whole["train"]
    for name in ("train", "validation"):
        assert any(split[name][sample_id] != clean["train"][sample_id] for sample_id in split[name])
    assert split["test"] == clean["test"]


def _contents(samples: Samples) -> dict[str, tuple[int, bytes]]:
    """Label and pixels by id."""
    pixels = samples.inputs.read(torch.arange(len(samples))).numpy()
    return {
        sample_id: (label, image.tobytes())
        for sample_id, label, image in zip(samples.ids, samples.labels.tolist(), pixels, strict=True)
    }


def test_table5_is_averaged_over_as_many_trials_as_the_authors_average_over(images: Path, tmp_path: Path) -> None:
    recipe = _only(RECIPES["table5"], "ours", images)
    recipe = replace(recipe, paper=replace(recipe.laptop, seeds=RECIPES["table5"].paper.seeds))
    rows = reproduce(recipe, "paper", tmp_path, None, no_bar)["rows"]
    assert {row["seed"] for row in rows} == {0, 1, 2}
    assert "`selfadapt reproduce table5 --scale paper`" in (tmp_path / "table.md").read_text()


def test_widths_follow_the_appendix() -> None:
    growing = Growing(64, 40, 0.9)
    assert growing.at(64) == {"method": "sat-paper", "width": 64, "start_epoch": 40, "momentum": 0.9}
    narrow = growing.at(1)
    assert narrow["start_epoch"] == 2560
    assert narrow["momentum"] == pytest.approx(0.9 ** (1 / 64))
    assert growing.at(7)["start_epoch"] == 365  # int(40 * 64 / 7)


def test_table10_has_the_usual_settings_and_says_where_voc_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for evaluation in (table10.DETECTION, table10.SEGMENTATION):
        own = {word: value for word, value in evaluation.settings.items() if word != "folders"}
        usual = TransferSettings(task=own["task"], detector=own.get("detector", "pyramid")).resolved()
        assert TransferSettings(**own).resolved() == usual
    assert [table10.DETECTION.name, table10.SEGMENTATION.name] == ["transfer-detection", "transfer-segmentation"]
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path))
    (tmp_path / "data/VOCdevkit/VOC2007/ImageSets").mkdir(parents=True)
    trial = Trial(name="a", settings={"data": "digits", "method": "erm"}, evaluations=(table10.DETECTION,))
    with pytest.raises(UserError, match=r"Pascal VOC2012 is not on this machine; unpack .*VOCdevkit/VOC2012/ImageSets"):
        check_ready(Experiment(trials=(trial,), entries=()))


def test_values_are_paths_numbers_and_differences() -> None:
    found = {"result": {"test_accuracy": 0.75}, "last": {"a": 0.9, "b": 0.4, "none": None}}
    assert value_at(found, "result/test_accuracy") == 0.75
    assert value_at(found, "1 - result/test_accuracy") == 0.25
    assert value_at(found, "last/a - last/b") == pytest.approx(0.5)
    assert value_at(found, "1 - last/none") is None


def test_cells_show_all_seeds_beside_the_published_number() -> None:
    shared = {"part": "", "row": "ours", "column": "0.4", "published": 92.64, "unit": "%"}
    rows = [{**shared, "seed": seed, "measured": measured} for seed, measured in ((0, 50.0), (1, 54.0))]
    cited = {**shared, "row": "DAC", "seed": None, "measured": None, "published": 90.71}
    (part,) = parts_of([*rows, cited])
    assert part.rows["ours"]["0.4"] == "52.00 ± 2.83 (50.00, 54.00) / 92.64"
    assert part.rows["DAC"]["0.4"] == "not run / 90.71"


def test_a_trial_that_fills_several_cells_is_trained_once() -> None:
    trial, other = (Trial(name=name, settings={"data": "digits"}) for name in ("a", "b"))
    cells = [(trial, "1"), (None, "2"), (other, "3"), (replace(trial), "4")]
    built = experiment(((own, Entry(row="r", column=column)) for own, column in cells), minutes=2.0)
    assert built.trials == (trial, other)
    assert [(entry.column, entry.trial) for entry in built.entries] == [("1", "a"), ("2", None), ("3", "b"), ("4", "a")]
    assert (built.minutes, built.timing) == (2.0, None)


def test_an_entry_of_a_trial_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="unknown trials"):
        Experiment(trials=(), entries=(Entry(row="a", column="b", trial="c"),))


def test_names_are_found_however_they_are_written() -> None:
    assert recipe_named("Figure 1") is recipe_named("fig-1") is RECIPES["fig1"]
    with pytest.raises(UserError, match="unknown recipe 'fig8'"):
        recipe_named("fig8")


def test_the_list_names_everything_with_its_time(tmp_path: Path) -> None:
    found = run_json("reproduce", "--list", folder=tmp_path)["recipes"]
    assert [row["name"] for row in found] == list(RECIPES)
    assert all(row["laptop_minutes"] > 0 for row in found)
    words = run("reproduce", "--list", folder=tmp_path).stdout
    assert all(recipe.title in words for recipe in RECIPES.values())


def test_the_theory_from_the_command_line(tmp_path: Path) -> None:
    result = run_json("reproduce", "theory", "--scale", "laptop", folder=tmp_path)
    assert {"name", "scale", "rows", "figure"} <= set(result)
    assert (tmp_path / result["figure"]).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table2"], "the data set cifar10 is not on this machine; download it with: selfadapt data get cifar10"),
        (["table4", "--scale", "paper"], "the data set imagenet is not on this machine; put ImageNet's class folders"),
        (["table9", "--scale", "paper"], "the data set imagenet is not on this machine; put ImageNet's class folders"),
        (["fig9", "--scale", "paper"], "put ImageNet's class folders into"),
        (["table10"], "the data set cifar10 is not on this machine"),
        (["table99"], "unknown recipe 'table99'"),
        (["table2", "--scale", "tiny"], "choose paper or laptop"),
        (["theory", "--devices", "0"], "--devices 0 must be at least 1"),
        (["theory", "--jobs", "0"], "--jobs 0 must be at least 1"),
        (["theory", "--jobs", "2", "--devices", "2"], "choose one of them"),
        (["table2", "--precision", "half"], "--precision"),
        (["theory", "--precision", "bfloat16"], "this recipe trains no network"),
        (["theory", "--seeds", "0"], "--seeds 0 must be at least 1"),
        ([], "no NAME given"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "empty"))
    result = run("reproduce", *words, folder=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
