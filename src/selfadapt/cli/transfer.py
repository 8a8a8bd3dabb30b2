"""`selfadapt transfer`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, percent, print_json
from selfadapt.errors import UserError

EXAMPLE = "Example: selfadapt transfer runs/features VOCdevkit/VOC2012 --task segmentation"


def command(
    run: Path = typer.Argument(help="The folder of a run with a ResNet for large images."),
    data: Path = typer.Argument(
        help="A folder in VOC's form: JPEGImages, Annotations or SegmentationClass, ImageSets."
    ),
    task: str = typer.Option("detection", help="detection (Faster R-CNN) or segmentation (FCN)."),
    epochs: int = typer.Option(26, help="Epochs over the training images."),
    batch_size: int = typer.Option(4, help="Images in a step."),
    lr: float = typer.Option(0.01, help="Learning rate, at its largest."),
    image_size: int = typer.Option(480, help="For detection: the length of the shorter side."),
    scratch: bool = typer.Option(False, "--scratch", help="Begin with random weights instead, to compare."),
    seed: int = typer.Option(0, help="Decides every random number."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, mps."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Put the features of RUN to work: train a detector or a segmenter on DATA and measure it.

    One that is stopped begins anew.
    """
    if task not in ("detection", "segmentation"):
        raise UserError(f"--task {task!r} is not known; choose detection or segmentation")
    from selfadapt.report.results import RunFolder
    from selfadapt.runs.transfer import TransferSettings, transfer

    settings = TransferSettings(
        task=task,  # type: ignore[arg-type]
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        image_size=image_size,
        scratch=scratch,
        seed=seed,
    )
    with count_bar(task, quiet=quiet or as_json) as on_progress:
        result = transfer(RunFolder(run), data, settings, device, on_progress)
    if as_json:
        print_json(result)
    elif task == "detection":
        print(f"AP {percent(result['ap'])}, AP50 {percent(result['ap50'])}, AP75 {percent(result['ap75'])}")
    else:
        print(f"mIoU {percent(result['miou'])}, pixels right {percent(result['pixel_accuracy'])}")
