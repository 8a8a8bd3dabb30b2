"""Segmentations whose scores are known."""

import pytest
import torch

from selfadapt.evaluation.segmentation import Confusion


def test_pixels() -> None:
    truth = torch.tensor([[0, 0, 1, 1], [0, 2, 255, 1]])
    predicted = torch.tensor([[0, 1, 1, 1], [0, 2, 2, 0]])
    confusion = Confusion(4)
    confusion.add(predicted, truth)
    scores = confusion.scores()
    assert scores["miou"] == pytest.approx((2 / 4 + 2 / 4 + 1 / 1) / 3)
    assert scores["pixel_accuracy"] == pytest.approx(5 / 7)
