"""Runs from Python: the same bits as the command, and the way back to them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import selfadapt
from cli.program import run, run_json
from selfadapt.core.errors import UserError

SETTINGS: dict[str, Any] = {
    "method": "sat",
    "noise": "symmetric:0.4",
    "seed": 3,
    "limit": 200,
    "test_limit": 50,
    "epochs": 2,
}


def _weights(folder: Path) -> Path:
    return max((folder / "checkpoint").iterdir()) / "model.safetensors"


def test_train_is_the_command(tmp_path: Path) -> None:
    trained = selfadapt.train("digits", out=tmp_path / "python", start_epoch=1, model="mlp", **SETTINGS)
    options = [text for name, value in SETTINGS.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    result = run_json(
        "train", "digits", "--start-epoch", "1", "--model", "mlp", *options, "--out", "command", folder=tmp_path
    )
    timed = {"run", "seconds", "images_per_second", "audit"}
    assert {k: v for k, v in trained.result.items() if k not in timed} == {
        k: v for k, v in result.items() if k not in timed
    }
    own, others = (load_file(_weights(tmp_path / name)) for name in ("python", "command"))
    assert all((own[name] == others[name]).all() for name in own)
    again = selfadapt.open_run(tmp_path / "python")
    assert (again.plan, again.result) == (trained.plan, json.loads(json.dumps(trained.result)))
    assert again.plan.seed == 3

    labels = again.labels
    assert set(labels.part) == {"train", "validation", "test"}
    assert labels.suspect[labels.part == "train"].sum() == trained.result["audit"]["suspects"]
    with pytest.raises(UserError, match="is not empty"):
        selfadapt.train("digits", out=tmp_path / "python", model="mlp", **SETTINGS)
    assert selfadapt.train("digits", out=tmp_path / "python", resume=True, **SETTINGS).result["epochs"] == 2


def test_predict_from_python_is_the_command(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 3
    values = generator.normal(size=(60, 4)).astype(np.float32) + labels[:, None]
    np.savez(tmp_path / "data.npz", x_train=values, y_train=labels)
    np.save(tmp_path / "new.npy", values[:5] + 0.1)
    trained = selfadapt.train(tmp_path / "data.npz", out=tmp_path / "run")
    assert trained.plan.method_name == trained.result["method"] == "sat-folds"
    records = trained.predict(tmp_path / "new.npy")
    lines = run("predict", tmp_path / "run", tmp_path / "new.npy", folder=tmp_path).stdout.splitlines()
    assert records == [json.loads(line) for line in lines]
    assert len(records) == 5


def test_what_cannot_be_trained_or_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--warp is not a setting of sat"):
        selfadapt.train("digits", out=tmp_path / "run", warp=1)
    with pytest.raises(UserError, match="there is no data set or path 'nowhere'"):
        selfadapt.train("nowhere", out=tmp_path / "run")
    mistakes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"noise": 5}, "--noise '5' is neither KIND:RATE"),
        ({"labels": [1, 2]}, "--labels is of type list; give the path of a file"),
        ({"data": ""}, "data or out is empty"),
        ({"out": ""}, "data or out is empty"),
    )
    for settings, message in mistakes:
        with pytest.raises(UserError, match=message):
            selfadapt.train(**{"data": "digits", "out": tmp_path / "run", **settings})
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="is not a run folder"):
        selfadapt.open_run(tmp_path)
