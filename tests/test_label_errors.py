"""One call for the list of wrong labels: what it finds, what it says of itself, what it refuses."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.datasets import load_digits

from selfadapt import find_label_errors
from selfadapt.core.rng import seeded
from selfadapt.data.splits import assign_folds
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.outliers import outlier_scores
from selfadapt.evaluation.label_errors.report import LabelErrorReport


def _noisy(rows: int = 600, rate: float = 0.2) -> tuple[Any, Any, Any]:
    """Digits, labels of which some are the next class, and which."""
    x, y = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    order = generator.permutation(len(y))[:rows]
    x, y = x[order], y[order]
    wrong = generator.random(rows) < rate
    return x, np.where(wrong, (y + 1) % 10, y), wrong


@pytest.fixture(scope="module")
def found() -> tuple[LabelErrorReport, Any]:
    x, labels, wrong = _noisy()
    return find_label_errors(np.array([f"digit {k}" for k in labels]), features=x), wrong


def test_wrong_labels_stand_first_and_the_summary_is_true(found: tuple[LabelErrorReport, Any]) -> None:
    report, wrong = found
    ranked = report.ranked_indices
    assert sorted(ranked.tolist()) == list(range(600))
    assert wrong[ranked[:80]].mean() > 0.95
    rate, said_precision, said_recall = (getattr(report.summary, key) for key in ("error_rate", "precision", "recall"))
    assert rate.low <= wrong.mean() <= rate.high
    assert abs(rate.value - wrong.mean()) < 0.05
    precision, recall = wrong[report.is_error].mean(), report.is_error[wrong].mean()
    assert said_precision.low <= precision <= said_precision.high
    assert said_recall.low <= recall <= said_recall.high
    assert f"{report.is_error.sum()} of 600 labels are likely errors" in str(report.summary)


def test_every_array_is_in_the_order_of_the_input(found: tuple[LabelErrorReport, Any]) -> None:
    report, _ = found
    _, labels, _ = _noisy()
    assert report.given_labels.tolist() == [f"digit {k}" for k in labels]
    assert ((report.suggested_labels != report.given_labels) == report.is_error).all()
    assert (report.runner_up_labels != report.suggested_labels).all()
    flags, p_wrong = report.is_error[report.ranked_indices], report.p_wrong[report.ranked_indices]
    assert flags.tolist() == sorted(flags.tolist(), reverse=True), "all errors before all others"
    for own in (True, False):
        assert (np.diff(p_wrong[flags == own]) <= 0).all()
    assert set(report.reason[report.is_error]) == {"prediction"}
    assert (report.duplicate_group == -1).all()
    np.testing.assert_allclose(report.summary.noise_matrix.sum(1), 1, atol=1e-5)


def test_csv_and_frame_hold_the_same(found: tuple[LabelErrorReport, Any], tmp_path: Path) -> None:
    report, _ = found
    report.to_csv(tmp_path / "labels.csv")
    with open(tmp_path / "labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["id"]) for row in rows] == report.ranked_indices.tolist()
    for row in rows:
        place = int(row["id"])
        assert (row["given"], row["suggested"]) == (report.given_labels[place], report.suggested_labels[place])
        assert (row["suspect"] == "1") == report.is_error[place] == (row["given"] != row["suggested"])
        assert float(row["p_wrong"]) == pytest.approx(report.p_wrong[place], abs=1e-6)
    pandas = pytest.importorskip("pandas")
    x, labels, _ = _noisy(60)
    series = pandas.Series(labels, index=[f"photo {place}" for place in range(60)])
    own = find_label_errors(series, features=x)
    frame = own.to_frame()
    assert frame.index.tolist() == [f"photo {place}" for place in own.ranked_indices]
    assert frame["p_wrong"].tolist() == own.p_wrong[own.ranked_indices].tolist()


def test_a_table_that_stops_half_way_leaves_the_one_before(
    found: tuple[LabelErrorReport, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, _ = found
    report.to_csv(tmp_path / "labels.csv")
    before = (tmp_path / "labels.csv").read_bytes()
    rows = iter(list(report.rows())[:300])

    def stopping(_: LabelErrorReport) -> Iterator[dict[str, str]]:
        yield from rows
        raise KeyboardInterrupt

    monkeypatch.setattr(LabelErrorReport, "rows", stopping)
    with pytest.raises(KeyboardInterrupt):
        report.to_csv(tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["labels.csv"]


@pytest.mark.parametrize("rate", [0.0001, 0.01])
def test_of_two_duplicates_with_different_labels_not_both_are_surely_wrong(rate: float) -> None:
    """Two classes are equally likely and each duplicate has the label of one: one of the two is right, nine in ten."""
    labels_N = torch.arange(1000) % 3
    predicted_NK = torch.full((1000, 3), 0.05).scatter(1, labels_N.unsqueeze(1), 0.9)
    labels_N[:2], predicted_NK[:2] = torch.tensor([0, 1]), torch.tensor([0.45, 0.45, 0.1])
    matrix_KK = torch.full((3, 3), rate).fill_diagonal_(1 - 2 * rate)
    found = judge_out_of_sample(predicted_NK, labels_N, matrix_KK, [[0, 1]])
    assert float(found.p_wrong[:2].sum()) < 1.2


def test_probabilities_of_another_model_find_confused_classes() -> None:
    generator = np.random.default_rng(1)
    truth = generator.integers(4, size=2000)
    wrong = (truth == 1) & (generator.random(2000) < 0.4)
    labels = np.where(wrong, 2, truth)
    odds = np.full((2000, 4), 0.1)
    odds[np.arange(2000), truth] += 0.6
    odds *= generator.gamma(2.0, size=odds.shape)
    odds /= odds.sum(1, keepdims=True)
    report = find_label_errors(torch.from_numpy(labels), pred_probs=torch.from_numpy(odds))
    plain = labels != odds.argmax(1)
    assert wrong[report.is_error].mean() > wrong[plain].mean() + 0.2
    assert report.summary.noise_matrix[1, 2] > 0.2
    assert report.summary.noise_matrix[2, 1] < 0.1


def test_nothing_wrong_little_found() -> None:
    x, labels, _ = _noisy(rate=0)
    summary = find_label_errors(labels, features=x).summary
    assert summary.error_rate.value < 0.02
    assert summary.error_rate.low == 0
    assert summary.errors <= 0.02 * 600


def test_order_and_names_of_the_classes_change_nothing() -> None:
    x, labels, _ = _noisy(200)
    report = find_label_errors(labels, features=x)
    order = np.random.default_rng(5).permutation(200)
    shuffled = find_label_errors(labels[order], features=x[order])
    renamed = find_label_errors(np.array(list("qwertyuiop"))[labels], features=x)
    np.testing.assert_allclose(shuffled.p_wrong, report.p_wrong[order], atol=0.02)
    np.testing.assert_allclose(renamed.p_wrong, report.p_wrong, atol=0.02)


def test_of_duplicates_the_one_that_disagrees_rises_and_the_others_fall() -> None:
    x, labels, _ = _noisy(rate=0)
    copies = np.concatenate([x, x[:2]])
    given = np.concatenate([labels, [(labels[0] + 5) % 10, labels[1]]])
    report = find_label_errors(given, features=copies)
    alone = find_label_errors(labels, features=x)
    assert report.summary.duplicate_groups == (("0", "600"), ("1", "601"))
    assert report.summary.conflicting_groups == 1
    assert report.duplicate_group[[0, 1, 600, 601]].tolist() == [0, 1, 0, 1]
    assert report.is_error[600]
    assert report.reason[600] == "duplicate"
    assert report.suggested_labels[600] == labels[0]
    assert not report.is_error[[0, 1, 601]].any()
    assert report.p_wrong[1] <= alone.p_wrong[1] + 1e-6  # heads are fitted again


def test_samples_that_are_merely_alike_are_not_duplicates() -> None:
    """Three yes-or-no columns, and in every row one label in five is the rarer one: no more than that can be known."""
    generator = np.random.default_rng(0)
    x = generator.integers(2, size=(1000, 3))
    odds = np.where(x[:, 0] == 1, 0.8, 0.2)
    labels = (generator.random(1000) < odds).astype(int)
    report = find_label_errors(labels, features=x)
    assert report.summary.duplicate_groups == ()
    assert (labels != x[:, 0])[report.is_error].all()
    assert 0.0 < report.summary.error_rate.value < 0.2
    assert report.p_wrong.max() < 0.8


@pytest.mark.parametrize("sizes", [(100, 100, 1), (100, 100, 2), (100, 50, 5), (300, 3), (12, 12, 12)])
def test_tiny_and_unequal_classes(sizes: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    x = generator.normal(size=(len(labels), 6)) + 3 * np.eye(6)[labels]
    report = find_label_errors(labels, features=x)
    rows = report.summary.classes
    assert [row.given for row in rows] == list(sizes)
    assert [row.too_few for row in rows] == [size < 5 for size in sizes]
    assert all(row.judged_wrong == 0 for row in rows if row.too_few)
    assert np.isfinite(report.confidence).all()


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
        "softmax": {"labels": labels, "pred_probs": -np.ones((50, 10))},
        "pass class_names=": {"labels": labels.astype(str), "pred_probs": np.ones((50, 12)) / 12},
        "row 0 sums to 10": {"labels": labels, "pred_probs": np.ones((50, 10))},
        "missing in 1 places, first in 3": {"labels": [*"abc", None, *"abcde" * 10][:50], "features": x},
        "are these ids instead of labels": {"labels": np.arange(50), "features": x},
        "table of numbers": {"labels": labels, "features": np.full((50, 2), "a")},
        "labels cannot be judged by them": {"labels": labels, "features": np.ones((50, 3))},
        "positions from 0 to 49": {"labels": labels, "features": x, "duplicates": [[0, 50]]},
        "a class twice": {"labels": labels, "features": x, "class_names": [*range(10), 1]},
        "not among": {"labels": labels, "features": x, "class_names": [0, 1, 2]},
        "one for each": {"labels": labels, "features": x, "groups": [1, 2]},
        "the label of sample 2 is .1, 2.; multi-label .* one binary column per label": {
            "labels": [0, 1, [1, 2], *[0] * 47],
            "features": x,
        },
        r"shape .50, 10.; multi-label data are not supported; audit one binary": {
            "labels": np.eye(10)[labels],
            "features": x,
        },
        "'cat;dog' names several classes; multi-label": {
            "labels": ["cat", "dog", "cat;dog", *["cat"] * 47],
            "features": x,
        },
        "labels are missing in 2 places, first in 1; leave those samples out": {
            "labels": ["a", float("nan"), None, *"ab" * 24][:50],
            "features": x,
        },
        "labels are missing in 1 places, first in 4; leave": {
            "labels": np.where(np.arange(50) == 4, np.nan, labels),
            "features": x,
        },
        "at least 10": {"labels": labels[:5], "features": x[:5]},
        "at least three": {"labels": labels, "features": x, "groups": np.zeros(50)},
        "3 ids": {"labels": labels, "features": x, "ids": ["a", "b", "c"]},
    }.items():
        with pytest.raises(ValueError, match=words):
            find_label_errors(**given)


def test_names_of_levels_are_single_labels() -> None:
    x, labels, _ = _noisy(60)
    names = np.array(["tomato|early", "tomato|late", "potato|late", "potato|early"])[labels % 4]
    assert len(find_label_errors(names, features=x)) == 60


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
    fold_N = assign_folds(labels_N, 5, 0, groups_N)
    assert len(fold_N[:8].unique()) == len(fold_N[40:60].unique()) == 1
    assert int(torch.bincount(fold_N).max() - torch.bincount(fold_N).min()) <= 3
    alone_N = assign_folds(labels_N, 5, 0)
    for label in range(3):
        counts = torch.bincount(alone_N[labels_N == label], minlength=5)
        assert int(counts.max() - counts.min()) <= 1
    assert not torch.equal(alone_N[:5], torch.arange(5))


def test_a_foreign_cluster_lies_outside() -> None:
    generator = seeded(0, "outside")
    means_KF = torch.randn(3, 40, generator=generator) * 3
    class_N = torch.randint(3, (500,), generator=generator)
    features_NF = means_KF[class_N] + torch.randn(500, 40, generator=generator)
    features_NF[:10] = torch.randn(40, generator=generator) * 3 + torch.randn(10, 40, generator=generator)
    predicted_NK = torch.nn.functional.one_hot(class_N, 3) * 0.9 + 1 / 30
    far_N = outlier_scores(features_NF, predicted_NK, class_N)
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
    wrong_N = (labels_N != truth_N).numpy()
    found = judge_out_of_sample(predicted_NK, labels_N, matrix_KK)
    assert abs(found.quality.noise_rate.value - wrong_N.mean()) < 0.03
    errors = int(found.is_error.sum())
    precision, recall = found.quality.at(errors)
    assert abs(precision.value - wrong_N[found.is_error].mean()) < 0.06
    assert abs(recall.value - found.is_error[wrong_N].mean()) < 0.08
    for low in np.arange(0, 1, 0.2):
        rows = (found.p_wrong >= low) & (found.p_wrong < low + 0.2)
        expected, error = found.p_wrong[rows].mean(), 4 * 0.5 / rows.sum() ** 0.5
        assert abs(wrong_N[rows].mean() - expected) < error, "P(wrong) is calibrated"


def test_predictions_at_chance_leave_the_error_rate_open() -> None:
    """Labels that have nothing to do with the predictions: four in five are wrong, or none."""
    generator = seeded(0, "chance")
    predicted_NK = torch.randn(1000, 5, generator=generator).softmax(1)
    labels_N = torch.arange(1000) % 5
    rate = judge_out_of_sample(predicted_NK, labels_N, torch.full((5, 5), 0.01).fill_diagonal_(0.96)).summary.error_rate
    assert rate.low == 0
    assert rate.high > 0.8


def test_the_summary_counts_only_labels_that_were_judged() -> None:
    generator = np.random.default_rng(0)
    labels = np.concatenate([np.repeat(np.arange(12), 3), np.repeat([12, 13], 50)])
    predicted = np.full((len(labels), 14), 0.01)
    predicted[np.arange(len(labels)), labels] = 0.87
    labels[-2:] = 12
    report = find_label_errors(labels, pred_probs=predicted * generator.uniform(0.99, 1.01, predicted.shape))
    errors = int(report.is_error.sum())
    assert str(report.summary).startswith(f"{errors} of the 100 labels that could be judged are likely errors; an est")
    assert "Too few samples to judge: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more classes." in str(report.summary)


_WORDS = [("cat", "dog", "emu")[k % 3] for k in range(60)]
_VALUES = np.random.default_rng(0).normal(size=(60, 4)) + 3 * (np.arange(60) % 3)[:, None]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([*_WORDS[:-1], float("nan")], "missing in 1 places, first in 59"),
        (np.array([*_WORDS[:-1], float("nan")]), "missing in 1 places, first in 59; numpy writes a missing value"),
        ([0, "0"] * 30, "mix words and other values: '0' of sample 1 and 0 of sample 0"),
        (np.array([1e19, 2.0] * 30), "the label 10000000000000000000 is too large"),
        ((word for word in _WORDS), "labels are a generator; pass a list"),
        (dict(enumerate(_WORDS)), "labels are a dict"),
        ("abc" * 20, "labels are a str"),
        (np.array(["2026-01-01", "2026-01-02", "NaT"] * 20, "datetime64[D]"), "missing in 20 places, first in 2"),
        (np.ma.array([0, 1, 2] * 20, mask=[False, True, False] * 20), "missing in 20 places, first in 1"),
        (["a", "a\0", "b"] * 20, "the label 'a.x00' ends in a NUL character"),
        (np.array([0, 1j] * 30), "they are complex"),
        (torch.zeros(60, device="meta"), "the tensor cannot be read as an array"),
    ],
)
def test_labels_that_cannot_be_read_in_one_way_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_label_errors(labels, features=_VALUES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: np.ma.array(x, mask=x == x[3, 0]), "not finite float32 numbers in 1 rows, first in row 3"),
        (lambda x: x * 1j, "they are complex"),
        (scipy.sparse.csr_array, "sparse matrices are not supported; pass an array"),
        (lambda x: torch.tensor(x).to_sparse(), "the tensor cannot be read as an array"),
    ],
)
def test_features_that_are_no_plain_table_are_refused(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_label_errors(_WORDS, features=change(np.random.default_rng(0).normal(size=(60, 4))))


@pytest.mark.parametrize("columns", [["c", "a", "b"], [2, 0, 1]])
def test_columns_of_a_frame_that_are_named_after_classes_may_have_any_order(columns: list[Any]) -> None:
    pandas = pytest.importorskip("pandas")
    generator, classes = np.random.default_rng(0), sorted(columns)
    codes = generator.integers(0, 3, 60)
    probabilities = np.full((60, 3), 0.1)
    probabilities[np.arange(60), codes] = 0.8
    labels = np.array(classes)[np.where(np.arange(60) < 6, (codes + 1) % 3, codes)]
    frame = pandas.DataFrame(probabilities, columns=classes)[columns]
    found, expected = (find_label_errors(labels, pred_probs=own) for own in (frame, probabilities))
    assert found.suggested_labels.tolist() == expected.suggested_labels.tolist()
    np.testing.assert_allclose(found.p_wrong, expected.p_wrong, atol=1e-6)
    assert find_label_errors(labels, pred_probs=frame, class_names=classes).suggested_labels.tolist() != (
        expected.suggested_labels.tolist()
    )


@pytest.mark.parametrize("duplicates", [[1, 2], [[1.0, 2.0]], 3, ["12"]])
def test_duplicates_are_groups_of_positions(duplicates: Any) -> None:
    with pytest.raises(ValueError, match=r"duplicates= must be lists of positions"):
        find_label_errors(_WORDS, features=_VALUES, duplicates=duplicates)


def test_bfloat16_labels_and_features_are_those_of_float32() -> None:
    labels = torch.arange(60) % 3
    features = torch.tensor(_VALUES).bfloat16()
    found = find_label_errors(labels.bfloat16(), features=features)
    np.testing.assert_array_equal(found.p_wrong, find_label_errors(labels, features=features.float()).p_wrong)


def test_labels_counted_from_one_are_not_taken_for_column_numbers() -> None:
    labels = 1 + np.arange(60) % 3
    from_one, from_zero = (0.05 + 0.8 * np.eye(4)[labels - shift] for shift in (1, 0))
    with pytest.raises(ValueError, match=r"count from 1; subtract 1, or pass class_names="):
        find_label_errors(labels, pred_probs=from_one)
    assert not find_label_errors(labels, pred_probs=from_zero).is_error.any()
    assert not find_label_errors(labels, pred_probs=from_one, class_names=[1, 2, 3, 4]).is_error.any()
