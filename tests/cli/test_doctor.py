"""What the doctor tells is so."""

import importlib.util
import os
from importlib.metadata import metadata
from pathlib import Path

import pytest
import torch

from cli.program import run, run_json
from selfadapt.data.sources import SOURCES
from selfadapt.models.weights import DEFAULT
from selfadapt.runs.doctor import EXTRAS


def test_what_is_there_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "data" / "mnist").mkdir(parents=True)
    found = run_json("doctor", folder=tmp_path)
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert found["devices"][-1]["name"] == "cpu"
    assert found["devices"][-1]["bfloat16_speed"] > 0
    assert found["threads"]["cores"] == len(os.sched_getaffinity(0))
    assert found["home"]["path"] == str(tmp_path / "home")
    assert found["home"]["writable"]
    assert set(found["data"]) == set(SOURCES)
    assert found["data"]["mnist"] == str(tmp_path / "home" / "data" / "mnist")
    assert found["data"]["cifar10"] == "selfadapt data get cifar10"
    assert found["weights"][DEFAULT] is True
    assert {own["name"]: own["installed"] for own in found["extras"]} == {
        name: all(importlib.util.find_spec(module) is not None for module in modules)
        for name, (modules, _) in EXTRAS.items()
    }


def test_every_extra_for_users_is_told_of() -> None:
    assert set(metadata("selfadapt").get_all("Provides-Extra") or ()) - {"dev"} == set(EXTRAS)


def test_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path))
    words = run("doctor", folder=tmp_path).stdout
    assert f"torch {torch.__version__.split('+')[0]}" in words
    assert f"imagenet: put ImageNet's class folders into {tmp_path / 'data' / 'imagenet'}/train" in words
    assert "AutoAttack" in words
