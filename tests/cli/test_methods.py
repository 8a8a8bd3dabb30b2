"""A method's own options on the command line."""

import json
import re
from pathlib import Path

import pytest

from cli.program import run, run_json
from selfadapt.objectives.methods import METHODS
from selfadapt.run_folder.folder import RunFolder

QUICK = ("--model", "mlp", "--limit", "60", "--epochs", "2")


def test_every_method_says_what_it_is(tmp_path: Path) -> None:
    listed = run_json("methods", folder=tmp_path)["methods"]
    assert len(listed) == sum(map(len, METHODS.values()))
    for entry in listed:
        assert entry["words"]
        assert entry["paper"]
        assert (entry["cost"] is None) == (entry["command"] == "pretrain" or entry["name"] == "sat-folds")
        assert all(own["words"] and own["option"].startswith("--") for own in entry["settings"])
    (entry,) = run_json("methods", "co-teaching", folder=tmp_path)["methods"]
    assert [own["option"] for own in entry["settings"]] == ["--noise-rate"]
    assert "noise rate" in entry["needs"]
    words = run("methods", folder=tmp_path).stdout
    assert "--method elr: early-learning regularisation" in words
    assert "costs 1.0 times the time of erm (1.0 forward and 1.0 backward passes per sample), memory for 1 net" in words
    options = {own["option"] for entry in listed for own in entry["settings"]}
    assert options <= set(words.split()), "each stands apart from its words"


def test_help_shows_the_options_of_the_method_asked_for(tmp_path: Path) -> None:
    without = run("pretrain", "--help", folder=tmp_path).stdout
    assert "0.00005" in without, "what is chosen without labels"
    assert "fine-tuning" not in without
    assert "--reward" in run("train", "--method", "deep-gamblers", "--help", folder=tmp_path).stdout
    assert "--reward" not in run("train", "--help", folder=tmp_path).stdout
    assert "--queue" in run("pretrain", "--method=moco", "--help", folder=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "digits", "--schedule", "multistep:75,90"), "never lowers the learning rate within 60 epochs"),
        (
            ("train", "digits", "--epochs", "5", "--warmup-epochs", "5"),
            "--warmup-epochs 5 must be less than --epochs 5",
        ),
        (("train", "digits", "--warmup-from", "0.1"), "has no effect without --warmup-epochs"),
        (
            ("train", "digits", "--method", "deep-gamblers", "--epochs", "9", "--cross-entropy-epochs", "9"),
            "must be less than --epochs",
        ),
        (("pretrain", "digits", "--model", "timm/resnet18", "--width", "8"), "--width 8 would do nothing"),
        (("train", "digits", "--reward", "3"), "--reward is an option of deep-gamblers, not of sat"),
        (("train", "digits", "--method", "erm", "--start-epoch", "3"), "--start-epoch is an option of sat"),
        (("train", "digits", "--method", "sta"), "--method 'sta' is not known; choose one of sat"),
        (
            ("train", "digits", "--method", "elr", "--target-momentum", "2"),
            "--target-momentum 2.0 must be at",
        ),
        (("compare", "digits", "--methods", "erm,elr", "--reward", "3"), "--reward is an option of deep-gamblers"),
        (("pretrain", "digits", "--queue", "3"), "--queue is an option of moco, not of sat"),
        (("train", "digits", "--pieces", "2"), "--pieces has been renamed; use --micro-batches"),
        (("train", "digits", "--momentum=0.9"), "--momentum has been renamed; use --target-momentum"),
        (("train", "digits", "--pretrained", "run"), "--pretrained has been renamed; use --weights"),
        (("compare", "digits", "--schedule", "halve:25"), "renamed; use --schedule step:25"),
        (("pretrain", "digits", "--schedule=tenth:75,90"), "renamed; use --schedule multistep:75,90"),
        (("methods", "sta"), "method 'sta' is not known"),
    ],
)
def test_an_option_of_another_method_is_told(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = run(*arguments, folder=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr


def test_in_a_comparison_an_option_goes_to_the_methods_that_have_it(tmp_path: Path) -> None:
    arguments = (
        "compare",
        "digits",
        "--methods",
        "erm,elr,sat-paper",
        *QUICK,
        "--target-momentum",
        "0.5",
        "--out",
        "all",
    )
    assert run(*arguments, folder=tmp_path).returncode == 0
    settings = {
        name: json.loads((tmp_path / "all" / f"{name}-0" / "run.json").read_text())["settings"]["method"]
        for name in ("erm", "elr", "sat-paper")
    }
    assert settings["erm"] == {"name": "erm"}
    assert settings["elr"] == {"name": "elr", "momentum": 0.5, "strength": 3.0}
    assert settings["sat-paper"] == {"name": "sat-paper", "start_epoch": 0, "momentum": 0.5}


def test_the_published_settings_of_elr_are_options(tmp_path: Path) -> None:
    published = ("--strength", "7", "--target-momentum", "0.9")
    run_json("train", "digits", "--method", "elr", *QUICK, *published, "--out", "run", folder=tmp_path)
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["method"]
    assert settings == {"name": "elr", "momentum": 0.9, "strength": 7.0}
    words = run("train", "--method", "elr", "--help", folder=tmp_path).stdout
    assert "asymmetric noise" in words
    assert "CIFAR100" in words


def test_a_run_with_a_former_name_of_a_schedule_still_opens(tmp_path: Path) -> None:
    run_json("train", "digits", *QUICK, "--schedule", "multistep:1", "--out", "run", folder=tmp_path)
    folder = RunFolder(tmp_path / "run")
    folder.write_run(json.loads(folder.settings_file.read_text().replace('"multistep:1"', '"tenth:1"')))
    assert run("audit", "run", folder=tmp_path).returncode == 0


def test_help_has_panels_and_about_eighteen_options_before_advanced(tmp_path: Path) -> None:
    page = run("train", "--help", folder=tmp_path).stdout
    panels = re.findall(r"╭─ (.+?) ─", page)
    assert panels == ["Arguments", "Data", "Model", "Training", "Output", "Advanced", "Experiments"]
    first = re.findall(r"^│ --([a-z-]+)", page.partition("─ Advanced ─")[0], re.MULTILINE)
    assert 15 <= len(first) <= 21, first
    assert {"model", "weights", "method", "epochs", "out", "json"} <= set(first)
    assert "--noise" in page.partition("─ Experiments ─")[2]
    assert "Options of sat" in run("train", "--method", "sat", "--help", folder=tmp_path).stdout


def test_a_run_of_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    run_json("train", "digits", *QUICK, "--out", "run", folder=tmp_path)
    folder = RunFolder(tmp_path / "run")
    content = folder.read_run()
    folder.write_run({**content, "format": 1})
    result = run("audit", "run", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "was made by another version of selfadapt (format 1, this one reads 2)" in result.stderr
    folder.write_run(content)
    for manifest in (tmp_path / "run" / "checkpoint").glob("*/manifest.json"):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 4}))
    result = run("audit", "run", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "format 4, this one reads 2 to 3" in result.stderr
