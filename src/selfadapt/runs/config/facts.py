"""What planning needs to know of the data and the machine, in two steps.

`inspect_source` reads the start of the data, before anything is decoded; the network and the way of reading are chosen
by its result. `inspect_data` describes the opened data.
"""

from dataclasses import dataclass, fields

import torch

from selfadapt.core import distributed
from selfadapt.core.device import choose_device, device_name, has_native_bfloat16
from selfadapt.data.dataset import Data
from selfadapt.data.images.storage import ImageFiles
from selfadapt.data.inputs import InputSpec
from selfadapt.data.labels.noise import actual_rate
from selfadapt.data.sources.builtin import SOURCES
from selfadapt.data.sources.catalog import DataKind, kind_of
from selfadapt.data.tabular.table_file import TableColumns
from selfadapt.runs.config.plan import ReadingPlan
from selfadapt.runs.config.request import Request
from selfadapt.runs.config.sections import DataSettings, parse_progressive
from selfadapt.runs.lifecycle.network import bare_backbone


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """What the start of the data shows."""

    holds: DataKind
    crops_from_images: bool  # papers on this named set cut random crops from the images as they are
    device: str  # where the run would train, by name
    bfloat16: bool = False  # whether an accelerator there computes in it


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the opened data show."""

    source: SourceFacts
    name: str
    spec: InputSpec  # of what the trained network takes
    image_files: bool  # whether training inputs are files, decoded as they are needed
    samples: int  # of the training split
    classes: int
    has_validation: bool
    noise_rate: float | None  # the share of labels that injected noise changed; None without such noise
    augment: str  # what suits the data
    image_size: int | None  # to which images of many sizes were brought; None where they stay as they are
    refused_sizes: frozenset[int] = frozenset()  # of --progressive, in pixels, that the network does not take
    processes: int = 1


def inspect_source(request: Request) -> SourceFacts:
    """Look at the head of the data of a request. It does not check that they exist."""
    source = SOURCES.get(request.data.source)
    return SourceFacts(
        holds=kind_of(request.data.source, columns_of(request.data)),
        crops_from_images=source is not None and source.crops_from_original,
        device=device_name(request.general.device),
        bfloat16=has_native_bfloat16(choose_device(request.general.device)),
    )


def columns_of(data: DataSettings) -> TableColumns:
    """The columns of a table that hold labels, texts and groups: `TableColumns.label` is `--label-column`."""
    return TableColumns(**{own.name: getattr(data, f"{own.name}_column") for own in fields(TableColumns)})


def inspect_data(source: SourceFacts, reading: ReadingPlan, data: Data) -> Facts:
    """Look at data that were opened and prepared for training."""
    inputs = data.train.inputs
    return Facts(
        source=source,
        name=data.name,
        spec=InputSpec.of(inputs.shape),
        image_files=isinstance(inputs, ImageFiles),
        samples=len(data.train),
        classes=data.num_classes,
        has_validation=data.validation is not None,
        noise_rate=None if reading.data.noise is None else actual_rate(data.train),
        augment=data.augment,
        image_size=data.image_size,
        refused_sizes=_refused_sizes(reading, InputSpec.of(inputs.shape)),
        processes=distributed.world_size(),
    )


def _refused_sizes(reading: ReadingPlan, spec: InputSpec) -> frozenset[int]:
    """The sizes of --progressive that the network does not take, found by a forward pass each."""
    if spec.kind != "images":
        return frozenset()
    refused = set()
    for size, _ in parse_progressive(reading.data.progressive):
        try:
            with torch.inference_mode():
                bare_backbone(reading.model, spec).eval()(torch.zeros(2, spec.shape[0], size, size))
        except RuntimeError:
            refused.add(size)
    return frozenset(refused)
