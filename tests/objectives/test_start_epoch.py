"""E_s determined during training: the injected labels, the running mean, and the rule."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

from networks import small_training
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training, fit
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Metrics, Progress
from selfadapt.objectives.start_epoch import (
    AGREEMENT,
    CHANGE,
    CONFIDENCE,
    CONFIDENT_AGREEMENT,
    INJECTED,
    OTHERS,
    AutoStart,
)
from selfadapt.targets.store import Storage

AUTO = AutoStart()


@settings(max_examples=40)
@given(first=st.integers(0, 10**9), classes=st.integers(2, 300))
def test_an_injected_label_is_another_class(first: int, classes: int) -> None:
    index = torch.arange(first, first + 200)
    labels = index % classes
    wrong, _ = AUTO.probe(index, labels, classes)
    assert (wrong != labels).all()
    assert ((wrong >= 0) & (wrong < classes)).all()
    assert torch.equal(wrong[50:], AUTO.probe(index[50:], labels[50:], classes)[0]), "a batch may be cut anywhere"


def test_injected_labels_are_spread_evenly() -> None:
    index = torch.arange(100_000)
    wrong, injected = AUTO.probe(index, torch.zeros_like(index), 10)
    assert injected.double().mean().item() == pytest.approx(0.05, abs=0.003)
    shares = torch.bincount(wrong, minlength=10)[1:] / len(index)
    torch.testing.assert_close(shares, torch.full((9,), 1 / 9), atol=0.005, rtol=0)
    torch.testing.assert_close(
        torch.bincount(wrong[injected])[1:] / injected.sum(), torch.full((9,), 1 / 9), atol=0.02, rtol=0
    )


def _metrics(
    agreement: float, change: float, *, excess: float = 0.0, error: float = 0.005, agreeing: float = 0.8
) -> Metrics:
    return {
        INJECTED: 0.05 + excess, f"{INJECTED}_error": error, f"{INJECTED}_count": 50, OTHERS: 0.05,
        AGREEMENT: agreement, CHANGE: change, f"{CHANGE}_error": 0.001, CONFIDENCE: 0.5,
        CONFIDENT_AGREEMENT: 0.5 * agreeing,
    }  # fmt: skip


def test_the_rule() -> None:
    learning = [_metrics(0.3 + 0.01 * epoch, 0.01) for epoch in range(100)]
    assert AUTO.found(learning[:74], 100) is None
    assert AUTO.found(learning, 100) == 75, "three quarters are the latest"
    assert AUTO.found([*learning[:20], _metrics(0.5, 0.01, excess=0.03)], 100) == 21
    assert AUTO.found([*learning[:20], _metrics(0.5, 0.01, excess=0.03, error=0.02)], 100) is None, "may be chance"
    assert AUTO.found([*learning[:20], _metrics(0.5, 0.01, excess=0.01, error=0.001)], 100) is None, "next to nothing"
    settled = [*learning[:20], *(_metrics(0.5, 0.0) for _ in range(10))]
    enough = [{**metrics, f"{INJECTED}_count": 250} for metrics in settled]
    assert AUTO.found(enough, 100) is None, "enough are injected to tell in time"
    start = AUTO.found(settled, 100)
    assert start is not None
    assert 23 <= start <= 25
    assert AUTO.found(settled[: start - 1], 100) is None
    assert AUTO.found([], 100) is None
    few = {**_metrics(0.5, 0.01, excess=0.5, error=0.0), f"{INJECTED}_count": 3}
    assert AUTO.found([few], 100) is None, "three samples tell nothing"
    assert AUTO.found([], 1) == 0, "the only epoch"


@pytest.mark.parametrize(("epochs", "latest"), [(2, 1), (3, 2), (4, 3), (8, 6)])
def test_short_trainings_still_leave_an_epoch(epochs: int, latest: int) -> None:
    assert AUTO.found([_metrics(0.3, 0.5)] * epochs, epochs) == latest


def _digits(noise: float) -> Samples:
    digits = load_digits()
    images = torch.from_numpy(digits.images * 16).clamp(0, 255).to(torch.uint8).unsqueeze(1)[:1000]
    truth = torch.from_numpy(digits.target)[:1000]
    generator = torch.Generator().manual_seed(0)
    noisy = torch.where(
        torch.rand(1000, generator=generator) < noise, torch.randint(10, (1000,), generator=generator), truth
    )
    return Samples(inputs=TensorImages(images), labels=noisy, truth=truth, ids=[str(i) for i in range(1000)])


def _training(samples: Samples, objective: NoisyLabels, epochs: int, *, lr: float = 0.1) -> Training:
    return small_training(objective, samples, epochs, width=128, batch_size=64, lr=lr)


def test_a_network_that_memorises_is_caught_early() -> None:
    """A perceptron on 1,000 digits with 40 % noise has memorised every label after 30 epochs."""
    training = _training(_digits(0.4), NoisyLabels(start_epoch=AUTO), 30)
    fit(training)
    start = AUTO.found(training.history, 30)
    assert start is not None
    assert 2 <= start <= 10
    last = training.history[start - 1]
    assert last[INJECTED] - last[OTHERS] > 0.02, "and that is why"


def test_a_network_that_learns_nothing_has_no_excess() -> None:
    training = _training(_digits(0.4), NoisyLabels(start_epoch=AUTO), 8, lr=0.0)
    fit(training)
    for metrics in training.history[:6]:
        assert abs(metrics[INJECTED] - metrics[OTHERS]) < 4 * metrics[f"{INJECTED}_error"]


def test_the_most_confident_samples_tell_how_many_labels_are_right() -> None:
    samples = _digits(0.4)
    assert samples.truth is not None
    training = _training(samples, NoisyLabels(start_epoch=AUTO), 30)
    fit(training)
    last = training.history[(AUTO.found(training.history, 30) or 0) - 1]
    right = (samples.labels == samples.truth).double().mean().item()
    assert right < last[CONFIDENT_AGREEMENT] / last[CONFIDENCE] < right + 0.15, "some are memorised by then"


@pytest.mark.parametrize(
    ("agreeing", "agreement", "share"),
    [
        (0.8, 0.4, 0.8),  # odds of 4 against 1
        (0.5, 0.4, 0.2),  # and of 1 against 4
        (1.0, 0.4, 1.0),  # no label is wrong
        (0.8, 0.9, 0.0),  # the running mean is never wrong
        (0.0, 0.0, 1.0),  # it knows nothing
    ],
)
def test_label_and_running_mean_count_by_their_odds(agreeing: float, agreement: float, share: float) -> None:
    assert AUTO.label_share([_metrics(agreement, 0.1, agreeing=agreeing, excess=0.03)], 1) == pytest.approx(share)
    assert AUTO.label_share([_metrics(agreement, 0.1, agreeing=agreeing)], 1) == 1, "nothing is memorised"
    assert AUTO.label_share([], 0) == 1, "there is no running mean yet"


@pytest.mark.parametrize(("excess", "share"), [(0.03, 0.8), (0.0, 1.0)])
def test_the_store_holds_the_running_mean_and_then_the_targets(excess: float, share: float) -> None:
    """Against the running mean in numpy, and Algorithm 2 from the start on."""
    objective = NoisyLabels(start_epoch=AutoStart(latest=0.5), momentum=0.9)
    labels = torch.tensor([0, 1, 2])
    targets = objective.initial_targets(labels, 3, Storage())
    assert targets is not None
    index = torch.arange(3)
    history: list[Metrics] = []
    expected = np.zeros((3, 3))
    generator = torch.Generator().manual_seed(0)
    for epoch in range(6):
        logits = torch.randn(3, 3, generator=generator)
        objective.loss(nn.Identity(), Batch(logits, labels, index), targets, Progress(epoch, 0.0, 6, history))
        p = logits.double().softmax(1).numpy()
        if epoch == 0:
            expected = p
        elif epoch < 3:
            expected = 0.8 * expected + 0.2 * p
        else:
            before = share * np.eye(3) + (1 - share) * expected if epoch == 3 else expected
            expected = 0.9 * before + 0.1 * p
        np.testing.assert_allclose(targets.read(index).numpy(), expected, atol=1e-6)
        history.append(_metrics(0.4, 0.5, excess=excess if epoch == 2 else 0.0))

    def label_share(method: NoisyLabels, epoch: int, of: int, history: list[Metrics]) -> float:
        evidence = method.evidence(Progress(epoch, 0.0, of, history))
        assert evidence is not None
        return evidence.label_share

    assert label_share(objective, 3, 6, history) == 0, "until then it is the running mean"
    assert label_share(objective, 4, 6, history) == pytest.approx(share * 0.9)
    assert label_share(NoisyLabels(start_epoch=3), 5, 40, []) == pytest.approx(0.9**2)


def test_injected_labels_are_trained_on_until_the_start() -> None:
    objective = NoisyLabels(start_epoch=AutoStart(share=0.5))
    index, labels = torch.arange(40), torch.arange(40) % 4
    wrong, injected = AutoStart(share=0.5).probe(index, labels, 4)
    assert 5 < int(injected.sum()) < 35
    targets = objective.initial_targets(labels, 4, Storage())
    logits = torch.zeros(40, 4).requires_grad_()
    loss = objective.loss(nn.Identity(), Batch(logits, labels, index), targets, Progress(0, 0.0, 10))
    loss.terms[0].total.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.argmin(1), torch.where(injected, wrong, labels))


def test_a_training_with_auto_resumes_to_the_same_bits(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    samples = _digits(0.4)
    whole = _training(samples, NoisyLabels(start_epoch=AUTO), 12)
    fit(whole)
    start = AUTO.found(whole.history, 12)
    assert start is not None
    for stop_at in ((start - 1, 5), (start, 7)):  # before the start, and while the targets begin anew

        def stop(training: Training, stop_at: tuple[int, int] = stop_at) -> None:
            if (training.epoch, training.step) == stop_at:
                training.save(tmp_path / str(stop_at[0]))
                raise Stopped

        with pytest.raises(Stopped):
            fit(_training(samples, NoisyLabels(start_epoch=AUTO), 12), after_step=stop)
        resumed = _training(samples, NoisyLabels(start_epoch=AUTO), 12)
        saved = checkpoint.load_newest(tmp_path / str(stop_at[0]))
        assert saved is not None
        resumed.restore(saved)
        fit(resumed)
        assert resumed.history == whole.history
        everything: Tensor = torch.arange(len(samples))
        assert whole.targets is not None
        assert resumed.targets is not None
        assert torch.equal(whole.targets.read(everything), resumed.targets.read(everything))


def test_the_seed_decides_where_labels_are_injected() -> None:
    index, labels = torch.arange(10_000), torch.zeros(10_000, dtype=torch.int64)
    injected = torch.stack([AutoStart(seed=seed).probe(index, labels, 10)[1] for seed in range(4)]).double()
    shared = injected @ injected.T / 10_000
    assert torch.allclose(shared.diagonal(), torch.tensor(0.05).double(), atol=0.01)
    pairs = shared[~torch.eye(4, dtype=torch.bool)]
    assert torch.allclose(pairs, torch.tensor(0.05**2).double(), atol=0.002)  # as chance has it


@pytest.mark.parametrize(("samples", "expected"), [(1_000, 50), (20_000, 1_000), (200_000, 1_000), (2_000_000, 1_000)])
def test_as_many_labels_are_injected_as_the_probe_needs(samples: int, expected: int) -> None:
    auto = AutoStart().suited(samples, seed=3)
    injected = auto.probe(torch.arange(samples), torch.zeros(samples, dtype=torch.int64), 10)[1]
    assert int(injected.sum()) == pytest.approx(expected, rel=0.25)


def test_too_few_samples_to_inject_any() -> None:
    """With 26 samples no label is injected: the agreement of the running mean alone tells when to start."""
    assert not AUTO.probe(torch.arange(26), torch.zeros(26, dtype=torch.int64), 3)[1].any()
    quiet = {OTHERS: 0.1, AGREEMENT: 0.5, CHANGE: 0.0, f"{CHANGE}_error": 0.0}
    assert AUTO.found([quiet] * 10, 60) == AUTO.window + 1
    assert AUTO.label_share([quiet] * 10, 6) == 1.0
