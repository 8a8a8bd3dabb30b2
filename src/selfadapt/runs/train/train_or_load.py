"""Training of runs with labels or without, to the end; and results of runs that may be finished already."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from selfadapt.core.progress import StageProgress, no_stages
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Kind, Request
from selfadapt.runs.lifecycle.lifecycle import Run, check_same, finish, resume, start
from selfadapt.runs.tracking import MetricsSender
from selfadapt.runs.train import labelled, unlabelled
from selfadapt.runs.train.bench import Measures, RunBench

ProgressBar = Callable[[str], AbstractContextManager[StageProgress]]  # with this description; gives its callback

_MEASURES: Mapping[Kind, Measures] = {"labels": labelled.MEASURES, "pretraining": unlabelled.MEASURES}


def train(run: Run, on_stage: StageProgress = no_stages, trackers: Sequence[str] = ()) -> dict[str, Any]:
    """Train to the end, evaluate, write the run folder, and return the result; trackers receive the metrics."""
    measures, sender = _MEASURES[run.plan.kind], MetricsSender(run.folder, run.plan, trackers)
    with run.folder.locked():
        bench = RunBench(run, measures, sender.sending(on_stage))
        run.plan.method.train(bench)
        result = measures.result(bench.finished())
        finish(run.folder, result)
    sender.finish(result)
    return result


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
            return train(run, on_stage)
