"""From decisions to a corrected table, as deep as it can be promised, and to a run on it."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.program import run, run_json
from selfadapt.review.decisions import open_journal
from selfadapt.review.queues import Desk
from selfadapt.review.statistics.draws import SUGGESTIONS, draw, read_draw
from selfadapt.run_folder.csv_tables import write_table
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three well separated classes of vectors; a sixth of the labels of each part are wrong."""
    folder = tmp_path_factory.mktemp("vectors")
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 600), ("test", 150)):
        truth = np.arange(count) % 3
        wrong = generator.random(count) < 1 / 6
        given = np.where(wrong, (truth + generator.integers(1, 3, count)) % 3, truth)
        values = 6.0 * np.eye(3)[truth] + generator.normal(size=(count, 3))
        arrays[f"x_{part}"] = values.astype(np.float32)
        arrays[f"y_{part}"] = np.array(["ant", "bee", "cow"])[given]
        arrays[f"id_{part}"] = np.array([f"{part}-{i}-{('ant', 'bee', 'cow')[k]}" for i, k in enumerate(truth)])
    np.savez(folder / "vectors.npz", **arrays)
    run_json("train", "vectors.npz", "--out", "run", "--validation", "0", folder=folder)
    return folder


def _truth(sample_id: str) -> str:
    return sample_id.rpartition("-")[2]


@pytest.fixture
def audited(vectors: Path, tmp_path: Path) -> Path:
    """A copy of the run, to decide about."""
    RunFolder(tmp_path / "run").write_run(RunFolder(vectors / "run").read_run())
    for file in ("samples.csv", "labels.csv"):
        (tmp_path / "run" / file).write_bytes((vectors / "run" / file).read_bytes())
    return tmp_path


def _decide(folder: Path, labels: Mapping[str, str | None]) -> None:
    journal = open_journal(RunFolder(folder))
    for sample_id, label in labels.items():
        journal.decide("remove" if label is None else "choose", {sample_id: label}, who="ann")
    journal.close()


def test_decisions_come_first_in_every_part(audited: Path) -> None:
    verdicts = _rows(audited / "run" / "labels.csv")
    tested = next(row for row in verdicts if row["part"] == "test" and row["suspect"] == "1")
    other = next(row for row in verdicts if row["part"] == "test" and row["suspect"] == "1" and row is not tested)
    first, second = [row for row in verdicts if row["part"] == "train" and row["suspect"] == "1"][:2]
    _decide(audited / "run", {tested["id"]: tested["suggested"], first["id"]: first["given"], second["id"]: None})
    made = run_json("labels", "run", "--confidence", "0", folder=audited)
    table = {row["id"]: row for row in _rows(audited / made["labels"])}
    assert len(table) == 749, "one was removed"
    assert second["id"] not in table
    assert (table[tested["id"]]["label"], table[tested["id"]]["by"]) == (tested["suggested"], "person")
    assert (table[other["id"]]["label"], table[other["id"]]["by"]) == (other["given"], "given"), "no person said so"
    assert (table[first["id"]]["label"], table[first["id"]]["by"]) == (first["given"], "person")
    suspects = [row for row in verdicts if row["part"] == "train" and row["suspect"] == "1"][2:]
    assert all(table[row["id"]]["label"] == row["suggested"] for row in suspects)
    assert made["changed"] == len(suspects) + 1
    assert made["by"] == {"given": 749 - len(suspects) - 2, "suggestion": len(suspects), "person": 2}
    in_test = sum(row["part"] == "test" and row["suspect"] == "1" for row in verdicts)
    assert made["passed_over"] == {"other_parts": in_test - 1, "kept_by_people": 1}
    people = {row["id"]: row for row in _rows(audited / "run" / "decisions.csv")}
    assert people[second["id"]]["decision"] == "removed"
    assert people[tested["id"]]["who"] == "ann"


def test_it_is_told_how_many_suspects_keep_their_label_and_why(audited: Path) -> None:
    rows = _rows(audited / "run" / "labels.csv")
    suspects = [row for row in rows if row["suspect"] == "1"]
    trained = [row for row in suspects if row["part"] == "train"]
    for place, row in enumerate(trained):
        row["confidence"] = "0.7" if place % 3 else "0.9"
    write_table(audited / "run" / "labels.csv", list(rows[0]), [list(row.values()) for row in rows])
    below, elsewhere = sum(row["confidence"] == "0.7" for row in trained), len(suspects) - len(trained)
    arguments = ("labels", "run", "--confidence", "0.8")
    made = run_json(*arguments, folder=audited)
    assert made["passed_over"] == {"below_confidence": below, "other_parts": elsewhere}
    assert made["changed"] + below + elsewhere == len(suspects)
    assert (
        f"\n{below + elsewhere} likely errors keep their label: {below} below the requested confidence, "
        f"{elsewhere} outside the training split, where only people change labels\n"
    ) in run(*arguments, folder=audited).stdout


def test_unseen_suggestions_are_taken_as_deep_as_the_promise_holds(audited: Path) -> None:
    folder = RunFolder(audited / "run")
    said = run("labels", "run", "--precision", "0.6", folder=audited).stdout
    assert "no random sample was reviewed yet" in said
    assert " without the requested precision, " in said
    drawn = draw(folder, SUGGESTIONS, read_report(folder), {})
    assert len(drawn.ids) > 80
    assert sorted(drawn.order_N.tolist()) == list(range(len(drawn.ids)))
    again = draw(folder, SUGGESTIONS, read_report(folder), set(drawn.ids[:50]))
    assert again.ids == drawn.ids, "the population stays what it was at the first draw"
    _decide(folder.path, {sample_id: _truth(sample_id) for sample_id in drawn.in_order[:5]})
    assert run_json("labels", "run", "--precision", "0.6", "--confidence", "0.9", folder=audited)["promise"] is None
    assert "5 reviewed samples do not guarantee" in run("labels", "run", "--precision", "0.6", folder=audited).stdout

    _decide(folder.path, {sample_id: _truth(sample_id) for sample_id in drawn.in_order[5:60]})
    made = run_json("labels", "run", "--precision", "0.6", "--confidence", "0.9", folder=audited)
    table = {row["id"]: row for row in _rows(audited / made["labels"])}
    unseen = [row for row in table.values() if row["by"] == "suggestion"]
    assert made["promise"]["taken"] == len(unseen) > 0
    assert {row["id"] for row in unseen} == set(drawn.ids[: made["promise"]["depth"]]) - set(drawn.in_order[:60])
    assert made["promise"]["low"] >= 0.6
    assert sum(row["label"] == _truth(row["id"]) for row in unseen) / len(unseen) >= made["promise"]["low"]
    assert "suggestions were accepted unreviewed" in run("labels", "run", "--precision", "0.6", folder=audited).stdout


def test_a_gap_or_a_look_at_many_is_no_evidence(audited: Path) -> None:
    folder = RunFolder(audited / "run")
    drawn = draw(folder, SUGGESTIONS, read_report(folder), {})
    journal = open_journal(folder)
    many = dict(zip(drawn.ids, drawn.suggested, strict=True))
    del many[drawn.in_order[-1]]
    journal.decide("accept", many, who="ann")  # all but one at once
    for sample_id in drawn.in_order[1:60]:  # all but the first
        journal.decide("choose", {sample_id: _truth(sample_id)}, who="ann")
    journal.close()
    assert "0 reviewed samples do not guarantee" in run("labels", "run", "--precision", "0.5", folder=audited).stdout
    assert read_draw(folder, "test") is None


def test_a_table_by_hand_is_taken_over(audited: Path) -> None:
    row = _rows(audited / "run" / "labels.csv")[0]
    (audited / "run" / "decisions.csv").write_text(f"id,label\n{row['id']},cow\n")
    _decide(audited / "run", {})
    made = run_json("labels", "run", folder=audited)
    table = {own["id"]: own for own in _rows(audited / made["labels"])}
    assert table[row["id"]]["by"] == "person"
    assert _rows(audited / "run" / "decisions.csv")[0]["decision"] == "by hand"


@pytest.mark.parametrize("left", [b"", b'{"line": 1, "wh'])
def test_a_table_by_hand_outlives_an_import_that_was_stopped(audited: Path, left: bytes) -> None:
    row = _rows(audited / "run" / "labels.csv")[0]
    table, by_hand = audited / "run" / "decisions.csv", f"id,label\n{row['id']},cow\n"
    table.write_text(by_hand)
    (audited / "run" / "decisions.jsonl").write_bytes(left)
    made = run_json("labels", "run", folder=audited)
    labels = {own["id"]: (own["label"], own["by"]) for own in _rows(audited / made["labels"])}
    assert labels[row["id"]] == ("cow", "person")
    assert table.read_text() == by_hand
    _decide(audited / "run", {})
    run_json("labels", "run", folder=audited)
    assert [(own["id"], own["label"], own["decision"]) for own in _rows(table)] == [(row["id"], "cow", "by hand")]


def test_a_review_without_decisions_leaves_a_table_by_hand_alone(audited: Path) -> None:
    desk = Desk(RunFolder(audited / "run"), "ann")
    table, by_hand = audited / "run" / "decisions.csv", f"id,label\n{desk.report.ids[0]},cow\n"
    table.write_text(by_hand)  # while the page is open
    desk.close()
    assert table.read_text() == by_hand


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--precision", "1.5"), "--precision 1.5 must be within 0..1"),
        (("--precision", "0.9", "--confidence", "1"), "choose a lower --confidence"),
    ],
)
def test_what_cannot_be_promised_is_said(audited: Path, arguments: tuple[str, ...], words: str) -> None:
    result = run("labels", "run", *arguments, folder=audited)
    assert result.returncode == 2
    assert words in result.stderr


@pytest.mark.filterwarnings("default")
def test_a_run_on_the_corrected_table(vectors: Path, audited: Path) -> None:
    """Labels of all parts come from the table, what is not in it is gone, and nothing counts as the truth."""
    verdicts = _rows(audited / "run" / "labels.csv")
    tests = [row for row in verdicts if row["part"] == "test"]
    removed = next(row["id"] for row in verdicts if row["part"] == "train")
    _decide(audited / "run", {**{row["id"]: _truth(row["id"]) for row in tests}, removed: None})
    made = run_json("labels", "run", "--confidence", "0", folder=audited)
    (audited / "vectors.npz").symlink_to(vectors / "vectors.npz")
    settings = ("--corrected", made["labels"], "--validation", "0")
    done = run("train", "vectors.npz", *settings, "--out", "two", "--json", folder=audited)
    assert "corrected.csv: 1 samples are not in the table: removed" in done.stderr
    result = json.loads(done.stdout)
    assert result["noise"] is None
    assert result["label_recovery"] is None
    assert result["test_accuracy"] > 0.97, "by labels that are right"
    samples = _rows(audited / "two" / "samples.csv")
    assert len(samples) == 599
    assert removed not in {row["id"] for row in samples}
    table = {row["id"]: row["label"] for row in _rows(audited / made["labels"])}
    assert all(row["given"] == table[row["id"]] and not row["truth"] for row in samples)

    (audited / made["labels"]).unlink()  # the run keeps what it was trained on
    assert run("audit", "two", folder=audited).returncode == 0
    again = {row["id"]: row for row in _rows(audited / "two" / "labels.csv")}
    assert all(again[row["id"]]["given"] == _truth(row["id"]) for row in tests)

    for arguments, words in (
        (("--corrected", "gone.csv"), "gone.csv"),
        (("--corrected", "two/samples.csv"), "columns id and label"),
        (("--corrected", "two/trained-on.csv", "--labels", "two/trained-on.csv"), "leave one of them out"),
    ):
        failed = run("train", "vectors.npz", *arguments, "--out", "three", folder=audited)
        assert failed.returncode == 2
        assert words in failed.stderr


def test_held_out_labels_that_nobody_corrected_are_compared_with_suggestions(vectors: Path, audited: Path) -> None:
    (audited / "vectors.npz").symlink_to(vectors / "vectors.npz")
    judged = next(row for row in _rows(audited / "run/labels.csv") if row["part"] == "test" and row["suspect"] == "1")
    _decide(audited / "run", {judged["id"]: judged["given"]})
    made = run_json("labels", "run", folder=audited)
    table = {row["id"]: row for row in _rows(audited / made["labels"])}
    done = run("train", "vectors.npz", "--corrected", made["labels"], "--out", "two", folder=audited)
    tests = [row for row in _rows(audited / "two" / "labels.csv") if row["part"] == "test"]
    wanted = {row["id"]: table[row["id"]]["suggested"] or row["given"] for row in tests}
    assert wanted[judged["id"]] == judged["given"], "a person decided"
    (own,) = json.loads((audited / "two" / "run.json").read_text())["result"]["suggestions"].items()
    accuracy = np.mean([row["predicted"] == wanted[row["id"]] for row in tests])
    given = np.mean([row["predicted"] == row["given"] for row in tests])
    changed = sum(row["given"] != wanted[row["id"]] for row in tests)
    assert own == ("test", {"likely_errors": changed, "accuracy": pytest.approx(accuracy)})
    assert accuracy > given
    assert f"{changed} likely errors in the test labels were not corrected" in done.stdout
    assert f"test accuracy (suggested labels) {100 * accuracy:.1f} %" in " ".join(done.stdout.split())
    assert "agreement with a model" in (audited / "two" / "report.html").read_text(encoding="utf-8")


def test_corrections_of_a_named_set_are_not_wrong(tmp_path: Path) -> None:
    """Its own labels are no longer the truth."""
    options = ("digits", "--model", "mlp", "--width", "16", "--epochs", "1")
    run_json("train", *options, "--out", "one", folder=tmp_path)
    rows = [(row["id"], row["given"]) for row in _rows(tmp_path / "one" / "samples.csv")]
    lines = [f"{name},{(int(label) + 1) % 10 if i < 30 else label}" for i, (name, label) in enumerate(rows)]
    (tmp_path / "corrected.csv").write_text("\n".join(["id,label", *lines]) + "\n")
    done = run_json("train", *options, "--corrected", "corrected.csv", "--out", "two", folder=tmp_path)
    assert done["label_recovery"] is None
    assert not any(row["truth"] for row in _rows(tmp_path / "two" / "samples.csv"))
    assert "truth" not in _rows(tmp_path / "two" / "labels.csv")[0]


@pytest.mark.filterwarnings("default")
def test_the_table_decides_the_parts_and_must_leave_two_classes(vectors: Path, audited: Path) -> None:
    rows = _rows(vectors / "run" / "labels.csv")
    train = [row["id"] for row in rows if row["part"] == "train"]
    held_out = set(train[::7])

    def write(kept: set[str]) -> None:
        lines = [f"{own},{'validation' if own in held_out else 'train'},{_truth(own)}" for own in train]
        lines = [line for line in lines if line.rpartition(",")[2] in kept]
        (audited / "own.csv").write_text("\n".join(["id,part,label", *lines]) + "\n")

    (audited / "vectors.npz").symlink_to(vectors / "vectors.npz")
    command = ("train", "vectors.npz", "--corrected", "own.csv", "--out")
    write({"ant", "bee"})
    done = run(*command, "two", folder=audited)
    assert (done.returncode, "leaves no training samples of these classes: cow" in done.stderr) == (0, True)
    found = {row["id"] for row in _rows(audited / "two" / "samples.csv") if row["part"] == "validation"}
    assert found == {own for own in held_out if _truth(own) != "cow"}
    write({"ant"})
    failed = run(*command, "one", folder=audited)
    assert (failed.returncode, "fewer than two classes" in failed.stderr) == (2, True)


@pytest.mark.parametrize(
    ("column", "value", "words"), [("suggested", "yak", "'yak' is not a class"), ("part", "dev", "'dev' is not one of")]
)
def test_a_list_that_was_damaged_by_hand(audited: Path, column: str, value: str, words: str) -> None:
    path = audited / "run" / "labels.csv"
    rows = _rows(path)
    whole = path.read_text()
    rows[0][column] = value
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for command in (("labels", "run"), ("review", "run", "--no-browser")):
        result = run(*command, folder=audited)
        assert (result.returncode, words in result.stderr) == (2, True), result
    path.write_text(whole + whole.splitlines()[1] + "\n")
    assert "occurs in an earlier line already" in run("labels", "run", folder=audited).stderr
    path.unlink()
    assert "selfadapt audit run" in run("labels", "run", folder=audited).stderr
    assert "is not a run folder" in run("labels", "nothing", folder=audited).stderr
