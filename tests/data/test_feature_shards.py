"""Shards give the same numbers as the array that they hold, in any format; what does not fit is refused by name."""

import json
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from selfadapt import find_label_errors
from selfadapt.core.array_files import Array
from selfadapt.core.errors import UserError
from selfadapt.data.shards.feature_shards import FeatureShards
from selfadapt.data.shards.manifest import Manifest, read_manifest, write_shard
from selfadapt.data.shards.shard_file import release

FEATURES = np.random.default_rng(0).normal(size=(500, 6)).astype(np.float32)
IDS = np.array([f"photo-{number:03d}" for number in range(500)])


def with_manifest(folder: Path) -> Path:
    """Shards whose manifest lists them in another order than their names."""
    later = write_shard(folder, 0, FEATURES[300:], ids=IDS[300:])
    first = write_shard(folder, 7, FEATURES[:300], ids=IDS[:300])
    Manifest(6, "float32", (first, later), {"model": "any"}).write(folder)
    return folder


def mixed_files(folder: Path) -> Path:
    """One file of each format, in the order of their names."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir()
    np.save(folder / "0.npy", FEATURES[:100])
    np.savez_compressed(folder / "1.npz", features=FEATURES[100:150])
    np.savez(folder / "2.npz", features=np.asfortranarray(FEATURES[150:300]))
    parquet.write_table(pyarrow.table({"features": pyarrow.array(list(FEATURES[300:310]))}), folder / "3.parquet")
    empty = pyarrow.array([], pyarrow.list_(pyarrow.float32()))
    parquet.write_table(pyarrow.table({"features": empty}), folder / "3a.parquet")
    np.save(folder / "3b.npy", FEATURES[:0])
    columns = {f"f{column}": FEATURES[310:, column] for column in range(6)}
    parquet.write_table(pyarrow.table(columns | {"label": np.zeros(190)}), folder / "4.parquet")
    return folder


def mapped_file(folder: Path) -> Array:
    folder.mkdir()
    np.save(folder / "all.npy", FEATURES)
    array: Array = np.load(folder / "all.npy", mmap_mode="r")
    return array


@pytest.mark.parametrize(
    "made",
    [
        with_manifest,
        mixed_files,
        mapped_file,
        lambda _: FEATURES,
        lambda _: torch.from_numpy(FEATURES),
        lambda _: iter(np.split(FEATURES, [1, 499])),
    ],
)
def test_any_source_gives_the_same_rows(made: Callable[[Path], object], tmp_path: Path) -> None:
    found = FeatureShards.of(made(tmp_path / "features"))
    assert (len(found), found.dimensions) == FEATURES.shape
    read = torch.cat([rows for _, rows in found.blocks(64)])
    np.testing.assert_array_equal(read, FEATURES)
    index = torch.randint(500, (200,), generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(found.take(index), FEATURES[index])


def test_manifest_and_ids_are_read_back(tmp_path: Path) -> None:
    folder = with_manifest(tmp_path)
    np.testing.assert_array_equal(FeatureShards.of(folder).column("ids"), IDS)
    assert FeatureShards.of(folder).column("labels") is None
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.source == {"model": "any"}
    assert all(entry.is_intact(folder) for entry in manifest.shards)
    with open(folder / "00007.npz", "r+b") as file:
        file.seek(-1000, 2)
        file.write(b"x")
    assert [entry.is_intact(folder) for entry in manifest.shards] == [False, True]


def test_reading_does_not_keep_a_mapped_file_in_memory(tmp_path: Path) -> None:
    if not hasattr(mmap, "MADV_DONTNEED"):
        pytest.skip("this system has no madvise")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    array = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.float32, (100_000, 128))  # 51 MB
    array[:] = 1
    del array
    shards = FeatureShards.of(tmp_path / "large.npy")
    before = resident()
    assert sum(float(rows.sum()) for _, rows in shards.blocks(1000)) == 12_800_000
    assert resident() - before < 20e6


def test_a_row_that_is_not_finite_is_named_in_its_shard(tmp_path: Path) -> None:
    features_NF = FEATURES.copy()
    features_NF[[303, 499], 2] = np.nan
    for number, part in enumerate(np.split(features_NF, [100, 300])):
        np.save(tmp_path / f"{number}.npy", part)
    with pytest.raises(ValueError, match=r"in 2 rows, first in row 3 of .*2\.npy; correct them"):
        find_label_errors(np.arange(500) % 3, features=tmp_path)


def test_the_changes_of_a_private_map_are_not_lost(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FEATURES)
    array = np.load(tmp_path / "x.npy", mmap_mode="c")
    array[:] = 3
    release(array)
    assert (FeatureShards.of(array).read(slice(0, 500)) == 3).all()


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    def refuses(features: object, *words: str) -> None:
        with pytest.raises(UserError) as error:
            FeatureShards.of(features)
        assert all(word in str(error.value) for word in words), error.value

    refuses(tmp_path / "none", "none", "does not exist")
    refuses(tmp_path, "none of the files")
    refuses(np.zeros(3), "a row for each sample")
    np.save(tmp_path / "a.npy", FEATURES)
    np.save(tmp_path / "b.npy", FEATURES[:, 1:])
    refuses(tmp_path, "b.npy", "5 features", "6")
    (tmp_path / "b.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-5])
    refuses(tmp_path, "b.npy", "cannot be read")
    np.save(tmp_path / "b.npy", np.array([{}]), allow_pickle=True)
    refuses(tmp_path, "b.npy")
    folder = with_manifest(tmp_path / "features")
    content = json.loads((folder / "manifest.json").read_text())
    content["shards"][0]["samples"] = 3
    (folder / "manifest.json").write_text(json.dumps(content))
    refuses(folder, "00007.npz", "300 samples", "lists 3")
    content["shards"][0]["file"] = "../a.npy"
    (folder / "manifest.json").write_text(json.dumps(content))
    refuses(folder, "../a.npy")
