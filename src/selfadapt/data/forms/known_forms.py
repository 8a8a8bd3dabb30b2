"""The known forms of stored data, and reading of rows in any of them."""

from pathlib import Path
from typing import Any

from selfadapt.core.errors import UserError
from selfadapt.data.forms.cvat import CvatExport
from selfadapt.data.forms.form import Form
from selfadapt.data.forms.image_metadata import ImageMetadata
from selfadapt.data.forms.label_studio import LabelStudioExport
from selfadapt.data.forms.plain_tables import CsvFile, ParquetFile
from selfadapt.data.forms.saved_dataset import SavedDataset

_FORMS: tuple[Form, ...] = (
    CsvFile(), ParquetFile(), LabelStudioExport(), CvatExport(), SavedDataset(), ImageMetadata(),
)  # fmt: skip


def form_of(path: Path) -> Form | None:
    """Return the form of a file or folder; None for one that does not hold rows."""
    return next((form for form in _FORMS if form.holds(path)), None)


def read_table(path: Path) -> list[dict[str, Any]]:
    """Read the rows of data in any known form."""
    form = form_of(path)
    if form is None:
        raise UserError(f"{path} cannot be read as a table; give a .csv, a .parquet or another supported form")
    return form.rows(path)
