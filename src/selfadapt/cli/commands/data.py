"""`selfadapt data`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar
from selfadapt.cli.parameters import as_command

EXAMPLE = "Example: selfadapt data get cifar10"

app = typer.Typer(
    name="data",
    help="Download and list named data sets, pack image files, and show the cache.",
    no_args_is_help=True,
    epilog=EXAMPLE,
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


@app.command("pack", epilog="Example: selfadapt data pack photos/ packed/", add_help_option=False)
@as_command
def pack(
    data: str = typer.Argument(help="Folder of class folders, or a table (.csv, .parquet) of image files."),
    out: Path = typer.Argument(help="New folder for the shards. Commands take it as DATA."),
    shard_size: int = typer.Option(1000, min=1, help="Size of a shard in MB."),
    label_column: str = typer.Option("label", help="Column of the labels of a table."),
    group_column: str | None = typer.Option(None, help="Column of the groups of a table."),
) -> Output:
    """Pack image files into WebDataset tar shards with an index.

    File systems of clusters serve a few large files better than millions of small ones. A run on the shards gives the
    same bits as one on the files.
    """
    from selfadapt.data.sources.packed_folder import pack as pack_files
    from selfadapt.data.tabular.table_file import TableColumns

    columns = TableColumns(label=label_column, group=group_column)
    with count_bar("packing") as on_progress:
        result = pack_files(data, out, columns=columns, shard_bytes=shard_size * 10**6, on_progress=on_progress)
    yield {"path": str(out), **result}
    print(f"{result['images']:,} images in {result['shards']} shards, {result['bytes'] / 1e6:,.1f} MB, in {out}")
    if result["unreadable"]:
        sample_id, reason = result["unreadable"][0]
        print(f"{len(result['unreadable'])} unreadable files were left out, such as {sample_id}: {reason}")


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
