"""What the review page shows of a sample: an image, encoded for a browser, or the values of its row.

Only samples of the run can be requested, by their row. Images are always decoded and encoded again; no file is served
as it is.
"""

import io
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import torch

from selfadapt.core.errors import UserError
from selfadapt.data.images.decode import ORIENTATION, open_image, plain_image
from selfadapt.data.tabular.table_data import rows_by_id
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from selfadapt.data.inputs import Inputs
    from selfadapt.data.tabular.row_encoder import Row

Encoded = tuple[bytes, str]  # and its media type
NamedValues = list[tuple[str, str]]

THUMBNAIL, LARGE = 256, 2048  # pixels of the longer side, at most
_CACHE_BYTES = 48 << 20
_LOSSLESS = 96  # pixels of the longer side up to which an image is sent as PNG
_MOST_VALUES = 64  # shown of a vector without column names


class NoPreview(Exception):
    """A sample that cannot be shown; the message says why."""


def views_of(folder: RunFolder, report: LabelErrorReport) -> "ImageViews | ValueViews":
    """The views that suit the data of a run. No data are opened before the first request."""
    run = folder.read_run()
    about, settings = run["data"], run["settings"]["data"]
    source = str(settings["source"])
    if len(about["shape"]) == 3 or run["settings"]["model"]["tune"] == "head":
        if source.endswith(".npz") or not any(report.paths[:1]):
            return ImageViews(_stored_image(_StoredData(folder, report)))
        return ImageViews(_image_file(report, about.get("white")))
    if about.get("reader") is not None:
        special = [settings[name] for name in ("label_column", "group_column") if settings.get(name)]
        return ValueViews(_TableRows(Path(source), special, report).values)
    return ValueViews(_vector_values(_StoredData(folder, report)))


class ImageViews:
    """Images by a function of row and size. The latest ones are cached."""

    def __init__(self, load: Callable[[int, int], Encoded]) -> None:
        self._load = load
        self._cache: OrderedDict[tuple[int, int], Encoded] = OrderedDict()
        self._bytes, self._lock = 0, Lock()

    def image(self, row: int, side: int) -> Encoded:
        """The image of a row with at most `side` pixels on the longer side.

        Raises:
            NoPreview: If it cannot be read.
        """
        key = row, side
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        made = self._load(row, side)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = made
                self._bytes += len(made[0])
            while self._bytes > _CACHE_BYTES:
                self._bytes -= len(self._cache.popitem(last=False)[1][0])
        return made


@dataclass(frozen=True)
class ValueViews:
    """Numbers or text by name, by a function of the row that raises NoPreview."""

    values: Callable[[int], NamedValues]


def _image_file(report: LabelErrorReport, white: float | None) -> Callable[[int, int], Encoded]:
    """Reads the files that labels.csv names."""

    def load(row: int, side: int) -> Encoded:
        from PIL import ImageOps

        try:
            with open_image(Path(report.paths[row])) as image:
                image.draft("RGB", (side, side))
                upright = image if image.getexif().get(ORIENTATION, 1) == 1 else ImageOps.exif_transpose(image)
                return encoded(plain_image(upright, "RGB", white), side)  # while the file is open
        except Exception as error:  # whatever a file contains, the page continues without it
            raise NoPreview(str(error) or type(error).__name__) from error

    return load


def _stored_image(data: "_StoredData") -> Callable[[int, int], Encoded]:
    def load(row: int, side: int) -> Encoded:
        from PIL import Image

        pixels = data.read(row).permute(1, 2, 0).numpy()
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        return encoded(image.convert("RGB"), side)

    return load


def _vector_values(data: "_StoredData") -> Callable[[int], NamedValues]:
    def values(row: int) -> NamedValues:
        vector = data.read(row).tolist()
        named = [(str(number), f"{value:.4g}") for number, value in enumerate(vector[:_MOST_VALUES])]
        return named + ([("…", f"{len(vector)} values in all")] if len(vector) > _MOST_VALUES else [])

    return values


class _TableRows:
    """Rows of a table by their ids, wherever they are in the file by now."""

    def __init__(self, source: Path, special: Sequence[str], report: LabelErrorReport) -> None:
        self._source, self._special, self._report = source, special, report
        self._rows: dict[str, Row] | None = None
        self._lock = Lock()

    def values(self, row: int) -> NamedValues:
        with self._lock:
            if self._rows is None:
                try:
                    self._rows = rows_by_id(self._source, *self._special)
                except UserError as error:
                    raise NoPreview(str(error)) from error
        sample_id = self._report.ids[row]
        if sample_id not in self._rows:
            raise NoPreview(f"{self._source} no longer has a row with the id {sample_id}; restore it to see its values")
        return [(str(name), "" if value is None else str(value)) for name, value in self._rows[sample_id].items()]


class _StoredData:
    """The data of a run, opened at the first request."""

    def __init__(self, folder: RunFolder, report: LabelErrorReport) -> None:
        self._folder, self._report, self._lock = folder, report, Lock()
        self._found: dict[str, tuple[Inputs, int]] | None = None

    def read(self, row: int) -> "Tensor":
        with self._lock:
            if self._found is None:
                self._found = self._open()
        if self._report.ids[row] not in self._found:
            raise NoPreview("the data no longer have this sample")
        inputs, position = self._found[self._report.ids[row]]
        return inputs.take(torch.tensor([position])).read(torch.tensor([0]))[0]

    def _open(self) -> "dict[str, tuple[Inputs, int]]":
        from selfadapt.data.sources.catalog import open_data
        from selfadapt.data.tabular.table_file import TableColumns

        run = self._folder.read_run()
        settings = run["settings"]["data"]
        try:
            columns = TableColumns(label=settings.get("label_column", "label"), group=settings.get("group_column"))
            data = open_data(
                settings["source"], resize=settings["image_size"], white=run["data"].get("white"), columns=columns
            )
        except UserError as error:
            raise NoPreview(str(error)) from error
        return {
            sample_id: (samples.inputs, position)
            for samples in data.splits.values()
            for position, sample_id in enumerate(samples.ids)
            if sample_id in self._report.position
        }


def encoded(image: "Image", side: int) -> Encoded:
    """An image for the browser: a small one without loss, a larger one as JPEG, never enlarged."""
    content = io.BytesIO()
    if max(image.size) <= _LOSSLESS:
        image.save(content, "PNG")
        return content.getvalue(), "image/png"
    image.thumbnail((side, side))
    image.save(content, "JPEG", quality=88)
    return content.getvalue(), "image/jpeg"
