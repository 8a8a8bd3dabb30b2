"""Training of runs with labels or without, and results of runs that may be finished already."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Kind, Request
from selfadapt.runs.lifecycle.lifecycle import Run, check_same, resume, start
from selfadapt.runs.train.bench import StageCallback
from selfadapt.runs.train.labelled import train
from selfadapt.runs.train.unlabelled import pretrain

ProgressBar = Callable[[str], AbstractContextManager[StageCallback]]  # with this description; gives its callback

TRAINERS: Mapping[Kind, Callable[[Run, StageCallback], dict[str, Any]]] = {"labels": train, "pretraining": pretrain}


def train_or_load(
    folder: RunFolder, given: Mapping[str, Any], progress_bar: ProgressBar, description: str, kind: Kind = "labels"
) -> dict[str, Any]:
    """The result of a run with these settings: from the folder if it is finished there, else trained now."""
    request = Request.of(kind, **given)
    with folder.locked():
        if folder.exists:
            check_same(folder, kind, request.required())
            content = folder.read_run()
            if "result" in content:
                return dict(content["result"])
        run = resume(folder, kind) if folder.exists else start(request, folder)
        with progress_bar(description) as on_stage:
            return TRAINERS[kind](run, on_stage)
