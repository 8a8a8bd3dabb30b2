"""What a form of stored data is: rows to read, and the same data to write with other labels.

Forms do not depend on training. Everything that reads tables reads rows, so a new form needs one file and a line in
`known_forms.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

Changes = Mapping[int, str | None]  # the new label of a row by its position; None removes the row


class Form(Protocol):
    """A form in which labelled data are stored."""

    suffix: str = ""
    """How the names of files in this form end."""

    may_lack_labels: bool = False
    """Whether items without a label are usual, as in the export of an unfinished project, and are left out."""

    def holds(self, path: Path) -> bool:
        """Whether the file or folder is in this form, judged by its name and the names in it."""
        return path.suffix == self.suffix and not path.is_dir()

    def column_names(self, path: Path) -> list[str]:
        return list(self.rows(path)[0])

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Read one dictionary for each item. `path` is the image file of an item that has one.

        Raises:
            UserError: The file or folder is damaged.
        """
        ...

    def write(self, path: Path, out: Path, column: str, changes: Changes) -> None:
        """Write the data again, with the labels in `column` changed and everything else as it is."""
        ...
