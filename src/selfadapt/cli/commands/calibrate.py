"""`selfadapt calibrate`"""

from pathlib import Path

import typer

from selfadapt.cli.commands.coverage import Passes
from selfadapt.cli.output import Json, Quiet, count_bar, percent, print_json
from selfadapt.cli.training import Device, opened

EXAMPLE = "Example: selfadapt calibrate runs/first --risk 0.02 --confidence 0.95"


def command(
    run: Path = typer.Argument(help="The folder of a trained run with a validation part."),
    risk: float = typer.Option(help="The largest share of wrong answers, such as 0.02."),
    confidence: float = typer.Option(0.95, help="The confidence with which the guarantee is to hold."),
    selector: str | None = typer.Option(
        None,
        help="softmax-response, entropy, margin, mc-dropout, mc-dropout-classes, mc-dropout-mean, or the run's own.",
    ),
    true_labels: bool = typer.Option(
        False, "--true-labels", help="Go by the true validation labels, where noise was put in and they are known."
    ),
    passes: int = Passes,
    device: str = Device,
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Find a threshold below which RUN abstains, so that the error of its answers has a guarantee.

    The threshold comes from the validation part by an exact bound, and is measured on the test part; `selfadapt
    predict` goes by it. Exit code 1 if no threshold can guarantee that.
    """
    from selfadapt.evaluation.selective.guarantee import EVERYTHING
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect.abstention import calibrate

    own = opened(run, device, quiet=quiet or as_json)
    with count_bar("answering", quiet=quiet or as_json) as on_progress:
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
    if as_json:
        print_json(found)
    elif found["threshold"] is None:
        print(
            f"no threshold can guarantee an error of at most {percent(risk)} with {percent(confidence)} confidence "
            f"from {found['samples']} validation samples\n"
            f"the least that can be guaranteed is {percent(found['guaranteed_risk'])}, at a coverage of "
            f"{percent(found['validation_coverage'])}; more validation samples would help"
        )
        if found["earlier_removed"]:
            print("the threshold of an earlier calibration is removed: predict answers everything now")
    else:
        limit = "never" if found["threshold"] == EVERYTHING else f"up to {found['threshold']:.6g}"
        print(f"abstain              {limit} ({found['selector']})")
        print(
            f"guaranteed error     at most {percent(found['guaranteed_risk'])}, with {percent(confidence)} confidence"
        )
        print(f"validation coverage  {percent(found['validation_coverage'])} of {found['samples']} samples")
        print(f"test error           {percent(found['test_risk'])} at a coverage of {percent(found['test_coverage'])}")
    if found["left_out"] and not as_json:
        print(f"left out             {found['left_out']} samples: of a group, or of copies, one counts at most")
    if found["threshold"] is None:
        raise typer.Exit(1)
