"""A user's own data, tidy and untidy."""

import fcntl
import os
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from data.tables import write_table
from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.images.decode import UnreadableImage, decode
from selfadapt.data.images.decoded_cache import cache_decoded
from selfadapt.data.images.metadata import header
from selfadapt.data.images.storage import ImageFiles, TensorImages
from selfadapt.data.sources.catalog import open_data
from selfadapt.data.tabular.table_file import TableColumns

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _picture(path: Path, size: tuple[int, int] = (12, 10), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    for kind in ("cat", "dog"):
        for i in range(10):
            _picture(tmp_path / "zoo" / kind / f"{i}.png", seed=i)
    return tmp_path / "zoo"


def test_a_folder_of_class_folders(zoo: Path) -> None:
    (zoo / "cat" / "notes.txt").write_text("no image")
    (zoo / ".hidden").mkdir()
    data = open_data(str(zoo))
    assert data.classes == ("cat", "dog")
    assert data.validation is None
    assert data.test is None
    assert list(data.train.ids[:2]) == ["cat/0.png", "cat/1.png"]
    assert data.train.inputs.shape == (3, 10, 12)
    assert data.train.labels.tolist() == [0] * 10 + [1] * 10


def test_ids_survive_adding_removing_and_reordering(zoo: Path) -> None:
    before = open_data(str(zoo)).train
    _picture(zoo / "ant" / "0.png")
    (zoo / "cat" / "3.png").unlink()
    after = open_data(str(zoo)).train
    assert set(before.ids) - set(after.ids) == {"cat/3.png"}
    assert set(after.ids) - set(before.ids) == {"ant/0.png"}


def test_a_folder_with_parts(tmp_path: Path) -> None:
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        for kind in ("cat", "dog"):
            for i in range(count):
                _picture(tmp_path / "zoo" / part / kind / f"{i}.png")
    data = open_data(str(tmp_path / "zoo"))
    assert data.validation is not None
    assert data.test is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 4, 6)
    assert data.test.ids[0] == "test/cat/0.png"


def test_awrite_table(zoo: Path) -> None:
    rows = [
        {"path": f"{kind}/{i}.png", "label": kind.upper(), "id": f"{kind}-{i}", "split": "test" if i > 7 else "train"}
        for kind in ("cat", "dog")
        for i in range(10)
    ]
    data = open_data(str(write_table(zoo / "list.csv", rows)))
    assert data.test is not None
    assert (data.classes, len(data.train), len(data.test)) == (("CAT", "DOG"), 16, 4)
    assert data.test.ids[0] == "cat-8"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), zoo / "list.parquet")
    same = open_data(str(zoo / "list.parquet"))
    assert list(same.train.ids) == list(data.train.ids)
    assert same.train.labels.tolist() == data.train.labels.tolist()


def test_columns_of_a_table_of_images(zoo: Path) -> None:
    rows = [
        {"path": f"{kind}/{i}.png", "species": kind, "label": "animal", "patient": f"{kind} {i // 5}"}
        for kind in ("cat", "dog")
        for i in range(10)
    ]
    path = str(write_table(zoo / "patients.csv", rows))
    data = open_data(path, columns=TableColumns(label="species", group="patient"))
    assert (data.classes, set(data.train.groups or ())) == (("cat", "dog"), {"cat 0", "cat 1", "dog 0", "dog 1"})
    split = data.with_validation(0.5, seeded("any"))
    assert split.validation is not None
    assert split.train.groups is not None
    assert split.validation.groups is not None
    assert not set(split.train.groups) & set(split.validation.groups), "what belongs together is not parted"
    for columns, words in (
        (TableColumns(label="kind"), "has no column 'kind'"),
        (TableColumns(label="species", group="ward"), "has no column 'ward'"),
    ):
        with pytest.raises(UserError, match=words):
            open_data(path, columns=columns)
    blank = write_table(zoo / "blank.csv", [*rows[:-1], {**rows[-1], "patient": ""}])
    with pytest.raises(UserError, match="row 21: patient is empty"):
        open_data(str(blank), columns=TableColumns(group="patient"))
    for source in (str(zoo), "digits"):
        for other, option in (
            (TableColumns(group="patient"), "--group-column"),
            (TableColumns(text="words"), "--text-column"),
        ):
            with pytest.raises(UserError, match=f"{option} is for tables"):
                open_data(source, columns=other)


def test_numbers_as_class_names_are_in_order(zoo: Path) -> None:
    rows = [{"path": f"cat/{i}.png", "label": str(i)} for i in (9, 2, 0, 5)] + [{"path": "dog/1.png", "label": "10"}]
    assert open_data(str(write_table(zoo / "n.csv", rows))).classes == ("0", "2", "5", "9", "10")


def _untidy(zoo: Path, case: str) -> str:
    """A mistake made in the zoo; returns the DATA to open."""
    table = [{"path": "cat/0.png", "label": "cat"}, {"path": "dog/0.png", "label": "dog"}]
    if case == "no column":
        return str(write_table(zoo / "t.csv", [{"file": "x", "label": "y"}]))
    if case == "no rows":
        (zoo / "t.csv").write_text("path,label\n")
        return str(zoo / "t.csv")
    if case == "duplicate id":
        return str(write_table(zoo / "t.csv", [{**row, "id": "same"} for row in table]))
    if case == "empty label":
        return str(write_table(zoo / "t.csv", [{**row, "label": ""} for row in table]))
    if case == "bad split":
        return str(write_table(zoo / "t.csv", [{**row, "split": "exam"} for row in table]))
    if case == "control character":
        return str(write_table(zoo / "t.csv", [{**row, "label": f"a\r{i}"} for i, row in enumerate(table)]))
    if case == "no files":
        return str(write_table(zoo / "t.csv", [{**row, "path": f"gone{i}.png"} for i, row in enumerate(table)]))
    if case == "label that training lacks":
        extra = {"path": "dog/1.png", "label": "emu", "split": "val"}
        return str(write_table(zoo / "t.csv", [*({**row, "split": "train"} for row in table), extra]))
    if case == "not a table":
        (zoo / "t.csv").write_bytes(b"\xff\xfe\x00")
        return str(zoo / "t.csv")
    if case == "not parquet":
        (zoo / "t.parquet").write_text("hello")
        return str(zoo / "t.parquet")
    if case == "empty class":
        (zoo / "emu").mkdir()
    if case == "flat folder":
        return str(zoo / "cat")
    if case == "strange file":
        (zoo / "data.xlsx").write_text("?")
        return str(zoo / "data.xlsx")
    return str(zoo)


UNTIDY = {
    "no column": "no column distinguishes samples",
    "no rows": "has no rows",
    "duplicate id": "the id 'same' is used in rows 2 and 3",
    "empty label": r"row 2 \(cat/0.png\): label is empty",
    "bad split": "row 2: split is 'exam'; write train, val or test",
    "control character": "is not a valid class name",
    "no files": "none of 2 files can be read as an image, such as gone0.png: there is no such file",
    "label that training lacks": "dog/1.png has the label 'emu', which no training sample has",
    "not a table": r"cannot be read as a .csv file",
    "not parquet": r"cannot be read as a .parquet file",
    "empty class": "emu contains no images; add some or remove it",
    "flat folder": "contains no class folders",
    "strange file": "is not a supported kind of data; give a folder of class folders",
}


@pytest.mark.parametrize("case", UNTIDY)
def test_untidy_data_get_a_clear_word(case: str, zoo: Path) -> None:
    with pytest.raises(UserError, match=UNTIDY[case]):
        open_data(_untidy(zoo, case))


def test_mixed_sizes_are_brought_to_one(zoo: Path) -> None:
    _picture(zoo / "cat" / "odd.png", (30, 20))
    data = cache_decoded(open_data(str(zoo), resize=8))
    assert isinstance(data.train.inputs, TensorImages)
    assert data.train.inputs.shape == (3, 8, 8)
    assert len(data.train) == 21


def test_broken_files_are_listed_and_skipped(zoo: Path) -> None:
    (zoo / "cat" / "not.png").write_bytes(b"this is no picture")
    whole = (zoo / "dog" / "4.png").read_bytes()
    (zoo / "dog" / "4.png").write_bytes(whole[: len(whole) // 2])
    data = cache_decoded(open_data(str(zoo)))
    assert {name for name, _ in data.unreadable} == {"cat/not.png", "dog/4.png"}
    assert len(data.train) == 19
    assert "dog/4.png" not in data.train.ids
    fine = data.train.ids.index("dog/5.png")
    expected = decode(zoo / "dog" / "5.png", channels=3, resize=None)
    assert torch.equal(data.train.inputs.read(torch.tensor([fine]))[0], expected)


def test_the_decoded_copy_is_used_again_and_renewed(zoo: Path, home: Path) -> None:
    counts: list[int] = []

    def on_progress(done: int, total: int) -> None:
        counts.append(done)

    first = cache_decoded(open_data(str(zoo)), on_progress=on_progress)
    assert counts[-1] == 20
    counts.clear()
    second = cache_decoded(open_data(str(zoo)), on_progress=on_progress)
    assert counts == []
    assert first.fingerprint == second.fingerprint
    _picture(zoo / "cat" / "0.png", seed=99)
    third = cache_decoded(open_data(str(zoo)), on_progress=on_progress)
    assert counts[-1] == 20
    assert not torch.equal(third.train.inputs.read(torch.tensor([0])), first.train.inputs.read(torch.tensor([0])))
    assert len(list((home / "decoded").iterdir())) == 2


def test_a_home_that_cannot_be_written_is_a_clear_error(
    zoo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"decoded images cannot be cached in .*set SELFADAPT_HOME"):
        cache_decoded(open_data(str(zoo)))
    assert isinstance(cache_decoded(open_data(str(zoo)), stream=True).train.inputs, ImageFiles)


def test_every_kind_of_image_is_decoded(tmp_path: Path) -> None:
    grey = np.arange(80, dtype=np.uint8).reshape(8, 10)
    colour = np.stack([grey, grey + 50, grey + 100], axis=2)
    alpha = np.dstack([colour, np.full((8, 10), 128, np.uint8)])
    cases: dict[str, tuple[Image.Image, int, Array]] = {
        "grey.png": (Image.fromarray(grey), 1, grey[None]),
        "grey as colour.png": (Image.fromarray(grey), 3, np.stack([grey] * 3)),
        "colour.png": (Image.fromarray(colour), 3, colour.transpose(2, 0, 1)),
        "palette.png": (
            Image.fromarray(grey).convert("P"), 3, np.stack([grey] * 3),
        ),
        "sixteen.png": (Image.fromarray(grey.astype(np.uint16) * 257), 1, grey[None]),
        "alpha.png": (
            Image.fromarray(alpha), 3,
            np.round(colour * (128 / 255) + 255 * (127 / 255)).transpose(2, 0, 1),
        ),
        "float.tif": (Image.fromarray(grey.astype(np.float32)), 1, grey[None]),
    }  # fmt: skip
    whites = {"sixteen.png": 65535.0, "float.tif": 255.0}
    for name, (image, channels, expected) in cases.items():
        image.save(tmp_path / name)
        pixels = decode(tmp_path / name, channels=channels, resize=None, white=whites.get(name))
        np.testing.assert_allclose(pixels.numpy(), expected, atol=1, err_msg=name)


def test_turned_and_moving_pictures(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was held on its side
    image.save(tmp_path / "turned.png", exif=exif)
    turned = decode(tmp_path / "turned.png", channels=3, resize=None)
    np.testing.assert_array_equal(turned.numpy(), np.rot90(pixels, -1).transpose(2, 0, 1))
    for kind in ("a", "b"):
        (tmp_path / "set" / kind).mkdir(parents=True)
        image.save(tmp_path / "set" / kind / "turned.png", exif=exif)
    assert open_data(str(tmp_path / "set")).train.inputs.shape == (3, 12, 8)

    frames = [Image.new("L", (6, 6), shade) for shade in (10, 200)]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert int(decode(tmp_path / "moving.gif", channels=1, resize=None).max()) == 10


def test_resizing_keeps_the_middle(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    square = decode(tmp_path / "wide.png", channels=3, resize=20)
    assert square.shape == (3, 20, 20)
    assert int(square.min()) == 200


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_names_that_are_no_text_are_listed_and_skipped(zoo: Path) -> None:
    source = next((zoo / "cat").glob("*.png"))
    for name in (b"\xff.png", b"line\nbreak.png"):
        (zoo / "cat" / os.fsdecode(name)).write_bytes(source.read_bytes())
    data = open_data(str(zoo))
    assert [name for name, _ in data.unreadable] == ["cat/\\udcff.png"]
    assert "cat/line\nbreak.png" in data.train.ids


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_a_class_whose_name_is_no_text_is_an_error_that_names_it(zoo: Path) -> None:
    name = os.fsdecode(b"e\xffmu")
    _picture(zoo / name / "0.png")
    with pytest.raises(UserError) as error:
        open_data(str(zoo))
    assert str(error.value).startswith(f"zoo: no training file of the class {name!r} can be used, such as")
    assert "rename the file" in str(error.value)
    str(error.value).encode()  # it can be printed


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
@pytest.mark.parametrize("name", ["e\tmu", "e\nmu"])
def test_a_class_stands_in_tables_and_figures_so_its_name_is_printable(name: str, zoo: Path) -> None:
    _picture(zoo / name / "0.png")
    with pytest.raises(UserError) as error:
        open_data(str(zoo))
    assert f"{name!r} is not a valid class name; use printable characters" in str(error.value)


def test_a_class_of_broken_files_is_an_error_that_names_it(zoo: Path) -> None:
    (zoo / "emu").mkdir()
    (zoo / "emu" / "0.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"the class 'emu' can be used, such as emu/0.png: cannot identify"):
        open_data(str(zoo))
    for path in (zoo / "dog").iterdir():
        path.write_bytes(path.read_bytes()[:80])
    (zoo / "emu" / "0.png").write_bytes((zoo / "cat" / "0.png").read_bytes())
    data = open_data(str(zoo))
    with pytest.raises(UserError, match=r"none of the 10 training files of the class 'dog' can be read, such as dog/0"):
        cache_decoded(data)


def _sixteen(path: Path, values: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint16)).save(path)


def test_images_of_16_bits_have_one_scale(tmp_path: Path) -> None:
    """Of 12 bits: 250, 260 and 4095 keep their proportions, whichever file they are in."""
    levels = {"a/0.png": 250, "a/1.png": 260, "b/0.tif": 4095, "b/1.png": 2048}
    for name, level in levels.items():
        _sixteen(tmp_path / "set" / name, np.full((4, 4), level))
    Image.fromarray(np.full((4, 4), 128, np.uint8)).save(tmp_path / "set" / "b" / "eight.png")
    for stream in (True, False):
        data = cache_decoded(open_data(str(tmp_path / "set")), stream=stream)
        assert data.white == 4095
        found = dict(zip(data.train.ids, data.train.inputs.read(torch.arange(5))[:, 0, 0, 0].tolist(), strict=True))
        assert found == {**{name: round(level * 255 / 4095) for name, level in levels.items()}, "b/eight.png": 128}
    assert not data.unreadable


@pytest.mark.parametrize(("largest", "white"), [(0, 255), (255, 255), (256, 1023), (5000, 16383), (65535, 65535)])
def test_white_is_the_next_depth(largest: int, white: int, tmp_path: Path) -> None:
    values = np.zeros((4, 4))
    values[1, 2] = largest
    for kind in ("a", "b"):
        _sixteen(tmp_path / "set" / kind / "0.png", values if kind == "b" else np.zeros((4, 4)))
    assert open_data(str(tmp_path / "set")).white == white


def test_a_run_keeps_its_scale(tmp_path: Path) -> None:
    """A brighter file that comes later is not read on another scale than those that were there."""
    for kind, level in (("a", 1000), ("b", 4000)):
        _sixteen(tmp_path / "set" / kind / "0.png", np.full((4, 4), level))
    white = open_data(str(tmp_path / "set")).white
    _sixteen(tmp_path / "set" / "a" / "later.png", np.full((4, 4), 60000))
    assert open_data(str(tmp_path / "set")).white == 65535
    data = cache_decoded(open_data(str(tmp_path / "set"), white=white))
    assert data.unreadable == [("a/later.png", "its pixel value 60000 exceeds the white level 4095 of these data")]
    assert data.train.inputs.read(torch.tensor([0]))[0, 0, 0, 0] == round(1000 * 255 / 4095)


def test_floats_up_to_one_are_not_black(tmp_path: Path) -> None:
    for kind, level in (("a", 0.25), ("b", 1.0)):
        (tmp_path / "set" / kind).mkdir(parents=True)
        Image.fromarray(np.full((4, 4), level, np.float32)).save(tmp_path / "set" / kind / "0.tif")
    data = open_data(str(tmp_path / "set"))
    assert data.train.inputs.read(torch.arange(2))[:, 0, 0, 0].tolist() == [64, 255]


def test_16_bits_among_8_are_not_guessed(tmp_path: Path) -> None:
    _sixteen(tmp_path / "new.png", np.full((4, 4), 300))
    with pytest.raises(UnreadableImage, match="more than 8 bits"):
        decode(tmp_path / "new.png", channels=1, resize=None)


def _with_chunk(path: Path, kind: bytes, content: bytes, *, late: bool) -> None:
    """Put a chunk into a PNG, before its pixels or behind them."""
    data = path.read_bytes()
    chunk = len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
    place = data.index(b"IEND" if late else b"IDAT") - 4
    path.write_bytes(data[:place] + chunk + data[place:])


def test_the_head_of_a_png_is_read_without_its_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = exif.tobytes().removeprefix(b"Exif\0\0")
    xmp = b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="8"/>'
    chunks = {
        "plain": (b"tEXt", b"Comment\0none", False),
        "late text": (b"tEXt", b"date:create\0today", True),
        "early exif": (b"eXIf", lying, False),
        "late exif": (b"eXIf", lying, True),
        "early xmp": (b"iTXt", xmp, False),
        "late xmp": (b"iTXt", xmp, True),
    }
    for name, (kind, content, late) in chunks.items():
        path = _picture(tmp_path / f"{name}.png")
        _with_chunk(path, kind, content, late=late)
        size = decode(path, channels=3, resize=None).shape[:0:-1]
        assert header(path).size == tuple(size) == ((12, 10) if name in ("plain", "late text") else (10, 12)), name
    decoded: list[str] = []
    load = PngImageFile.load

    def counted(image: PngImageFile) -> Any:
        decoded.append(image.fp.name if image.fp else "")
        return load(image)

    monkeypatch.setattr(PngImageFile, "load", counted)
    for name in chunks:
        header(tmp_path / f"{name}.png")
    assert [Path(name).stem for name in decoded] == ["late exif", "late xmp"]


def test_drafts_of_decodings_that_were_killed_are_cleaned(zoo: Path, home: Path) -> None:
    dead, alive = (home / "decoded" / f".draft-{name}" for name in ("dead", "alive"))
    for draft in (dead, alive):
        draft.mkdir(parents=True)
        (draft / "pixels.bin").write_bytes(b"x")
    with open(home / "decoded" / ".lock-alive", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cache_decoded(open_data(str(zoo)))
        assert [draft.exists() for draft in (dead, alive)] == [False, True]
    cache_decoded(open_data(str(zoo)))
    assert not alive.exists()
    assert not list((home / "decoded").glob(".*")), "no lock stays"


def _change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [_change_a_byte, _cut, Path.unlink])
@pytest.mark.parametrize("name", ["pixels.bin", "index.json"])
def test_damaged_pixels_are_decoded_again(zoo: Path, home: Path, name: str, damage: Callable[[Path], None]) -> None:
    data = cache_decoded(open_data(str(zoo)))
    expected, ids = data.train.inputs.read(torch.arange(len(data.train))), data.train.ids
    for path in (home / "decoded").glob(f"*/{name}"):
        damage(path)
    with pytest.warns(UserWarning, match="is damaged: .* the images are decoded again"):
        again = cache_decoded(open_data(str(zoo)))
    assert again.train.ids == ids
    torch.testing.assert_close(again.train.inputs.read(torch.arange(len(ids))), expected, rtol=0, atol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache_decoded(open_data(str(zoo)))


def test_the_decoded_copy_is_on_the_disk_before_it_has_its_name(
    zoo: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(handle: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def renamed(path: Path, target: Path) -> Path:
        events.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    cache_decoded(open_data(str(zoo)))
    draft = events[2]
    assert draft.startswith(".draft-")
    assert events == ["pixels.bin", "index.json", draft, "rename", "decoded"]


def test_limits_of_own_data_keep_the_share_of_each_class(tmp_path: Path) -> None:
    sizes = {"ant": 40, "bee": 20, "cat": 20, "doe": 1}
    rows = [
        {"path": f"{kind}{i}.png", "label": kind, "split": part}
        for part in ("train", "val", "test")
        for kind, count in sizes.items()
        for i in range(count)
    ]
    for row in rows:
        row["id"] = f"{row['split']}/{row['path']}"
        if not (tmp_path / row["path"]).exists():
            _picture(tmp_path / row["path"], (4, 4))
    data = open_data(str(write_table(tmp_path / "list.csv", rows)))
    few = data.limited(41, 21, seed=3)
    assert few.validation is not None
    assert few.test is not None
    assert torch.bincount(few.train.labels).tolist() == [20, 10, 10, 1]
    assert torch.bincount(few.validation.labels).tolist() == [20, 10, 10, 1]
    assert torch.bincount(few.test.labels).tolist() == [10, 5, 5, 1]
    assert data.limited(41, 21, seed=3).fingerprint == few.fingerprint
    assert data.limited(41, 21, seed=4).fingerprint != few.fingerprint
    assert set(data.limited(10, None, seed=3).train.ids) < set(few.train.ids), "fewer are a part of more"
    assert sorted(data.limited(4, None).train.labels.tolist()) == [0, 1, 2, 3], "each class has one"
    assert len(data.limited(500, 500).train) == len(data.train)
