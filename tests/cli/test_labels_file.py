"""labels.csv for people: its columns, paths, reasons and duplicate groups; and files of older runs."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from cli.program import run, run_json
from selfadapt.review.queues import Desk
from selfadapt.review.row_filter import Filter
from selfadapt.run_folder.csv_tables import write_table
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report

OLD_COLUMNS = ["id", "path", "part", "given", "suggested", "confidence", "weight", "suspect", "outsider"]
COLUMNS = [*OLD_COLUMNS, "predicted", "p_wrong", "runner_up", "duplicate_group", "reason", "relative_path", "truth"]


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def judged_vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as vectors, a tenth of the labels wrong, with four duplicates: two that disagree, two that agree."""
    folder = tmp_path_factory.mktemp("duplicates")
    values, truth = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    given = np.where(generator.random(900) < 0.1, (truth[:900] + 1) % 10, truth[:900])
    given[:4] = truth[:4]
    copies = (given[:4] + np.array([5, 5, 0, 0])) % 10
    values = np.concatenate([values[:900], values[:4], np.full((1, 64), 40.0)]).astype(np.float32)
    np.savez(folder / "digits.npz", x_train=values, y_train=np.concatenate([given, copies, [0]]))
    run_json("train", "digits.npz", "--validation", "0", "--out", "run", folder=folder)
    return folder


def test_columns_stand_in_one_order_and_the_reason_is_one_word(judged_vectors: Path) -> None:
    rows = _rows(judged_vectors / "run" / "labels.csv")
    assert list(rows[0]) == COLUMNS[:-1], "no truth is known"
    suspects = [row["suspect"] for row in rows]
    assert suspects == sorted(suspects, reverse=True), "every suspect above every other"
    assert 0 < suspects.count("1") < len(rows)
    for flag in ("1", "0"):
        chances = [float(row["p_wrong"]) for row in rows if row["suspect"] == flag]
        assert chances == sorted(chances, reverse=True)
        assert all(0 <= chance <= 1 for chance in chances)
    assert all(row["runner_up"] != row["suggested"] for row in rows)
    place = {row["path"]: row for row in rows}
    assert [place[f"x_train[{own}]"]["reason"] for own in (900, 901)] == ["duplicate", "duplicate"]
    assert {row["reason"] for row in rows if row["suspect"] == "1"} == {"duplicate", "prediction"}
    assert {row["reason"] for row in rows if row["suspect"] == "0"} <= {"", "outlier"}
    assert all((row["reason"] == "outlier") == (float(row["outsider"]) > 0.9) for row in rows if row["suspect"] == "0")
    assert place["x_train[5]"]["relative_path"] == "x_train[5]"


def test_the_file_is_read_back_as_the_same_report(judged_vectors: Path) -> None:
    folder = RunFolder(judged_vectors / "run")
    report, rows = read_report(folder), _rows(folder.labels_file)
    table = list(report.rows())
    assert table == [{name: row[name] for name in table[0]} for row in rows]
    assert report.ranked_indices.tolist() == list(range(len(rows)))
    assert report.summary.errors == sum(row["suspect"] == "1" for row in rows)
    assert report.summary.conflicting_groups == 2
    assert len(report.summary.duplicate_groups) == 4


def test_duplicate_groups_are_those_of_duplicates_csv(judged_vectors: Path) -> None:
    numbers = {row["id"]: row["group"] for row in _rows(judged_vectors / "run" / "duplicates.csv")}
    rows = _rows(judged_vectors / "run" / "labels.csv")
    assert len(numbers) == 8
    assert all(row["duplicate_group"] == numbers.get(row["id"], "") for row in rows)


def _images(folder: Path) -> None:
    """Eighty pictures of two classes, dark and bright, in folders; six lie in the wrong one."""
    generator = np.random.default_rng(0)
    for number in range(80):
        bright = number % 2
        name = ("dark", "bright")[bright ^ (number < 6)]
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 90, (12, 12)) + 150 * bright
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / name / f"{number}.png")


def test_paths_are_absolute_and_relative_to_the_data(tmp_path: Path) -> None:
    _images(tmp_path)
    settings = ("--method", "sat-paper", "--epochs", "4", "--start-epoch", "2", "--model", "mlp")
    run_json("train", "photos", *settings, "--out", "run", folder=tmp_path)
    rows = _rows(tmp_path / "run" / "labels.csv")
    for row in rows:
        assert Path(row["path"]) == tmp_path / "photos" / row["relative_path"]
        assert Path(row["path"]).is_file()
    suspects = [row["suspect"] for row in rows]
    assert suspects == sorted(suspects, reverse=True), "by targets, too"
    assert all(0 <= float(row["p_wrong"]) <= 1 for row in rows)
    table = [(f"photos/{row['relative_path']}", row["given"], str(place)) for place, row in enumerate(rows)]
    write_table(tmp_path / "table.csv", ("path", "label", "id"), table)
    run_json("train", "table.csv", *settings, "--out", "second", folder=tmp_path)
    for row in _rows(tmp_path / "second" / "labels.csv"):
        assert row["relative_path"] == table[int(row["id"])][0]
        assert Path(row["path"]) == tmp_path / row["relative_path"]


def test_a_file_of_an_older_run_still_serves(judged_vectors: Path, tmp_path: Path) -> None:
    shutil.copytree(judged_vectors, tmp_path / "old")
    path = tmp_path / "old" / "run" / "labels.csv"
    rows = _rows(path)
    write_table(path, OLD_COLUMNS, [[row[name] for name in OLD_COLUMNS] for row in rows])
    folder = RunFolder(path.parent)
    desk = Desk(folder, "ann")
    assert len(desk.rows(Filter())) == sum(row["suspect"] == "1" for row in rows)
    assert "likely errors" in " ".join(desk.figures()["sentences"])
    desk.close()
    assert run_json("labels", "run", folder=tmp_path / "old")["changed"] > 0
    assert run("report", "run", folder=tmp_path / "old").returncode == 0
    assert "Likely label errors" in folder.page.read_text()
