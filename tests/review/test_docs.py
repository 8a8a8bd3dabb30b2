"""The commands of docs/review.md work as they are written."""

import re
import shlex
from pathlib import Path

import pytest

from cli.photographs import write_photos
from cli.program import run, run_json
from review.reviewed import label_rows, serving

PAGE = Path(__file__).parent.parent.parent / "docs" / "review.md"


@pytest.mark.slow
def test_the_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    write_photos(tmp_path / "photos", train=9, test=3)
    run_json("train", "photos", "--out", "runs/photos", folder=tmp_path)
    commands = re.findall(r"^selfadapt (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    review, promised, labels, train = (shlex.split(command) for command in commands)
    assert review == ["review", "runs/photos"]
    with serving(tmp_path / "runs" / "photos") as server:
        server.json("api/decide", {"what": "remove", "rows": [0]})
        assert server.stop()[0] == 0
    open_to = [row for row in label_rows(tmp_path / "runs" / "photos")[1:] if row["suspect"] == "1"]
    words = "no random sample was reviewed yet" if open_to else "none is left to accept unreviewed"
    assert words in run(*promised, folder=tmp_path).stdout
    assert "1 removed" in run(*labels, folder=tmp_path).stdout
    monkeypatch.setattr("warnings.warn", lambda *_, **__: None)  # of the one that is left out
    assert run(*train, folder=tmp_path).returncode == 0
    assert len(label_rows(tmp_path / "runs" / "reviewed")) == len(label_rows(tmp_path / "runs" / "photos")) - 1


def test_keys_on_the_page_are_those_of_the_program() -> None:
    """Each key in the table of the docs is one that the page listens to."""
    script = (PAGE.parent.parent / "src/selfadapt/review/static/main.js").read_text(encoding="utf-8")
    table = PAGE.read_text(encoding="utf-8").partition("| key | does |")[2].partition("\n\n")[0]
    keys = {key for line in table.splitlines() for key in re.findall(r"`([A-Z/?])`", line.split(" | ")[0])}
    assert {"A", "K", "C", "X", "S", "U", "G", "O", "/", "?"} <= keys
    for key in keys:
        assert re.search(rf'^  "?{re.escape(key.lower())}"?: ', script, flags=re.MULTILINE), key
