"""`selfadapt transfer`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar, percent
from selfadapt.cli.parameters import Device

EXAMPLE = "Example: selfadapt transfer runs/features VOCdevkit/VOC2007 VOCdevkit/VOC2012 --detector c4"


def command(
    run: Path = typer.Argument(help="Folder of a run with a ResNet."),
    data: list[Path] = typer.Argument(
        help="Folders in VOC format (JPEGImages, Annotations or SegmentationClass, ImageSets). All are trained on; the "
        "first is evaluated."
    ),
    task: str = typer.Option("detection", help="detection (Faster R-CNN) or segmentation (FCN)."),
    detector: str = typer.Option(
        "pyramid", help="pyramid (feature pyramid, faster) or c4 (one feature map, as in Table 10 of the paper)."
    ),
    steps: int | None = typer.Option(None, help="Training steps. Default: 24,000 for c4, 30,000 for segmentation."),
    epochs: int | None = typer.Option(None, help="Epochs, instead of steps. Default: 26 for pyramid."),
    batch_size: int | None = typer.Option(None, help="Images per step. Default: 4 for pyramid, else 16."),
    lr: float | None = typer.Option(
        None, help="Peak learning rate. Default: 0.01 for pyramid, 0.02 for c4, 0.003 for segmentation."
    ),
    image_size: int | None = typer.Option(
        None,
        help="Detection: shorter side at test time; training uses 0.6 to 1 of it for c4. Default: 480 for pyramid, 800 "
        "for c4. Segmentation: size of the crops. Default: 513.",
    ),
    scratch: bool = typer.Option(False, "--scratch", help="Train from scratch, for comparison."),
    seed: int = typer.Option(0, help="Random seed."),
    device: str = Device,
) -> Output:
    """Fine-tune the network of RUN for detection or segmentation on DATA, and evaluate it.

    The same command resumes.
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
    with count_bar(task) as on_progress:
        result = transfer(RunFolder(run), data, settings, device, on_progress)
    yield result
    if task == "detection":
        for metric, scores in (("VOC 2007, 11 points:", result["voc07"]), ("COCO, 101 points:   ", result)):
            print(metric, ", ".join(f"{name.upper()} {percent(scores[name])}" for name in ("ap", "ap50", "ap75")))
    else:
        print(f"mIoU {percent(result['miou'])}, pixel accuracy {percent(result['pixel_accuracy'])}")
