"""`selfadapt labels`"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from selfadapt.cli.output import Json, percent, print_json

if TYPE_CHECKING:
    from selfadapt.runs.inspect.corrected_labels import Corrected

EXAMPLE = "Example: selfadapt labels runs/first --precision 0.95 --confidence 0.95"


def command(
    run: Path = typer.Argument(help="The folder of a run that was audited."),
    confidence: float | None = typer.Option(
        None,
        help="Take a suggestion from this confidence on; others stay as given. Default: 0.6. With --precision: how "
        "sure to be of it. Default: 0.95.",
    ),
    precision: float | None = typer.Option(
        None,
        help="Take suggestions that nobody looked at only as deep as at least this share of them is right, by what was "
        "measured in `selfadapt review`.",
    ),
    out: Path | None = typer.Option(None, help="The table to write. Default: corrected.csv in the run folder."),
    as_json: bool = Json,
) -> None:
    """Write the corrected label table of RUN: id, path, part, label, the label as it was given, and by whom it is.

    Labels that people decided come first (selfadapt review); then, for training labels, suggestions of the audit; all
    others stay as given, and what was removed is left out. It tells how many suspects keep their label, and why. Train
    on it with: selfadapt train DATA --corrected FILE
    """
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.corrected_labels import PASSED_OVER, write_corrected_labels

    made = write_corrected_labels(RunFolder(run), confidence=confidence, precision=precision, path=out)
    if as_json:
        content = {
            "labels": str(made.path),
            "changed": made.changed,
            "removed": made.removed,
            "by": dict(made.by),
            "passed_over": dict(made.passed_over),
        }
        if precision is not None:
            held = made.depth
            content["promise"] = None if held is None else {"depth": held.size, "taken": held.rest, "low": held.low}
        print_json(content)
        return
    decided = made.by.get("person", 0)
    print(f"{made.changed} of {made.labels} labels changed; {decided} are by people, {made.removed} were removed")
    if made.passed_over:
        reasons = ", ".join(f"{count} {PASSED_OVER[reason]}" for reason, count in made.passed_over.items())
        print(f"{sum(made.passed_over.values())} suspects keep their label: {reasons}")
    if precision is not None:
        print(_told(made, precision, run))
    print(made.path)


def _told(made: "Corrected", precision: float, run: Path) -> str:
    found, depth = made.promise, made.depth
    if not made.left:
        return "all suggestions are decided; nothing is left to take unseen"
    if found is None:
        return f"nothing was measured yet, so no suggestion was taken unseen; measure with: selfadapt review {run}"
    if depth is None:
        return (
            f"after {found.seen} looks no depth promises a precision of {percent(precision)} with a confidence of "
            f"{percent(found.confidence)}, so no suggestion was taken unseen; look at more with: selfadapt review {run}"
        )
    return (
        f"{depth.rest} suggestions were taken unseen, down to the {depth.size} most suspicious of {found.population}: "
        f"at least {percent(depth.low)} of them are right, with a confidence of {percent(found.confidence)}"
    )
