"""Data in every form -> corrections -> the same form: only the corrected labels differ, and ids stay."""

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from data.forms import stored_data
from selfadapt.core.errors import UserError
from selfadapt.data.forms.known_forms import read_table
from selfadapt.data.sources.catalog import open_data
from selfadapt.data.sources.write_back import Corrections, write_back
from selfadapt.data.tabular.table_file import TableColumns

pytestmark = pytest.mark.filterwarnings("ignore:.*without a label")
ANIMAL = TableColumns(label="animal")
FORMS: list[tuple[Callable[[Path], Path], TableColumns, str, str]] = [  # and the ids of the second and the fourth
    (stored_data.csv_table, ANIMAL, "r1", "r3"),
    (stored_data.parquet, ANIMAL, "p1", "p3"),
    (stored_data.image_metadata, TableColumns(), "train/1.png", "train/3.png"),
    (stored_data.label_studio, TableColumns(), "501", "503"),
    (stored_data.label_studio_min, ANIMAL, "1", "3"),
    (stored_data.cvat, TableColumns(), "1.png", "3.png"),
    (stored_data.npz, TableColumns(), "v1", "v3"),
]


def _labels(path: Path, columns: TableColumns) -> dict[str, str]:
    data = open_data(str(path), columns=columns)
    return {sample_id: data.classes[k] for sample_id, k in zip(data.train.ids, data.train.labels.tolist(), strict=True)}


@pytest.mark.parametrize(("write", "columns", "wrong", "bad"), FORMS, ids=[write.__name__ for write, *_ in FORMS])
def test_labels_change_and_nothing_else(
    write: Callable[[Path], Path], columns: TableColumns, wrong: str, bad: str, tmp_path: Path
) -> None:
    source = write(tmp_path)
    before = _labels(source, columns)
    assert list(before.values()) == list(stored_data.LABELS)
    out = tmp_path / f"fixed{source.suffix}"
    write_back(str(source), columns, Corrections(labels={wrong: "cat", "stranger": "dog"}, removed={bad}), out)
    assert _labels(out, columns) == {i: "cat" if i == wrong else label for i, label in before.items() if i != bad}
    untouched = tmp_path / f"untouched{source.suffix}"
    write_back(str(source), columns, Corrections(labels=before), untouched)
    assert _labels(untouched, columns) == before


def test_a_csv_keeps_every_other_byte(tmp_path: Path) -> None:
    source, out = stored_data.csv_table(tmp_path), tmp_path / "fixed.csv"
    write_back(str(source), ANIMAL, Corrections(labels={"r1": "cat"}), out)
    given, found = (path.read_bytes().decode().splitlines(keepends=True) for path in (source, out))
    changed = [line for line in difflib.ndiff(given, found) if line[0] in "+-"]
    assert changed == ['- r1,"a, b",1,dog\r\n', '+ r1,"a, b",1,cat\r\n']


def test_paths_lead_to_the_images_from_another_folder(tmp_path: Path) -> None:
    names = stored_data.write_images(tmp_path / "images")
    source, out = tmp_path / "table.csv", tmp_path / "sub" / "fixed.csv"
    rows = [f"images/{name},{label}" for name, label in zip(names, stored_data.LABELS, strict=True)]
    source.write_text("\n".join(["path,label", *rows]))
    write_back(str(source), TableColumns(), Corrections(labels={"images/1.png": "cat"}), out)
    assert len(open_data(str(out)).train) == 6


def test_a_task_keeps_all_but_its_choice(tmp_path: Path) -> None:
    source, out = stored_data.label_studio(tmp_path), tmp_path / "fixed.json"
    write_back(str(source), TableColumns(), Corrections(labels={"501": "cat"}), out)
    given, found = json.loads(source.read_text()), json.loads(out.read_text())
    given[1]["annotations"][1]["result"][0]["value"]["choices"] = ["cat"]
    assert found == given
    assert "Zoë" in out.read_text(encoding="utf-8")
    assert {Path(row["path"]).is_file() for row in read_table(source)} == {True}


def test_a_cvat_file_keeps_all_but_its_tag(tmp_path: Path) -> None:
    source, out = stored_data.cvat(tmp_path), tmp_path / "fixed.xml"
    write_back(str(source), TableColumns(), Corrections(labels={"1.png": "cat"}), out)
    text = source.read_text().replace('name="1.png" width="8" height="8"><tag label="dog"', 'name="1.png" width="8" '
                                      'height="8"><tag label="cat"')  # fmt: skip
    assert ElementTree.canonicalize(out.read_text(), with_comments=True) == ElementTree.canonicalize(
        text, with_comments=True
    )


def test_class_folders_are_copied_with_the_image_moved(tmp_path: Path) -> None:
    source, out = stored_data.class_folders(tmp_path), tmp_path / "fixed"
    (source / "cat" / "1.png").write_bytes((source / "cat" / "0.png").read_bytes())  # the name is taken there
    write_back(str(source), TableColumns(), Corrections(labels={"dog/1.png": "cat"}, removed={"dog/3.png"}), out)
    assert (out / "cat" / "1-from-dog.png").read_bytes() == (source / "dog" / "1.png").read_bytes()
    found = {str(path.relative_to(out)) for path in out.rglob("*.*")}
    given = {str(path.relative_to(source)) for path in source.rglob("*.*")}
    assert given - found == {"dog/1.png", "dog/3.png"}
    assert found - given == {"cat/1-from-dog.png"}


def test_nothing_is_written_outside_of_the_new_folder(tmp_path: Path) -> None:
    """A stranger's run may name a path as a class; a device among the images would be copied without end."""
    source = stored_data.class_folders(tmp_path)
    for harm, message in (({"dog/1.png": "../../evil"}, "not a class of"), ({}, "zero is a device")):
        if not harm:
            (source / "zero").symlink_to("/dev/zero")
        before = set(tmp_path.rglob("*"))
        with pytest.raises(UserError, match=message):
            write_back(str(source), TableColumns(), Corrections(labels=harm), tmp_path / "new" / "fixed")
        assert set(tmp_path.rglob("*")) - before <= {tmp_path / "new"}


def test_arrays_keep_their_types(tmp_path: Path) -> None:
    source, out = stored_data.npz(tmp_path), tmp_path / "fixed.npz"
    write_back(str(source), TableColumns(), Corrections(labels={}, removed={"v0"}), out)
    with np.load(source) as given, np.load(out) as found:
        assert set(found.files) == set(given.files)
        np.testing.assert_array_equal(found["x_train"], given["x_train"][1:])
        assert {name: found[name].dtype for name in found.files} == {name: given[name].dtype for name in given.files}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "cannot be read as JSON"),
        ("a.json", '{"images": []}', "not an export of Label Studio"),
        (
            "a.json",
            '[{"id": 1, "data": {"text": "x"}, "annotations": []}]',
            "none of its 1 items has a label|no column",
        ),
        ("a.json", '[{"id": 1, "data": 5}]', "the task 1 is damaged"),
        (
            "a.json",
            '[{"id": 1, "data": {}, "annotations": [{"result": [{"from_name": [], "value": {"choices": ["a"]}}]}]}]',
            "the task 1 is damaged",
        ),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", '[{"id": 1, "image": "http://[x/a.png", "label": "a"}]', "one class only|read as an image"),
        ("a.xml", '<?xml version="1.0" encoding="x"?><annotations/>', "cannot be read as XML"),
        ("a.xml", "<annotations>", "cannot be read as XML"),
        ("a.xml", "<annotations/>", "not an export of CVAT"),
    ],
)
def test_files_that_are_no_export(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        open_data(str(tmp_path / name))


def test_several_choices_for_one_image_are_refused(tmp_path: Path) -> None:
    source = stored_data.label_studio(tmp_path)
    tasks = json.loads(source.read_text())
    tasks[0]["annotations"][1]["result"][0]["value"]["choices"] = ["cat", "dog"]
    source.write_text(json.dumps(tasks))
    with (
        pytest.warns(UserWarning, match="1 items without a label are left out"),
        pytest.raises(UserError, match=r"500.*multi-label data are not supported"),
    ):
        open_data(str(source))


def test_where_data_are_not_written(tmp_path: Path) -> None:
    source, nothing = stored_data.csv_table(tmp_path), Corrections(labels={})
    for given, out, message in [
        (str(source), source, "exists; give a new name"),
        (str(source), tmp_path / "fixed.parquet", "should end in .csv"),
        ("digits", tmp_path / "digits", "named data set"),
        (str(stored_data.class_folders(tmp_path)), tmp_path / "classes" / "out", "is inside"),
    ]:
        with pytest.raises(UserError, match=message):
            write_back(given, ANIMAL, nothing, out)


def test_an_image_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    """A row that is removed takes its image along, which must not lie anywhere else."""
    source = stored_data.image_metadata(tmp_path)
    table = source / "train" / "metadata.csv"
    table.write_text(table.read_text().replace("1.png", "../../1.png"))
    with pytest.raises(UserError, match=r"row 3: \.\./\.\./1\.png is outside the folder"):
        open_data(str(source))


def test_unlabelled_tasks_are_enough_to_pretrain(tmp_path: Path) -> None:
    source = stored_data.label_studio(tmp_path)
    tasks = [{**task, "annotations": []} for task in json.loads(source.read_text())]
    source.write_text(json.dumps(tasks))
    assert len(open_data(str(source), unlabelled=True).train) == 7
