"""Shell completion: what a shell asks for, and what --install-completion writes."""

from pathlib import Path

import pytest

from cli.program import run


def _completed(words: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> set[str]:
    monkeypatch.setenv("_SELFADAPT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    return set(run(folder=folder).stdout.split())


def test_commands_and_options_are_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _completed("selfadapt pre", monkeypatch, tmp_path) == {"predict", "pretrain"}
    assert _completed("selfadapt labels --da", monkeypatch, tmp_path) == {"--data-out"}
    assert {"--noise", "--no-stream"} & _completed("selfadapt train --no", monkeypatch, tmp_path)


def test_installing_writes_into_the_files_of_the_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    assert run("--install-completion", folder=tmp_path).returncode == 0
    script = tmp_path / ".bash_completions" / "selfadapt.sh"
    assert "_SELFADAPT_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()
