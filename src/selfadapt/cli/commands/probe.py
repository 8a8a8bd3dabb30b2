"""`selfadapt probe`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, percent, print_json

EXAMPLE = "Example: selfadapt probe runs/features --data cifar10"


def command(
    run: Path = typer.Argument(help="The folder of a run of `selfadapt pretrain`."),
    data: str | None = typer.Option(
        None, help="Labelled data with a test part. Default: all of the run's; see --limit."
    ),
    image_size: int | None = typer.Option(
        None, min=1, help="Bring images to a square of this size. Default: the run's."
    ),
    epochs: int = typer.Option(100, help="Epochs of the linear classifier."),
    lr: float = typer.Option(0.4, help="Its learning rate; the paper takes 2 for ImageNet."),
    schedule: str = typer.Option(
        "step", help="How the rate falls: step (a tenth after 60 and 80 % of the epochs) or cosine, as for ImageNet."
    ),
    augment: str = typer.Option(
        "none",
        help="Train another classifier as is usual, on raw features of images that are augmented anew in each epoch: "
        "resized-crop (as the paper), crop-flip and all that `train` takes. Every epoch forwards every image.",
    ),
    seed: int = typer.Option(0, help="Decides the order of its batches, and how images are augmented."),
    limit: int | None = typer.Option(
        None,
        help="Use so many training samples: the first of most named sets, of your own a seeded share of each class.",
    ),
    test_limit: int | None = typer.Option(None, help="Use so many test samples, chosen likewise."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, mps."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Train a linear classifier on the frozen features of RUN and ask nearest neighbours: what are they worth?

    The same on the untrained network shows what training has brought. Features are taken once, without augmentation,
    and kept in RUN; so is the classifier of --augment after each epoch, and one that was stopped goes on.
    """
    from selfadapt.evaluation.linear_probe import ProbeSettings
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.linear_evaluation import probe

    settings = ProbeSettings(epochs=epochs, lr=lr, schedule=schedule, augment=augment, seed=seed)
    with count_bar("evaluating features", quiet=quiet or as_json) as on_progress:
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
    if as_json:
        print_json(found)
        return
    print(f"linear classifier    {percent(found['test_accuracy'])}")
    if augment != "none":
        print(f"linear, augmented    {percent(found['augmented_accuracy'])}")
    print(f"nearest neighbours   {percent(found['knn_accuracy'])}")
    print(f"untrained, linear    {percent(found['random_network_accuracy'])}")
