"""`selfadapt calibrate`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.commands.coverage import Passes
from selfadapt.cli.output import Output, count_bar, percent, print_lines
from selfadapt.cli.parameters import Device
from selfadapt.cli.training import opened

EXAMPLE = "Example: selfadapt calibrate runs/abstaining --risk 0.05 --confidence 0.95"


def command(
    run: Path = typer.Argument(help="Folder of a trained run with a validation split."),
    risk: float = typer.Option(help="Largest selective risk (error on answered samples), for example 0.05."),
    confidence: float = typer.Option(0.95, help="Confidence of the guarantee."),
    selector: str | None = typer.Option(
        None,
        help="softmax-response, entropy, margin, mc-dropout, mc-dropout-classes or mc-dropout-mean. Default: the "
        "selector of the method.",
    ),
    true_labels: bool = typer.Option(
        False, "--true-labels", help="Use the true validation labels, if the noise was added by selfadapt."
    ),
    passes: int = Passes,
    device: str = Device,
) -> Output:
    """Choose a confidence threshold below which RUN abstains, with a guarantee on the error of its answers.

    The threshold is chosen on the validation split by an exact bound and evaluated on the test split. `selfadapt
    predict` uses it. The exit code is 1 if no threshold satisfies the guarantee.
    """
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect.abstention import calibrate

    own = opened(run, device)
    with count_bar("predicting") as on_progress:
        found = calibrate(
            own,
            risk=risk,
            confidence=confidence,
            selector=selector,
            passes=passes,
            true_labels=true_labels,
            on_progress=on_progress,
        )
    write_run_page(own.folder)
    try:
        yield found
        _print(found, run, risk=risk, confidence=confidence)
    finally:  # with --json as well
        if found["threshold"] is None:
            raise typer.Exit(1)


def _print(found: dict[str, Any], run: Path, *, risk: float, confidence: float) -> None:
    from selfadapt.evaluation.selective.guarantee import EVERYTHING

    if found["threshold"] is None:
        print(
            f"no threshold guarantees an error of at most {percent(risk)} with {percent(confidence)} confidence "
            f"from {found['samples']} validation samples\n"
            f"the lowest error that can be guaranteed is {percent(found['guaranteed_risk'])}, at a coverage of "
            f"{percent(found['validation_coverage'])}; more validation samples would help"
        )
        if found["suggested_risk"] is not None:
            print(f"to accept that error: selfadapt calibrate {run} --risk {found['suggested_risk']:g}")
        if found["earlier_removed"]:
            print("the earlier threshold was removed: predict no longer abstains")
    else:
        limit = (
            "never" if found["threshold"] == EVERYTHING else f"if the confidence is at most {found['threshold']:.6g}"
        )
        bound = f"at most {percent(found['guaranteed_risk'])}, with {percent(confidence)} confidence"
        lines = {
            "abstain": f"{limit} (selector {found['selector']})",
            "guaranteed error": bound,
            "validation coverage": f"{percent(found['validation_coverage'])} of {found['samples']} samples",
            "test error": f"{percent(found['test_risk'])} at a coverage of {percent(found['test_coverage'])}",
        }
        print_lines(lines)
        if found["test_p_value"] is not None:
            print(_excess(found["test_p_value"], confidence))
    if found["left_out"]:
        print(f"{found['left_out']} validation samples were left out: one sample per group or set of duplicates counts")


def _excess(p_value: float, confidence: float) -> str:
    """What a test error above the guaranteed one means."""
    chance = (
        f"an excess this large has a probability of at most {p_value:.2g} if the guarantee holds for the test split"
    )
    meaning = (
        "so the test split probably differs from the validation split, or the guarantee failed, "
        f"which it does with a probability of at most {percent(1 - confidence)}"
        if p_value < 0.05
        else "so it may be chance"
    )
    return f"the test error exceeds the guaranteed error: {chance}, {meaning}"
