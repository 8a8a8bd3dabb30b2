"""`selfadapt transfer`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar, percent
from selfadapt.cli.parameters import Device
from selfadapt.runs.transfer.transfer_settings import TransferSettings

SETTINGS = TransferSettings
EXAMPLE = "Example: selfadapt transfer runs/features VOCdevkit/VOC2007 VOCdevkit/VOC2012 --detector c4"


def command(
    given: TransferSettings,
    run: Path = typer.Argument(help="Folder of a run with a ResNet."),
    data: list[Path] = typer.Argument(
        help="Folders in VOC format (JPEGImages, Annotations or SegmentationClass, ImageSets). All are used for "
        "training, the first one for evaluation."
    ),
    device: str = Device,
) -> Output:
    """Fine-tune the network of RUN for detection or segmentation on DATA, and evaluate it.

    The same command resumes.
    """
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.transfer.fine_tune import transfer

    with count_bar(given.task) as on_progress:
        result = transfer(RunFolder(run), data, given, device, on_progress)
    yield result
    if given.task == "detection":
        for metric, scores in (("VOC 2007, 11 points:", result["voc07"]), ("COCO, 101 points:   ", result)):
            print(metric, ", ".join(f"{name.upper()} {percent(scores[name])}" for name in ("ap", "ap50", "ap75")))
    else:
        print(f"mIoU {percent(result['miou'])}, pixel accuracy {percent(result['pixel_accuracy'])}")
