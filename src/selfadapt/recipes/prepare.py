"""The data of a run: labels from a file, noise, split, limits; and samples.csv, from which they come back.

samples.csv is what the run goes by. A resumed run or an audit finds its samples by id, in the order of that file,
whatever was added, removed or reordered since; noise is never drawn again.
"""

import warnings
from dataclasses import replace
from pathlib import Path

import torch

from selfadapt import processes
from selfadapt.data.corruption import Noise, corrupt, corrupt_images
from selfadapt.data.decoded import keep_decoded
from selfadapt.data.fetch import Watch
from selfadapt.data.given_labels import apply_labels
from selfadapt.data.samples import Data, Samples, channel_statistics, split_off
from selfadapt.data.seeds import seeded
from selfadapt.data.sources import open_data
from selfadapt.errors import UserError
from selfadapt.recipes.settings import RunSettings, Settings
from selfadapt.report.results import RunFolder


def open_for(settings: Settings, watch: Watch, *, unlabelled: bool = False, begun: RunFolder | None = None) -> Data:
    """The data as they are, decoded if they fit; on the scale of a run that was begun, if there is one."""
    white = None if begun is None else begun.read_run()["data"].get("white")
    data = open_data(settings.data, resize=settings.image_size, unlabelled=unlabelled, white=white)
    if processes.rank():  # the first process decodes for all
        processes.wait_for_all()
    data = keep_decoded(data, stream=settings.stream, watch=watch)
    if processes.rank() == 0:
        processes.wait_for_all()
    return data


def prepare(data: Data, settings: RunSettings) -> Data:
    """The data as training sees them: labels of a file, then noise, the split, the limits and the share of labels."""
    if settings.labels is not None:
        data = apply_labels(data, Path(settings.labels))
    if settings.noise is not None:
        data = corrupt(data, Noise.parse(settings.noise), settings.seed)
    data = data.with_validation(settings.validation, seeded(settings.seed, "split"))
    data = data.limited(settings.limit, settings.test_limit, settings.seed)
    if settings.label_share is not None and settings.label_share < 1:
        _, few = split_off(data.train, settings.label_share, seeded(settings.seed, "few labels"), fewest=1)
        data = replace(data, train=few)
    return data


def sample_rows(data: Data) -> list[tuple[str, ...]]:
    """The rows of samples.csv."""
    rows: list[tuple[str, ...]] = []
    for part, samples in (("train", data.train), ("validation", data.validation)):
        if samples is None:
            continue
        for i, sample_id in enumerate(samples.ids):
            path = "" if samples.paths is None else samples.paths[i]
            truth = "" if samples.truth is None else data.classes[int(samples.truth[i])]
            struck = "" if samples.struck is None else str(int(samples.struck[i]))
            rows.append((sample_id, path, part, data.classes[int(samples.labels[i])], truth, struck))
    return rows


def recall(data: Data, settings: Settings, folder: RunFolder) -> Data:
    """The data as the run saw them when it began."""
    run, rows = folder.read_run(), folder.recorded_samples()
    if list(data.classes) != run["data"]["classes"]:
        raise UserError(
            f"the data of {folder.path} now have other classes than when it began: {', '.join(data.classes)}"
        )
    parts = {}
    pool = [samples for samples in (data.train, data.validation) if samples is not None]
    place = {sample_id: (p, i) for p, samples in enumerate(pool) for i, sample_id in enumerate(samples.ids)}
    missing = [row["id"] for row in rows if row["id"] not in place]
    if missing:
        raise UserError(f"{len(missing)} samples of {folder.path} are gone from the data, such as {missing[0]}")
    for part in ("train", "validation"):
        own_rows = [row for row in rows if row["part"] == part]
        if own_rows:
            parts[part] = _recalled(own_rows, pool, place, data, settings)
    recalled = replace(
        data.limited(None, settings.test_limit, settings.seed), train=parts["train"], validation=parts.get("validation")
    )
    recalled.note_broken(folder.read_unreadable())
    if recalled.fingerprint != run["data"]["fingerprint"]:
        warnings.warn(f"the data of {folder.path} have changed since it began", stacklevel=2)
    return recalled


def _recalled(
    rows: list[dict[str, str]],
    pool: list[Samples],
    place: dict[str, tuple[int, int]],
    data: Data,
    settings: Settings,
) -> Samples:
    number = {name: k for k, name in enumerate(data.classes)}
    homes = {place[row["id"]][0] for row in rows}
    if len(homes) > 1:
        raise UserError("samples of one part of the run are now spread over train and validation; put them back")
    samples = pool[homes.pop()].take(torch.tensor([place[row["id"]][1] for row in rows]))
    labels = torch.tensor([number[row["given"]] for row in rows])
    truth = torch.tensor([number[row["truth"]] for row in rows]) if rows[0]["truth"] else None
    samples = replace(samples, labels=labels, truth=truth)
    if rows[0]["struck"]:
        assert isinstance(settings, RunSettings)
        assert settings.noise is not None
        struck = torch.tensor([row["struck"] == "1" for row in rows])
        statistics = channel_statistics(data.train.images)
        samples = corrupt_images(samples, Noise.parse(settings.noise).kind, struck, statistics, settings.seed)
    return samples
