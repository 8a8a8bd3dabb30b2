"""Contact sheets for the report: the most likely errors, and duplicates with different labels."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import ImageFiles
from selfadapt.report.contact_sheet import Cell, contact_sheet
from selfadapt.review.conflicts import conflicts_of
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report
from selfadapt.runs.inspect.label_audit import Audit

_SHOWN = 40  # likely errors on the contact sheet
_SHOWN_GROUPS = 12
_SHOWN_SIZE = 96  # pixels, of images that come from files


def draw_label_sheets(folder: RunFolder, data: Data, audit: Audit) -> None:
    """Draw figures/suspects.svg and figures/duplicates.svg, each if there is something to show."""
    errors, groups = _likely_errors(data, audit), _conflicts(folder, data)
    for cells, path in ((errors, folder.errors_sheet), (groups, folder.duplicates_sheet)):
        if any(cells):
            with folder.recorded(path) as draft:
                contact_sheet(cells, draft)
        else:
            folder.remove(path)


def _likely_errors(data: Data, audit: Audit) -> list[list[Cell]]:
    """The most likely errors of the training split, in one block."""
    train = audit.report.of_split("train")
    chosen = train.ranked_indices[: min(_SHOWN, int(train.is_error.sum()))].tolist()
    images = _read(data.train, chosen)
    return [[Cell(images[i], f"{train.given_labels[i]} → {train.suggested_labels[i]}") for i in chosen if i in images]]


def _conflicts(folder: RunFolder, data: Data) -> list[list[Cell]]:
    """Duplicates with different labels, a block for each group."""
    report = read_report(folder)
    places = {sample_id: (samples, i) for samples in data.splits.values() for i, sample_id in enumerate(samples.ids)}
    blocks = []
    for conflict in conflicts_of(report, data.duplicates)[:_SHOWN_GROUPS]:
        block = []
        for row in conflict.rows:
            samples, i = places[report.ids[row]]
            caption = f"{data.classes[int(samples.labels[i])]} ({report.split_names[report.split_codes[row]]})"
            block += [Cell(own, caption, row in conflict.disagreeing) for own in _read(samples, [i]).values()]
        blocks.append(block)
    return blocks


def _read(samples: Samples, chosen: Sequence[int]) -> dict[int, Any]:
    """Images as H×W×C by position. Vectors have none, and files that broke meanwhile are left out."""
    images = samples.display_images or samples.inputs
    if not chosen or images.kind == "vectors":
        return {}
    if isinstance(images, ImageFiles):
        images = replace(images, shape=(images.shape[0], _SHOWN_SIZE, _SHOWN_SIZE), resize=_SHOWN_SIZE)
    (read,) = read_batches(images, [torch.tensor(chosen)], workers=0)
    return dict(zip(read.index_B.tolist(), (image.permute(1, 2, 0).numpy() for image in read.images_BCHW), strict=True))
