"""`selfadapt data`"""

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, print_json

EXAMPLE = "Example: selfadapt data get cifar10"

app = typer.Typer(name="data", help="Fetch named data sets, and list them.", no_args_is_help=True, epilog=EXAMPLE)


@app.command("get", epilog=EXAMPLE)
def get(
    name: str = typer.Argument(help="A name that `selfadapt data list` shows."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Fetch a named data set, verify it and keep it for later.

    It goes below $SELFADAPT_HOME (by default ~/.cache/selfadapt). A broken download goes on where it stopped.
    """
    from selfadapt.data.sources import get_data

    with count_bar(f"fetching {name}", quiet=quiet or as_json) as on_progress:
        folder, data = get_data(name, on_progress)
    images = sum(len(part) for part in (data.train, data.validation, data.test) if part is not None)
    if as_json:
        print_json({"name": name, "path": str(folder), "images": images, "verified": True})
    else:
        print(f"{name}: {images:,} images of {len(data.classes)} classes, verified, in {folder}")


@app.command("list", epilog="Example: selfadapt data list")
def list_sources(as_json: bool = Json) -> None:
    """Show the names of data sets, and which are on this machine."""
    from selfadapt.data.home import home
    from selfadapt.data.sources import SOURCES

    here = {name: name == "digits" or (home() / "data" / name).exists() for name in SOURCES}
    if as_json:
        print_json({"sets": here})
        return
    for name, source in SOURCES.items():
        words = "here" if here[name] else "can be fetched" if source.fetch else "to be put there by hand"
        print(f"{name:<15}{words}")
