"""One call for the list of wrong labels: what it finds, what it says of itself, what it refuses."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from selfadapt import find_label_errors
from selfadapt.data.duplicates import find_duplicates, group_numbers, joined_groups
from selfadapt.data.folds import deal_into_folds
from selfadapt.data.seeds import seeded
from selfadapt.evaluation.label_quality import expected_quality
from selfadapt.evaluation.outsiders import outsiders
from selfadapt.label_errors import LabelErrors, LabelVerdict


def _noisy(rows: int = 600, rate: float = 0.2) -> tuple[Any, Any, Any]:
    """Digits, labels of which some are the next class, and which."""
    x, y = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    order = generator.permutation(len(y))[:rows]
    x, y = x[order], y[order]
    wrong = generator.random(rows) < rate
    return x, np.where(wrong, (y + 1) % 10, y), wrong


@pytest.fixture(scope="module")
def found() -> tuple[LabelErrors, Any]:
    x, labels, wrong = _noisy()
    return find_label_errors(np.array([f"digit {k}" for k in labels]), features=x), wrong


def test_wrong_labels_stand_first_and_the_summary_is_true(found: tuple[LabelErrors, Any]) -> None:
    table, wrong = found
    assert sorted(table.order.tolist()) == list(range(600))
    assert wrong[table.order[:80]].mean() > 0.95
    rate = table.summary.noise_rate
    assert rate.low <= wrong.mean() <= rate.high
    assert abs(rate.value - wrong.mean()) < 0.05
    suspect = table.suspect.astype(bool)
    precision, recall = wrong[table.order][suspect].mean(), suspect[wrong[table.order]].mean()
    said_precision, said_recall = table.summary.expected_precision, table.summary.expected_recall
    assert said_precision is not None
    assert said_recall is not None
    assert said_precision.low <= precision <= said_precision.high
    assert said_recall.low <= recall <= said_recall.high
    assert "labels look wrong" in str(table.summary)


def test_rows_csv_and_pandas_tell_the_same(found: tuple[LabelErrors, Any], tmp_path: Path) -> None:
    table, _ = found
    table.to_csv(tmp_path / "labels.csv")
    with open(tmp_path / "labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "given", "suggested", "confidence", "weight", "suspect", "outsider"]
    for row, verdict in zip(rows, table, strict=True):
        assert (row["id"], row["given"], row["suggested"]) == (verdict.id, verdict.given, verdict.suggested)
        assert (row["suspect"] == "1") == verdict.suspect == (verdict.given != verdict.suggested)
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["id"].tolist() == table.id.tolist()


def test_a_list_that_stops_half_way_leaves_the_one_before(
    found: tuple[LabelErrors, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = found
    table.to_csv(tmp_path / "labels.csv")
    before = (tmp_path / "labels.csv").read_bytes()
    rows = iter(list(table)[:300])

    def stopping(_: LabelErrors) -> Iterator[LabelVerdict]:
        yield from rows
        raise KeyboardInterrupt

    monkeypatch.setattr(LabelErrors, "__iter__", stopping)
    with pytest.raises(KeyboardInterrupt):
        table.to_csv(tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["labels.csv"]


def test_probabilities_of_ones_own_find_confused_classes() -> None:
    generator = np.random.default_rng(1)
    truth = generator.integers(4, size=2000)
    wrong = (truth == 1) & (generator.random(2000) < 0.4)
    labels = np.where(wrong, 2, truth)
    odds = np.full((2000, 4), 0.1)
    odds[np.arange(2000), truth] += 0.6
    odds *= generator.gamma(2.0, size=odds.shape)
    odds /= odds.sum(1, keepdims=True)
    table = find_label_errors(torch.from_numpy(labels), probabilities=torch.from_numpy(odds))
    plain = labels != odds.argmax(1)
    suspect = np.zeros(2000, bool)
    suspect[table.order] = table.suspect
    assert wrong[suspect].mean() > wrong[plain].mean() + 0.2
    assert table.summary.transition[1, 2] > 0.2
    assert table.summary.transition[2, 1] < 0.1


def test_nothing_wrong_little_found() -> None:
    x, labels, _ = _noisy(rate=0)
    summary = find_label_errors(labels, features=x).summary
    assert summary.noise_rate.value < 0.02
    assert summary.noise_rate.low == 0
    assert summary.suspects <= 0.02 * 600


def test_two_labels_for_one_picture_stand_at_the_top() -> None:
    x, labels, _ = _noisy(rate=0)
    copies = np.concatenate([x, x[:2]])
    given = np.concatenate([labels, [(labels[0] + 5) % 10, labels[1]]])
    table = find_label_errors(given, features=copies)
    assert set(table.order[:2].tolist()) == {0, 600}
    assert table.summary.duplicates == (("0", "600"), ("1", "601"))
    assert table.summary.conflicts == 1
    by_id = {row.id: row for row in table}
    assert by_id["600"].suspect
    assert not by_id["0"].suspect
    assert by_id["600"].suggested == labels[0]


def test_samples_that_are_merely_alike_are_not_copies_of_one() -> None:
    """Three yes-or-no columns, and in every row one label in five is the rarer one: no more than that can be told."""
    generator = np.random.default_rng(0)
    x = generator.integers(2, size=(1000, 3))
    odds = np.where(x[:, 0] == 1, 0.8, 0.2)
    labels = (generator.random(1000) < odds).astype(int)
    table = find_label_errors(labels, features=x)
    assert table.summary.duplicates == ()
    assert table.suspect.any()
    assert 0.7 < table.confidence[table.suspect].min() <= table.confidence[table.suspect].max() < 0.9


@pytest.mark.parametrize("sizes", [(100, 100, 1), (100, 100, 2), (100, 50, 5), (300, 3), (12, 12, 12)])
def test_tiny_and_unequal_classes(sizes: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    x = generator.normal(size=(len(labels), 6)) + 3 * np.eye(6)[labels]
    table = find_label_errors(labels, features=x)
    rows = table.summary.classes
    assert [row.given for row in rows] == list(sizes)
    assert [row.too_few for row in rows] == [size < 5 for size in sizes]
    assert all(row.judged_wrong == 0 for row in rows if row.too_few)
    assert np.isfinite(table.confidence).all()


def test_what_it_refuses() -> None:
    x, labels, _ = _noisy(50)
    broken = x.copy()
    broken[7, 3] = np.nan
    for words, given in {
        "first in row 7": {"labels": labels, "features": broken},
        "50 rows": {"labels": labels, "features": x[:49]},
        "at least two classes": {"labels": np.zeros(50), "features": x},
        "either features=": {"labels": labels},
        "fractions": {"labels": labels + 0.5, "features": x},
        "softmax": {"labels": labels, "probabilities": -np.ones((50, 10))},
        "pass classes=": {"labels": labels.astype(str), "probabilities": np.ones((50, 12)) / 12},
        "row 0 sums to 10": {"labels": labels, "probabilities": np.ones((50, 10))},
        "missing in 1 places, first in 3": {"labels": [*"abc", None, *"abcde" * 10][:50], "features": x},
        "not ids": {"labels": np.arange(50), "features": x},
        "table of numbers": {"labels": labels, "features": np.full((50, 2), "a")},
        "tell nothing": {"labels": labels, "features": np.ones((50, 3))},
        "positions from 0 to 49": {"labels": labels, "features": x, "duplicates": [[0, 50]]},
        "a class twice": {"labels": labels, "features": x, "classes": [*range(10), 1]},
        "not among": {"labels": labels, "features": x, "classes": [0, 1, 2]},
        "one for each": {"labels": labels, "features": x, "groups": [1, 2]},
        "at least 10": {"labels": labels[:5], "features": x[:5]},
        "at least three": {"labels": labels, "features": x, "groups": np.zeros(50)},
        "3 ids": {"labels": labels, "features": x, "ids": ["a", "b", "c"]},
    }.items():
        with pytest.raises(ValueError, match=words):
            find_label_errors(**given)


class _Missing:
    """What pandas.NA does."""

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "<NA>"

    def __eq__(self, other: object) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __ne__ = __eq__


@pytest.mark.parametrize("nothing", [None, _Missing(), np.datetime64("NaT"), float("nan"), "", " "])
def test_missing_labels_and_groups_are_told(nothing: Any) -> None:
    x, labels, _ = _noisy(40)
    given = np.array([f"digit {k}" for k in labels], dtype=object)
    given[[3, 7]] = nothing
    with pytest.raises(ValueError, match="labels are missing in 2 places, first in 3"):
        find_label_errors(given, features=x)
    for groups in ([*"ab" * 2, *[nothing] * 36], np.array([*"ab" * 2, *[nothing] * 36], dtype=object)):
        with pytest.raises(ValueError, match="groups are missing in 36 places, first in 4; give a sample"):
            find_label_errors(labels, features=x, groups=groups)


def test_groups_that_are_the_classes_judge_nothing() -> None:
    """Each class would be judged by heads that never saw it, and every label called wrong."""
    features, labels = load_digits(return_X_y=True)
    names = np.array([f"digit {label}" for label in labels[:300]])
    with pytest.raises(ValueError, match="samples of the class 'digit 0' belong together"):
        find_label_errors(names, features=features[:300], groups=labels[:300])


def test_groups_of_numbers_may_not_be_nan() -> None:
    x, labels, _ = _noisy(40)
    numbers = np.arange(40) / 2
    find_label_errors(labels, features=x, groups=numbers)
    numbers[5] = np.nan
    for groups in (numbers, torch.from_numpy(numbers)):
        with pytest.raises(ValueError, match="groups are missing in 1 places, first in 5"):
            find_label_errors(labels, features=x, groups=groups)


def test_folds_are_even_and_keep_groups_together() -> None:
    labels_N = torch.tensor([0] * 50 + [1] * 50 + [2] * 3)
    groups_N = torch.arange(103)
    groups_N[:8], groups_N[40:60] = 0, 40
    fold_N = deal_into_folds(labels_N, 5, 0, groups_N)
    assert len(fold_N[:8].unique()) == len(fold_N[40:60].unique()) == 1
    assert int(torch.bincount(fold_N).max() - torch.bincount(fold_N).min()) <= 3
    alone_N = deal_into_folds(labels_N, 5, 0)
    for label in range(3):
        counts = torch.bincount(alone_N[labels_N == label], minlength=5)
        assert int(counts.max() - counts.min()) <= 1
    assert not torch.equal(alone_N[:5], torch.arange(5))


def test_copies_saved_again_are_found_by_their_pixels() -> None:
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (40, 6, 6, 3)).astype(np.uint8)
    pictures = [np.kron(picture, np.ones((8, 8, 1), np.uint8)) for picture in coarse]
    smaller = [picture[::2, ::2] for picture in pictures[:10]]
    noisy = [np.clip(p.astype(int) + generator.integers(-6, 7, p.shape), 0, 255).astype(np.uint8) for p in smaller]
    everything = [*pictures, *noisy, np.full((9, 9, 3), 7, np.uint8), np.full((8, 8, 3), 200, np.uint8)]
    features_NF = torch.from_numpy(generator.normal(size=(52, 300)))
    groups = find_duplicates(features_NF, read_pixels=lambda sample: everything[sample])
    assert groups == [[sample, 40 + sample] for sample in range(10)]
    hashes = [str(sample % 51) for sample in range(52)]
    assert find_duplicates(features_NF, hashes=hashes) == [[0, 51]]
    joined_N = joined_groups(group_numbers([[0, 1], [3, 4]], 6), group_numbers([[1, 3]], 6))
    assert joined_N.tolist() == [0, 0, 2, 0, 0, 5]


def test_a_foreign_cluster_lies_outside() -> None:
    generator = seeded(0, "outside")
    means_KF = torch.randn(3, 40, generator=generator) * 3
    class_N = torch.randint(3, (500,), generator=generator)
    features_NF = means_KF[class_N] + torch.randn(500, 40, generator=generator)
    features_NF[:10] = torch.randn(40, generator=generator) * 3 + torch.randn(10, 40, generator=generator)
    predicted_NK = torch.nn.functional.one_hot(class_N, 3) * 0.9 + 1 / 30
    far_N = outsiders(features_NF, predicted_NK, class_N)
    assert far_N[:10].min() > far_N[10:].quantile(0.98)


@pytest.mark.parametrize("confused", [False, True])
def test_quality_is_stated_right_where_the_model_is_right(confused: bool) -> None:
    """Truth drawn from q itself and labels from V: then every expectation has an exact answer."""
    generator = seeded(0, "quality", confused)
    predicted_NK = torch.distributions.Dirichlet(torch.full((5,), 0.2)).sample((8000,))
    matrix_KK = torch.full((5, 5), 0.05).fill_diagonal_(0.8)
    if confused:
        matrix_KK = torch.eye(5) * 0.7 + torch.eye(5).roll(1, 1) * 0.3
    truth_N = torch.multinomial(predicted_NK, 1, generator=generator).squeeze(1)
    labels_N = torch.multinomial(matrix_KK[truth_N], 1, generator=generator).squeeze(1)
    rows_NK = predicted_NK * matrix_KK.T[labels_N]
    doubt_N = 1 - rows_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1) / rows_NK.sum(1)
    wrong_N = labels_N != truth_N
    quality = expected_quality(predicted_NK, labels_N, matrix_KK)
    cut = quality.cut
    assert cut == max(
        round(quality.noise_rate.value * 8000),
        sum(row.max() > 10 * row[label] for row, label in zip(predicted_NK.numpy(), labels_N.numpy(), strict=True)),
    )
    assert abs(quality.noise_rate.value - wrong_N.double().mean()) < 0.03
    top = doubt_N.argsort(descending=True)[:cut]
    precision, recall = quality.at(cut)
    assert abs(precision.value - wrong_N[top].double().mean()) < 0.06
    assert abs(recall.value - wrong_N[top].double().sum() / wrong_N.sum()) < 0.08
