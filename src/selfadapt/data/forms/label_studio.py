"""Classification exports of Label Studio: JSON and JSON-MIN.

In JSON, a task has `data` and `annotations`; the label is the choice of its first annotation that was not cancelled. A
row has the id of the task, its data, and a column for each control of choices; if there is only one, the column
`label` has it too. In JSON-MIN, a task is a row already: --label-column names the control.

Images are looked for beside the export: at the path below its folder, or by their name.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular
from selfadapt.core.typed_json import parse
from selfadapt.data.forms.form import Changes, Form
from selfadapt.data.images.decode import SUFFIXES

_LABEL = "label"


class LabelStudioExport(Form):
    """A .json file that Label Studio exported."""

    suffix = ".json"
    may_lack_labels = True

    def rows(self, path: Path) -> list[dict[str, Any]]:
        tasks = _read(path)
        sole = _sole_control(tasks)
        rows = [_row(task, sole) for task in tasks]
        for row in rows:
            image = next((value for value in row.values() if _is_image(value)), None)
            if image is not None and "path" not in row:
                row["path"] = str(_found(image, path.absolute().parent))
        names = dict.fromkeys(name for row in rows for name in row)
        return [{name: row.get(name, "") for name in names} for row in rows]

    def write(self, path: Path, out: Path, column: str, changes: Changes) -> None:
        tasks = deepcopy(_read(path))
        control = _sole_control(tasks) if column == _LABEL else column
        for position, label in changes.items():
            if label is None:
                continue
            task = tasks[position]
            if _is_full(task):
                result = next(result for result in _choices(task) if control in (None, result.get("from_name")))
                result["value"]["choices"] = [label]
            else:
                task[column] = label
        kept = [task for position, task in enumerate(tasks) if changes.get(position, "") is not None]
        with atomic_write(out) as file:
            json.dump(kept, file, ensure_ascii=False, indent=2)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        tasks = parse(read_regular(path).removeprefix(BOM_UTF8))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, dict) and "id" in task for task in tasks):
        raise UserError(f"{path} is not an export of Label Studio, a list of tasks with ids (JSON or JSON-MIN)")
    for task in tasks:
        if _is_full(task) and not (
            isinstance(task["data"], dict) and isinstance(task.get("annotations", []), list)
            and all(isinstance(result["value"].get("choices", []), list) for result in _results(task))
            and all(isinstance(result.get("from_name", _LABEL), str) for result in _results(task))
        ):  # fmt: skip
            raise UserError(f"{path}: the task {task['id']} is damaged; export the project again")
    return tasks


def _is_full(task: dict[str, Any]) -> bool:
    return "data" in task


def _row(task: dict[str, Any], sole: str | None) -> dict[str, Any]:
    if not _is_full(task):
        return {**task, "id": str(task["id"])}
    row = {**task["data"], "id": str(task["id"])}
    for result in reversed(list(_choices(task))):
        chosen: Any = result["value"]["choices"]
        row[result.get("from_name", _LABEL)] = chosen[0] if len(chosen) == 1 else chosen
    if sole is not None:
        row[_LABEL] = row.get(sole, "")
    return row


def _sole_control(tasks: Sequence[dict[str, Any]]) -> str | None:
    """The only control of choices in a project, which is then the label."""
    names = {result.get("from_name", _LABEL) for task in tasks if _is_full(task) for result in _choices(task)}
    return names.pop() if len(names) == 1 else None


def _results(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The results of the first annotation that was not cancelled."""
    for annotation in task.get("annotations", []):
        if isinstance(annotation, dict) and not annotation.get("was_cancelled"):
            results = annotation.get("result")
            for result in results if isinstance(results, list) else ():
                if isinstance(result, dict) and isinstance(result.get("value"), dict):
                    yield result
            return


def _choices(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (result for result in _results(task) if result["value"].get("choices"))


def _is_image(value: Any) -> bool:
    return isinstance(value, str) and "\n" not in value and _location(value).suffix.lower() in SUFFIXES


def _location(value: str) -> PurePosixPath:
    """The path in an address such as /data/upload/1/a.png, s3://bucket/a.png or /data/local-files/?d=photos/a.png."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return PurePosixPath(value)
    return PurePosixPath(unquote(parse_qs(parts.query).get("d", [parts.path])[0]))


def _found(value: str, folder: Path) -> Path:
    """The image file: at its path below the folder or below one further up, by its name, or without its prefix."""
    location = _location(value)
    parts = [part for part in location.parts if part not in ("/", "..")]
    uploaded = location.name.partition("-")[2]  # Label Studio puts a random prefix before the name of an upload
    below = [folder.joinpath(*parts[first:]) for first in range(len(parts))]
    candidates = [*below, folder / "images" / location.name, *([folder / uploaded] if uploaded else [])]
    return next((file for file in candidates if file.is_file()), below[-1])
