"""`selfadapt probe`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar, percent, print_lines
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes

EXAMPLE = "Example: selfadapt probe runs/features --data cifar10"


def command(
    run: Path = typer.Argument(help="Folder of a run of `selfadapt pretrain`."),
    data: str | None = typer.Option(None, help="Labelled data with a test split. Default: the data of the run."),
    image_size: int | None = typer.Option(
        None, min=1, help="Resize and crop images to a square of this size. Default: as in the run."
    ),
    epochs: int = typer.Option(100, help="Number of epochs."),
    lr: float = typer.Option(0.4, help="Learning rate. The paper uses 2 for ImageNet."),
    schedule: str = typer.Option(
        "step", help="step (divide by 10 after 60 and 80 % of the epochs), or cosine, as the paper for ImageNet."
    ),
    augment: str = typer.Option(
        "none",
        help="Also train a classifier on features of augmented images: resized-crop (as in the paper) or another "
        "augmentation of `train`. Each epoch runs the network on every image.",
    ),
    seed: int = typer.Option(0, help="Random seed."),
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
    from selfadapt.evaluation.linear_probe import ProbeSettings
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.linear_evaluation import probe

    settings = ProbeSettings(epochs=epochs, lr=lr, schedule=schedule, augment=augment, seed=seed)
    with in_processes(devices, device) as first, count_bar("evaluating features") as on_progress:
        found = probe(
            RunFolder(run),
            data,
            settings,
            device=device,
            image_size=image_size,
            limit=limit,
            test_limit=test_limit,
            on_progress=on_progress,
        )
        if not first:
            return
    yield found
    lines = {"linear classifier": percent(found["test_accuracy"])}
    if augment != "none":
        lines["linear classifier, augmented"] = percent(found["augmented_accuracy"])
    lines["nearest neighbours"] = percent(found["knn_accuracy"])
    lines["linear, untrained network"] = percent(found["random_network_accuracy"])
    print_lines(lines)
