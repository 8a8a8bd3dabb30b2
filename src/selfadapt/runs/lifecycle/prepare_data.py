"""The data of a run: labels from a file, noise, validation split, limits; and samples.csv, which records them.

A resumed run or an audit finds its samples by their ids, in the order of samples.csv, whatever was added, removed or
reordered since; noise is never drawn again.
"""

import warnings
from dataclasses import replace
from pathlib import Path

import torch

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.decode import Frame
from selfadapt.data.images.decoded_cache import cache_decoded
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.data.inputs import Inputs, InputSpec
from selfadapt.data.labels.class_names import UNLABELLED
from selfadapt.data.labels.image_noise import corrupt_images
from selfadapt.data.labels.noise import Noise, corrupt
from selfadapt.data.labels.overrides import apply_corrected, apply_labels, corrected_validation
from selfadapt.data.sources.catalog import open_data
from selfadapt.data.splits import split_off
from selfadapt.models.pretrained.timm_models import network_shape, timm_name
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.facts import columns_of
from selfadapt.runs.config.plan import Plan, ReadingPlan
from selfadapt.runs.lifecycle.data_duplicates import warn_of_shared_groups, with_duplicates, with_known_duplicates
from selfadapt.runs.lifecycle.network import with_features


def prepare(reading: ReadingPlan, on_progress: ProgressCallback = no_progress) -> Data:
    """The data as training sees them."""
    data = _opened(reading, on_progress)
    if reading.kind == "pretraining":
        return data.limited(reading.data.limit, reading.data.test_limit, reading.seed)
    corrected = reading.data.corrected is not None  # the reader of that table has better messages on the training split
    for split in list(data.splits)[int(corrected) :]:
        _check_two_classes(data, split)
    data = _with_labels(data, reading, on_progress)
    _check_two_classes(data, "train")
    return data


def _check_two_classes(data: Data, split: str) -> None:
    """Refuse a split with a single class, where nothing can be learned or measured. A single sample is allowed."""
    labels = data.splits[split].labels
    if len(labels) > 1 and len(labels.unique()) == 1:
        remedy = "training needs two: " if split == "train" else "it measures nothing: leave it out, or "
        raise UserError(
            f"the {split} split of {data.name} has one class only, {data.classes[int(labels[0])]!r}; {remedy}"
            "add samples of another class to it"
        )


def _opened(reading: ReadingPlan, on_progress: ProgressCallback, started: RunFolder | None = None) -> Data:
    """The data as they are, decoded if they fit into memory; on the scale of a run that was started before, if any."""
    about = {} if started is None else started.read_run()["data"]
    unlabelled, network, size = reading.kind == "pretraining", timm_name(reading.model.name), reading.data.image_size
    data = open_data(
        reading.data.source,
        resize=network_shape(network)[-1] if size is None and network is not None else size,
        unlabelled=unlabelled,
        white=about.get("white"),
        columns=columns_of(reading.data),
        reader=about.get("reader"),
        on_progress=on_progress,
    )
    if network is not None and reading.fine_tunes:  # its weights were learned on images of these channels
        channels = network_shape(network)[0]
        data = data.with_files(lambda files: replace(files, shape=(channels, *files.shape[1:])))
    if size is not None and not reading.on_features:  # whose network resizes images itself
        data = data.with_images(lambda images: images.resized_to(size))
    from_images = reading.data.crops == "original"
    if from_images:
        data = with_center_crops(data)
    stream = reading.data.stream or reading.on_features
    with distributed.first_on_machine():
        data = cache_decoded(data, stream=stream, stream_train=from_images, on_progress=on_progress)
    if reading.data.corrected is not None:
        # A run keeps the table that it was started with, as the file that was named may have changed.
        table = Path(reading.data.corrected)
        if started is not None:
            table = started.trained_on_file
            started.check_recorded(table)
        data = apply_corrected(data, table, quiet=started is not None)
    if unlabelled and data.unlabelled is not None:
        return _of_unlabelled(data, data.unlabelled)
    return data


def with_center_crops(data: Data) -> Data:
    """The data with the centre crop of each image file wherever none is cut at random, as in evaluation on ImageNet."""
    return data.with_files(lambda files: replace(files, resize=Frame.middle(files.shape[1])))


def _of_unlabelled(data: Data, unlabelled: Inputs) -> Data:
    """The data with their unlabelled images as the training split."""
    count = len(unlabelled)
    ids = [f"{data.name}/unlabelled/{i}" for i in range(count)]
    nothing = torch.zeros(count, dtype=torch.int64)
    train = Samples(inputs=unlabelled, labels=nothing, truth=None, ids=ids)
    return replace(data, train=train, validation=None, test=None, classes=(UNLABELLED,))


def _with_labels(data: Data, reading: ReadingPlan, on_progress: ProgressCallback) -> Data:
    """Apply labels of a file, then noise, the validation split, the limits and the share of labels.

    Features are computed before the split, because duplicates stay on one side of it.
    """
    own, seed = reading.data, reading.seed
    held_out = frozenset() if own.corrected is None else corrected_validation(data, Path(own.corrected))
    if own.labels is not None:
        data = apply_labels(data, Path(own.labels))
    if own.noise is not None:
        data = corrupt(data, Noise.parse(own.noise), seed)
    vectors = reading.on_features or InputSpec.of(data.train.inputs.shape).kind == "vectors"
    if vectors:
        data = data.limited(own.limit, own.test_limit, seed)
        data = with_features(data, reading, on_progress) if reading.on_features else data
        data = with_duplicates(data)
    else:
        warn_of_shared_groups(data)
    data = data.holding_out(held_out) if held_out else _with_validation(data, own.validation, seed)
    if not vectors:
        data = data.limited(own.limit, own.test_limit, seed)
    if own.label_share is not None and own.label_share < 1:
        _, few = split_off(data.train, own.label_share, seeded(seed, "few labels"), fewest=1)
        data = replace(data, train=few)
    return data


def _with_validation(data: Data, share: float, seed: int) -> Data:
    """The data with a validation split, if duplicates leave enough samples for one."""
    try:
        return data.with_validation(share, seeded(seed, "split"))
    except UserError as error:
        if not data.duplicates:
            raise
        warnings.warn(f"training without a validation split, as duplicates stay together: {error}", stacklevel=2)
        return data


def sample_rows(data: Data) -> list[tuple[str, ...]]:
    """The rows of samples.csv."""
    rows: list[tuple[str, ...]] = []
    for split, samples in data.splits.items():
        for i, sample_id in enumerate(samples.ids if split != "test" else ()):
            path = "" if samples.paths is None else samples.paths[i]
            truth = "" if samples.truth is None else data.classes[int(samples.truth[i])]
            corrupted = "" if samples.corrupted is None else str(int(samples.corrupted[i]))
            rows.append((sample_id, path, split, data.classes[int(samples.labels[i])], truth, corrupted))
    return rows


def duplicate_rows(data: Data) -> list[tuple[str, ...]]:
    """The rows of duplicates.csv."""
    known = {
        sample_id: (sample_id, "" if samples.paths is None else samples.paths[i], split, data.classes[int(label)])
        for split, samples in data.splits.items()
        for i, (sample_id, label) in enumerate(zip(samples.ids, samples.labels.tolist(), strict=True))
    }
    return [
        (str(number), *known[sample_id], group.kind)
        for number, group in enumerate(data.duplicates, start=1)
        for sample_id in group.members
        if sample_id in known
    ]


def recall(plan: Plan, folder: RunFolder, on_progress: ProgressCallback = no_progress) -> Data:
    """The data as the run saw them when it was started."""
    data = _opened(plan, on_progress, started=folder)
    run, rows = folder.read_run(), folder.recorded_samples()
    if list(data.classes) != run["data"]["classes"]:
        raise UserError(
            f"the data of {folder.path} now have other classes than when it was started: {', '.join(data.classes)}"
        )
    splits = {}
    pool = [samples for samples in (data.train, data.validation) if samples is not None]
    place = {sample_id: (p, i) for p, samples in enumerate(pool) for i, sample_id in enumerate(samples.ids)}
    missing = [row["id"] for row in rows if row["id"] not in place]
    if missing:
        raise UserError(f"{len(missing)} samples of {folder.path} are gone from the data, such as {missing[0]}")
    for split in ("train", "validation"):
        own_rows = [row for row in rows if row["part"] == split]
        if own_rows:
            splits[split] = _recalled(own_rows, pool, place, data, plan)
    whole = data.limited(None, plan.data.test_limit, plan.seed)
    recalled = replace(whole, train=splits["train"], validation=splits.get("validation"))
    if plan.on_features:
        recalled = with_features(recalled, plan, on_progress, folder)
    if InputSpec.of(recalled.train.inputs.shape).kind == "vectors":
        recalled = with_known_duplicates(recalled, folder.read_duplicates())
    recalled.note_broken(folder.read_unreadable())
    if recalled.fingerprint != run["data"]["fingerprint"]:
        warnings.warn(f"the data of {folder.path} have changed since it was started", stacklevel=2)
    return recalled


def _recalled(
    rows: list[dict[str, str]], pool: list[Samples], place: dict[str, tuple[int, int]], data: Data, plan: Plan
) -> Samples:
    number = {name: k for k, name in enumerate(data.classes)}
    homes = {place[row["id"]][0] for row in rows}
    if len(homes) > 1:
        raise UserError("samples of one split of the run are now spread over train and validation; put them back")
    samples = pool[homes.pop()].take(torch.tensor([place[row["id"]][1] for row in rows]))
    labels = torch.tensor([number[row["given"]] for row in rows])
    truth = torch.tensor([number[row["truth"]] for row in rows]) if rows[0]["truth"] else None
    samples = replace(samples, labels=labels, truth=truth)
    if plan.data.noise is not None and rows[0]["corrupted"]:
        corrupted = torch.tensor([row["corrupted"] == "1" for row in rows])
        statistics = channel_statistics(data.train.inputs)
        samples = corrupt_images(samples, Noise.parse(plan.data.noise).kind, corrupted, statistics, plan.seed)
    return samples
