"""Image folders with a metadata.csv, the layout that `datasets` calls an imagefolder.

    photos/metadata.csv             file_name,label,…
    photos/0001.png …               file_name is relative to the table

or the same under train/, val/ and test/. An id is the path of the image below the folder.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selfadapt.core.atomic_files import atomic_folder
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import copy_regular
from selfadapt.data.forms.form import Changes, Form
from selfadapt.data.forms.plain_tables import CsvFile, csv_rows

_TABLE = "metadata.csv"
_FILE = "file_name"


class ImageMetadata(Form):
    """A folder of images with their labels in metadata.csv."""

    def holds(self, path: Path) -> bool:
        return path.is_dir() and any(_FILE in CsvFile().column_names(table) for table in _tables(path))

    def rows(self, path: Path) -> list[dict[str, Any]]:
        found = []
        for table in _tables(path):
            split = {} if table.parent == path else {"split": table.parent.name}
            for number, row in enumerate(csv_rows(table), start=2):
                if not row.get(_FILE):
                    raise UserError(f"{table}, row {number}: {_FILE} is missing; write the name of the image file")
                if Path(row[_FILE]).is_absolute() or ".." in Path(row[_FILE]).parts:
                    raise UserError(
                        f"{table}, row {number}: {row[_FILE]} is outside the folder; move the image into it"
                    )
                file = table.parent / row[_FILE]
                own_id = row.get("id") or str(file.relative_to(path))
                found.append({**split, **row, "id": own_id, "path": str(file.absolute())})
        if not found:
            raise UserError(f"{path / _TABLE} has no rows; add one for each image")
        return found

    def write(self, path: Path, out: Path, column: str, changes: Changes) -> None:
        """Copy the folder with its tables changed. The images of removed rows are left out."""
        rows, position = self.rows(path), 0
        with atomic_folder(out) as draft:
            shutil.copytree(path, draft, dirs_exist_ok=True, copy_function=copy_regular)
            for table in _tables(path):
                count = len(csv_rows(table))
                own = {i - position: label for i, label in changes.items() if position <= i < position + count}
                CsvFile().write(table, draft / table.relative_to(path), column, own)
                position += count
            for i, label in changes.items():
                if label is None:
                    (draft / Path(rows[i]["path"]).relative_to(path.absolute())).unlink(missing_ok=True)


def _tables(path: Path) -> Iterator[Path]:
    """The table of the folder, or those of its splits."""
    if (path / _TABLE).is_file():
        yield path / _TABLE
    else:
        yield from sorted(folder / _TABLE for folder in path.iterdir() if (folder / _TABLE).is_file())
