"""`selfadapt attack`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar, percent, print_lines, print_table
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.cli.training import opened
from selfadapt.runs.inspect.inspection_settings import AttackSettings

SETTINGS = AttackSettings
EXAMPLE = "Example: selfadapt attack runs/first --with pgd20"


def command(
    given: AttackSettings,
    run: Path = typer.Argument(help="Folder of a trained run on images, with a test split."),
    transfer: Path | None = typer.Option(
        None, help="Also attack with adversarial examples made for another run on the same data."
    ),
    device: str = Device,
    devices: int = Processes,
) -> Output:
    """Measure the accuracy of RUN on test images under an adversarial attack.

    The same command resumes an interrupted attack. The report of RUN shows the result.
    """
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect.robust_accuracy import attack_run

    with in_processes(devices, device, resumes=True):
        own = opened(run, device)
        other = None if transfer is None else opened(transfer, device)
        with count_bar(f"{given.name} attack") as on_progress:
            found = attack_run(own, given, transfer=other, on_progress=on_progress)
    write_run_page(own.folder)
    yield found
    print(f"{found['images']} test images, {found['norm']} {found['eps']:g}, network of epoch {found['epoch']}")
    lines = {"clean accuracy": percent(found["clean_accuracy"])}
    lines |= {f"robust accuracy, {name}": percent(value) for name, value in found["by_attack"].items()}
    if "transfer" in found:
        moved = found["transfer"]
        lines[f"robust accuracy, examples of {moved['run']}"] = (
            f"{percent(moved['robust_accuracy'])} of {moved['images']} images"
        )
    print_lines(lines)
    print_table(
        ["class", "images", "clean accuracy", "robust accuracy"],
        [
            [class_name, str(row["images"]), percent(row["clean_accuracy"]), percent(row["robust_accuracy"])]
            for class_name, row in found["by_class"].items()
        ],
    )
    for line in found["notes"]:
        print(f"note: {line}")
    for line in found["warnings"]:
        print(f"warning: {line}")
    print(f"report: {own.folder.page}")
