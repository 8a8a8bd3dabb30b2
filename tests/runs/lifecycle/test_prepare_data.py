"""A run that is opened again has the data that it began with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import start
from selfadapt.runs.lifecycle.opened_run import open_folder
from selfadapt.runs.train.train_or_load import train


def _partition(samples: Any) -> set[frozenset[str]]:
    """The ids that share a group."""
    groups: dict[str, set[str]] = {}
    for sample_id, group in zip(samples.ids, samples.groups, strict=True):
        groups.setdefault(group, set()).add(sample_id)
    return {frozenset(own) for own in groups.values()}


@pytest.mark.parametrize("grouped", [False, True])
def test_copies_and_groups_stay_together(grouped: bool, tmp_path: Path) -> None:
    """Every third row is there twice; with a column of groups, rows of different copies belong together besides."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(60, 3)).round(6)
    values = np.concatenate([values, values[::3]])
    header, groups = (
        ("a,b,c,label,group", [f",g{i % 40}" for i in range(80)]) if grouped else ("a,b,c,label", [""] * 80)
    )
    lines = [f"{a},{b},{c},{'xy'[i % 2]}{groups[i]}" for i, (a, b, c) in enumerate(values.tolist())]
    (tmp_path / "table.csv").write_text("\n".join([header, *lines]) + "\n")
    settings: dict[str, Any] = {"data": str(tmp_path / "table.csv")}
    if grouped:
        settings["group_column"] = "group"
    folder = RunFolder(tmp_path / "run")
    run = start(Request.of("labels", **settings), folder)
    train(run)
    begun, again = run.data, open_folder(folder).data
    for part, samples in begun.splits.items():
        assert _partition(samples) == _partition(again.splits[part])
    assert max(map(len, _partition(begun.train))) > 1
    assert again.duplicates == begun.duplicates
