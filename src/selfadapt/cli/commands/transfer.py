"""`selfadapt transfer`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, percent, print_json

EXAMPLE = "Example: selfadapt transfer runs/features VOCdevkit/VOC2007 VOCdevkit/VOC2012 --detector c4"


def command(
    run: Path = typer.Argument(help="The folder of a run with a ResNet."),
    data: list[Path] = typer.Argument(
        help="Folders in VOC's form: JPEGImages, Annotations or SegmentationClass, ImageSets. The first is measured "
        "on; all are learned from."
    ),
    task: str = typer.Option("detection", help="detection (Faster R-CNN) or segmentation (FCN)."),
    detector: str = typer.Option(
        "pyramid", help="pyramid (feature pyramid, quicker) or c4 (one map, the paper's Table 10)."
    ),
    steps: int | None = typer.Option(None, help="Steps of training: 24,000 for c4, 30,000 for segmentation."),
    epochs: int | None = typer.Option(None, help="Epochs over the training images instead: 26 for pyramid."),
    batch_size: int | None = typer.Option(None, help="Images in a step: 4 for pyramid, else 16."),
    lr: float | None = typer.Option(
        None, help="Learning rate, at its largest: 0.01 for pyramid, 0.02 for c4, 0.003 for segmentation."
    ),
    image_size: int | None = typer.Option(
        None,
        help="Detection: the shorter side at test, 480 for pyramid and 800 for c4, which trains from 0.6 of it on. "
        "Segmentation: the side of the crops, 513.",
    ),
    scratch: bool = typer.Option(False, "--scratch", help="Begin with random weights instead, to compare."),
    seed: int = typer.Option(0, help="Decides every random number."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, mps."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Put the features of RUN to work: train a detector or a segmenter on DATA and measure it.

    One that was stopped goes on with the same command.
    """
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.transfer.fine_tune import transfer
    from selfadapt.runs.transfer.transfer_settings import TransferSettings

    settings = TransferSettings(
        task=task,  # type: ignore[arg-type]
        detector=detector,  # type: ignore[arg-type]
        steps=steps,
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
        for words, scores in (("VOC 2007, 11 points:", result["voc07"]), ("COCO, 101 points:   ", result)):
            print(words, ", ".join(f"{name.upper()} {percent(scores[name])}" for name in ("ap", "ap50", "ap75")))
    else:
        print(f"mIoU {percent(result['miou'])}, pixels right {percent(result['pixel_accuracy'])}")
