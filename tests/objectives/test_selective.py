"""Methods that abstain against their formulas in numpy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from networks import small_training
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.engine.fit import fit
from selfadapt.models.backbones.mlp import MLP
from selfadapt.objectives.baselines.deep_gamblers import DeepGamblers, gamblers_losses, rewards_to_try
from selfadapt.objectives.baselines.selective_net import SelectiveNet, ThreeHeads, selective_net_loss
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Evidence, Progress
from selfadapt.objectives.selective import Selective, selective_cross_entropy
from selfadapt.targets.store import Storage, TargetStore

B, K, ALPHA = 9, 4, 0.8
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _softmax(values: Array) -> Array:
    exponents = np.exp(values - values.max(1, keepdims=True))
    return np.asarray(exponents / exponents.sum(1, keepdims=True))


def test_loss_and_targets_follow_the_formula_over_several_steps() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(K, (B,), generator=generator)
    objective = Selective(momentum=ALPHA)
    store = objective.initial_targets(labels, K, Storage())
    assert store is not None
    expected = np.eye(K)[labels]
    for step in range(6):
        logits = 2 * torch.randn(B, K + 1, generator=generator)
        index = torch.randperm(B, generator=generator)[: B - step]
        batch = Batch(logits[index].requires_grad_(), labels[index], index)
        loss = objective.loss(nn.Identity(), batch, store, Progress(step, 0.0, 6))
        z, y, i = logits[index].double().numpy(), labels[index].numpy(), index.numpy()
        expected[i] = ALPHA * expected[i] + (1 - ALPHA) * _softmax(z[:, :K])
        p, t = _softmax(z), expected[i, y]
        rows = np.arange(len(i))
        wanted = -(t * np.log(p[rows, y]) + (1 - t) * np.log(p[:, K])).mean()
        assert float(loss.mean.detach()) == pytest.approx(wanted, rel=1e-5)
        (slope,) = torch.autograd.grad(loss.mean, batch.input)
        goal = np.zeros_like(p)
        goal[rows, y], goal[:, K] = t, 1 - t
        np.testing.assert_allclose(slope.numpy(), (p - goal) / len(i), atol=1e-6)
    np.testing.assert_allclose(store.read(torch.arange(B)).numpy(), expected, atol=1e-6)


def test_a_believed_label_gives_cross_entropy_over_all_outputs() -> None:
    logits, labels = torch.randn(B, K + 1), torch.arange(B) % K
    targets = TargetStore.from_labels(labels, K).read(torch.arange(B))
    assert torch.allclose(selective_cross_entropy(logits, targets, labels), cross_entropy(logits, labels))


def test_outputs_without_one_for_abstention_are_refused() -> None:
    with pytest.raises(ValueError, match="one output more"):
        selective_cross_entropy(torch.randn(B, K), torch.full((B, K), 1 / K), torch.arange(B) % K)


def test_a_wide_gap_between_outputs_stays_finite() -> None:
    logits = torch.tensor([[500.0, 0.0, -500.0]]).requires_grad_()
    loss = selective_cross_entropy(logits, torch.tensor([[0.3, 0.7]]), torch.tensor([1]))
    loss.backward()
    assert torch.isfinite(loss)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_the_warm_up_is_cross_entropy_on_the_classes_and_leaves_the_targets() -> None:
    labels = torch.arange(B) % K
    objective = Selective(start_epoch=2)
    store = objective.initial_targets(labels, K, Storage())
    assert store is not None
    logits = torch.randn(B, K + 1)
    loss = objective.loss(nn.Identity(), Batch(logits, labels, torch.arange(B)), store, Progress(1, 0.1, 9))
    assert torch.allclose(loss.mean, cross_entropy(logits[:, :K], labels))
    assert torch.equal(store.read(torch.arange(B)).argmax(1), labels)
    assert objective.evidence(Progress(2, 0.0, 9)) == Evidence(label_share=1.0)
    assert objective.evidence(Progress(4, 0.0, 9)) == Evidence(label_share=0.99**2)


def test_deep_gamblers() -> None:
    logits, labels = 3 * torch.randn(B, K + 1), torch.arange(B) % K
    p = _softmax(logits.double().numpy())
    wanted = -np.log(p[np.arange(B), labels] + p[:, K] / 2.2)
    np.testing.assert_allclose(gamblers_losses(logits, labels, 2.2).numpy(), wanted, rtol=1e-5, atol=1e-6)
    objective, batch = DeepGamblers(reward=2.2), Batch(logits, labels, torch.arange(B))
    loss = objective.loss(nn.Identity(), batch, None, Progress(0, 0.0, 9))
    assert float(loss.mean) == pytest.approx(wanted.mean(), rel=1e-5)
    np.testing.assert_allclose(objective.selectors(logits, K)["abstain"].numpy(), -np.log(p[:, K]), atol=1e-5)


@pytest.mark.parametrize(
    ("data", "reward", "asked", "epochs"),
    [("cifar10", 2.2, None, 3), ("cifar10", 6.2, None, 0), ("svhn", 2.2, None, 0), ("svhn", 2.2, 2, 2)],
)
def test_deep_gamblers_warms_up_where_its_authors_do(data: str, reward: float, asked: int | None, epochs: int) -> None:
    """Their program sets 100 of 300 epochs on CIFAR10 if the reward is below 6.1, and none elsewhere."""
    logits, labels = 3 * torch.randn(B, K + 1), torch.arange(B) % K
    task = Task(num_classes=10, num_samples=B, epochs=9, data=data)
    objective = DeepGamblers(reward=reward, cross_entropy_epochs=asked).suited(task)
    batch = Batch(logits, labels, torch.arange(B))
    warm = [
        torch.allclose(
            objective.loss(nn.Identity(), batch, None, Progress(epoch, 0.0, 9)).mean,
            cross_entropy(logits[:, :K], labels),
        )
        for epoch in range(9)
    ]
    assert warm == [True] * epochs + [False] * (9 - epochs)


@pytest.mark.parametrize(
    ("classes", "tried"), [(2, (1.3, 1.6, 2.0)), (3, (1.6, 2.0, 2.2, 3.0)), (10, (2.2, 3.0, 4.5, 6.0))]
)
def test_rewards_that_the_number_of_classes_allows(classes: int, tried: tuple[float, ...]) -> None:
    assert rewards_to_try(classes) == tried


def test_selective_net() -> None:
    outputs, labels = 2 * torch.randn(B, 2 * K + 1), torch.arange(B) % K
    z = outputs.double().numpy()
    rows = np.arange(B)
    ce_f, ce_h = (-np.log(_softmax(part)[rows, labels]) for part in (z[:, :K], z[:, K + 1 :]))
    g = 1 / (1 + np.exp(-z[:, K]))
    for divide, divisor in ((False, 1.0), (True, g.mean())):  # the authors' program, the paper
        wanted = 0.5 * ((g * ce_f).mean() / divisor + 32 * max(0, 0.9 - g.mean()) ** 2) + 0.5 * ce_h.mean()
        assert float(selective_net_loss(outputs, labels, 0.9, divide=divide)) == pytest.approx(wanted, rel=1e-5)
        objective = SelectiveNet(coverage=0.9, divide_by_coverage=divide)
        loss = objective.loss(nn.Identity(), Batch(outputs, labels, torch.arange(B)), None, Progress(0, 0.0))
        assert float(loss.mean) == pytest.approx(wanted, rel=1e-5)
    assert not SelectiveNet().divide_by_coverage
    np.testing.assert_allclose(objective.selectors(outputs, K)["selection"].numpy(), z[:, K], atol=1e-6)
    images, heads = torch.rand(3, 1, 4, 4), ThreeHeads(MLP(16, width=8), K)
    assert heads(images).shape == (3, 2 * K + 1)
    hidden = heads.select[2](heads.select[1](heads.select[0](heads.backbone(images))))
    torch.testing.assert_close(heads(images)[:, K], heads.select[-1](hidden / 10).squeeze(1))


def test_a_network_learns_to_abstain_where_labels_are_noise() -> None:
    """Half of the classes look alike but have labels at random: their samples are those it abstains from."""
    from selfadapt.data.images.storage import TensorImages

    generator = torch.Generator().manual_seed(0)
    clear = torch.arange(400) < 200
    labels = torch.where(clear, torch.arange(400) % 2, torch.randint(2, (400,), generator=generator))
    images = torch.randint(0, 60, (400, 1, 4, 4), generator=generator, dtype=torch.uint8)
    images[clear, 0, 0] += (150 * labels[clear]).to(torch.uint8).unsqueeze(1)
    images[~clear, 0, 3] += 150
    samples = Samples(inputs=TensorImages(images), labels=labels, truth=None, ids=[str(i) for i in range(400)])
    objective = Selective(momentum=0.9)
    training = small_training(objective, samples, epochs=25, batch_size=40)
    fit(training)
    training.model.eval()
    with torch.no_grad():
        confidence = objective.selectors(training.model(images.float() / 255), 2)["abstain"]
    assert confidence[clear].median() > -np.log(0.2)
    assert confidence[~clear].median() < confidence[clear].quantile(0.1)
