"""Opening of data by name or path.

`open_data` opens what the user gave as DATA; `get_data` downloads a built-in data set.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data
from selfadapt.data.forms.known_forms import form_of, read_table
from selfadapt.data.sources.arrays import has_vectors, npz_data
from selfadapt.data.sources.builtin import SOURCES
from selfadapt.data.sources.image_folder import (
    are_photo_sizes,
    are_photos,
    data_from_headers,
    folder_data,
    image_table_entries,
    read_headers,
)
from selfadapt.data.sources.packed_folder import first_sizes, is_packed_folder, packed_data
from selfadapt.data.sources.shard_folder import has_shards, shard_data
from selfadapt.data.tabular.row_encoder import RowEncoder, Table
from selfadapt.data.tabular.table_data import table_data
from selfadapt.data.tabular.table_file import TableColumns

DataKind = Literal["named", "photos", "small images", "vectors"]


def kind_of(source: str, columns: TableColumns) -> DataKind:
    """Return what kind of data a source contains, without reading all of it."""
    path = Path(source)
    if source in SOURCES:
        return "named"
    if is_packed_folder(path):
        return "photos" if are_photo_sizes(first_sizes(path)) else "small images"
    if has_shards(path):
        return "vectors"
    if path.suffix == ".npz" and path.is_file():
        return "vectors" if has_vectors(path) else "small images"
    form = form_of(path) if path.exists() else None
    if form is not None:
        if columns.text is not None or "path" not in form.column_names(path):
            return "vectors"
        files = (path.parent / str(row.get("path")) for row in read_table(path))
        return "photos" if are_photos(files) else "small images"
    return "photos" if not path.is_dir() or are_photos(path.rglob("*")) else "small images"


def open_data(
    source: str,
    *,
    resize: int | None = None,
    unlabelled: bool = False,
    white: float | None = None,
    columns: TableColumns | None = None,
    reader: Mapping[str, Any] | None = None,
    on_progress: ProgressCallback = no_progress,
) -> Data:
    """Open a data set.

    Args:
        source: The name of a built-in data set or a path. Names take precedence; write ./NAME for a path.
        resize: Size of the square that image files are resized to.
        unlabelled: Accept data without labels.
        white: Pixel value that becomes 255 in images of more than 8 bits; by default it is determined.
        columns: Names of the columns of a table.
        reader: State of the row encoder of an earlier run, for tables; by default a new one is fitted.
        on_progress: Called while texts are encoded.

    Raises:
        UserError: The source does not exist or its content is invalid.
    """
    columns = columns or TableColumns()
    check_available(source)
    path = Path(source)
    form = None if source in SOURCES else form_of(path)
    if form is None:
        columns.check_unused(source)
    if source in SOURCES:
        return replace(SOURCES[source].open(_folder(source), resize), mixed=SOURCES[source].mixed)
    if is_packed_folder(path):
        return packed_data(path, resize=resize, white=white)
    if has_shards(path):
        return shard_data(path)
    if form is not None:
        if kind_of(source, columns) == "vectors":
            return _encoded_table(path, columns, reader, on_progress)
        entries = image_table_entries(path, columns, unlabelled=unlabelled)
        return data_from_headers(path.stem, *read_headers(entries), resize=resize, white=white)
    if path.is_dir():
        return folder_data(path, resize=resize, unlabelled=unlabelled, white=white)
    if path.suffix == ".npz":
        return npz_data(path, unlabelled=unlabelled)
    raise UserError(
        f"{source} is not a supported kind of data; give a folder of class folders, .csv, .parquet, .npz, a dataset "
        "saved to disk, or an export of Label Studio (.json) or CVAT (.xml)"
    )


def _encoded_table(
    path: Path, columns: TableColumns, state: Mapping[str, Any] | None, on_progress: ProgressCallback
) -> Data:
    from selfadapt.data.tabular.column_encoder import fit_columns
    from selfadapt.data.tabular.row_encoder import row_encoder_from_state
    from selfadapt.data.text.text_encoder import fit_text

    def fit(table: Table) -> RowEncoder:
        if state is not None:
            return row_encoder_from_state(state)
        return fit_columns(table) if columns.text is None else fit_text(columns.text, on_progress=on_progress)

    return table_data(path, fit, columns)


def check_available(source: str) -> None:
    """Raise a UserError if a named data set or a path is not on this machine; the message says how to get it."""
    if source not in SOURCES:
        if not source:
            raise UserError("the name of the data is empty; give a data set or a path, or . for the current folder")
        if not Path(source).exists():
            raise UserError(f"there is no data set or path {source!r}; the data sets are {', '.join(SOURCES)}")
    elif not _is_available(source):
        raise UserError(f"the data set {source} is not on this machine; {_advice(source)}")


def get_data(name: str, on_progress: ProgressCallback = no_progress) -> tuple[Path, Data]:
    """Download a built-in data set unless it is available, verify it, and open it."""
    if name not in SOURCES:
        raise UserError(f"there is no data set {name!r}; the data sets are {', '.join(SOURCES)}")
    if not _is_available(name):
        fetch = SOURCES[name].fetch
        if fetch is None:
            raise UserError(f"{name} cannot be downloaded; {_advice(name)}")
        fetch(_folder(name), on_progress)
    return _folder(name), open_data(name)


def _folder(name: str) -> Path:
    return cache_dir() / "data" / name


def _is_available(name: str) -> bool:
    return SOURCES[name].bundled or _folder(name).exists()


def _advice(name: str) -> str:
    if SOURCES[name].fetch is not None:
        return f"download it with: selfadapt data get {name}"
    return SOURCES[name].by_hand.format(folder=_folder(name))
