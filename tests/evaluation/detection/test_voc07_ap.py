"""Average precision of VOC 2007 against hand-computed cases, the rules in numpy, and invariants."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfadapt.data.sources.voc import Boxes
from selfadapt.evaluation.detection.coco_ap import IOU_THRESHOLDS, Detections
from selfadapt.evaluation.detection.voc07_ap import voc07_scores


def _boxes(*corners: tuple[float, ...], difficult: tuple[bool, ...] = (), labels: Sequence[int] = ()) -> Boxes:
    count = len(corners)
    return Boxes(
        torch.tensor(corners).reshape(-1, 4).float(),
        torch.tensor(list(labels) or [1] * count, dtype=torch.int64),
        torch.tensor(difficult or [False] * count, dtype=torch.bool),
    )


def _found(*said: tuple[float, ...], labels: Sequence[int] = ()) -> Detections:
    table = torch.tensor(said).reshape(-1, 5).float()
    return Detections(table[:, :4], torch.tensor(list(labels) or [1] * len(table), dtype=torch.int64), table[:, 4])


SQUARE, FAR, AWAY = (0, 0, 10, 10), (20, 20, 30, 30), (50, 50, 60, 60)


def test_perfect_boxes_score_one_and_none_score_nothing() -> None:
    truth = [_boxes(SQUARE, FAR), _boxes(AWAY)]
    perfect = [_found((*SQUARE, 0.9), (*FAR, 0.8)), _found((*AWAY, 0.7))]
    assert voc07_scores(perfect, truth, 1) == {"ap": 1.0, "ap50": 1.0, "ap75": 1.0}
    assert voc07_scores([_found(), _found()], truth, 1) == {"ap": 0.0, "ap50": 0.0, "ap75": 0.0}
    assert voc07_scores(perfect, [_boxes(), _boxes()], 1) == {"ap": 0.0, "ap50": 0.0, "ap75": 0.0}


@pytest.mark.parametrize(
    ("said", "difficult", "expected"),
    [
        ([(*SQUARE, 0.9)], (), Fraction(6, 11)),  # recall 1/2 reaches the points 0 to 0.5
        ([(*AWAY, 0.9), (*SQUARE, 0.8)], (), Fraction(6, 22)),  # the same at a precision of 1/2
        ([(*SQUARE, 0.9), (*SQUARE, 0.8), (*FAR, 0.7)], (), Fraction(6, 11) + Fraction(5, 11) * Fraction(2, 3)),
        ([(*FAR, 0.9)], (False, True), Fraction(0)),  # and finding it alone is nothing
        ([(*SQUARE, 0.9)], (False, True), Fraction(1)),  # the difficult one is not missed
        ([(*FAR, 0.9), (*FAR, 0.8), (*SQUARE, 0.7)], (False, True), Fraction(1)),  # nor wrong, however often found
    ],
)
def test_worked_by_hand(said: list[tuple[float, ...]], difficult: tuple[bool, ...], expected: Fraction) -> None:
    scores = voc07_scores([_found(*said)], [_boxes(SQUARE, FAR, difficult=difficult)], 1)
    assert scores["ap50"] == pytest.approx(float(expected), abs=1e-12)


def test_only_the_object_that_overlaps_most_comes_into_question() -> None:
    """The second box overlaps the first object by 0.9 and the other by 0.6: it is a duplicate, though one is free."""
    truth = [_boxes((0, 0, 10, 10), (0, 0, 10, 15))]
    said = [_found((0, 0, 10, 10, 0.9), (0, 0, 10, 9, 0.8))]
    assert voc07_scores(said, truth, 1)["ap50"] == pytest.approx(6 / 11)


def test_an_overlap_of_just_the_least_is_enough() -> None:
    scores = voc07_scores([_found((0, 0, 10, 5, 0.9))], [_boxes(SQUARE)], 1)
    assert scores["ap50"] == 1.0
    assert scores["ap"] == pytest.approx(0.1)


def test_a_recall_of_three_in_ten_reaches_the_fourth_point() -> None:
    objects = [(20.0 * n, 0.0, 20.0 * n + 10, 10.0) for n in range(10)]
    for hits in range(1, 11):
        said = _found(*((*box, 0.9) for box in objects[:hits]))
        assert voc07_scores([said], [_boxes(*objects)], 1)["ap50"] == pytest.approx((hits + 1) / 11, abs=1e-12)


def _by_the_rules(found: Sequence[Detections], truth: Sequence[Boxes], num_classes: int, least: float) -> float:
    """The rules once more, in numpy, a box at a time."""
    precisions = []
    for label in range(1, num_classes + 1):
        objects = [known.boxes_M4.numpy()[(known.labels_M == label).numpy()].astype(float) for known in truth]
        hard = [known.difficult_M.numpy()[(known.labels_M == label).numpy()] for known in truth]
        used = [np.zeros(len(own), bool) for own in objects]
        total = sum(int((~own).sum()) for own in hard)
        if not total:
            continue
        said = [
            (float(image.scores_M[row]), number, image.boxes_M4[row].numpy().astype(float))
            for number, image in enumerate(found)
            for row in range(len(image.scores_M))
            if int(image.labels_M[row]) == label
        ]
        true, false = [], []
        for _, number, box in sorted(said, key=lambda entry: -entry[0]):
            best, which = -np.inf, -1
            for position, other in enumerate(objects[number]):
                width = min(box[2], other[2]) - max(box[0], other[0])
                height = min(box[3], other[3]) - max(box[1], other[1])
                if width <= 0 or height <= 0:
                    continue
                shared = width * height
                areas = [(own[2] - own[0]) * (own[3] - own[1]) for own in (box, other)]
                if shared / (sum(areas) - shared) > best:
                    best, which = shared / (sum(areas) - shared), position
            if best >= least and hard[number][which]:
                continue
            hit = best >= least and not used[number][which]
            if hit:
                used[number][which] = True
            true.append(hit)
            false.append(not hit)
        hits, wrong = np.cumsum(true), np.cumsum(false)
        average = 0.0
        for point in range(11):
            at = [
                h / (h + w) for h, w in zip(hits, wrong, strict=True) if Fraction(int(h), total) >= Fraction(point, 10)
            ]
            average += max(at, default=0.0) / 11
        precisions.append(average)
    return float(np.mean(precisions)) if precisions else 0.0


def _draw(seed: int) -> tuple[list[Detections], list[Boxes]]:
    """Objects of three classes, some difficult, and boxes near them, doubled, astray or of another class."""
    rng = np.random.default_rng(seed)
    found, truth = [], []
    for _ in range(int(rng.integers(1, 6))):
        count = int(rng.integers(0, 6))
        corner, side = rng.integers(0, 40, (count, 2)), rng.integers(7, 40, (count, 2))
        boxes, labels = np.concatenate([corner, corner + side], 1), rng.integers(1, 4, count)
        truth.append(_boxes(*map(tuple, boxes), difficult=tuple(rng.random(count) < 0.3), labels=labels.tolist()))
        chosen = np.repeat(np.arange(count), rng.integers(0, 4, count))
        moved = boxes[chosen] + rng.integers(-3, 4, (len(chosen), 4))
        kinds = np.where(rng.random(len(chosen)) < 0.8, labels[chosen], rng.integers(1, 4, len(chosen)))
        scores = rng.integers(1, 30, len(chosen)) / 32  # some are the same
        found.append(_found(*map(tuple, np.concatenate([moved, scores[:, None]], 1)), labels=kinds.tolist()))
    return found, truth


@pytest.mark.parametrize("seed", range(40))
def test_against_the_rules_in_numpy(seed: int) -> None:
    found, truth = _draw(seed)
    expected = [_by_the_rules(found, truth, 3, least) for least in IOU_THRESHOLDS]
    scores = voc07_scores(found, truth, 3)
    assert scores["ap50"] == pytest.approx(expected[0], abs=1e-9)
    assert scores["ap75"] == pytest.approx(expected[5], abs=1e-9)
    assert scores["ap"] == pytest.approx(np.mean(expected), abs=1e-9)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([0.25, 0.5, 2.0]))
def test_what_must_always_hold(seed: int, factor: float) -> None:
    found, truth = _draw(seed)
    scores = voc07_scores(found, truth, 3)
    assert 0 <= scores["ap75"] <= scores["ap50"] <= 1
    assert 0 <= scores["ap"] <= scores["ap50"]
    # only the order of scores counts, and the scale of the picture does not
    scaled = [Detections(own.boxes_M4 * factor, own.labels_M, own.scores_M**2) for own in found]
    same = [Boxes(own.boxes_M4 * factor, own.labels_M, own.difficult_M) for own in truth]
    assert voc07_scores(scaled, same, 3) == pytest.approx(scores)
    # a wrong box that is less sure than all others costs nothing; one surer than all never helps
    astray = torch.tensor([[900.0, 900.0, 910.0, 910.0]])
    for score, least in ((0.0, True), (2.0, False)):
        worse = [
            Detections(torch.cat([own.boxes_M4, astray]), torch.cat([own.labels_M, torch.ones(1, dtype=torch.int64)]),
                  torch.cat([own.scores_M, torch.tensor([score])]))
            for own in found
        ]  # fmt: skip
        after = voc07_scores(worse, truth, 3)
        assert after["ap"] == pytest.approx(scores["ap"]) if least else after["ap"] <= scores["ap"] + 1e-12
