"""`selfadapt embed`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.runs.config.sections import PHOTOS

EXAMPLE = "Example: selfadapt embed photos --out features.npz, then: selfadapt train features.npz"


def command(
    data: str = typer.Argument(help="A name, or a folder, .csv, .parquet or .npz of images."),
    model: str = typer.Option(PHOTOS, help="Any timm model."),
    weights: str = typer.Option("pretrained", help="pretrained, none, or a .safetensors or .pth file."),
    image_size: int | None = typer.Option(
        None, help="Resize and crop images to a square of this size. Default: the input size of the model."
    ),
    out: Path = typer.Option(Path("features.npz"), help="An .npz file, or a folder for shards with a manifest."),
    shard_size: int = typer.Option(8192, help="Images per shard, for a folder."),
    device: str = Device,
    devices: int = Processes,
) -> Output:
    """Compute the features of a pretrained network for the images of DATA, and write them to a file or in shards.

    For a file, features are cached by the content of the images (selfadapt data cache). For a folder, finished shards
    are kept and verified: the same command resumes after an interruption.
    """
    from selfadapt.runs.inspect.embedding.feature_file import Embedding, embed

    settings = Embedding(model=model, weights=weights, image_size=image_size, device=device, shard_size=shard_size)
    with in_processes(devices, device) as first:
        with count_bar("computing features") as on_progress:
            result = embed(data, out, settings, on_progress)
        if not first:
            return
    yield result
    print(f"{result['samples']:,} vectors with {result['dimensions']} features each: {result['path']}")
    if result["unreadable"]:
        first = result["unreadable"][0]
        print(f"{len(result['unreadable'])} files cannot be read, for example {first['id']}: {first['reason']}")
