"""`selfadapt probe`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar, percent, print_lines
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.evaluation.probe_settings import ProbeSettings

SETTINGS = ProbeSettings
EXAMPLE = "Example: selfadapt probe runs/features --data cifar10"


def command(
    given: ProbeSettings,
    run: Path = typer.Argument(help="Folder of a run of `selfadapt pretrain`."),
    data: str | None = typer.Option(None, help="Labelled data with a test split. Default: the data of the run."),
    image_size: int | None = typer.Option(
        None, min=1, help="Resize and crop images to a square of this size. Default: as in the run."
    ),
    limit: int | None = typer.Option(
        None,
        help="Use N training samples: the first N of most named data sets, a random sample of each class for other "
        "data.",
    ),
    test_limit: int | None = typer.Option(None, help="Use N test samples, selected in the same way."),
    device: str = Device,
    devices: int = Processes,
) -> Output:
    """Evaluate the features of RUN: linear classifier and k-nearest neighbours on frozen features.

    The same is measured for the untrained network. Features are stored in RUN; an interrupted evaluation resumes.
    """
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.linear_evaluation import probe

    with in_processes(devices, device), count_bar("evaluating features") as on_progress:
        found = probe(
            RunFolder(run),
            data,
            given,
            device=device,
            image_size=image_size,
            limit=limit,
            test_limit=test_limit,
            on_progress=on_progress,
        )
    yield found
    lines = {"linear classifier": percent(found["test_accuracy"])}
    if given.augment != "none":
        lines["linear classifier, augmented"] = percent(found["augmented_accuracy"])
    lines["nearest neighbours"] = percent(found["knn_accuracy"])
    lines["linear, untrained network"] = percent(found["random_network_accuracy"])
    print_lines(lines)
