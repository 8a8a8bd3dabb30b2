"""Classification exports of CVAT, "CVAT for images 1.1": annotations.xml with a tag for each image.

The id of an image is its name in the task, and its split the subset. Images are looked for beside the file, or in
images/, where an export with images has them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import check_regular
from selfadapt.data.forms.form import Changes, Form


class CvatExport(Form):
    """An .xml file that CVAT exported."""

    suffix = ".xml"
    may_lack_labels = True

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return [_row(image, path.absolute().parent) for image in _images(_read(path))]

    def write(self, path: Path, out: Path, column: str, changes: Changes) -> None:
        tree = _read(path)
        for position, image in enumerate(list(_images(tree))):
            if position not in changes:
                continue
            label = changes[position]
            if label is None:
                tree.getroot().remove(image)
            else:
                image.findall("tag")[0].set("label", label)
        with atomic_path(out) as draft:
            tree.write(draft, encoding="utf-8", xml_declaration=True)


def _read(path: Path) -> "ElementTree.ElementTree[ElementTree.Element]":
    check_regular(path)
    try:
        parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
        tree = ElementTree.parse(path, parser)
    except (OSError, ValueError, LookupError, ElementTree.ParseError) as error:  # the middle two: of its encoding
        raise UserError(f"{path} cannot be read as XML: {error}") from error
    if tree.getroot().tag != "annotations" or not any(image.get("name") for image in _images(tree)):
        raise UserError(f"{path} is not an export of CVAT with images; choose the format 'CVAT for images 1.1'")
    return tree


def _images(tree: "ElementTree.ElementTree[ElementTree.Element]") -> Iterator[ElementTree.Element]:
    return iter(tree.getroot().findall("image"))


def _row(image: ElementTree.Element, folder: Path) -> dict[str, Any]:
    name, subset = image.get("name", ""), image.get("subset", "")
    labels = [tag.get("label", "") for tag in image.findall("tag")]
    candidates = [folder / name, folder / "images" / name, folder / "images" / subset / name]
    file = next((file for file in candidates if file.is_file()), candidates[0])
    split = {"split": subset} if subset.lower() in ("train", "val", "valid", "validation", "test") else {}
    return {"id": name, "path": str(file), "label": labels[0] if len(labels) == 1 else (labels or ""), **split}
