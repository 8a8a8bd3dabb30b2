"""Checkpoints that several processes write and choose together."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from distributed.group import in_processes
from selfadapt.core import distributed
from selfadapt.core.regular_files import sha256_of
from selfadapt.engine import checkpoint
from selfadapt.engine.checkpoint import Checkpoint

pytestmark = pytest.mark.distributed


def _save(folder: Path, epoch: int, *, in_background: bool = True) -> None:
    rank = distributed.rank()
    content = Checkpoint(
        epoch=epoch,
        step=0,
        model={"weight": torch.full((3,), float(epoch))},
        targets={"rows": torch.full((2, 2), float(10 * epoch + rank)), "writes": torch.tensor(epoch)},
        state={"history": "[]"},
    )
    checkpoint.save(folder, content, sharded=True, in_background=in_background)()


def _epoch(folder: Path) -> int:
    found = checkpoint.load_newest(folder)
    assert found is not None
    assert found.targets is not None
    assert torch.equal(found.targets["rows"], torch.full((2, 2), float(10 * found.epoch + distributed.rank())))
    return found.epoch


def _read_by_each(folder: Path) -> None:
    """In as many processes as before each reads its own shard; in half as many, two."""
    if distributed.world_size() == 4:
        _save(folder, 1)
    read = list[str]()

    def spy(path: Path, **given: str) -> dict[str, Tensor]:
        read.append(path.name)
        return load_file(path, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load_file", spy)
        assert checkpoint.load_newest(folder) is not None
    own = range(distributed.rank(), 4, distributed.world_size())
    expected = [
        "model.safetensors",
        "state.safetensors",
        *(f"targets-{number:05d}-of-00004.safetensors" for number in own),
    ]
    assert sorted(read) == sorted(expected)


def test_each_process_reads_the_shards_that_have_its_rows(tmp_path: Path) -> None:
    for count in (4, 2):
        in_processes(count, _read_by_each, tmp_path)


def _without_a_limit(folder: Path) -> None:
    """Rank 0 may write or solve for longer than collectives wait."""
    groups = list[object]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "barrier", groups.append)
        content = Checkpoint(epoch=1, step=0, model={}, targets=None, state={"history": "[]"})
        checkpoint.save(folder, content)
    assert groups == [distributed.background_group()]
    options = groups[0]._get_backend(torch.device("cpu")).options  # type: ignore[attr-defined]
    assert options._timeout.days > 30


def test_processes_wait_for_the_first_one_however_long_it_writes(tmp_path: Path) -> None:
    in_processes(2, _without_a_limit, tmp_path)


def _hashed(folder: Path) -> None:
    hashed = list[str]()

    def spy(path: Path) -> str:
        hashed.append(path.name)
        return sha256_of(path)

    rank = distributed.rank()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "sha256_of", spy)
        _save(folder, 1)
        own = [f"targets-{rank:05d}-of-00002.safetensors"]
        assert hashed == [*(["model.safetensors", "state.safetensors"] if rank == 0 else []), *own]
        hashed.clear()
        assert _epoch(folder) == 1
    every = distributed.all_gather_objects(hashed)
    assert sorted(name for names in every for name in names) == sorted(
        path.name for path in folder.glob("*/*.safetensors")
    ), "every file is verified once, by one of the processes"
    _save(folder, 2, in_background=False)
    assert _epoch(folder) == 2


def test_each_process_hashes_what_it_wrote(tmp_path: Path) -> None:
    in_processes(2, _hashed, tmp_path)
    manifest = json.loads((tmp_path / "00002-0000000" / "manifest.json").read_text())
    assert sorted(manifest["sha256"]) == [
        "model.safetensors", "state.safetensors", "targets-00000-of-00002.safetensors",
        "targets-00001-of-00002.safetensors",
    ]  # fmt: skip


def _damaged(folder: Path) -> None:
    for epoch in (1, 2):
        _save(folder, epoch)
    with pytest.MonkeyPatch.context() as patch:
        if distributed.rank() == 1:  # whose file system shows another folder
            patch.setattr(checkpoint, "_newest_first", lambda folder: [])
        assert _epoch(folder) == 2

    def fails(path: Path) -> None:
        raise OSError(f"{path} has a bad sector")

    with pytest.MonkeyPatch.context() as patch:
        if distributed.rank() == 1:
            targets = checkpoint._targets
            patch.setattr(checkpoint, "_targets", lambda path: (fails if "00002" in path.name else targets)(path))
        with pytest.warns(UserWarning, match="00002-0000000 is damaged .*bad sector"):
            assert _epoch(folder) == 1
    distributed.barrier()
    if distributed.rank() == 0:
        shard = folder / "00002-0000000" / "targets-00001-of-00002.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    distributed.barrier()
    with pytest.warns(UserWarning, match=r"00002-0000000 is damaged .*targets-00001-of-00002"):
        assert _epoch(folder) == 1


def test_a_shard_that_is_damaged_for_one_process_makes_all_fall_back(tmp_path: Path) -> None:
    in_processes(2, _damaged, tmp_path)
