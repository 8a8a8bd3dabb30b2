"""`selfadapt embed`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, print_json
from selfadapt.runs.config.sections import PHOTOS

EXAMPLE = "Example: selfadapt embed photos --out features.npz, then: selfadapt train features.npz"


def command(
    data: str = typer.Argument(help="A name, or a folder, .csv, .parquet or .npz of images."),
    model: str = typer.Option(PHOTOS, help="Any network of timm's."),
    weights: str = typer.Option("pretrained", help="pretrained, none, or a .safetensors or .pth file."),
    image_size: int | None = typer.Option(None, help="Default: the network's own."),
    out: Path = typer.Option(Path("features.npz"), help="The file to write."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, mps."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Write the features of a pretrained network for the images of DATA as an .npz of vectors.

    Features are kept by the content of the images (selfadapt data cache), so the same images are read once.
    """
    from selfadapt.runs.inspect.feature_file import Embedding, embed

    settings = Embedding(model=model, weights=weights, image_size=image_size, device=device)
    with count_bar("taking features", quiet=quiet or as_json) as on_progress:
        result = embed(data, out, settings, on_progress)
    if as_json:
        print_json(result)
        return
    print(f"{result['samples']:,} vectors of {result['dimensions']} values in {result['path']}")
    if result["unreadable"]:
        first = result["unreadable"][0]
        print(f"{len(result['unreadable'])} files cannot be read, such as {first['id']}: {first['reason']}")
