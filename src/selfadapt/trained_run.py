"""Runs from Python: what `selfadapt train` does, and what it leaves behind, for scripts and notebooks."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Any

from selfadapt.core.errors import UserError
from selfadapt.core.progress import no_stages
from selfadapt.data.sources.user_objects import forget, store, stored_in
from selfadapt.evaluation.label_errors.notebook_view import report_html
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.request import Request
from selfadapt.runs.inspect.corrected_labels import (
    check_data_out,
    corrected_table,
    write_corrected_data,
    write_corrected_labels,
)
from selfadapt.runs.inspect.notebook_samples import run_map, sample_views
from selfadapt.runs.inspect.predictor import Predictor
from selfadapt.runs.lifecycle.lifecycle import resume as resume_run
from selfadapt.runs.lifecycle.lifecycle import start
from selfadapt.runs.tracking import check_trackers
from selfadapt.runs.train.progress_bar import progress_bar
from selfadapt.runs.train.train_or_load import train as train_run


@dataclass(frozen=True)
class TrainedRun:
    """A finished run.

    Attributes:
        folder: The run folder, which the commands of `selfadapt` take.
        plan: Every setting of the run.
        result: What `selfadapt train --json` prints: test_accuracy, label_recovery, audit and more.
    """

    folder: Path
    plan: Plan
    result: Mapping[str, Any]

    @cached_property
    def labels(self) -> Any:
        """The table labels.csv as a pandas DataFrame: one row per label, most likely wrong first. Needs pandas.

        Examples:
            >>> run.labels[run.labels.suspect == 1].head()
        """
        import pandas

        return pandas.read_csv(RunFolder(self.folder).labels_file, dtype={"id": str}, keep_default_na=False)

    @cached_property
    def label_errors(self) -> LabelErrorReport:
        """The assessment of every label, in the order of labels.csv: most likely wrong first."""
        return read_report(RunFolder(self.folder))

    def _repr_html_(self) -> str:
        """The result and, of an audited run, its likely label errors with their images or values."""
        shown = {"test accuracy": "test_accuracy", "validation accuracy (given labels)": "validation_accuracy"}
        found = [f"{name} {self.result[key]:.1%}" for name, key in shown.items() if self.result.get(key) is not None]
        title = f"<p><b>{escape(str(self.folder))}</b>: {escape(', '.join([self.plan.method_name, *found]))}</p>"
        folder = RunFolder(self.folder)
        if not folder.labels_file.exists():
            return title
        return title + report_html(
            self.label_errors, sample_views(folder, self.label_errors), run_map(folder, self.label_errors)
        )

    def corrected(
        self,
        data: Any = None,
        *,
        out: str | Path | None = None,
        confidence: float | None = None,
        precision: float | None = None,
    ) -> Any:
        """Write the corrected labels to corrected.csv and, on request, the corrected data in their original format.

        Decisions of reviewers come first, then confident suggestions on training labels, as in `selfadapt labels`.

        Args:
            data: The DataFrame or Dataset of `datasets` that the run was trained on, to get a corrected copy.
            out: Where to write the corrected data, if the run was trained on a path.
            confidence: Least confidence of a suggestion to be used.
            precision: Guaranteed precision of the suggestions that are used unreviewed.

        Returns:
            The corrected copy of `data`; `out`; or without both, the path of corrected.csv.

        Raises:
            UserError: If `out` exists, or the data cannot be written.
            ValueError: If `data` are not those of the run.

        Examples:
            >>> run = selfadapt.train(frame, out="runs/frame", label_column="animal")
            >>> corrected = run.corrected(frame)
        """
        folder = RunFolder(self.folder)
        if out is not None:
            check_data_out(folder, Path(out))
        made = write_corrected_labels(folder, confidence=confidence, precision=precision)
        if out is not None:
            write_corrected_data(folder, made.corrections, Path(out))
        if data is not None:
            return corrected_table(folder, made.corrections, data)
        return made.path if out is None else Path(out)

    def predict(
        self, paths: str | Path | Sequence[str | Path], *, device: str = "auto", abstain: bool = True
    ) -> list[dict[str, Any]]:
        """Predict the class of each input.

        Args:
            paths: Image files, .npy files of images or vectors, or tables of rows.
            device: auto, cpu, cuda, rocm, xpu or mps.
            abstain: Whether to abstain below the threshold of `selfadapt calibrate`, if there is one.

        Returns:
            A record for each input, with `path`, `class` (None if the run abstains), `confidence`, `abstained` and
            `guess`; or with `path` and `error` for an input that cannot be read.

        Raises:
            UserError: If a file is of another kind than the data of the run.

        Examples:
            >>> run.predict(["new/1.png", "new/2.png"])[0]["class"]
        """
        given = [paths] if isinstance(paths, str | Path) else paths
        predictor = Predictor.of_run(RunFolder(self.folder), device, abstain=abstain)
        return list(predictor.answer([Path(path) for path in given]))


def train(
    data: Any,
    *,
    out: str | Path,
    resume: bool = False,
    log_to: str | None = None,
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train on a data set, evaluate, audit the labels, and write the run folder with its report.

    Args:
        data: The name of a data set, a path that `selfadapt train` takes, a DataFrame of pandas or polars, a Dataset of
            `datasets`, or a torch Dataset of pairs of an image or vector and its label. Data in memory are stored in
            the run folder; `resume` continues with what is stored there.
        out: The run folder, which must not hold a run unless `resume` is set.
        resume: Whether to resume the run in `out`; it is started if there is none.
        log_to: Experiment trackers that receive the metrics: tensorboard, mlflow or wandb, separated by commas.
        progress: Whether to show a progress bar, in a notebook or on a terminal.
        **settings: Options of `selfadapt train` and of the method, by their names with underscores: method, noise,
            seed, epochs, start_epoch and so on.

    Returns:
        The finished run.

    Raises:
        UserError: If a setting is unknown or does not suit the data, or if `out` is in use.
        Interrupted: On SIGINT or SIGTERM. `resume=True` continues the run.

    Examples:
        >>> import selfadapt
        >>> run = selfadapt.train("digits", out="runs/digits", method="sat", noise="symmetric:0.4", seed=1)
        >>> run.result["test_accuracy"]
    """
    if "" in (out, data if isinstance(data, str) else None):
        raise UserError("data or out is empty, which would be the current folder; name it")
    folder, trackers = RunFolder(Path(out)), check_trackers(log_to)
    bar = progress_bar(str(folder.path)) if progress else nullcontext(no_stages)
    with folder.locked(), bar as on_stage:
        on_reading = partial(on_stage, "reading data")
        given = {**settings, "data": str(data if isinstance(data, str | Path) else folder.path)}
        request = Request.of("labels", **given)
        if not isinstance(data, str | Path):  # stored once the settings are known to be valid
            given["data"] = str(_stored(data, folder, resume=resume))
            request = Request.of("labels", **given)
        try:
            if resume and folder.exists:
                run = resume_run(folder, "labels", given, on_reading)
            else:
                run = start(request, folder, on_reading)
        except UserError:
            if not isinstance(data, str | Path) and not folder.exists:
                forget(folder.path)
            raise
        return TrainedRun(folder.path, run.plan, train_run(run, on_stage, trackers))


def _stored(data: Any, folder: RunFolder, *, resume: bool) -> Path:
    """The file or folder in the run folder that holds data from memory."""
    known = stored_in(folder.path) if resume and folder.exists else None
    if known is None:
        folder.check_free()
    return known or store(data, folder.path)


def open_run(path: str | Path) -> TrainedRun:
    """Open a finished run.

    Args:
        path: The run folder.

    Returns:
        The run. Its data and its model are read when they are needed.

    Raises:
        UserError: If this is not a run folder, or the run is not trained to its end.

    Examples:
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
