"""DivideMix against its formulas, and its mixture of Gaussians against that of scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from networks import Smooth, small_training
from selfadapt.core.errors import UserError
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.objectives.baselines.selection.divide_mix import DivideMix, TwoThatGuess, clean_probabilities
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Progress
from selfadapt.targets.store import Storage, TargetStore

B, K = 12, 3
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Moody(Smooth):
    """Gives other features in evaluation mode, as batch normalisation does."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (1 if self.training else 2)


def _softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def _numpy(values: Tensor) -> Array:
    return values.detach().double().numpy()


def _networks(method: DivideMix) -> TwoThatGuess:
    torch.manual_seed(0)
    network = method.build(Moody(), K)
    assert isinstance(network, TwoThatGuess)
    return network


def _store(method: DivideMix, labels: Tensor) -> TargetStore:
    targets = method.initial_targets(labels, K, Storage())
    assert targets is not None
    return targets


def _in_modes(own: nn.Module, views: Tensor) -> tuple[Array, Array]:
    """Mean predictions over two views in training and in evaluation mode."""
    training = _softmax(_numpy(own(views)))
    evaluated = _softmax(_numpy(own.eval()(views)))
    own.train()
    return (training[:B] + training[B:]) / 2, (evaluated[:B] + evaluated[B:]) / 2


def test_each_network_learns_from_refined_and_guessed_labels() -> None:
    method = DivideMix(warm_up=2, unlabelled_weight=20.0, rising=4)
    network = _networks(method)
    first, second = torch.rand(2, B, 1, 4, 4)
    views, labels = torch.cat([first, second]), torch.arange(B) % K
    targets = _store(method, labels)
    clean = torch.rand(B, 2).float()
    targets.rows.fill(torch.arange(B), clean)
    state = torch.get_rng_state()
    batch = Batch(first, labels, torch.arange(B), second=second)
    loss = method.loss(network, batch, targets, Progress(3, 0.5, 6))  # one epoch of the four after the warm-up

    torch.set_rng_state(state)
    mixtures = []
    for _ in range(2):
        gamma = torch._standard_gamma(torch.full((2,), 4.0, dtype=torch.float64))
        mixtures.append((float(gamma.amax() / gamma.sum()), torch.randperm(2 * B)))
    predicted = [_in_modes(own, views) for own in (network.first, network.second)]
    expected = 0.0
    for own, other in ((0, 1), (1, 0)):
        w = clean[:, other : other + 1].double().numpy()
        refined = w * np.eye(K)[labels] + (1 - w) * predicted[own][0]
        guessed = (predicted[own][0] + predicted[other][1]) / 2
        q = np.where(w > 0.5, refined, guessed) ** 2
        q = np.concatenate([q / q.sum(1, keepdims=True)] * 2)
        share, partner = mixtures[own]
        p = _softmax(_numpy((network.first, network.second)[own](share * views + (1 - share) * views[partner])))
        q = share * q + (1 - share) * q[partner.numpy()]
        labelled = np.concatenate([w[:, 0] > 0.5] * 2)
        assert 0 < labelled.sum() < 2 * B
        expected += -(q * np.log(p)).sum(1)[labelled].mean()
        expected += 20 * 1 / 4 * ((p - q) ** 2)[~labelled].mean()
        expected += (1 / K * np.log(1 / K / p.mean(0))).sum()
    assert float(loss.mean.detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("all_clean", [True, False])
def test_a_batch_may_have_one_kind_of_samples(all_clean: bool) -> None:
    method = DivideMix(warm_up=0)
    network, images, labels = _networks(method), torch.rand(B, 1, 4, 4), torch.arange(B) % K
    targets = _store(method, labels)
    targets.rows.fill(torch.arange(B), torch.full((B, 2), float(all_clean)))
    loss = method.loss(network, Batch(images, labels, torch.arange(B)), targets, Progress(9, 0.9, 10))
    assert loss.mean.isfinite()
    assert [bool(term.total.detach()) for term in loss.terms] == [all_clean, not all_clean, True] * 2


@pytest.mark.parametrize("penalised", [False, True])
def test_the_warm_up_is_cross_entropy(penalised: bool) -> None:
    method = DivideMix(warm_up=2, penalise_confidence=penalised)
    network, images, labels = _networks(method), torch.rand(B, 1, 4, 4), torch.arange(B) % K
    batch = Batch(images, labels, torch.arange(B))
    loss = method.loss(network, batch, _store(method, labels), Progress(1, 0.3))
    expected = 0.0
    for own in (network.first, network.second):
        p = _softmax(_numpy(own(images)))
        expected -= np.log(p[np.arange(B), labels]).mean()
        expected += penalised * (p * np.log(p)).sum(1).mean()
    assert float(loss.mean.detach()) == pytest.approx(expected, rel=1e-5)
    network.eval()
    torch.testing.assert_close(network(images), (network.first(images) + network.second(images)) / 2)


def test_samples_are_divided_by_losses_in_evaluation_mode(tiny_samples: Samples) -> None:
    method = DivideMix(warm_up=1)
    training = small_training(method, tiny_samples, 3)
    targets, network = training.targets, training.model
    assert targets is not None
    assert isinstance(network, TwoThatGuess)
    training.start_epoch()
    everything = torch.arange(len(tiny_samples))
    assert not targets.read(everything).any(), "not in the warm-up"
    training.epoch = 1
    training.start_epoch()
    assert network.first.training
    images = tiny_samples.inputs.read(everything).float() / 255
    network.eval()
    for column, own in enumerate((network.first, network.second)):
        losses = -np.log(_softmax(_numpy(own(images)))[everything, tiny_samples.labels])
        expected = clean_probabilities(torch.from_numpy(losses))
        torch.testing.assert_close(targets.read(everything)[:, column], expected, atol=1e-3, rtol=0)
    training.step, stored = 1, targets.read(everything)
    next(network.parameters()).data += 1
    training.start_epoch()
    assert torch.equal(targets.read(everything), stored), "a resumed epoch keeps its division"


@pytest.mark.parametrize("overlap", [0.2, 0.5])
def test_the_mixture_is_that_of_scikit_learn(overlap: float) -> None:
    generator = np.random.default_rng(0)
    losses = np.concatenate([generator.gamma(1.0, overlap, 600), generator.normal(3, 0.8, 300).clip(0)])
    scaled = ((losses - losses.min()) / (losses.max() - losses.min())).reshape(-1, 1)
    oracle = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(scaled)
    expected = oracle.predict_proba(scaled)[:, oracle.means_.argmin()]
    np.testing.assert_allclose(clean_probabilities(torch.from_numpy(losses)).numpy(), expected, atol=1e-3)


def test_equal_losses_are_of_one_kind() -> None:
    assert clean_probabilities(torch.ones(5)).tolist() == [1.0] * 5


def test_a_warm_up_that_never_ends_is_refused() -> None:
    with pytest.raises(UserError, match="must be less than --epochs, 3"):
        DivideMix(warm_up=3).suited(Task(num_classes=3, num_samples=9, epochs=3))
    assert DivideMix().suited(Task(num_classes=3, num_samples=9, epochs=300)).warm_up == 10
    assert DivideMix().suited(Task(num_classes=3, num_samples=9, epochs=12)).warm_up == 4
