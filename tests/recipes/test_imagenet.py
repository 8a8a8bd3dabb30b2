"""The ImageNet recipes at paper scale, on a few JPEGs of various sizes, with a narrow network."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from cli.program import run, run_json
from forks import PATIENCE, fork, launch_forks
from recipes.test_recipes import no_bar
from runs.config.stub_facts import IMAGENET, planned_for
from selfadapt.data.images.storage import ImageFiles, TensorImages
from selfadapt.data.loader import Loader
from selfadapt.recipes.index import RECIPES
from selfadapt.recipes.recipe import Experiment, Settings
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.batch.recipe_run import reproduce
from selfadapt.runs.config.facts import inspect_source
from selfadapt.runs.config.plan import Plan, ReadingPlan
from selfadapt.runs.config.planning import plan_reading
from selfadapt.runs.config.request import Kind, Request
from selfadapt.runs.inspect.predictor import Predictor
from selfadapt.runs.lifecycle.lifecycle import resume
from selfadapt.runs.lifecycle.opened_run import open_folder
from selfadapt.runs.train.build_training import training_of

SYNSETS = ("n01440764", "n02102040", "n03888257")
SHORT: Settings = {
    "epochs": 2, "start_epoch": 1, "batch_size": 8, "width": 2, "warmup_epochs": 1.0, "hidden": 8, "dimensions": 4,
    "precision": "float32",
}  # fmt: skip
MIDDLE = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with an ImageNet of three classes, each with its own colour."""
    home = tmp_path_factory.mktemp("home")
    generator = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 2)):
        for number, synset in enumerate(SYNSETS):
            for place in range(count):
                width, height = generator.integers(90, 420, 2).tolist()
                rough = generator.integers(0, 120, (5, 5, 3), np.uint8)
                rough[..., number] += 130
                path = home / "data" / "imagenet" / part / synset / f"{synset}_{part}_{place}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC).save(path)
    return home


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(home))


def _loader(folder: RunFolder, kind: Kind) -> Loader:
    """The loader of a run that is resumed."""
    run = resume(folder, kind)
    return training_of(run.plan, run.data, run.plan.method, run.model, run.targets).loader


def _reading(**given: Any) -> ReadingPlan:
    request = Request.of(**given)
    return plan_reading(request, inspect_source(request))


def _short(name: str, *trials: str, **smaller: Any) -> Experiment:
    """These trials of the paper's experiment, for a few steps of a narrow network; everything else is unchanged."""
    whole = RECIPES[name].at("paper")
    short = []
    for trial in whole.trials:
        if trial.name in trials:
            own = {word: SHORT.get(word, value) for word, value in trial.settings.items()}
            own |= {"width": 2, **smaller}
            evaluations = tuple(
                replace(evaluation, settings={**evaluation.settings, "epochs": 2}) for evaluation in trial.evaluations
            )
            short.append(replace(trial, settings=own, evaluations=evaluations))
    return Experiment(
        trials=tuple(short), entries=tuple(entry for entry in whole.entries if entry.trial in (*trials, None))
    )


def test_training_with_labels(home: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPES["table4"], paper=_short("table4", "ours ResNet-50 0.4"))
    rows = reproduce(recipe, "paper", tmp_path, 1, no_bar)["rows"]
    assert all(row["measured"] is not None for row in rows)
    assert [row["published"] for row in rows] == [71.5, 81.1]
    folder = RunFolder(tmp_path / "ours-resnet-50-0.4-0")
    assert folder.read_run()["data"]["shape"] == [3, 224, 224]
    run = open_folder(folder)
    assert isinstance(run.data.train.inputs, ImageFiles)
    assert len(run.data.train) == 24
    assert run.data.test is not None
    assert isinstance(run.data.test.inputs, TensorImages)  # decoded once, because no random crops are cut from it
    files = sorted((home / "data" / "imagenet" / "val").rglob("*.JPEG"))
    pictures = torch.stack([MIDDLE(Image.open(file)) for file in files])
    assert torch.equal(run.data.test.inputs.values_NCHW, pictures)
    batch = next(_loader(folder, "labels").epoch(0))
    assert batch.input.shape == (8, 3, 224, 224)
    predictor = Predictor.of_run(folder, "cpu")
    records = list(predictor.answer(files))
    expected = predictor.model.eval()(pictures / 255).softmax(1).amax(1)
    assert [record["confidence"] for record in records] == pytest.approx(expected.tolist(), abs=1e-5)


def test_training_without_labels_and_the_linear_classifier(tmp_path: Path) -> None:
    recipe = replace(RECIPES["table9"], paper=_short("table9", "ours 2"))
    rows = reproduce(recipe, "paper", tmp_path, 1, no_bar)["rows"]
    assert len(rows) == 20
    ours = {row["part"]: row for row in rows if row["row"] == "ours, 2 views, 200 epochs"}
    assert sum(row["measured"] is None for row in rows) == 18
    folder = RunFolder(tmp_path / "ours-2-0")
    first, second = next(_loader(folder, "pretraining").epoch(0)).views
    assert first.shape == second.shape == (8, 3, 224, 224)
    assert not torch.equal(first, second)
    answer = json.loads((tmp_path / "ours-2-0" / "answers" / "probe.json").read_text())
    usual = {"batch_size": 512, "lr": 2.0, "schedule": "cosine", "augment": "resized-crop"}
    assert answer["asked"] == {"what": "probe", "epochs": 2, **usual}
    found = answer["answer"]
    assert [ours[""]["measured"], ours[""]["published"]] == [pytest.approx(100 * found["augmented_accuracy"]), 72.8]
    assert ours["frozen features"]["measured"] == pytest.approx(100 * found["test_accuracy"])
    assert ours["frozen features"]["published"] is None


def _reproduced_in_two(out: Path) -> None:
    launch_forks()
    recipe = replace(RECIPES["table9"], paper=_short("table9", "ours 1", image_size=32, epochs=1, warmup_epochs=0.0))
    rows = reproduce(recipe, "paper", out, 1, no_bar, devices=2)["rows"]
    assert sum(row["measured"] is not None for row in rows) == 2
    again = reproduce(recipe, "paper", out, 1, no_bar, devices=2)["rows"]
    assert again == rows


@pytest.mark.distributed
def test_trainings_in_two_processes(tmp_path: Path) -> None:
    worker = fork(_reproduced_in_two, tmp_path / "out")
    worker.join(PATIENCE)
    assert worker.exitcode == 0
    content = RunFolder(tmp_path / "out" / "ours-1-0").read_run()
    assert content["processes"] == 2
    assert content["settings"]["fit"]["sync_bn"]


def test_settings_of_the_paper() -> None:
    """Section 7.1 and the appendix on ImageNet."""
    table4 = {
        trial.name: planned_for(Request.of(**trial.settings), (3, 224, 224), source=IMAGENET, image_files=True)
        for trial in RECIPES["table4"].at("paper").trials
    }
    assert len(table4) == 8
    for name, start, momentum in (("ours ResNet-101 0.0", 50, 0.99), ("ours ResNet-50 0.4", 60, 0.95)):
        flat = table4[name].values()
        assert (flat["start_epoch"], flat["momentum"]) == (start, momentum)
        fit = table4[name].fit_settings()
        assert (fit.epochs, flat["batch_size"]) == (95, 768)
        optimizer = fit.optimizer
        assert (optimizer.name, optimizer.momentum, optimizer.weight_decay) == ("sgd", 0.9, 5e-4)
        assert (optimizer.lr, optimizer.warmup_from, optimizer.warmup_epochs) == (0.3, 0.0003, 5)
        assert (flat["crops"], flat["image_size"], flat["augment"]) == ("original", 224, "resized-crop")
    for trial in RECIPES["table9"].at("paper").trials:
        flat = Request.of("pretraining", **trial.settings).values()
        assert (flat["momentum"], flat["beta"], flat["optimizer"]) == ("0.5:0.8", "0.99:1", "lars")
        assert flat["lr"] == 2.0 * flat["batch_size"] / 256
        assert flat["sync_bn"]


def test_imagenet_by_its_name_is_cut_from_pictures_and_a_folder_if_asked(home: Path, tmp_path: Path) -> None:
    named = _reading(data="imagenet", model="resnet18").data
    assert (named.crops, named.image_size, named.augment) == ("original", 224, "resized-crop")
    assert _reading(data="imagenet", model="resnet18", augment="crop-flip").data.crops == "square"
    assert _reading(data="imagenet", tune="head", model="tf_efficientnet_lite0").data.crops == "square"
    folder = str(home / "data" / "imagenet")
    assert _reading(data=folder, model="resnet18").data.crops == "square"
    options = ("--model", "resnet-small", "--width", "2", "--epochs", "1", "--batch-size", "8", "--image-size", "32")
    run_json("train", folder, "--crops", "original", *options, "--out", "run", folder=tmp_path)
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["data"]["shape"] == [3, 32, 32]
    assert content["settings"]["data"]["augment"] == "resized-crop"
    content["settings"]["data"]["crops"] = "picture"  # as version 0.1 wrote it
    assert Plan.from_json(content, "labels").data.crops == "original"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("digits",), "cuts crops from image files, and digits has none"),
        (
            ("imagenet", "--image-size", "32", "--noise", "gaussian:0.5"),
            "cannot cut crops from images that --noise changed",
        ),
        (("imagenet", "--augment", "crop-flip"), "and --augment crop-flip has none; choose resized-crop"),
        (
            ("imagenet", "--model", "tf_efficientnet_lite0", "--tune", "head"),
            "this needs a network that is trained on images",
        ),
        (("imagenet", "--crops", "circle"), "--crops 'circle' is not known; choose one of square, original"),
        (("imagenet", "--crops", "picture"), "--crops picture has been renamed; use --crops original"),
    ],
)
def test_mistakes(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    model = () if "--model" in words else ("--model", "resnet-small")
    crops = () if "--crops" in words else ("--crops", "original")
    result = run("train", *words, *model, *crops, "--epochs", "1", folder=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
