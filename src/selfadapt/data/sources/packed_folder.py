"""Image files packed into tar shards with an index: a few large files in place of millions of small ones.

Shards have the layout of WebDataset, so that other programs read them as a stream: for each sample the unchanged bytes
of its image, its class number (.cls), and its id and class name (.json), in random order. The index keeps the order,
ids and image headers of the source, which are read once, when it is packed. Nothing is listed or opened again, and a
run on the shards is bit-identical to one on the source.
"""

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

from selfadapt.core.atomic_files import atomic_folder
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.regular_files import read_regular
from selfadapt.core.rng import seeded
from selfadapt.core.typed_json import Count, Finite, check, parse
from selfadapt.data.dataset import Data
from selfadapt.data.forms.known_forms import form_of
from selfadapt.data.images.metadata import Header
from selfadapt.data.images.packed_files import INDEX_NAMES, INDEX_ROW, INDEX_ROWS, IndexRows, index_rows
from selfadapt.data.sources.image_folder import (
    ImageEntry,
    data_from_headers,
    folder_entries,
    image_table_entries,
    read_headers,
)
from selfadapt.data.tabular.table_file import TableColumns

FORMAT = 1


class _Index(TypedDict):
    """index.json"""

    name: str
    classes: list[str]
    ids: list[str]
    groups: list[str] | None
    suffixes: list[str]
    white: Finite | None
    unreadable: list[list[str]]
    shards: dict[str, Count]


_SPLITS = ("train", "validation", "test")


def is_packed_folder(path: Path) -> bool:
    return (path / INDEX_ROWS).is_file() and (path / INDEX_NAMES).is_file()


def pack(
    source: str,
    out: Path,
    *,
    columns: TableColumns | None = None,
    shard_bytes: int = 10**9,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Pack a folder of class folders, or a table of image files, into shards in a new folder.

    Returns:
        The numbers of images, shards and bytes, and the files that were left out because they are unreadable.
    """
    path = Path(source).resolve()
    if out.exists():
        raise UserError(f"{out} exists already; give the name of a new folder")
    name = path.name if path.is_dir() else path.stem
    if path.is_dir():
        entries = folder_entries(path)
    elif path.exists() and form_of(path) is not None:
        entries = image_table_entries(path, columns or TableColumns())
    else:
        raise UserError(f"{source} cannot be packed; give a folder of class folders, or a table of image files")
    readable, skipped = read_headers(entries)
    data = data_from_headers(name, readable, skipped)  # refuses what cannot be opened later
    try:
        with atomic_folder(out, flush=True) as draft:
            rows, shard_names = _write_shards(draft, readable, data.classes, shard_bytes, on_progress)
            with open(draft / INDEX_ROWS, "wb") as file:
                np.save(file, rows, allow_pickle=False)
            groups = [entry.group for entry, _ in readable]
            shards = {shard: (draft / shard).stat().st_size for shard in shard_names}
            index = {
                "format": FORMAT,
                "name": name,
                "classes": data.classes,
                "ids": [entry.id for entry, _ in readable],
                "groups": None if None in groups else groups,
                "suffixes": _suffixes(readable),
                "white": data.white,
                "unreadable": data.unreadable,
                "shards": shards,
            }
            size = sum(shards.values())
            (draft / INDEX_NAMES).write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}; free some space and try again") from error
    return {"images": len(rows), "shards": len(shard_names), "bytes": size, "unreadable": data.unreadable}


def _suffixes(readable: Sequence[tuple[ImageEntry, Header]]) -> list[str]:
    return sorted({entry.path.suffix.lower() for entry, _ in readable})


def _write_shards(
    folder: Path,
    readable: Sequence[tuple[ImageEntry, Header]],
    classes: Sequence[str],
    shard_bytes: int,
    on_progress: ProgressCallback,
) -> tuple[IndexRows, list[str]]:
    rows: IndexRows = np.zeros(len(readable), INDEX_ROW)
    label_of, suffixes, names, done = {name: k for k, name in enumerate(classes)}, _suffixes(readable), list[str](), 0
    order = torch.randperm(len(readable), generator=seeded(0, "pack")).tolist()
    for split in _SPLITS:
        shard: tarfile.TarFile | None = None
        of_split = 0
        for position in order:
            entry, header = readable[position]
            if entry.split != split:
                continue
            if shard is None or shard.offset > shard_bytes:
                if shard is not None:
                    shard.close()
                names.append(f"{split}-{of_split:06d}.tar")
                of_split += 1
                shard = tarfile.open(folder / names[-1], "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            label, suffix = label_of[entry.label], entry.path.suffix.lower()
            content = entry.path.read_bytes()
            offset = _add(shard, f"{position:09d}{suffix}", content)
            about = {"id": entry.id, "class": entry.label}
            _add(shard, f"{position:09d}.cls", str(label).encode())
            _add(shard, f"{position:09d}.json", json.dumps(about, ensure_ascii=False).encode())
            rows[position] = (
                len(names) - 1, offset, len(content), label, _SPLITS.index(split), suffixes.index(suffix),
                *header.size, header.grey, header.deep,
            )  # fmt: skip
            done += 1
            on_progress(done, len(readable))
        if shard is not None:
            shard.close()
    return rows, names


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> int:
    """Add a member and return the offset of its content."""
    about = tarfile.TarInfo(name)
    about.size = len(content)
    start = shard.offset + tarfile.BLOCKSIZE
    shard.addfile(about, io.BytesIO(content))
    return start


def first_sizes(root: Path) -> list[tuple[int, int]]:
    """Return the width and height of the first images; raise a UserError if the index is damaged."""
    with _reported(root):
        return [(int(row["width"]), int(row["height"])) for row in index_rows(root.absolute())[:32]]


@contextmanager
def _reported(root: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"the index of the shards in {root} is damaged ({error}); pack the data again") from error


def packed_headers(root: Path) -> tuple[list[tuple[ImageEntry, Header]], Mapping[str, Any]]:
    """Read the index: the images with their headers, in the order of the source, and the rest.

    Raises:
        UserError: If the index is damaged, of another version, or a shard is missing or has another size.
    """
    with _reported(root):
        rows = np.array(index_rows(root.absolute()))
        index = parse(read_regular(root / INDEX_NAMES))
        if index["format"] != FORMAT:
            raise UserError(f"{root} was packed by another version of selfadapt; pack it again")
        check(index, _Index)
        shards, suffixes, classes, ids = list(index["shards"]), index["suffixes"], index["classes"], index["ids"]
        groups = index["groups"] or [None] * len(ids)
        found = []
        for position, (row, sample_id, group) in enumerate(zip(rows.tolist(), ids, groups, strict=True)):
            shard, _, _, label, split, suffix, width, height, grey, deep = row
            path = root / shards[shard] / f"{position:09d}{suffixes[suffix]}"
            entry = ImageEntry(sample_id, path, classes[label], _SPLITS[split], group)
            found.append((entry, Header((width, height), bool(grey), bool(deep))))
    for name, size in index["shards"].items():
        shard_file = root / name
        if Path(name).name != name or not shard_file.is_file() or shard_file.stat().st_size != size:
            raise UserError(f"the shard {shard_file} is missing or incomplete; copy it again, or pack the data again")
    return found, index


def packed_data(root: Path, *, resize: int | None = None, white: float | None = None) -> Data:
    """Open a folder of shards by its index."""
    readable, index = packed_headers(root)
    data = data_from_headers(index["name"], readable, resize=resize, white=index["white"] if white is None else white)
    return replace(data, unreadable=[(str(sample_id), str(reason)) for sample_id, reason in index["unreadable"]])
