"""`selfadapt pretrain`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, new_folder, percent, print_json, progress_bar
from selfadapt.cli.train import run_in_processes
from selfadapt.engine.launch import follow_launcher, is_restarted
from selfadapt.errors import Interrupted, UserError

EXAMPLE = "Example: selfadapt pretrain cifar10 --method sat --views 1 --epochs 100 --out runs/features"


def command(
    data: str | None = typer.Argument(
        None, help="A name, a folder of images with or without class folders, a table, an .npz. Labels are not needed."
    ),
    method: str | None = typer.Option(
        None, help="sat, byol, moco, simclr, simsiam; noise, random-network (the paper's Figure 2). Default: sat."
    ),
    views: int | None = typer.Option(None, help="Augmented views of an image in a step, 1 or 2. Default: 1."),
    out: Path | None = typer.Option(None, help="The run folder. Default: a new one below runs/."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in --out; begin it if there is none."),
    devices: int = typer.Option(1, help="Train in so many processes, each with a part of every batch."),
    seed: int | None = typer.Option(None, help="Decides every random number. Default: 0."),
    epochs: int | None = typer.Option(None, help="Default: 100."),
    batch_size: int | None = typer.Option(None, help="Default: 512, or 128 below 50,000 images."),
    optimizer: str | None = typer.Option(None, help="sgd, adam, adamw or lars. Default: sgd."),
    lr: float | None = typer.Option(None, help="Learning rate; follows a cosine to zero. Default: 0.1."),
    weight_decay: float | None = typer.Option(None, help="Default: 0.00005."),
    warmup_epochs: float | None = typer.Option(None, help="Default: 30 of 800 epochs, in proportion."),
    momentum: str | None = typer.Option(None, help="Of the targets (alpha); 0.5:0.8 grows. Default: 0.7."),
    beta: str | None = typer.Option(None, help="Of the slow copy; 0.99:1 grows, 0 is no copy. Default: 0.99."),
    predictor: bool | None = typer.Option(None, "--predictor/--no-predictor", help="Default: what the method has."),
    hidden: int | None = typer.Option(
        None, help="Width of the hidden layer of projector and predictor. Default: 4096."
    ),
    dimensions: int | None = typer.Option(None, help="Of a projection and a target. Default: 256."),
    targets: str | None = typer.Option(
        None, help="float32, float16, int8 or file; sharded:… to share. Default: float32."
    ),
    model: str | None = typer.Option(None, help="resnet18, resnet50, alexnet, resnet-small, … Default: resnet18."),
    width: int | None = typer.Option(None, help="Width of the model's first stage. Default: the model's own."),
    image_size: int | None = typer.Option(None, help="Bring image files to a square of this size."),
    augment: str | None = typer.Option(None, help="Default: self-supervised; -blur for large images."),
    stream: bool | None = typer.Option(None, "--stream", help="Decode image files on demand."),
    device: str | None = typer.Option(None, help="auto, cpu, cuda, mps. Default: auto."),
    precision: str | None = typer.Option(None, help="float32, bfloat16 or float16. Default: float32."),
    compile_model: bool | None = typer.Option(None, "--compile", help="Compile the model with torch.compile."),
    limit: int | None = typer.Option(None, help="Use the first so many training images."),
    test_limit: int | None = typer.Option(None, help="Use the first so many test images."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Learn features from the images of DATA without labels, and write the run folder with its page.

    Where labels are known, a linear layer learns beside the network, without touching it, to show how it gets on. A
    network whose features collapse says so.
    """
    values = dict(locals())
    for own in ("out", "resume", "devices", "quiet", "as_json"):
        del values[own]
    values["compile"] = values.pop("compile_model")
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    run_in_processes(devices, data, out, resume=resume)
    from selfadapt import processes
    from selfadapt.recipes.pretraining import PretrainingSettings, pretrain, reopen, start
    from selfadapt.recipes.settings import choose_device
    from selfadapt.report.results import RunFolder

    follow_launcher()
    processes.join(choose_device(given.get("device", "auto")))
    quiet = quiet or as_json or processes.rank() > 0
    with count_bar("decoding images", quiet=quiet) as count:
        if (resume or is_restarted()) and out is not None and RunFolder(out).exists:
            run = reopen(RunFolder(out), given, count)
        elif data is None:
            raise UserError("no DATA given; name a data set or a folder of images: selfadapt pretrain photos")
        else:
            settings = PretrainingSettings.given(**given)
            run = start(settings, RunFolder(out or new_folder(f"{Path(data).stem}-{settings.method}")), count)
    first = processes.rank() == 0
    try:
        with progress_bar(f"{run.settings.method} on {run.data.name}", quiet=quiet) as watch:
            result = pretrain(run, watch)
    except Interrupted as interruption:
        again = f"selfadapt pretrain --resume --out {run.folder.path}" + (
            f" --devices {devices}" if devices > 1 else ""
        )
        raise Interrupted(f"{interruption}; go on with: {again}") from None
    finally:
        processes.leave()
    if not first:
        return
    if as_json:
        print_json(result)
    else:
        print(f"online probe, test   {percent(result['online_probe_accuracy'])}")
        print(f"spread, rank         {result['feature_std']:.2f}, {result['effective_rank']:.1f}")
        print(f"seconds an epoch     {result['seconds_per_epoch']}")
        print(f"page                 {run.folder.page}")
    if result["collapsed"]:
        typer.secho("WARNING: the features have collapsed; do not use them", fg="red", bold=True, err=True)
