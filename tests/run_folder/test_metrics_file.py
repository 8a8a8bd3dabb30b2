"""metrics.jsonl: no line is believed that was changed, and a run rebuilds what is lost from its checkpoint."""

import json
import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.program import outcome, run, run_json
from selfadapt.core.errors import UserError
from selfadapt.run_folder.metrics_file import append_record, measured_seconds, read_records, rebuild_records

HISTORY = [{"epoch": epoch, "train_loss": 1 / epoch, "gap": math.nan} for epoch in (1, 2, 3, 4)]


def _write(path: Path) -> list[str]:
    for metrics in HISTORY:
        append_record(path, {**metrics, "seconds": metrics["epoch"] / 8})
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def _values(record: Mapping[str, Any]) -> list[str]:
    """As text, in which NaN equals NaN."""
    return [str(record[name]) for name in HISTORY[0]]


def test_a_line_has_the_checksum_of_its_values(tmp_path: Path) -> None:
    _write(tmp_path / "metrics.jsonl")
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])
    assert line.pop("crc32") == zlib.crc32(b'{"epoch": 2, "train_loss": 0.5, "gap": NaN, "seconds": 0.25}')
    assert math.isnan(line.pop("gap"))
    assert line == {"epoch": 2, "train_loss": 0.5, "seconds": 0.25}


DAMAGE: dict[str, Callable[[list[str]], list[str]]] = {
    "a changed value": lambda lines: [lines[0], lines[1].replace("0.5", "0.6"), *lines[2:]],
    "a missing line": lambda lines: [lines[0], *lines[2:]],
    "a repeated line": lambda lines: [*lines[:2], *lines[1:]],
    "no JSON": lambda lines: [lines[0], "{\n", *lines[2:]],
    "no object": lambda lines: [lines[0], "7\n", *lines[2:]],
    "deep nesting": lambda lines: [lines[0], "[" * 200_000 + "\n", *lines[2:]],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_rebuilt(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = "".join(_write(path))
    path.write_text("".join(DAMAGE[damage](whole.splitlines(keepends=True))))
    with pytest.raises(UserError, match=r"metrics.jsonl, line [23] is damaged: .*--resume, which rebuilds"):
        read_records(path)
    lost = rebuild_records(path, HISTORY)
    records = read_records(path)
    assert [_values(record) for record in records] == [_values(metrics) for metrics in HISTORY]
    assert len(measured_seconds(records)) == len(HISTORY) - lost
    assert lost == (0 if damage == "a repeated line" else 1)


def test_lines_past_a_checkpoint_and_torn_lines_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = _write(path)
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"epoch": 5, "train_')
    assert len(read_records(path)) == 4
    assert rebuild_records(path, HISTORY[:2]) == 0
    assert path.read_text(encoding="utf-8") == "".join(lines[:2])


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 400), byte=st.integers(0, 255), cut=st.booleans())
def test_any_changed_byte_is_noticed_or_changes_no_value(position: int, byte: int, cut: bool, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rebuild_records(path, HISTORY)
    whole = path.read_bytes()
    position %= len(whole)
    path.write_bytes(whole[:position] if cut else whole[:position] + bytes([byte]) + whole[position + 1 :])
    try:
        found = read_records(path)
    except UserError:
        found = []
    for record, metrics in zip(found, HISTORY, strict=False):
        assert _values(record) == _values(metrics)
    rebuild_records(path, HISTORY)
    assert len(read_records(path)) == len(HISTORY)


def test_lines_of_an_earlier_version_have_no_checksum(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"epoch": 1, "train_loss": 1.0, "gap": NaN, "seconds": 3}\n')
    assert [record["seconds"] for record in read_records(path)] == [3]
    assert rebuild_records(path, HISTORY[:1]) == 0
    assert '"crc32"' in path.read_text()


def _change(path: Path) -> None:
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first.replace('"train_loss": ', '"train_loss": 1'), *others]))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("damage", [Path.unlink, _change])
def test_a_run_rebuilds_its_metrics(damage: Callable[[Path], None], tmp_path: Path, finished_run: Path) -> None:
    """Whether it is finished or not; until then, every command that reads them refuses to."""
    expected, path = outcome(finished_run), finished_run / "metrics.jsonl"
    damage(path)
    refused = run("report", finished_run, folder=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert str(path) in refused.stderr
    result = run("train", "--resume", "--out", finished_run, "--json", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "of its epochs were rebuilt from the checkpoint" in result.stderr
    assert outcome(finished_run) == expected
    assert run("report", finished_run, folder=tmp_path).returncode == 0


@pytest.fixture
def finished_run(tmp_path: Path) -> Path:
    settings = ("--method", "sat-paper", "--start-epoch", "1", "--epochs", "2", "--model", "mlp", "--width", "8")
    run_json("train", "digits", *settings, "--limit", "200", "--out", "run", folder=tmp_path)
    return tmp_path / "run"
