"""What a checkpoint holds on disk, who reads it, and what happens while it is being written."""

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.engine import checkpoint
from selfadapt.engine.checkpoint import Checkpoint, Draft
from selfadapt.engine.nested_tensors import flatten, unflatten


def _checkpoint(epoch: int = 1, value: float = 1.0) -> Checkpoint:
    model = {"weight": torch.full((2, 3), value), "bias": torch.tensor(value)}
    state: dict[str, Any] = {"optimizer": {"state": {0: {"momentum": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]}}
    return Checkpoint(epoch=epoch, step=0, model=model, targets={"rows": torch.eye(3)}, state=state)


def test_nested_state_comes_back_with_its_types_and_memory_layout() -> None:
    images = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    value = {"a": [1, 0.1, None, True, "text", (0.9, 0.999)], 7: {"images": images, "step": torch.tensor(3)}, "b": {}}
    found = unflatten(flatten(value))
    assert found["a"] == value["a"]
    assert list(found) == ["a", 7, "b"]
    assert torch.equal(found[7]["images"], images)
    assert found[7]["images"].stride() == images.stride()
    assert found[7]["step"].item() == 3


@pytest.mark.parametrize("text", ["{", "[1", '{"tensor": "5"}', '{"unknown": 1}'])
def test_damaged_structure_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unflatten({"structure": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)})


class _Planted:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


def test_a_planted_pickle_never_runs(tmp_path: Path) -> None:
    """Neither one beside the files of a checkpoint, under names that torch reads, nor one in place of a file."""
    canary, folder = tmp_path / "canary", tmp_path / "checkpoint"
    checkpoint.save(folder, _checkpoint())()
    (saved,) = folder.iterdir()
    assert not list(saved.glob("*.pt"))
    planted = pickle.dumps(_Planted(canary), protocol=2)
    for name in (".metadata", "state.pt", "__0_0.distcp"):
        (saved / name).write_bytes(planted)
        with pytest.warns(UserWarning, match="does not list its files"), pytest.raises(UserError):
            checkpoint.load_newest(folder)
        (saved / name).unlink()
    assert checkpoint.load_newest(folder) is not None
    for version, name in ((2, "state.pt"), (3, "state.safetensors")):
        (saved / name).write_bytes(planted)
        manifest = json.loads((saved / "manifest.json").read_text())
        manifest["format"], manifest["sha256"][name] = version, hashlib.sha256(planted).hexdigest()
        (saved / "manifest.json").write_text(json.dumps(manifest))
        with pytest.warns(UserWarning, match="damaged"), pytest.raises(UserError, match="all checkpoints"):
            checkpoint.load_newest(folder)
    assert not canary.exists()
    pickle.loads(planted)
    assert canary.exists(), "the test must plant something that runs"


def test_a_checkpoint_of_the_previous_format_is_read(tmp_path: Path) -> None:
    expected = _checkpoint()
    checkpoint.save(tmp_path, expected)()
    (saved,) = tmp_path.iterdir()
    (saved / "state.safetensors").unlink()
    torch.save(expected.state, saved / "state.pt")
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in saved.glob("[!m]*")}
    sums["model.safetensors"] = hashlib.sha256((saved / "model.safetensors").read_bytes()).hexdigest()
    (saved / "manifest.json").write_text(json.dumps({"format": 2, "sha256": sums}))
    found = checkpoint.load_newest(tmp_path)
    assert found is not None
    assert found.state["optimizer"]["param_groups"] == [{"lr": 0.1}]
    assert torch.equal(found.state["optimizer"]["state"][0]["momentum"], torch.ones(2))


def test_what_changes_after_a_save_in_the_background_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    changed, write = threading.Event(), Draft.write

    def write_later(self: Draft, files: Any) -> dict[str, str]:
        assert changed.wait(60)
        return write(self, files)

    monkeypatch.setattr(Draft, "write", write_later)
    content = _checkpoint(value=1.0)
    wait = checkpoint.save(tmp_path, content, in_background=True)
    for tensor in content.model.values():
        tensor.fill_(9.0)
    assert not list(tmp_path.glob("[0-9]*")), "nothing has been written yet"
    changed.set()
    wait()
    (saved,) = tmp_path.iterdir()
    _same_files(saved, _checkpoint(value=1.0), tmp_path)


def _same_files(saved: Path, expected: Checkpoint, folder: Path) -> None:
    """The files are those that a save in the foreground writes."""
    checkpoint.save(folder / "foreground", expected)()
    (other,) = (folder / "foreground").iterdir()
    assert json.loads((saved / "manifest.json").read_text()) == json.loads((other / "manifest.json").read_text())
    model: dict[str, Tensor] = load_file(saved / "model.safetensors")
    assert torch.equal(model["weight"], expected.model["weight"])


def test_a_full_disk_in_the_background_is_reported_and_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, _checkpoint(1), in_background=True)()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    wait = checkpoint.save(tmp_path, _checkpoint(2), in_background=True)
    with pytest.raises(UserError, match=r"cannot write checkpoint .*00002.*No space left"):
        wait()
    assert [path.name for path in tmp_path.iterdir()] == ["00001-0000000"]
