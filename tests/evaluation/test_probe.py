"""Probes on features whose worth is known."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from selfadapt.evaluation.probe import (
    Features,
    ProbeSettings,
    collapsed,
    effective_rank,
    linear_probe,
    nearest_neighbours,
    spread,
)

GENERATOR = torch.Generator().manual_seed(0)


def _blobs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % 4
    centres = 2.0 * torch.eye(6)[:4]
    return centres[labels] + 0.8 * torch.randn(count, 6, generator=GENERATOR), labels


def test_the_linear_probe_is_as_good_as_logistic_regression() -> None:
    (train, labels), (test, truth) = _blobs(800), _blobs(2000)
    ours = (linear_probe(Features(train, labels, test, 4), ProbeSettings()) == truth).double().mean().item()
    theirs = LogisticRegression().fit(train, labels).score(test, truth)
    assert ours == pytest.approx(theirs, abs=0.02)
    again = linear_probe(Features(1000 * train - 7, labels, 1000 * test - 7, 4), ProbeSettings())
    assert (again == truth).double().mean().item() == pytest.approx(ours, abs=0.005)


def test_neighbours_vote_as_in_scikit_learn() -> None:
    (train, labels), (test, truth) = _blobs(300), _blobs(500)
    settings = ProbeSettings(neighbours=25)
    vote = KNeighborsClassifier(
        25, metric="cosine", algorithm="brute", weights=lambda distance: torch.tensor(-distance / 0.07).exp().numpy()
    ).fit(train, labels)
    ours = nearest_neighbours(Features(train, labels, test, 4), settings)
    assert (ours.numpy() == vote.predict(test)).mean() > 0.995
    assert (ours == truth).double().mean() > 0.8


def test_spread_and_rank_tell_collapse() -> None:
    wide = torch.randn(500, 20, generator=GENERATOR)
    assert spread(wide) == pytest.approx(1, abs=0.05)
    assert effective_rank(wide) == pytest.approx(20, rel=0.1)
    flat = torch.ones(500, 20) + 1e-4 * wide
    assert spread(flat) < 0.01
    line = torch.randn(500, 1, generator=GENERATOR) * torch.ones(1, 20) + 1e-6 * wide
    assert effective_rank(line) < 1.1
    assert not collapsed(spread(wide), spread(wide), effective_rank(wide), 32)
    assert collapsed(spread(flat), 0.9, 10, 32)
    assert collapsed(0.9, spread(flat), 10, 32)
    assert collapsed(0.9, 0.9, effective_rank(line), 32)
    assert collapsed(float("nan"), 0.9, 10, 32)
    few = wide[:3]
    assert not collapsed(spread(few), spread(few), effective_rank(few), 2), "three images have two directions"
