"""Runs from Python: what `selfadapt train` does, and what it leaves behind, for scripts and notebooks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from selfadapt.core.errors import UserError
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.request import Request
from selfadapt.runs.inspect.predictor import Predictor
from selfadapt.runs.lifecycle.lifecycle import resume as resume_run
from selfadapt.runs.lifecycle.lifecycle import start
from selfadapt.runs.train.labelled import train as train_run


@dataclass(frozen=True)
class TrainedRun:
    """A finished run.

    Attributes:
        folder: the run folder, which every command of `selfadapt` takes.
        plan: every setting of the run.
        result: what `selfadapt train --json` prints: test_accuracy, label_recovery, audit and more.
    """

    folder: Path
    plan: Plan
    result: Mapping[str, Any]

    @cached_property
    def labels(self) -> Any:
        """The table labels.csv as a pandas DataFrame: a row for each label, most likely wrong first. Needs pandas.

        Example:
            >>> run.labels[run.labels.suspect == 1].head()
        """
        import pandas

        return pandas.read_csv(RunFolder(self.folder).labels_file, dtype={"id": str}, keep_default_na=False)

    def predict(
        self, paths: str | Path | Sequence[str | Path], *, device: str = "auto", abstain: bool = True
    ) -> list[dict[str, Any]]:
        """Predict the class of each input.

        Args:
            paths: image files, .npy files of images or vectors, or tables of rows.
            device: auto, cpu, cuda or mps.
            abstain: whether to abstain below the threshold of `selfadapt calibrate`, if there is one.

        Returns:
            A record for each input, with `path`, `class` (None where the run abstains), `confidence`, `abstained` and
            `guess`; or with `path` and `error` for an input that cannot be read.

        Raises:
            UserError: if a file is of another kind than the data of the run.

        Example:
            >>> run.predict(["new/1.png", "new/2.png"])[0]["class"]
        """
        given = [paths] if isinstance(paths, str | Path) else paths
        predictor = Predictor.of_run(RunFolder(self.folder), device, abstain=abstain)
        return list(predictor.answer([Path(path) for path in given]))


def train(data: str | Path, *, out: str | Path, resume: bool = False, **settings: Any) -> TrainedRun:
    """Train on a data set, evaluate, audit the labels, and write the run folder with its report.

    Args:
        data: the name of a data set, or the path of a folder, .csv, .parquet or .npz.
        out: the run folder, which must not hold a run unless `resume` is set.
        resume: whether to resume the run in `out`; it is started if there is none.
        **settings: the options of `selfadapt train` by their names with underscores, those of the method included,
            such as method, noise, seed, epochs or start_epoch.

    Returns:
        The finished run.

    Raises:
        UserError: if a setting is unknown or does not suit the data, or if `out` is in use.

    Example:
        >>> import selfadapt
        >>> run = selfadapt.train("digits", out="runs/digits", method="sat", noise="symmetric:0.4", seed=1)
        >>> run.result["test_accuracy"]
    """
    folder, given = RunFolder(Path(out)), {**settings, "data": str(data)}
    request = Request.of("labels", **given)
    with folder.locked():
        run = resume_run(folder, "labels", given) if resume and folder.exists else start(request, folder)
        return TrainedRun(folder.path, run.plan, train_run(run))


def open_run(path: str | Path) -> TrainedRun:
    """Open a finished run.

    Args:
        path: the run folder.

    Returns:
        The run, without its data and its model, which are read when they are needed.

    Raises:
        UserError: if this is not a run folder, or the run is not trained to its end.

    Example:
        >>> selfadapt.open_run("runs/digits").labels.head()
    """
    folder = RunFolder(Path(path))
    content = folder.read_run()
    plan = Plan.of(folder, "labels")
    if "result" not in content:
        raise UserError(
            f"{path} is not trained to its end; resume it with: selfadapt train --resume --out {path}, or "
            "selfadapt.train(..., resume=True)"
        )
    return TrainedRun(folder.path, plan, content["result"])
