"""`find_label_errors` on features in shards: one report for any files, order of samples and number of processes."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from distributed.group import in_processes
from selfadapt import find_label_errors
from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.shards.manifest import Manifest, write_shard
from selfadapt.evaluation.label_errors import large_features
from selfadapt.evaluation.label_errors.recovery import average_precision
from selfadapt.evaluation.label_errors.report import PER_SAMPLE, LabelErrorReport
from selfadapt.objectives.cross_fitting.streamed import streamed_fit

Array = np.ndarray[Any, np.dtype[Any]]
COUNT, CLASSES = 3000, 4


def _data() -> tuple[Array, Array, Array]:
    """Features, labels of which a fifth are redrawn, and true labels. Samples 40 and 41 are duplicates."""
    generator = seeded(0, "large")
    truth_N = torch.randint(CLASSES, (COUNT,), generator=generator)
    features_NF = 2 * torch.randn(CLASSES, 8, generator=generator)[truth_N] + torch.randn(COUNT, 8, generator=generator)
    features_NF[41], truth_N[41] = features_NF[40], truth_N[40]
    drawn_N = torch.randint(CLASSES, (COUNT,), generator=generator)
    labels_N = torch.where(torch.rand(COUNT, generator=generator) < 0.2, drawn_N, truth_N)
    return features_NF.numpy(), labels_N.numpy(), truth_N.numpy()


def _write(folder: Path, features_NF: Array, ids: Array | None = None) -> None:
    bounds = [0, 700, 701, COUNT]
    parts = [slice(first, last) for first, last in pairwise(bounds)]
    shards = [
        write_shard(folder, number, features_NF[part], ids=None if ids is None else ids[part])
        for number, part in enumerate(parts)
    ]
    Manifest(8, "float32", tuple(shards)).write(folder)


def _make_small() -> None:
    """Stream from 1,000 samples on, with a pilot of 1,000 and blocks of 256."""
    vars(streamed_fit).update(_MANY_SAMPLES=1000, SAMPLE=600)
    vars(large_features).update(SAMPLE=600, _KERNEL_WIDTH=10**5)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (streamed_fit, "_MANY_SAMPLES"),
        (streamed_fit, "SAMPLE"),
        (large_features, "SAMPLE"),
        (large_features, "_KERNEL_WIDTH"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # to be restored
    _make_small()


def _assert_equal(found: LabelErrorReport, expected: LabelErrorReport, atol: float = 0.0) -> None:
    for name in PER_SAMPLE:
        first, second = getattr(found, name), getattr(expected, name)
        if first.dtype.kind == "f":
            np.testing.assert_allclose(first, second, atol=atol, rtol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(first, second, err_msg=name)
    assert found.summary.error_rate.value == pytest.approx(expected.summary.error_rate.value, abs=max(atol, 1e-12))


@pytest.mark.distributed
def test_shards_and_processes_do_not_change_the_report(tmp_path: Path) -> None:
    features_NF, labels_N, truth_N = _data()
    passes: dict[str, list[tuple[int, int]]] = {}
    whole = find_label_errors(
        labels_N, features=features_NF, on_pass=lambda name, *progress: passes.setdefault(name, []).append(progress)
    )
    assert "summing folds" in passes, "these features are read in blocks"
    assert passes["predicting"][0] == (0, COUNT)
    assert passes["predicting"][-1] == (COUNT, COUNT)
    quality = average_precision(torch.from_numpy(whole.ranked_indices.copy()), torch.from_numpy(labels_N != truth_N))
    assert quality is not None
    assert quality > 0.9
    assert whole.duplicate_group[40] == whole.duplicate_group[41] >= 0
    _write(tmp_path / "features", features_NF)
    _assert_equal(find_label_errors(labels_N, features=tmp_path / "features"), whole)
    in_processes(2, _judge_and_save, tmp_path)
    for rank in range(2):
        _assert_equal(torch.load(tmp_path / f"report-{rank}", weights_only=False), whole, atol=1e-5)


def _judge_and_save(folder: Path) -> None:
    _make_small()
    report = find_label_errors(_data()[1], features=folder / "features")
    torch.save(report, folder / f"report-{distributed.rank()}")


def test_samples_outside_the_pilot_are_judged_by_the_kernel_where_its_head_is_at_chance() -> None:
    """Two spherical shells. The head of the pilot is linear, though the pilot itself separates them."""
    generator = seeded(0, "shells")
    truth_N = torch.randint(2, (COUNT,), generator=generator)
    features_NF = (1 + truth_N.unsqueeze(1)) * normalize(torch.randn(COUNT, 3, generator=generator))
    features_NF += 0.1 * torch.randn(COUNT, 3, generator=generator)
    labels_N = torch.where(torch.rand(COUNT, generator=generator) < 0.2, 1 - truth_N, truth_N)
    report = find_label_errors(labels_N.numpy(), features=features_NF.numpy())
    quality = average_precision(torch.from_numpy(report.ranked_indices.copy()), labels_N != truth_N)
    assert quality is not None
    assert quality > 0.95


def test_labels_are_matched_to_shards_by_id(tmp_path: Path) -> None:
    features_NF, labels_N, _ = _data()
    ids = np.array([f"photo-{number}" for number in range(COUNT)])
    _write(tmp_path, features_NF, ids)
    in_order = find_label_errors(labels_N, features=tmp_path)
    np.testing.assert_array_equal(in_order.ids, ids)
    order = torch.randperm(COUNT, generator=seeded(0, "order")).numpy()
    found = find_label_errors(labels_N[order], features=tmp_path, ids=ids[order].tolist())
    np.testing.assert_array_equal(found.ids, ids[order])
    for name in ("given_codes", "p_wrong", "is_error", "outlier_score", "duplicate_group"):
        np.testing.assert_array_equal(getattr(found, name), getattr(in_order, name)[order], err_msg=name)
    with pytest.raises(UserError, match=r"the labels and the features have different ids, such as .*other"):
        find_label_errors(labels_N, features=tmp_path, ids=["other", *ids[1:].tolist()])
    with pytest.raises(UserError, match="2999 labels but 3000 samples"):
        find_label_errors(labels_N[1:], features=tmp_path)


def test_small_features_in_shards_give_the_report_on_the_array(tmp_path: Path) -> None:
    features_NF, labels_N, _ = _data()
    features_NF, labels_N = features_NF[:300], labels_N[:300]
    np.savez(tmp_path / "0.npz", features=features_NF[:200], labels=labels_N[:200])
    np.savez(tmp_path / "1.npz", features=features_NF[200:], labels=labels_N[200:])
    expected = find_label_errors(labels_N, features=features_NF)
    _assert_equal(find_label_errors(features=tmp_path), expected)
    _assert_equal(find_label_errors(labels_N, features=iter(np.split(features_NF, 7 * [0] + [90]))), expected)


def test_a_class_that_one_group_holds_is_not_judged() -> None:
    features_NF, labels_N, _ = _data()
    labels_N[100:120] = CLASSES
    groups = np.arange(COUNT)
    groups[100:120] = 100
    report = find_label_errors(labels_N, features=features_NF, groups=groups)
    assert report.too_few.tolist() == [False] * CLASSES + [True]
    assert not report.is_error[100:120].any()
