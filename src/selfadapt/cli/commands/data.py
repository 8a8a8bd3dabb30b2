"""`selfadapt data`"""

import typer

from selfadapt.cli.output import Output, count_bar
from selfadapt.cli.parameters import as_command

EXAMPLE = "Example: selfadapt data get cifar10"

app = typer.Typer(
    name="data", help="Download and list named data sets, and show the cache.", no_args_is_help=True, epilog=EXAMPLE
)


@app.command("get", epilog=EXAMPLE, add_help_option=False)
@as_command
def get(
    name: str = typer.Argument(help="Name of a data set (selfadapt data list)."),
) -> Output:
    """Download a named data set and verify it.

    It is stored in $SELFADAPT_HOME (default: ~/.cache/selfadapt). Interrupted downloads of mnist and cifar10 resume.
    """
    from selfadapt.data.sources.catalog import get_data

    with count_bar(f"downloading {name}") as on_progress:
        folder, data = get_data(name, on_progress)
    images = sum(len(part) for part in (data.train, data.validation, data.test) if part is not None)
    yield {"name": name, "path": str(folder), "images": images, "verified": True}
    print(f"{name}: {images:,} images of {len(data.classes)} classes, verified, in {folder}")


@app.command("list", epilog="Example: selfadapt data list", add_help_option=False)
@as_command
def list_sources() -> Output:
    """List the named data sets, and which are on this machine."""
    from selfadapt.core.cache_dir import cache_dir
    from selfadapt.data.sources.builtin import SOURCES

    here = {name: name == "digits" or (cache_dir() / "data" / name).exists() for name in SOURCES}
    yield {"sets": here}
    for name, source in SOURCES.items():
        state = "available" if here[name] else "can be downloaded" if source.fetch else "must be added by hand"
        print(f"{name:<15}{state}")


@app.command("cache", epilog="Example: selfadapt data cache --empty", add_help_option=False)
@as_command
def cache(
    empty: bool = typer.Option(False, "--empty", help="Delete the cache. It is rebuilt when needed."),
) -> Output:
    """Show the cache in $SELFADAPT_HOME: decoded images and features."""
    from selfadapt.core.cache_dir import cache_dir
    from selfadapt.data.cache_usage import cache_entries, remove_entries

    entries = cache_entries()
    freed = remove_entries(entries) if empty else 0
    shown = [{"kind": own.kind, "path": str(own.path), "bytes": own.bytes, "words": own.description} for own in entries]
    yield {"path": str(cache_dir()), "bytes": sum(own.bytes for own in entries) - freed, "entries": shown}
    if empty:
        print(f"{freed / 1e6:,.1f} MB removed from {cache_dir()}")
        return
    for own in entries:
        print(f"{own.kind:<10}{own.bytes / 1e6:>10,.1f} MB  {own.description or own.path.name}")
    print(f"{sum(own.bytes for own in entries) / 1e6:,.1f} MB in {cache_dir()}")
