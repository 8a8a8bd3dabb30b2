"""`selfadapt embed`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.runs.inspect.inspection_settings import EmbedSettings

SETTINGS = EmbedSettings
EXAMPLE = "Example: selfadapt embed photos --out features.npz, then: selfadapt train features.npz"


def command(
    given: EmbedSettings,
    data: str = typer.Argument(help="A name, or a folder, .csv, .parquet or .npz of images."),
    out: Path = typer.Option(Path("features.npz"), help="An .npz file, or a folder for shards with a manifest."),
    device: str = Device,
    devices: int = Processes,
) -> Output:
    """Compute the features of a pretrained network for the images of DATA, and write them to a file or in shards.

    For a file, features are cached by the content of the images (selfadapt data cache). For a folder, finished shards
    are kept and verified: the same command resumes after an interruption.
    """
    from selfadapt.runs.inspect.embedding import embed

    with in_processes(devices, device), count_bar("computing features") as on_progress:
        result = embed(data, out, given, device, on_progress)
    yield result
    print(f"{result['samples']:,} vectors with {result['dimensions']} features each: {result['path']}")
    if result["unreadable"]:
        first = result["unreadable"][0]
        print(f"{len(result['unreadable'])} files cannot be read, for example {first['id']}: {first['reason']}")
