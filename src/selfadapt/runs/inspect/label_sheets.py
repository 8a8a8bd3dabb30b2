"""Sheets of images for the report: the likeliest errors, and duplicates with different labels."""

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
from selfadapt.run_folder.labels_file import Verdicts
from selfadapt.runs.inspect.label_audit import Audit

_SHOWN = 40  # likely errors on the contact sheet
_SHOWN_GROUPS = 12
_SHOWN_SIZE = 96  # pixels, of images that come from files


def draw_label_sheets(folder: RunFolder, data: Data, audit: Audit) -> None:
    """figures/suspects.svg and figures/duplicates.svg, as far as there is something to show."""
    suspects, groups = _suspects(data, audit), _conflicts(folder, data)
    for cells, path in ((suspects, folder.suspects_sheet), (groups, folder.duplicates_sheet)):
        if any(cells):
            contact_sheet(cells, path)
        else:
            path.unlink(missing_ok=True)


def _suspects(data: Data, audit: Audit) -> list[list[Cell]]:
    """The likeliest errors of the training split, in one block."""
    train = audit.parts[0]
    chosen = [i for i in train.order_N.tolist() if train.suspect_N[i]][:_SHOWN]
    images = _read(data.train, chosen)
    names = {
        i: f"{data.classes[int(data.train.labels[i])]} → {data.classes[int(train.suggested_N[i])]}" for i in chosen
    }
    return [[Cell(images[i], names[i]) for i in chosen if i in images]]


def _conflicts(folder: RunFolder, data: Data) -> list[list[Cell]]:
    """Duplicates with different labels, a block for each group."""
    verdicts = Verdicts.of(folder)
    places = {sample_id: (samples, i) for samples in data.splits.values() for i, sample_id in enumerate(samples.ids)}
    blocks = []
    for conflict in conflicts_of(verdicts, data.duplicates)[:_SHOWN_GROUPS]:
        block = []
        for row in conflict.rows:
            samples, i = places[verdicts.ids[row]]
            caption = f"{data.classes[int(samples.labels[i])]} ({verdicts.parts[verdicts.part_N[row]]})"
            block += [Cell(own, caption, row in conflict.disagreeing) for own in _read(samples, [i]).values()]
        blocks.append(block)
    return blocks


def _read(samples: Samples, chosen: Sequence[int]) -> dict[int, Any]:
    """Images as H×W×C, by position; none of vectors, and not those whose files broke meanwhile."""
    pictures = samples.display_images or samples.inputs
    if not chosen or pictures.kind == "vectors":
        return {}
    if isinstance(pictures, ImageFiles):
        pictures = replace(pictures, shape=(pictures.shape[0], _SHOWN_SIZE, _SHOWN_SIZE), resize=_SHOWN_SIZE)
    (read,) = read_batches(pictures, [torch.tensor(chosen)], workers=0)
    return dict(zip(read.index_B.tolist(), (image.permute(1, 2, 0).numpy() for image in read.images_BCHW), strict=True))
