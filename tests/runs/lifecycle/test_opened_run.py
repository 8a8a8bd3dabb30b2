"""A run that is only read has no optimiser and no loader; one of the version before opens as well."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.program import run_json
from selfadapt.core.errors import UserError
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import Training
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.lifecycle.opened_run import open_folder

OPTIONS = ("--limit", "200", "--test-limit", "60", "--model", "mlp", "--width", "16", "--epochs", "2", "--quiet")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    run_json("train", "digits", "--noise", "symmetric:0.4", "--start-epoch", "1", *OPTIONS, "--out", "run", folder=home)
    return home


@pytest.fixture
def nothing_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a run that is only read needs none")

    monkeypatch.setattr(Training, "__init__", refuse)
    monkeypatch.setattr(SampleLoader, "__init__", refuse)


@pytest.mark.usefixtures("nothing_trains")
def test_commands_that_read_a_run_build_no_training(home: Path) -> None:
    labels = (home / "run" / "labels.csv").read_bytes()
    summary = run_json("audit", "run", folder=home)
    assert (home / "run" / "labels.csv").read_bytes() == labels
    assert summary["suspects"] == json.loads((home / "run" / "run.json").read_text())["result"]["audit"]["suspects"]
    selectors = run_json("coverage", "run", folder=home)["selectors"]
    result = json.loads((home / "run" / "run.json").read_text())["result"]
    assert selectors["softmax-response"]["coverage"]["1.00"] == pytest.approx(1 - result["test_accuracy"])
    run_json("attack", "run", "--with", "fgsm", "--images", "20", "--no-checks", folder=home)


@pytest.mark.usefixtures("nothing_trains")
def test_a_run_of_the_version_before(home: Path, tmp_path: Path) -> None:
    """Its run.json has null for the weights of a network that was trained from scratch."""
    shutil.copytree(home / "run", tmp_path / "run")
    content = RunFolder(tmp_path / "run").read_run()
    content["settings"]["model"] |= {"weights": None, "tune": None}
    RunFolder(tmp_path / "run").write_run(content)
    before, now = (open_folder(RunFolder(folder / "run")) for folder in (tmp_path, home))
    assert before.plan == now.plan
    assert all(torch.equal(value, now.model.state_dict()[name]) for name, value in before.model.state_dict().items())
    assert run_json("audit", "run", folder=tmp_path)["suspects"] == content["result"]["audit"]["suspects"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "was made by another version of selfadapt"),
        ({"kind": "pretraining"}, "this is a run without labels"),
        ({"warp": 1}, "'warp'"),
    ],
)
def test_what_cannot_be_opened_is_refused(change: dict[str, Any], message: str, home: Path, tmp_path: Path) -> None:
    content = json.loads((home / "run" / "run.json").read_text())
    content["format"] = change.get("format", content["format"])
    content["settings"]["kind"] = change.get("kind", "labels")
    del content["result"]  # which differs between the kinds
    content["settings"]["fit"] |= {name: value for name, value in change.items() if name == "warp"}
    RunFolder(tmp_path).write_run(content)
    with pytest.raises(UserError, match=message):
        open_folder(RunFolder(tmp_path))
