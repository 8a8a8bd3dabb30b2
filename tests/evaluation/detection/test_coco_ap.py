"""Detections whose scores are known."""

import pytest
import torch

from selfadapt.data.sources.voc import Boxes
from selfadapt.evaluation.detection.coco_ap import Detections, coco_scores


def _boxes(*corners: tuple[float, ...], difficult: tuple[bool, ...] = ()) -> Boxes:
    count = len(corners)
    hard = torch.tensor(difficult or [False] * count, dtype=torch.bool)
    return Boxes(torch.tensor(corners).reshape(-1, 4).float(), torch.ones(count, dtype=torch.int64), hard)


def _found(*said: tuple[float, ...]) -> Detections:
    table = torch.tensor(said).reshape(-1, 5).float()
    return Detections(table[:, :4], torch.ones(len(table), dtype=torch.int64), table[:, 4])


def test_perfect_boxes_score_one_and_none_score_nothing() -> None:
    truth = [_boxes((0, 0, 10, 10), (20, 20, 40, 40)), _boxes((5, 5, 9, 9))]
    perfect = [_found((0, 0, 10, 10, 0.9), (20, 20, 40, 40, 0.8)), _found((5, 5, 9, 9, 0.7))]
    assert coco_scores(perfect, truth, 1) == {"ap": 1.0, "ap50": 1.0, "ap75": 1.0}
    assert coco_scores([_found(), _found()], truth, 1) == {"ap": 0.0, "ap50": 0.0, "ap75": 0.0}


def test_a_loose_box_counts_at_low_overlaps_only() -> None:
    scores = coco_scores([_found((0, 0, 10, 6.2, 0.9))], [_boxes((0, 0, 10, 10))], 1)  # overlap 0.62
    assert scores == pytest.approx({"ap": 0.3, "ap50": 1.0, "ap75": 0.0})


def test_a_false_box_before_the_right_one_halves_precision() -> None:
    truth = [_boxes((0, 0, 10, 10))]
    said = [_found((50, 50, 60, 60, 0.9), (0, 0, 10, 10, 0.8))]
    assert coco_scores(said, truth, 1)["ap50"] == pytest.approx(0.5)
    twice = [_found((0, 0, 10, 10, 0.9), (0, 0, 10, 10, 0.8))]  # the second find of an object is wrong, but comes last
    assert coco_scores(twice, truth, 1)["ap50"] == pytest.approx(1.0)


def test_recall_of_a_half_covers_half_of_the_curve() -> None:
    truth = [_boxes((0, 0, 10, 10), (20, 20, 30, 30))]
    assert coco_scores([_found((0, 0, 10, 10, 0.9))], truth, 1)["ap50"] == pytest.approx(51 / 101)


def test_difficult_objects_count_neither_way() -> None:
    truth = [_boxes((0, 0, 10, 10), (20, 20, 30, 30), difficult=(False, True))]
    for said in ([(0, 0, 10, 10, 0.9)], [(20, 20, 30, 30, 0.95), (0, 0, 10, 10, 0.9)]):
        assert coco_scores([_found(*said)], truth, 1)["ap50"] == pytest.approx(1.0)
