"""The run folder and its page, from files alone."""

import base64
import io
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image

from full_disk import room_for
from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.errors import UserError
from selfadapt.report.comparison_page import write_comparison_page
from selfadapt.report.contact_sheet import MARK, Cell, contact_sheet, read_sheet
from selfadapt.report.figures import UNDER_ATTACK, accuracy_curves, matrix, methods, most_confused
from selfadapt.report.page import write_run_page
from selfadapt.run_folder.folder import LABEL_COLUMNS, RunFolder
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import start
from selfadapt.runs.train.train_or_load import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "small")
    settings = Request.of(
        data="digits", noise="symmetric:0.4", epochs=6, start_epoch=2, model="mlp", momentum=0.5, limit=400
    )
    train(start(settings, folder))
    return folder


class Outline(HTMLParser):
    """The tags of a page, checked for proper nesting, and its outside references."""

    VOID = frozenset({"meta", "img", "br", "link", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.pictures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.outside += [v for k, v in values.items() if k in ("src", "href") and v and not v.startswith("data:")]
        self.pictures += tag == "img"
        assert tag != "script"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _outline(page: Path) -> Outline:
    outline = Outline()
    outline.feed(page.read_text(encoding="utf-8"))
    assert not outline.open
    return outline


def test_the_run_folder_is_complete(folder: RunFolder) -> None:
    names = {path.name for path in folder.path.iterdir() if not path.name.startswith(".")}
    assert names == {
        "run.json", "checksums.json", "metrics.jsonl", "samples.csv", "checkpoint", "labels.csv", "transition.csv",
        "figures", "report.html",
    }  # fmt: skip
    figures = {path.name for path in folder.figures.iterdir()}
    assert figures == {
        "accuracy.svg", "portions.svg", "suspects.svg", "recovered.svg", "transition.svg", "weights.svg",
    }  # fmt: skip
    assert [record["epoch"] for record in folder.read_metrics()] == [1, 2, 3, 4, 5, 6]
    run = folder.read_run()
    assert run["noise"]["nominal"] == 0.4
    assert 0.3 < run["noise"]["actual"] < 0.42
    assert run["result"]["test_accuracy"] > 0.5


def test_labels_are_all_there_and_most_suspicious_first(folder: RunFolder) -> None:
    rows = folder.read_labels()
    assert list(rows[0]) == [*LABEL_COLUMNS]
    assert len({row["id"] for row in rows}) == len(rows) == 400 + 100 * 400 // 1397 + 1 + 300
    rows = [row for row in rows if row["part"] == "train"]
    assert len(rows) == 400
    suspect = [row["suspect"] == "1" for row in rows]
    assert 0 < sum(suspect) < 400
    assert suspect == sorted(suspect, reverse=True)
    assert all((row["given"] != row["suggested"]) == (row["suspect"] == "1") for row in rows)


def test_the_page_stands_alone(folder: RunFolder) -> None:
    outline = _outline(folder.page)
    assert outline.pictures == 5 + 40, "five figures, and a contact sheet of forty images"
    assert not outline.outside


def test_a_sheet_holds_every_pixel_and_every_word(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, shape, np.uint8) for shape in ((8, 8, 1), (5, 9, 3), *[(4, 4, 1)] * 7)]
    captions = ["3 → <b>", "a & b → c", *"cdefghi"]
    cells = [Cell(image, caption) for image, caption in zip(images, captions, strict=True)]
    contact_sheet([cells], tmp_path / "sheet.svg")
    root = ElementTree.parse(tmp_path / "sheet.svg").getroot()
    assert [element.text for element in root.iter() if element.tag.endswith("text")] == captions
    pictures = [element for element in root.iter() if element.tag.endswith("image")]
    for element, expected in zip(pictures, images, strict=True):
        content = base64.b64decode(element.attrib["href"].removeprefix("data:image/png;base64,"))
        found = np.asarray(Image.open(io.BytesIO(content)))
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)
    places = {(element.attrib["x"], element.attrib["y"]) for element in pictures}
    assert len(places) == 9
    assert len({y for _, y in places}) == 2, "eight in a row"
    (read,) = read_sheet(tmp_path / "sheet.svg")
    assert [(own.source, own.caption) for own in read] == [
        (element.attrib["href"], caption) for element, caption in zip(pictures, captions, strict=True)
    ]
    assert all(own.pixelated for own in read), "small images are enlarged without smoothing"


def test_a_block_begins_a_new_line_and_frames_what_stands_out(tmp_path: Path) -> None:
    blocks = [[Cell(np.zeros((4, 4, 1), np.uint8), "cat", framed=number == 1) for number in range(2)] for _ in "ab"]
    contact_sheet(blocks, tmp_path / "sheet.svg")
    root = ElementTree.parse(tmp_path / "sheet.svg").getroot()
    images, frames = ([own for own in root.iter() if own.tag.endswith(tag)] for tag in ("image", "rect"))
    assert len({own.attrib["y"] for own in images}) == 2
    assert [(own.attrib["x"], own.attrib["y"]) for own in frames] == [
        (own.attrib["x"], own.attrib["y"]) for own in images[1::2]
    ]
    assert {own.attrib["stroke"] for own in frames} == {MARK}
    assert [[own.framed for own in block] for block in read_sheet(tmp_path / "sheet.svg")] == [[False, True]] * 2


def test_a_sheet_of_an_older_run_is_one_block(tmp_path: Path) -> None:
    cells = [Cell(np.zeros((64, 64, 3), np.uint8), caption) for caption in ("cat → dog", "Tomato leaf → Pepper bell")]
    contact_sheet([cells], tmp_path / "sheet.svg")
    content = (tmp_path / "sheet.svg").read_text(encoding="utf-8")
    for added in ("<g>", "</g>", *(f"<title>{cell.caption}</title>" for cell in cells)):
        assert added in content
        content = content.replace(added, "")
    (tmp_path / "sheet.svg").write_text(content, encoding="utf-8")
    (read,) = read_sheet(tmp_path / "sheet.svg")
    assert [own.caption for own in read] == [cell.caption for cell in cells]
    assert not any(own.pixelated for own in read)


@pytest.mark.parametrize(
    "caption",
    [
        "Tomato leaf yellow virus → Tomato leaf mosaic virus",
        "Pepper__bell___Bacterial_spot → Tomato__Target_Spot",
        "WWWWWWWWWWWWWWWWWWWW → MMMMMMMMMMMMMMMMMM",
        "ネコネコネコネコネコネコ → イヌ",
        "a " * 200 + "→ b",
    ],
)
def test_captions_do_not_reach_into_each_other(caption: str, tmp_path: Path) -> None:
    """By the widths of matplotlib's DejaVu Sans, which is wider than most fonts."""
    from PIL import ImageFont

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 12)
    captions = ["cat → dog", caption, *[caption] * 6, "cat → dog"]
    contact_sheet([[Cell(np.zeros((4, 4, 1), np.uint8), own) for own in captions]], tmp_path / "sheet.svg")
    root = ElementTree.parse(tmp_path / "sheet.svg").getroot()
    texts = [element for element in root.iter() if element.tag.endswith("text")]
    pictures = [element for element in root.iter() if element.tag.endswith("image")]
    assert texts[0].text == texts[-1].text == "cat → dog"
    own = [text for text in texts if text.attrib["x"] == texts[1].attrib["x"]]
    joined = "".join(str(text.text) for text in own)
    whole = caption.replace(" ", "")
    if "…" in joined:
        begin, end = joined.replace(" ", "").split("…")
        assert whole.startswith(begin)
        assert whole.endswith(end)
    else:
        assert joined.replace(" ", "") == whole
    assert len(own) <= 8
    for text in own:
        assert font.getlength(str(text.text)) <= 86, text.text
    below = [float(picture.attrib["y"]) for picture in pictures][-1]
    assert max(float(text.attrib["y"]) for text in own) < below, "words end above the next row of pictures"


def test_a_curve_under_attack_has_whole_epochs_and_names_each_point_once(tmp_path: Path) -> None:
    metrics = [{"epoch": epoch, "robust_clean_accuracy": 0.4, "robust_accuracy": 0.2} for epoch in (8, 9, 10)]
    points = [(10, 0.15, "autoattack, 30 images"), (10, 0.15, "autoattack, 30 images"), (8, 0.1, "fgsm, 30 images")]
    for start_epoch, marked in ((7, 0), (8, 1), (10, 0)):
        accuracy_curves(metrics, UNDER_ATTACK, start_epoch, tmp_path / "curve.svg", points=points)
        words = ["".join(text.itertext()) for text in ElementTree.parse(tmp_path / "curve.svg").iter() if text.text]
        assert words.count("autoattack, 30 images") == 1
        assert words.count("fgsm, 30 images") == 1
        assert words.count("targets are updated") == marked
        assert {"8", "9", "10"} <= set(words)
        assert not any("." in word for word in words if word.replace(".", "").isdigit())
        assert "100" not in words  # the axis ends above the curves


def _texts(path: Path) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.parse(path).iter() if text.tag.endswith("text")]


@pytest.mark.parametrize(("count", "shown"), [(3, 3), (40, 40), (60, 40)])
def test_a_matrix_names_up_to_forty_classes_and_of_more_the_most_confused(
    count: int, shown: int, tmp_path: Path
) -> None:
    values = np.diag(np.full(count, 50.0))
    confused = [k for k in range(count) if count <= 40 or k % 3]  # 40 of 60
    for k in confused:
        values[k, confused[0] if k != confused[0] else confused[1]] += 1
    assert most_confused(values) == confused
    names = [f"class-{k}" for k in range(count)]
    matrix(values, names, "true", "given", tmp_path / "m.svg", decimals=0, shown=most_confused(values))
    words = _texts(tmp_path / "m.svg")
    assert len(confused) == shown
    assert {name: words.count(name) for name in names} == {f"class-{k}": 2 * (k in confused) for k in range(count)}


def test_the_dot_plot_has_every_row_between_the_ends_of_its_axis(tmp_path: Path) -> None:
    methods({"one": [0.86], "two": [0.97]}, tmp_path / "methods.svg")
    root = ElementTree.parse(tmp_path / "methods.svg").getroot()
    axes = next(own for own in root.iter() if own.attrib.get("id") == "patch_2")
    corners = [float(y) for y in next(iter(axes)).attrib["d"].replace("\n", " ").split()[2::3] if y != "z"]
    dots = [float(own.attrib["y"]) for own in root.iter() if own.tag.endswith("use") and "x" in own.attrib]
    marked = [y for y in dots if min(corners) + 5 < y < max(corners) - 5]
    assert len(set(marked)) == 2, "neither dot lies on the frame"
    assert {"one", "two", "86.0", "97.0"} <= set(_texts(tmp_path / "methods.svg"))


def test_a_comparison_opens_with_its_result_in_one_sentence(folder: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "other")
    shutil.copytree(folder.path, other.path)
    content = other.read_run()
    content["method"], content["settings"]["method"] = "ordinary training", {"name": "ordinary"}
    content["result"]["test_accuracy"] = 0.111
    other.write_run(content)
    html = write_comparison_page([other, folder], tmp_path / "both.html").read_text(encoding="utf-8")
    sentence = " ".join(re.sub(r"<[^>]+>", "", html.partition('<p class="summary">')[2].partition("</p>")[0]).split())
    result = folder.read_run()["result"]
    audit = result["audit"]
    assert sentence == (
        f"With {100 * result['noise']['actual']:.1f} % of the training labels wrong, self-adaptive training, E_s = 2 "
        f"reaches {100 * result['test_accuracy']:.1f} % test accuracy, ordinary training 11.1 %. It lists "
        f"{audit['suspects']} training labels as likely errors; {100 * audit['precision']:.1f} % of them are wrong."
    )
    assert html.index('class="sheet"') < html.index("<table"), "errors come before tables"
    assert html.count("<table") == 1


def test_label_tables_of_older_runs_show_relative_paths(folder: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(folder.path, copy.path)
    content = copy.read_run()
    content["settings"]["data"]["source"] = "/home/someone/photos"
    copy.write_run(content)
    rows = [{**row, "path": f"/home/someone/photos/cat/{k}.png"} for k, row in enumerate(copy.read_labels())]
    copy.write_labels([tuple({**row, "relative_path": ""}.values()) for row in rows], truth_known=True)
    html = write_run_page(copy).read_text(encoding="utf-8")
    assert "<span>cat/0.png</span>" in html
    assert "/home/someone/photos/cat" not in html


def test_a_page_over_several_runs_links_to_each(folder: RunFolder, tmp_path: Path) -> None:
    page = write_comparison_page([folder, folder], folder.path.parent / "both.html")
    assert _outline(page).outside == ["small/report.html"] * 3, "one each, and one to the likely errors"
    assert "self-adaptive training" in page.read_text(encoding="utf-8")


def test_pages_show_methods_side_by_side_and_the_sweep_over_noise(folder: RunFolder, tmp_path: Path) -> None:
    """Copies of a run with another method, seed or noise rate: figures come from run folders alone."""
    folders = []
    for method, start_epoch, seed, rate, accuracy in (
        ("ordinary training", None, 0, 0.4, 0.7), ("ordinary training", None, 1, 0.4, 0.8),
        ("self-adaptive training", "auto", 0, 0.4, 0.9), ("self-adaptive training", 2, 0, 0.4, 0.85),
    ):  # fmt: skip
        copy = RunFolder(tmp_path / f"{method}-{start_epoch}-{seed}".replace(" ", "-"))
        shutil.copytree(folder.path, copy.path)
        content = copy.read_run()
        content |= {"method": method, "seed": seed, "noise": {**content["noise"], "nominal": rate}}
        content["settings"] |= {"method": {"name": method, "start_epoch": start_epoch}, "seed": seed}
        content["result"]["test_accuracy"] = accuracy
        copy.write_run(content)
        folders.append(copy)
    page = write_comparison_page(folders, tmp_path / "one.html").read_text(encoding="utf-8")
    assert (tmp_path / "figures" / "methods.svg").exists()
    assert not (tmp_path / "figures" / "noise.svg").exists()
    assert "75.0\N{NO-BREAK SPACE}%" in page, "the mean over two seeds"
    assert "self-adaptive training, E_s = 2" in page
    content = folders[0].read_run()
    content["noise"]["nominal"], content["settings"]["data"]["noise"] = 0.2, "symmetric:0.2"
    folders[0].write_run(content)
    write_comparison_page(folders, tmp_path / "two.html")
    assert (tmp_path / "figures" / "noise.svg").exists()


def test_the_page_escapes_what_came_from_data(folder: RunFolder, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    copy = RunFolder(tmp_path)
    run = folder.read_run()
    run["data"] = {**run["data"], "name": evil, "classes": [evil, *run["data"]["classes"][1:]]}
    copy.write_run(run)
    copy.metrics_file.write_text(folder.metrics_file.read_text(encoding="utf-8"), encoding="utf-8")
    rows = [
        {**row, "id": f"{evil}{place}"}
        for place, row in enumerate(folder.read_labels())
        if "0" not in (row["given"], row["suggested"], row["predicted"], row["runner_up"], row["truth"])
    ]
    copy.write_labels([tuple(row.values()) for row in rows], truth_known=True)
    html = write_run_page(copy).read_text(encoding="utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html
    _outline(copy.page)


def test_an_unfinished_run_has_a_page_too(folder: RunFolder, tmp_path: Path) -> None:
    run = folder.read_run()
    del run["result"]
    copy = RunFolder(tmp_path)
    copy.write_run(run)
    assert "unfinished: 0 of 6 epochs" in write_run_page(copy).read_text(encoding="utf-8")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted() -> None:
        with atomic_write(path) as file:
            file.write("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: contact_sheet([[Cell(np.zeros((4, 4, 1), np.uint8), "cat → dog")] * 9], path),
        lambda path: accuracy_curves([{"epoch": 1, "robust_accuracy": 0.2}], UNDER_ATTACK, None, path),
    ],
)
def test_a_figure_appears_whole_or_not_at_all(tmp_path: Path, draw: Callable[[Path], None]) -> None:
    path = tmp_path / "figure.svg"
    draw(path)
    whole = path.read_bytes()
    with room_for(len(whole) // 2), pytest.raises(UserError, match="cannot be written"):
        draw(path)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
