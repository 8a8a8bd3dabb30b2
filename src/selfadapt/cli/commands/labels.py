"""`selfadapt labels`"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from selfadapt.cli.output import Output, percent

if TYPE_CHECKING:
    from selfadapt.runs.inspect.corrected_labels import Corrected

EXAMPLE = "Example: selfadapt labels runs/first --precision 0.95 --confidence 0.95"


def command(
    run: Path = typer.Argument(help="Folder of an audited run."),
    confidence: float | None = typer.Option(
        None,
        help="Accept suggestions with at least this confidence. Default: 0.6. With --precision, the confidence of the "
        "guarantee instead. Default: 0.95.",
    ),
    precision: float | None = typer.Option(
        None,
        help="Guaranteed precision: accept unreviewed suggestions in rank order, as many as the random sample of "
        "`selfadapt review` supports.",
    ),
    out: Path | None = typer.Option(None, help="Output table. Default: corrected.csv in the run folder."),
    data_out: Path | None = typer.Option(
        None,
        help="Also write the data again with the corrected labels, in their original format: a table, a folder of "
        "images, an .npz, a saved dataset, or an export of Label Studio or CVAT.",
    ),
) -> Output:
    """Write the corrected labels of RUN as a table: id, path, split, label, given label, and source of the label.

    Decisions of reviewers (selfadapt review) take precedence. Confident suggestions of the audit replace labels of the
    training split only. All other labels stay as given; removed samples are left out. Train on the table with:
    selfadapt train DATA --corrected FILE
    """
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.corrected_labels import (
        PASSED_OVER,
        check_data_out,
        write_corrected_data,
        write_corrected_labels,
    )

    if data_out is not None:
        check_data_out(RunFolder(run), data_out)
    made = write_corrected_labels(RunFolder(run), confidence=confidence, precision=precision, path=out)
    if data_out is not None:
        write_corrected_data(RunFolder(run), made.corrections, data_out)
    held = made.depth
    guarantee = None if held is None else {"depth": held.size, "taken": held.rest, "low": held.low}
    yield {
        "labels": str(made.path),
        **({} if data_out is None else {"data": str(data_out)}),
        "changed": made.changed,
        "removed": made.removed,
        "by": dict(made.by),
        "passed_over": dict(made.passed_over),
        **({} if precision is None else {"promise": guarantee}),
    }
    decided = made.by.get("person", 0)
    print(f"{made.changed} of {made.labels} labels changed; {decided} decided by reviewers, {made.removed} removed")
    if made.passed_over:
        reasons = ", ".join(f"{count} {PASSED_OVER[reason]}" for reason, count in made.passed_over.items())
        print(f"{sum(made.passed_over.values())} likely errors keep their label: {reasons}")
    if precision is not None:
        print(_guarantee(made, precision, run))
    print(made.path)
    if data_out is not None:
        print(data_out)


def _guarantee(made: "Corrected", precision: float, run: Path) -> str:
    found, depth = made.promise, made.depth
    if not made.left:
        return "all suggestions are reviewed; none is left to accept unreviewed"
    if found is None:
        return (
            f"no random sample was reviewed yet, so no suggestion was accepted unreviewed; run: selfadapt review {run}"
        )
    if depth is None:
        return (
            f"{found.seen} reviewed samples do not guarantee a precision of {percent(precision)} with "
            f"{percent(found.confidence)} confidence, so no suggestion was accepted unreviewed; review more with: "
            f"selfadapt review {run}"
        )
    return (
        f"{depth.rest} suggestions were accepted unreviewed, from the {depth.size} most likely errors of "
        f"{found.population}: at least {percent(depth.low)} of them are right, with {percent(found.confidence)} "
        "confidence"
    )
