"""The data of a run: labels from a file, noise, split, limits; and samples.csv, from which they come back.

samples.csv is what the run goes by. A resumed run or an audit finds its samples by id, in the order of that file,
whatever was added, removed or reordered since; noise is never drawn again.
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
from selfadapt.data.images.decoded_cache import keep_decoded
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.data.labels.class_names import UNLABELLED
from selfadapt.data.labels.image_noise import corrupt_images
from selfadapt.data.labels.noise import Noise, corrupt
from selfadapt.data.labels.overrides import apply_corrected, apply_labels, corrected_validation
from selfadapt.data.sources.catalog import check_there, kind_of, open_data
from selfadapt.data.splits import split_off
from selfadapt.models.pretrained.timm_models import network_shape, timm_name
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.run_settings import RunSettings
from selfadapt.runs.lifecycle.data_duplicates import warn_of_shared_groups, with_duplicates, with_known_duplicates
from selfadapt.runs.lifecycle.network import with_features


def prepared(settings: RunSettings, on_progress: ProgressCallback = no_progress) -> Data:
    """The data as training sees them, which must suit the method."""
    _check_tune(settings)
    data = _opened(settings, on_progress)
    if settings.kind == "labels":
        corrected = settings.data.corrected is not None  # whoever reads that table says more about the training split
        for split in list(data.splits)[int(corrected) :]:
            _check_two_classes(data, split)
        data = _with_labels(data, settings, on_progress)
        _check_two_classes(data, "train")
    else:
        data = data.limited(settings.data.limit, settings.data.test_limit, settings.seed)
    settings.method.suited(settings.task(data))
    return data


def _check_two_classes(data: Data, split: str) -> None:
    """Refuse a split of one class: nothing can be learned or measured there. A single sample is merely few."""
    labels = data.splits[split].labels
    if len(labels) > 1 and len(labels.unique()) == 1:
        remedy = "telling classes apart needs two: " if split == "train" else "it measures nothing: leave it out, or "
        raise UserError(
            f"the {split} split of {data.name} has one class only, {data.classes[int(labels[0])]!r}; {remedy}"
            "add samples of another class to it"
        )


def _check_tune(settings: RunSettings) -> None:
    """Refuse to tune a pretrained network where there is none."""
    source, model = settings.data.source, settings.model
    if model.tune is None or timm_name(model.name or "") is not None:
        return
    check_there(source)
    if kind_of(source, settings.columns) == "vectors":
        raise UserError(
            f"--tune {model.tune} tells what of a pretrained network learns, and {source} holds vectors, which need "
            "none; leave it out"
        )


def _opened(settings: RunSettings, on_progress: ProgressCallback, begun: RunFolder | None = None) -> Data:
    """The data as they are, decoded if they fit; on the scale of a run that was begun, if there is one."""
    about = {} if begun is None else begun.read_run()["data"]
    unlabelled = settings.kind == "pretraining"
    data = open_data(
        settings.data.source,
        resize=_image_size(settings),
        unlabelled=unlabelled,
        white=about.get("white"),
        columns=settings.columns,
        reader=about.get("reader"),
        on_progress=on_progress,
    )
    if timm_name(settings.model.name or "") is not None:
        data = _for_network(data, settings)
    if (size := settings.data.image_size) is not None and not settings.on_features:  # features have their own way
        data = data.with_images(lambda images: images.brought_to(size))
    from_pictures = settings.data.crops == "original"
    if from_pictures:
        data = seeing_the_middle(data)
    if distributed.rank():  # the first process decodes for all
        distributed.barrier()
    stream = settings.data.stream or settings.on_features
    data = keep_decoded(data, stream=stream, stream_train=from_pictures, on_progress=on_progress)
    if distributed.rank() == 0:
        distributed.barrier()
    if settings.data.corrected is not None:
        # A run keeps the table that it was begun with, as the one that was named may have changed.
        table = Path(settings.data.corrected) if begun is None else begun.trained_on_file
        data = apply_corrected(data, table, quiet=begun is not None)
    return _without_labels(data) if unlabelled and data.unlabelled is not None else data


def _image_size(settings: RunSettings) -> int | None:
    """The size that image files are brought to: the one asked for, or that of a network of timm's."""
    name = timm_name(settings.model.name or "")
    if settings.data.image_size is not None or name is None:
        return settings.data.image_size
    return network_shape(name)[-1]


def _for_network(data: Data, settings: RunSettings) -> Data:
    """The data as one of timm's networks takes them: images, and files in the colours that it has learned."""
    model = settings.model
    if data.train.inputs.kind == "vectors":
        raise UserError(f"--model {model.name} takes images, and {data.name} holds vectors; choose linear or mlp")
    if not settings.fine_tunes:  # from nothing it learns the colours that there are, and features have their own way
        return data
    channels = network_shape(timm_name(model.name or "") or "")[0]
    return data.with_files(lambda files: replace(files, shape=(channels, *files.shape[1:])))


def seeing_the_middle(data: Data) -> Data:
    """The data with the middle of each picture wherever it is seen whole, as suits networks that learned from crops."""
    return data.with_files(lambda files: replace(files, resize=Frame.middle(files.shape[1])))


def _without_labels(data: Data) -> Data:
    """The images that have no label instead of the labelled ones, for data that bring any."""
    assert data.unlabelled is not None
    count = len(data.unlabelled)
    ids = [f"{data.name}/unlabelled/{i}" for i in range(count)]
    nothing = torch.zeros(count, dtype=torch.int64)
    train = Samples(inputs=data.unlabelled, labels=nothing, truth=None, ids=ids)
    return replace(data, train=train, validation=None, test=None, classes=(UNLABELLED,))


def _with_labels(data: Data, settings: RunSettings, on_progress: ProgressCallback) -> Data:
    """Labels of a file, then noise, the split, the limits and the share of labels.

    Vectors come before the split, because duplicates stay on one side of it.
    """
    own, seed = settings.data, settings.seed
    held_out = frozenset() if own.corrected is None else corrected_validation(data, Path(own.corrected))
    if own.labels is not None:
        data = apply_labels(data, Path(own.labels))
    if own.noise is not None:
        data = corrupt(data, Noise.parse(own.noise), seed)
    vectors = settings.on_features or data.train.inputs.kind == "vectors"
    if vectors:
        data = data.limited(own.limit, own.test_limit, seed)
        data = with_features(data, settings, on_progress) if settings.on_features else data
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
    """The data with a validation split, if there are enough samples besides duplicates."""
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
    for part, samples in (("train", data.train), ("validation", data.validation)):
        if samples is None:
            continue
        for i, sample_id in enumerate(samples.ids):
            path = "" if samples.paths is None else samples.paths[i]
            truth = "" if samples.truth is None else data.classes[int(samples.truth[i])]
            corrupted = "" if samples.corrupted is None else str(int(samples.corrupted[i]))
            rows.append((sample_id, path, part, data.classes[int(samples.labels[i])], truth, corrupted))
    return rows


def duplicate_rows(data: Data) -> list[tuple[str, ...]]:
    """The rows of duplicates.csv."""
    known = {
        sample_id: (sample_id, "" if samples.paths is None else samples.paths[i], part, data.classes[int(label)])
        for part, samples in data.splits.items()
        for i, (sample_id, label) in enumerate(zip(samples.ids, samples.labels.tolist(), strict=True))
    }
    return [
        (str(number), *known[sample_id], group.kind)
        for number, group in enumerate(data.duplicates, start=1)
        for sample_id in group.members
        if sample_id in known
    ]


def recall(settings: RunSettings, folder: RunFolder, on_progress: ProgressCallback = no_progress) -> Data:
    """The data as the run saw them when it began."""
    data = _opened(settings, on_progress, begun=folder)
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
    whole = data.limited(None, settings.data.test_limit, settings.seed)
    recalled = replace(whole, train=parts["train"], validation=parts.get("validation"))
    if settings.on_features:
        recalled = with_features(recalled, settings, on_progress, folder)
    if recalled.train.inputs.kind == "vectors":
        recalled = with_known_duplicates(recalled, folder.read_duplicates())
    recalled.note_broken(folder.read_unreadable())
    if recalled.fingerprint != run["data"]["fingerprint"]:
        warnings.warn(f"the data of {folder.path} have changed since it began", stacklevel=2)
    return recalled


def _recalled(
    rows: list[dict[str, str]],
    pool: list[Samples],
    place: dict[str, tuple[int, int]],
    data: Data,
    settings: RunSettings,
) -> Samples:
    number = {name: k for k, name in enumerate(data.classes)}
    homes = {place[row["id"]][0] for row in rows}
    if len(homes) > 1:
        raise UserError("samples of one part of the run are now spread over train and validation; put them back")
    samples = pool[homes.pop()].take(torch.tensor([place[row["id"]][1] for row in rows]))
    labels = torch.tensor([number[row["given"]] for row in rows])
    truth = torch.tensor([number[row["truth"]] for row in rows]) if rows[0]["truth"] else None
    samples = replace(samples, labels=labels, truth=truth)
    if rows[0]["corrupted"]:
        assert settings.data.noise is not None
        corrupted = torch.tensor([row["corrupted"] == "1" for row in rows])
        statistics = channel_statistics(data.train.inputs)
        samples = corrupt_images(samples, Noise.parse(settings.data.noise).kind, corrupted, statistics, settings.seed)
    return samples
