"""The journal: nothing that was confirmed is lost, undo goes back without limit, and damage is noticed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfadapt.core.errors import UserError
from selfadapt.review.journal import Journal, JournalLost


def _state(journal: Journal) -> dict[str, str | None]:
    return {sample_id: decision.label for sample_id, decision in journal.decisions.items()}


@settings(max_examples=40)
@given(
    steps=st.lists(st.one_of(st.none(), st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["x", "y", None]))))
)
def test_what_stands_is_what_a_stack_would_hold(
    steps: list[dict[str, str | None] | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """None undoes. The oracle keeps a stack of whole decisions."""
    path = tmp_path_factory.mktemp("journal") / "decisions.jsonl"
    journal = Journal.write(path)
    stack: list[dict[str, str | None]] = []
    for labels in steps:
        if labels is None:
            undone = journal.undo(who="ann")
            assert (undone["labels"] if undone else None) == (stack.pop() if stack else None)
        else:
            journal.decide("choose", labels, who="ann")
            stack.append(labels)
    expected = {sample_id: label for labels in stack for sample_id, label in labels.items()}
    assert _state(journal) == expected
    journal.close()
    assert _state(Journal.read(path)) == expected, "and so it is read back"
    assert [json.loads(line)["line"] for line in path.read_text().splitlines()] == list(
        range(1, len(journal.lines) + 1)
    )


def test_a_line_cut_short_was_never_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    journal = Journal.write(path)
    journal.decide("accept", {"a": "cat"}, who="ann")
    journal.close()
    whole = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b'{"line": 2, "wh')
    assert _state(Journal.read(path)) == {"a": "cat"}
    again = Journal.write(path)
    again.decide("remove", {"b": None}, who="bob")
    again.close()
    assert path.read_bytes().startswith(whole)
    assert _state(Journal.read(path)) == {"a": "cat", "b": None}


_SIGNED = '{"line": 2, "who": "ann", "when": "", '


@pytest.mark.parametrize(
    "damage",
    [
        "no json\n",
        '{"line": 3, "what": "undo", "undoes": 1}\n',
        '{"line": 2}\n',
        "7\n",
        _SIGNED + '"what": "undo", "undoes": 99}\n',
        _SIGNED + '"what": "choose", "labels": {"a": ["a"]}}\n',
        _SIGNED + '"what": 5, "labels": {"a": "cat"}}\n',
        "[" * 200_000 + "\n",
    ],
)
def test_damage_in_the_middle_is_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "decisions.jsonl"
    journal = Journal.write(path)
    journal.decide("accept", {"a": "cat"}, who="ann")
    journal.close()
    with open(path, "a") as file:
        file.write(damage)
    with pytest.raises(UserError, match=r"line 2 is damaged .*remove it and all lines after it"):
        Journal.read(path)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    first = Journal.write(tmp_path / "decisions.jsonl")
    with pytest.raises(UserError, match="another review"):
        Journal.write(tmp_path / "decisions.jsonl")
    first.close()
    Journal.write(tmp_path / "decisions.jsonl").close()


def test_a_decision_about_several_is_not_individual(tmp_path: Path) -> None:
    journal = Journal.write(tmp_path / "decisions.jsonl")
    journal.decide("accept", {"a": "cat", "b": "cat"}, who="ann")
    journal.decide("keep", {"b": "dog"}, who="ann")
    individual = {sample_id: decision.individual for sample_id, decision in journal.decisions.items()}
    assert individual == {"a": False, "b": True}
    journal.close()


def test_the_one_that_is_left_of_several_is_not_individual(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    journal = Journal.write(path)
    journal.decide("accept", {"a": "cat"}, who="ann", at_once=True)
    journal.close()
    assert not Journal.read(path).decisions["a"].individual


def _cut(path: Path) -> None:
    os.truncate(path, 3)


def _replace(path: Path) -> None:
    path.with_name("copy").write_bytes(path.read_bytes())
    path.with_name("copy").rename(path)


@pytest.mark.parametrize("damage", [_cut, Path.unlink, _replace])
def test_nothing_is_confirmed_once_the_file_is_damaged_and_nothing_confirmed_is_lost(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "decisions.jsonl"
    journal = Journal.write(path)
    journal.decide("accept", {"a": "cat"}, who="ann")
    journal.decide("choose", {"b": "ä"}, who="ann")
    whole = path.read_bytes()
    damage(path)
    for attempt in (lambda: journal.decide("keep", {"c": "dog"}, who="ann"), lambda: journal.undo(who="ann")):
        with pytest.raises(JournalLost, match="changed, replaced or removed by another program"):
            attempt()
    assert _state(journal) == {"a": "cat", "b": "ä"}
    earlier, rescued = tmp_path / "decisions-rescued.jsonl", tmp_path / "decisions-rescued-2.jsonl"
    earlier.write_text("of another review")
    with pytest.raises(JournalLost, match=r"2 confirmed lines are in .*decisions-rescued-2.jsonl"):
        journal.close()
    assert rescued.read_bytes() == whole
    assert _state(Journal.read(rescued)) == {"a": "cat", "b": "ä"}
    assert earlier.read_text() == "of another review"


def test_a_file_removed_between_writing_and_confirming_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decisions.jsonl"
    journal = Journal.write(path)
    flush = os.fsync

    def remove_then_flush(descriptor: int) -> None:
        path.unlink()
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", remove_then_flush)
    with pytest.raises(JournalLost):
        journal.decide("keep", {"a": "dog"}, who="ann")
    assert _state(journal) == {}
