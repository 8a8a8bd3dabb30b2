"""`selfadapt train`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, new_folder, percent, print_json, progress_bar
from selfadapt.errors import Interrupted, UserError

EXAMPLE = "Example: selfadapt train digits --method sat --noise symmetric:0.4 --out runs/first"


def _option(words: str, *names: str) -> Any:
    return typer.Option(None, *names, help=words)


def command(
    context: typer.Context,
    data: str | None = typer.Argument(
        None, help="A name (selfadapt data list), or a folder, .csv, .parquet or .npz. May be left out with --resume."
    ),
    method: str | None = _option("erm (ordinary training) or sat (self-adaptive training). Default: sat."),
    out: Path | None = _option("The run folder. Default: a new one below runs/."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in --out; begin it if there is none."),
    labels: Path | None = _option("Training labels from a .npy or .csv; the data's own count as the truth."),
    noise: str | None = _option(
        "KIND:RATE, noise to put in: symmetric, symmetric-other, asymmetric, instance, gaussian, random-pixels or "
        "shuffled-pixels; or matrix:FILE."
    ),
    seed: int | None = _option("Decides every random number. Default: 0."),
    epochs: int | None = _option("Default: 60."),
    batch_size: int | None = _option("Default: 256, or 64 below 5,000 samples."),
    pieces: int | None = _option("Forward a batch in so many pieces, to save memory. Default: 1."),
    optimizer: str | None = _option("sgd, adam, adamw or lars. Default: sgd."),
    lr: float | None = _option("Learning rate; follows a cosine to zero. Default: 0.1."),
    weight_decay: float | None = _option("Default: 0.0005, or 0.005 below 5,000 samples."),
    warmup_epochs: float | None = _option("Epochs in which the learning rate grows from 0. Default: 0."),
    momentum: float | None = _option("Momentum of the targets (alpha). Default: 0.9."),
    start_epoch: int | None = _option(
        "Epochs before the targets move (E_s). Default: 0.3 of the epochs, as in the paper."
    ),
    targets: str | None = _option("How targets are kept: float32, float16 or file. Default: float32."),
    model: str | None = _option("resnet-small, resnet18, resnet34, resnet50, resnet101 or mlp. Default: resnet-small."),
    width: int | None = _option("Width of the model's first stage. Default: the model's own."),
    image_size: int | None = _option("Bring image files to a square of this size."),
    augment: str | None = _option(
        "none, crop, crop-flip, resized-crop, self-supervised or self-supervised-blur. Default: what suits the data."
    ),
    stream: bool | None = _option("Decode image files on demand instead of keeping a decoded copy.", "--stream"),
    device: str | None = _option("auto, cpu, cuda, mps. Default: auto."),
    precision: str | None = _option("float32, bfloat16 or float16. Default: float32."),
    compile_model: bool | None = _option("Compile the model with torch.compile.", "--compile"),
    limit: int | None = _option("Use the first so many training samples."),
    test_limit: int | None = _option("Use the first so many test samples."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Train on DATA, evaluate, audit the labels, and write the run folder with its page.

    The same command with --resume goes on where a run was stopped, to the same bits.
    """
    from selfadapt.recipes.run import reopen, start, train
    from selfadapt.recipes.settings import RunSettings
    from selfadapt.report.results import RunFolder

    renamed = {"compile_model": "compile"}
    not_settings = {"out", "resume", "quiet", "as_json"}
    given: dict[str, Any] = {
        renamed.get(name, name): str(value) if isinstance(value, Path) else value
        for name, value in context.params.items()
        if name not in not_settings and value is not None
    }
    quiet = quiet or as_json
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    with count_bar("decoding images", quiet=quiet) as count:
        if resume and out is not None and RunFolder(out).exists:
            run = reopen(RunFolder(out), given, count)
        elif data is None:
            raise UserError("no DATA given; name a data set or the path of a file: selfadapt train digits")
        else:
            settings = RunSettings.given(**given)
            run = start(settings, RunFolder(out or new_folder(f"{Path(data).stem}-{settings.method}")), count)
    path = run.folder.path
    try:
        with progress_bar(f"{run.settings.method} on {run.data.name}", quiet=quiet) as watch:
            result = train(run, watch)
    except Interrupted as interruption:
        raise Interrupted(f"{interruption}; go on with: selfadapt train --resume --out {path}") from None
    if as_json:
        print_json(result)
        return
    lines = {
        "test accuracy (last epoch)": percent(result["test_accuracy"]),
        "validation, labels as given": percent(result["validation_accuracy"]),
    }
    if result["noise"]:
        nominal, actual = percent(result["noise"]["nominal"]), percent(result["noise"]["actual"])
        lines[f"noise ({result['noise']['kind']})"] = f"{nominal} nominal, {actual} actual"
    if result["label_recovery"] is not None:
        lines["labels recovered"] = percent(result["label_recovery"])
    lines["suspect labels"] = f"{result['audit']['suspects']} of {len(run.data.train)}"
    if result["unreadable"]:
        lines["files that cannot be read"] = f"{result['unreadable']}, listed in {run.folder.unreadable_file}"
    lines["page"] = str(run.folder.page)
    for words, value in lines.items():
        print(f"{words:<29}{value}")
