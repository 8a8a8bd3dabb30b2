"""What a person sees of a sample: a picture, encoded for a browser, or the values of its row.

Only samples of the run can be asked for, by their row, and only pixels go out, encoded anew; never a file as it is.
"""

import io
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from selfadapt.core.errors import UserError
from selfadapt.data.images.decode import ORIENTATION, plain_image
from selfadapt.data.tabular.table_data import rows_by_id
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import Verdicts

if TYPE_CHECKING:
    from PIL.Image import Image

    from selfadapt.data.inputs import Inputs
    from selfadapt.data.tabular.row_encoder import Row

Encoded = tuple[bytes, str]  # and its media type
Named = list[tuple[str, str]]  # names and values

THUMBNAIL, LARGE = 256, 1024  # pixels on the longer side
_MOST_BYTES = 48 << 20  # of encoded pictures kept in memory
_SMALL = 96  # pixels up to which a picture is kept to the bit
_MOST_VALUES = 64  # of a vector without names


class NoPicture(Exception):
    """A picture that cannot be shown, and why."""


class Views(Protocol):
    """What there is to see of the samples."""

    pictures: bool  # or else values

    def picture(self, row: int, side: int) -> Encoded:
        """The picture of a row, at most so many pixels on the longer side; raises NoPicture."""
        ...

    def values(self, row: int) -> Named:
        """What a row holds."""
        ...


def views_of(folder: RunFolder, verdicts: Verdicts) -> Views:
    """What suits the data of a run. Nothing is opened before it is asked for."""
    run = folder.read_run()
    about, own = run["data"], run["settings"]["data"]
    source = str(own["source"])
    if len(about["shape"]) == 3 or run["settings"]["model"]["tune"] == "head":
        if source.endswith(".npz") or not any(verdicts.paths[:1]):
            return Cached(StoredPictures(_Opened(folder, verdicts)))
        return Cached(FilePictures(verdicts, about.get("white")))
    if about.get("reader") is not None:
        special = [own[name] for name in ("label_column", "group_column") if own.get(name)]
        return TableRows(Path(source), special, verdicts)
    return StoredVectors(_Opened(folder, verdicts))


class FilePictures:
    """Pictures from the files that labels.csv names."""

    pictures = True

    def __init__(self, verdicts: Verdicts, white: float | None) -> None:
        self._verdicts, self._white = verdicts, white

    def picture(self, row: int, side: int) -> Encoded:
        from PIL import Image, ImageOps

        try:
            with Image.open(self._verdicts.paths[row]) as image:
                image.draft("RGB", (side, side))
                upright = image if image.getexif().get(ORIENTATION, 1) == 1 else ImageOps.exif_transpose(image)
                return encoded(plain_image(upright, "RGB", self._white), side)
        except Exception as error:  # whatever a file may hold, the page goes on without it
            raise NoPicture(str(error) or type(error).__name__) from error

    def values(self, row: int) -> Named:
        return []


class StoredPictures:
    """Pictures of arrays and named sets, which are opened when the first is asked for."""

    pictures = True

    def __init__(self, opened: "_Opened") -> None:
        self._opened = opened

    def picture(self, row: int, side: int) -> Encoded:
        from PIL import Image

        inputs, place = self._opened.find(row)
        pixels = inputs.take(_one(place)).read(_one(0))[0].permute(1, 2, 0).numpy()
        grey = pixels.shape[2] == 1
        return encoded(Image.fromarray(pixels[:, :, 0] if grey else pixels).convert("RGB"), side)

    def values(self, row: int) -> Named:
        return []


class StoredVectors:
    """Vectors of an .npz, whose values have numbers for names."""

    pictures = False

    def __init__(self, opened: "_Opened") -> None:
        self._opened = opened

    def picture(self, row: int, side: int) -> Encoded:
        raise NoPicture("vectors have none")

    def values(self, row: int) -> Named:
        inputs, place = self._opened.find(row)
        found = inputs.read(_one(place))[0].tolist()
        named = [(str(number), f"{value:.4g}") for number, value in enumerate(found[:_MOST_VALUES])]
        return named + ([("…", f"{len(found)} values in all")] if len(found) > _MOST_VALUES else [])


class TableRows:
    """Rows of a table as they stand in it, wherever that is by now; texts are such, too."""

    pictures = False

    def __init__(self, source: Path, special: Sequence[str], verdicts: Verdicts) -> None:
        self._source, self._special, self._verdicts = source, special, verdicts
        self._rows: dict[str, Row] | None = None
        self._lock = Lock()

    def picture(self, row: int, side: int) -> Encoded:
        raise NoPicture("rows of a table have none")

    def values(self, row: int) -> Named:
        with self._lock:
            if self._rows is None:
                try:
                    self._rows = rows_by_id(self._source, *self._special)
                except UserError as error:
                    raise NoPicture(str(error)) from error
        sample_id = self._verdicts.ids[row]
        if sample_id not in self._rows:
            raise NoPicture(f"{self._source} has no row of the id {sample_id} any more; restore it to see its values")
        return [(str(name), "" if value is None else str(value)) for name, value in self._rows[sample_id].items()]


class Cached:
    """Pictures that were shown lately are kept, encoded."""

    pictures = True

    def __init__(self, views: Views, most_bytes: int = _MOST_BYTES) -> None:
        self._views, self._most_bytes = views, most_bytes
        self._kept: OrderedDict[tuple[int, int], Encoded] = OrderedDict()
        self._bytes, self._lock = 0, Lock()

    def picture(self, row: int, side: int) -> Encoded:
        key = row, side
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = self._views.picture(row, side)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._bytes += len(made[0])
            while self._bytes > self._most_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1][0])
        return made

    def values(self, row: int) -> Named:
        return self._views.values(row)


class _Opened:
    """The data of a run as they are, opened once, and found by row."""

    def __init__(self, folder: RunFolder, verdicts: Verdicts) -> None:
        self._folder, self._verdicts, self._lock = folder, verdicts, Lock()
        self._found: dict[str, tuple[Inputs, int]] | None = None

    def find(self, row: int) -> "tuple[Inputs, int]":
        with self._lock:
            if self._found is None:
                self._found = self._open()
        found = self._found.get(self._verdicts.ids[row])
        if found is None:
            raise NoPicture("it is gone from the data")
        return found

    def _open(self) -> "dict[str, tuple[Inputs, int]]":
        from selfadapt.data.sources.catalog import open_data
        from selfadapt.data.tabular.table_file import TableColumns

        run = self._folder.read_run()
        own = run["settings"]["data"]
        try:
            columns = TableColumns(label=own.get("label_column", "label"), group=own.get("group_column"))
            data = open_data(own["source"], resize=own["image_size"], white=run["data"].get("white"), columns=columns)
        except UserError as error:
            raise NoPicture(str(error)) from error
        wanted = set(self._verdicts.ids)
        return {
            sample_id: (samples.inputs, place)
            for samples in data.splits.values()
            for place, sample_id in enumerate(samples.ids)
            if sample_id in wanted
        }


def encoded(image: "Image", side: int) -> Encoded:
    """A picture as the browser gets it: small ones to the bit, larger ones as JPEG, no larger than it is."""
    content = io.BytesIO()
    if max(image.size) <= _SMALL:
        image.save(content, "PNG")
        return content.getvalue(), "image/png"
    image.thumbnail((side, side))
    image.save(content, "JPEG", quality=88)
    return content.getvalue(), "image/jpeg"


def _one(place: int) -> Any:
    import torch

    return torch.tensor([place])
