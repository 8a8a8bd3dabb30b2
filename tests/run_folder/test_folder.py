"""The run folder: its files, and the lock that keeps two trainings apart."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from run_folder.tiny_run import RUN
from selfadapt.core.errors import UserError
from selfadapt.run_folder.folder import RunFolder


def test_the_names_of_files_stay(tmp_path: Path) -> None:
    """Users and other programs read them."""
    folder = RunFolder(tmp_path)
    found = {str(path.relative_to(tmp_path)) for name in dir(folder) if isinstance(path := getattr(folder, name), Path)}
    assert found == {
        ".", "run.json", "metrics.jsonl", "samples.csv", "unreadable.csv", "trained-on.csv", "checkpoint", "trainings",
        "backbone.safetensors", "targets.bin", "labels.csv", "duplicates.csv", "transition.csv", "decisions.jsonl",
        "decisions.csv", "review", "coverage.json", "calibration.json", "probe.json", "transfer.json", "attack.json",
        "attacks", "shift.json", "shifts", "figures", "figures/suspects.svg", "figures/duplicates.svg", "report.html",
        "tracking.json",
    }  # fmt: skip


def test_json_comes_back_and_damage_is_named(tmp_path: Path) -> None:
    folder, path = RunFolder(tmp_path), tmp_path / "new" / "a.json"
    assert folder.read_json(path, dict[str, Any]) is None
    folder.write_json(path, {"ä": [1, None]})
    found = folder.read_json(path, dict[str, Any])
    assert found == json.loads(path.read_text(encoding="utf-8")) == {"ä": [1, None]}
    with pytest.raises(UserError, match=r"a.json is damaged: ä is a list; it must be a text; delete it"):
        folder.read_json(path, dict[str, str])


def test_a_transition_matrix_comes_back(tmp_path: Path) -> None:
    folder, classes = RunFolder(tmp_path), ["cat", "a, b"]
    assert folder.read_transition(classes) is None
    folder.write_transition(classes, [[0.75, 0.25], [0.0, 1.0]])
    assert folder.transition_file.read_text().splitlines()[0] == 'true,cat,"a, b"'
    assert folder.read_transition(classes) == [[0.75, 0.25], [0.0, 1.0]]
    with pytest.raises(UserError, match=r"transition.csv is damaged: its classes are not those of the run"):
        folder.read_transition(["cat", "dog"])


TRY_TO_LOCK = """
import sys
from pathlib import Path
from selfadapt.core.errors import UserError
from selfadapt.run_folder.folder import RunFolder
try:
    with RunFolder(Path(sys.argv[1])).locked():
        print("locked")
except UserError as error:
    print(error)
"""


def test_a_lock_keeps_other_processes_out_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "one")

    def try_elsewhere() -> str:
        command = [sys.executable, "-c", TRY_TO_LOCK, str(folder.path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with folder.locked():
        with folder.locked():
            assert (folder.path / ".lock").exists()
        assert "another process is training in" in try_elsewhere()
    assert not (tmp_path / "runs").exists(), "no run was started, so the folders are removed"
    with folder.locked():
        folder.write_run(RUN)
    assert try_elsewhere() == "locked\n"
    assert folder.settings_file.exists()


def test_damaged_or_missing_run_files_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run folder: it has no run.json"):
        RunFolder(tmp_path).read_run()
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        RunFolder(tmp_path).read_run()
    with pytest.raises(UserError, match=r"labels.csv does not exist"):
        RunFolder(tmp_path).read_labels()


@pytest.mark.parametrize(
    "name",
    [
        "labels.csv",
        "transition.csv",
        "report.html",
        ".lock",
        "figures",
        "figures/accuracy.svg",
        "checkpoint",
        "checkpoint/00001-0000000",
        "trainings",
        "trainings/first",
        "checksums.json",
        ".draft-labels.csv",
    ],
)
def test_a_link_in_a_run_folder_is_refused_before_anything_is_read_or_written(name: str, tmp_path: Path) -> None:
    """A folder from a stranger may hold links that lead elsewhere."""
    folder, victim = RunFolder(tmp_path / "run"), tmp_path / "victim"
    victim.write_text("safe")
    folder.write_run(RUN)
    assert folder.read_run()["noise"] is None
    (folder.path / name).parent.mkdir(exist_ok=True)
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(victim)
    with pytest.raises(UserError, match=f"{name} is a symbolic link"):
        folder.read_run()
    with pytest.raises(UserError, match=f"{name} is a symbolic link"), folder.locked():
        pass
    assert victim.read_text() == "safe"


def test_a_fifo_in_a_run_folder_is_refused_at_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    os.mkfifo(folder.settings_file)
    with pytest.raises(UserError, match=r"run.json is a FIFO"):
        folder.read_run()


def test_a_link_to_a_run_folder_works(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").write_run(RUN)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert RunFolder(tmp_path / "link").read_run()["noise"] is None
