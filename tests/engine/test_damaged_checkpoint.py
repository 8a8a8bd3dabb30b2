"""Checkpoints whose manifest is valid and whose content is not: the one before is loaded, and nothing is executed."""

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from selfadapt.core.errors import UserError
from selfadapt.engine import checkpoint
from selfadapt.engine.checkpoint import Checkpoint


class _Executed:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("executed",)


def _state_is_a_list(folder: Path) -> None:
    torch.save([1, 2], folder / "state.pt")


def _state_is_a_pickle(folder: Path) -> None:
    (folder / "state.pt").write_bytes(pickle.dumps(_Executed()))


def _huge_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")


def _no_tensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not tensors at all")


SPOILS: list[Callable[[Path], None]] = [_state_is_a_list, _state_is_a_pickle, _huge_header, _no_tensors]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for epoch in (1, 2):
        content = {"weight": torch.full((3,), float(epoch))}
        checkpoint.save(tmp_path, Checkpoint(epoch=epoch, step=0, model=content, targets=None, state={"history": "[]"}))
    return tmp_path


def _sign(folder: Path) -> None:
    """Make the manifest fit its files."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest["sha256"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: str(spoil.__name__))
def test_wrong_content_with_a_valid_manifest_counts_as_damaged(spoil: Callable[[Path], None], folder: Path) -> None:
    newest = folder / "00002-0000000"
    spoil(newest)
    _sign(newest)
    with pytest.warns(UserWarning, match="00002-0000000 is damaged"):
        loaded = checkpoint.load_newest(folder)
    assert loaded is not None
    assert (loaded.epoch, loaded.model["weight"].tolist()) == (1, [1.0, 1.0, 1.0])
    assert not (folder / "executed").exists()


@pytest.mark.parametrize(
    "manifest",
    [
        {"format": 2, "sha256": {}},
        {"format": 2, "sha256": {"../../secret": "0", "/dev/zero": "0"}},
        {"format": 2, "sha256": []},
        {"format": 2, "sha256": {"model.safetensors": 1, "state.pt": None}},
        [],
        None,
    ],
)
def test_a_manifest_that_does_not_list_the_files_counts_as_damaged(manifest: object, folder: Path) -> None:
    for path in folder.glob("*/manifest.json"):
        path.write_text(json.dumps(manifest))
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(UserError, match=r"all checkpoints in .* are damaged"),
    ):
        checkpoint.load_newest(folder)
