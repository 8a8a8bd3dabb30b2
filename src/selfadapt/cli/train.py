"""`selfadapt train`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Json, Quiet, new_folder, percent, print_json, progress_bar
from selfadapt.errors import Interrupted, UserError

EXAMPLE = "Example: selfadapt train digits --method sat --noise symmetric:0.4 --out runs/first"


def command(
    context: typer.Context,
    data: str | None = typer.Argument(None, help="digits, or the path of an .npz file. May be left out with --resume."),
    method: str | None = typer.Option(
        None, help="erm (ordinary training) or sat (self-adaptive training). Default: sat."
    ),
    out: Path | None = typer.Option(None, help="The run folder. Default: a new one below runs/."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in --out; begin it if there is none."),
    noise: str | None = typer.Option(
        None, help="KIND:RATE, noise to put into the labels: symmetric or symmetric-other."
    ),
    seed: int | None = typer.Option(None, help="Decides every random number. Default: 0."),
    epochs: int | None = typer.Option(None, help="Default: 60."),
    batch_size: int | None = typer.Option(None, help="Default: 256, or 64 below 5,000 samples."),
    pieces: int | None = typer.Option(None, help="Forward a batch in so many pieces, to save memory. Default: 1."),
    optimizer: str | None = typer.Option(None, help="sgd, adam, adamw or lars. Default: sgd."),
    lr: float | None = typer.Option(None, help="Learning rate; follows a cosine to zero. Default: 0.1."),
    weight_decay: float | None = typer.Option(None, help="Default: 0.0005, or 0.005 below 5,000 samples."),
    warmup_epochs: float | None = typer.Option(
        None, help="Epochs in which the learning rate grows from 0. Default: 0."
    ),
    momentum: float | None = typer.Option(None, help="Momentum of the targets (alpha). Default: 0.9."),
    start_epoch: int | None = typer.Option(
        None, help="Epochs before the targets move (E_s). Default: 0.3 of the epochs, as in the paper."
    ),
    targets: str | None = typer.Option(None, help="How targets are kept: float32, float16 or file. Default: float32."),
    model: str | None = typer.Option(
        None, help="resnet-small, resnet18, resnet34, resnet50, resnet101 or mlp. Default: resnet-small."
    ),
    width: int | None = typer.Option(None, help="Width of the model's first stage. Default: the model's own."),
    augment: str | None = typer.Option(None, help="none, crop or crop-flip. Default: what suits the data."),
    device: str | None = typer.Option(None, help="auto, cpu, cuda, … Default: auto."),
    precision: str | None = typer.Option(None, help="float32, bfloat16 or float16. Default: float32."),
    compile_model: bool | None = typer.Option(None, "--compile", help="Compile the model with torch.compile."),
    limit: int | None = typer.Option(None, help="Use the first so many training samples."),
    test_limit: int | None = typer.Option(None, help="Use the first so many test samples."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Train on DATA, evaluate, audit the labels, and write the run folder with its page.

    The same command with --resume goes on where a run was stopped, to the same bits.
    """
    from selfadapt.recipes.run import Run, reopen, start, train
    from selfadapt.recipes.settings import RunSettings
    from selfadapt.report.results import RunFolder

    renamed = {"compile_model": "compile"}
    not_settings = {"out", "resume", "quiet", "as_json"}
    given: dict[str, Any] = {
        renamed.get(name, name): value
        for name, value in context.params.items()
        if name not in not_settings and value is not None
    }
    run: Run
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    if resume and out is not None and RunFolder(out).exists:
        run = reopen(RunFolder(out), given)
    elif data is None:
        raise UserError("no DATA given; name a data set or the path of a file: selfadapt train digits")
    else:
        settings = RunSettings(**given)
        folder = out or new_folder(f"{Path(data).stem}-{settings.method}")
        run = start(settings, RunFolder(folder))
    path = run.folder.path
    try:
        with progress_bar(f"{run.settings.method} on {run.data.name}", quiet=quiet or as_json) as watch:
            result = train(run, watch)
    except Interrupted as interruption:
        raise Interrupted(f"{interruption}; go on with: selfadapt train --resume --out {path}") from None
    if as_json:
        print_json(result)
        return
    print(f"test accuracy (last epoch)   {percent(result['test_accuracy'])}")
    print(f"validation, labels as given  {percent(result['validation_accuracy'])}")
    if result["noise"]:
        noise_words = (
            f"{percent(result['noise']['nominal'])} nominal, {percent(result['noise']['actual'])} of labels wrong"
        )
        print(f"{result['noise']['kind'] + ' noise':<27}  {noise_words}")
    if result["label_recovery"] is not None:
        print(f"labels recovered             {percent(result['label_recovery'])}")
    print(f"suspect labels               {result['audit']['suspects']} of {len(run.data.train)}")
    print(f"page                         {run.folder.page}")
