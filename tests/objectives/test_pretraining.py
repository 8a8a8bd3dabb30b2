"""Self-supervised methods against their formulas in numpy, and invariants."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distributed.group import in_processes
from networks import Smooth
from selfadapt import Storage, TargetStore
from selfadapt.core import distributed
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training, fit
from selfadapt.engine.optim import OptimizerSettings
from selfadapt.models.backbones.mlp import MLP
from selfadapt.models.backbones.resnet import ResNet
from selfadapt.models.batch_norm.split_batch_norm import SplitBatchNorm
from selfadapt.objectives.objective import Progress
from selfadapt.objectives.pretraining.byol import BYOL
from selfadapt.objectives.pretraining.encoders import NO_MOMENTUM_ENCODER, Encoders, Pretraining, Ramp
from selfadapt.objectives.pretraining.moco import MoCo, queue_losses
from selfadapt.objectives.pretraining.self_supervised import FixedNoise, RandomNetwork, SelfSupervised
from selfadapt.objectives.pretraining.simclr import SimCLR, contrastive_losses
from selfadapt.objectives.pretraining.simsiam import SimSiam

N, B, D = 24, 6, 5
SMALL: dict[str, Any] = {"hidden": 7, "dimensions": D}
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _unit(rows: Tensor | Array) -> Array:
    values = np.asarray(rows.detach() if isinstance(rows, Tensor) else rows, dtype=np.float64)
    return np.asarray(values / np.linalg.norm(values, axis=1, keepdims=True))


def _samples() -> Samples:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (N, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return Samples(inputs=TensorImages(images), labels=torch.arange(N) % 3, truth=None, ids=[str(i) for i in range(N)])


def _training(objective: Pretraining, views: int = 1, storage: Storage | None = None, epochs: int = 3) -> Training:
    torch.manual_seed(0)
    samples = _samples()
    return Training(
        objective,
        objective.build(Smooth(), 3),
        objective.initial_targets(samples.labels, 3, storage or Storage()),
        SampleLoader(
            samples,
            batch_size=8,
            seed=0,
            device=torch.device("cpu"),
            augment=lambda images, generator: images.float() / 255 + 0.01 * torch.rand(1, generator=generator),
            part=(distributed.rank(), distributed.world_size()),
            views=views,
        ),
        FitSettings(epochs=epochs, optimizer=OptimizerSettings(lr=0.05)),
        num_classes=3,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("views", [1, 2])
def test_targets_and_loss_follow_the_algorithm_over_several_steps(views: int) -> None:
    objective = SelfSupervised(**SMALL, momentum=Ramp(0.5, 0.8), beta=Ramp(0.9, 1.0))
    training = _training(objective, views)
    assert training.targets is not None
    encoders = cast(Encoders, training.model)
    assert encoders.momentum_encoder is not None
    expected = np.asarray(training.targets.read(torch.arange(N)), dtype=np.float64)
    followed = [p.detach().clone() for p in encoders.momentum_encoder.parameters()]
    for step, batch in enumerate(training.loader.epoch(0)):
        fraction = training.progress.fraction
        alpha = 0.8 - 0.3 * (np.cos(np.pi * fraction) + 1) / 2
        beta = 1.0 - 0.1 * (np.cos(np.pi * fraction) + 1) / 2
        encoders.train()
        with torch.no_grad():
            said = [view.predicted_BD for view in encoders(*batch.views)]
            z = np.mean([_unit(encoders.momentum_encoder(view)) for view in batch.views], axis=0)
        rows = batch.index.numpy()
        expected[rows] = alpha * _unit(expected[rows]) + (1 - alpha) * z
        wanted = np.mean([((_unit(p) - _unit(expected[rows])) ** 2).sum(1).mean() for p in said])
        before = training.accumulator.moments.get("pretraining_loss", [0, 0, 0])[1]
        training.take_step(batch)
        training.step = step + 1
        assert (training.accumulator.moments["pretraining_loss"][1] - before) / len(rows) == pytest.approx(
            wanted, rel=1e-4
        )
        np.testing.assert_allclose(training.targets.read(batch.index).numpy(), expected[rows], atol=1e-5)
        now = [*encoders.backbone.parameters(), *encoders.projector.parameters()]
        followed = [beta * old + (1 - beta) * new.detach() for old, new in zip(followed, now, strict=True)]
        for parameter, wanted_parameter in zip(encoders.momentum_encoder.parameters(), followed, strict=True):
            torch.testing.assert_close(parameter, wanted_parameter, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [SelfSupervised, BYOL, MoCo, RandomNetwork])
def test_the_momentum_encoder_never_receives_a_gradient(method: type[Pretraining]) -> None:
    objective = method(**SMALL)
    training = _training(objective, views=2, epochs=1)
    encoders = cast(Encoders, training.model)
    assert encoders.momentum_encoder is not None
    assert not any(parameter.requires_grad for parameter in encoders.momentum_encoder.parameters())
    fit(training)
    assert all(parameter.grad is None for parameter in encoders.momentum_encoder.parameters())
    moving = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
    assert not moving & {id(parameter) for parameter in encoders.momentum_encoder.parameters()}


def test_the_probe_learns_and_leaves_the_encoder_alone() -> None:
    objective = SelfSupervised(**SMALL)
    encoders = objective.build(MLP(16, width=8), 3)
    (view,) = encoders(torch.rand(B, 1, 4, 4))
    assert view.probed_BK is not None
    view.probed_BK.sum().backward()
    assert encoders.probe is not None
    assert encoders.probe.weight.grad is not None
    assert all(parameter.grad is None for parameter in encoders.backbone.parameters())
    first, second = objective.parameter_groups(encoders, lr=0.1)
    assert len(second["params"]) == 2
    assert second["lr_scale"] * 0.1 == pytest.approx(0.4)
    assert len(first["params"]) + 2 == sum(p.requires_grad for p in encoders.parameters())
    assert objective.build(MLP(16, width=8), 1).probe is None


def test_without_a_momentum_encoder_the_targets_follow_the_encoder() -> None:
    objective = SelfSupervised(**SMALL, predictor=False, beta=NO_MOMENTUM_ENCODER, momentum=Ramp(0.9, 0.9))
    encoders = objective.build(Smooth(), 3)
    assert encoders.momentum_encoder is None
    assert isinstance(encoders.predictor, nn.Identity)
    batch = Batch(torch.rand(B, 1, 4, 4), torch.arange(B) % 3, torch.arange(B))
    store = objective.initial_targets(torch.zeros(N), 3, Storage())
    assert store is not None
    before = store.read(batch.index)
    objective.loss(encoders, batch, store, Progress(0, 0.0))
    (view,) = encoders(batch.input)
    wanted = 0.9 * _unit(before) + 0.1 * _unit(view.projected_BD)
    np.testing.assert_allclose(store.read(batch.index).numpy(), wanted, atol=1e-5)


def test_noise_stays_and_a_random_network_is_another_one() -> None:
    noise = FixedNoise(**SMALL)
    training = _training(noise, epochs=1)
    assert training.targets is not None
    before = training.targets.read(torch.arange(N)).clone()
    fit(training)
    assert torch.equal(training.targets.read(torch.arange(N)), before)
    encoders = RandomNetwork(**SMALL).build(Smooth(), 3)
    assert encoders.momentum_encoder is not None
    theirs = next(p for p in encoders.momentum_encoder.parameters() if p.ndim > 1)
    assert not torch.equal(theirs, next(p for p in encoders.backbone.parameters() if p.ndim > 1))
    drawn = theirs.clone()
    RandomNetwork(**SMALL).after_step(encoders, Progress(0, 0.5))
    assert torch.equal(theirs, drawn)


def test_the_targets_of_a_random_network_differ_between_images() -> None:
    method = RandomNetwork(hidden=64, dimensions=64)
    encoders, images = method.build(ResNet((1, 1), width=16), 3), torch.rand(64, 3, 12, 12)
    encoders.get_submodule("momentum_encoder").eval()
    (encoded,) = encoders(images)
    assert _mean_cosine(encoders.momentum_encoded(images, encoded)) > 0.9
    encoders.train()
    method.losses(encoders, Batch(images, torch.arange(64) % 3, torch.arange(64)), [encoded])
    assert _mean_cosine(encoders.momentum_encoded(images, encoded)) < 0.6


def _mean_cosine(rows_BD: Tensor) -> float:
    cosines_BB = _unit(rows_BD) @ _unit(rows_BD).T
    return float(cosines_BB[~np.eye(len(cosines_BB), dtype=bool)].mean())


def test_byol_and_simsiam_look_at_the_other_view() -> None:
    views = torch.rand(2, B, 1, 4, 4)
    batch = Batch(views[0], torch.arange(B) % 3, torch.arange(B), second=views[1])
    for objective in (BYOL(**SMALL), SimSiam(**SMALL)):
        encoders = objective.build(Smooth(), 3)
        said = encoders(*batch.views)
        losses = objective.losses(encoders, batch, said)
        z = [_unit(encoders.momentum_encoded(image, view)) for image, view in zip(views, said, strict=True)]
        p = [_unit(view.predicted_BD) for view in said]
        cosines = [(p[0] * z[1]).sum(1), (p[1] * z[0]).sum(1)]  # BYOL sums the directions, SimSiam takes their mean
        wanted = sum(2 - 2 * own for own in cosines) if isinstance(objective, BYOL) else -(cosines[0] + cosines[1]) / 2
        np.testing.assert_allclose(losses.detach().numpy(), wanted, atol=1e-5)


def test_simclr_against_the_formula() -> None:
    a, b = torch.randn(B, D), torch.randn(B, D)
    every = np.concatenate([_unit(a), _unit(b)])
    likeness = np.exp(every @ every.T / 0.5)
    wanted = []
    for i in range(B):
        both = [(i, i + B), (i + B, i)]
        wanted.append(np.mean([-np.log(likeness[x, y] / (likeness[x].sum() - likeness[x, x])) for x, y in both]))
    np.testing.assert_allclose(contrastive_losses(a, b, 0.5).numpy(), wanted, rtol=1e-5)
    objective = SimCLR(**SMALL)
    encoders = objective.build(Smooth(), 3)
    batch = Batch(torch.rand(B, 1, 4, 4), torch.arange(B) % 3, torch.arange(B), second=torch.rand(B, 1, 4, 4))
    first, second = (view.projected_BD for view in encoders(*batch.views))
    loss = objective.loss(encoders, batch, None, Progress(0, 0.0))
    torch.testing.assert_close(
        loss.measured["pretraining_loss"], contrastive_losses(first, second, 0.5).detach(), rtol=1e-5, atol=1e-6
    )


def test_moco_against_the_formula_and_its_queue() -> None:
    q, k, queue = torch.randn(B, D), torch.randn(B, D), nn.functional.normalize(torch.randn(9, D), dim=1)
    own = np.exp((_unit(q) * _unit(k)).sum(1) / 0.2)
    others = np.exp(_unit(q) @ queue.double().numpy().T / 0.2).sum(1)
    np.testing.assert_allclose(queue_losses(q, k, queue, 0.2).numpy(), -np.log(own / (own + others)), rtol=1e-4)
    objective = MoCo(**SMALL, queue=8)
    encoders = objective.build(Smooth(), 3)
    waiting = cast(Tensor, encoders.queue_QD)
    kept = waiting.clone()
    for oldest in (6, 4):
        batch = Batch(torch.rand(B, 1, 4, 4), torch.arange(B) % 3, torch.arange(B), second=torch.rand(B, 1, 4, 4))
        (view,) = encoders(batch.input)
        objective.loss(encoders, batch, None, Progress(0, 0.0))
        places = [(int(cast(Tensor, encoders.oldest)) - B + i) % 8 for i in range(B)]
        np.testing.assert_allclose(
            waiting[places].numpy(), _unit(encoders.momentum_encoded(cast(Tensor, batch.second), view)), atol=1e-5
        )
        assert int(cast(Tensor, encoders.oldest)) == oldest
    assert torch.equal(kept[6:], waiting[6:]) is False


def test_moco_gives_no_pair_away_by_batch_normalisation() -> None:
    """No batch normalisation in the head, that of the network by parts, and keys in another order than queries."""
    objective = MoCo(**SMALL, queue=8, batch_norm_parts=2)
    encoders = objective.build(MLP(16, width=8), 3)
    assert not [own for own in encoders.projector.modules() if isinstance(own, nn.BatchNorm1d)]
    assert isinstance(encoders.momentum_encoder, nn.Sequential)
    for network in (encoders.backbone, encoders.momentum_encoder[0]):
        assert [own.parts for own in network.modules() if isinstance(own, SplitBatchNorm)] == [2, 2]
    came: list[Tensor] = []
    encoders.momentum_encoder.register_forward_pre_hook(lambda module, inputs: came.append(inputs[0]))
    batch = Batch(torch.rand(B, 1, 4, 4), torch.arange(B) % 3, torch.arange(B), second=torch.rand(B, 1, 4, 4))
    torch.manual_seed(1)
    objective.loss(encoders, batch, None, Progress(0, 0.0))
    assert batch.second is not None
    place = [int((batch.second - image).abs().flatten(1).sum(1).argmin()) for image in came[0]]
    assert sorted(place) == list(range(B))
    assert place != list(range(B))
    keys = nn.functional.normalize(encoders.momentum_encoder(came[0]), dim=1)
    torch.testing.assert_close(cast(Tensor, encoders.queue_QD)[place], keys)


@pytest.mark.parametrize("alpha", [0.5, 0.7])
def test_int8_rows_stay_near_float32_over_200_updates(alpha: float) -> None:
    stores = [TargetStore.gaussian(N, 256, alpha, 0, Storage.parse(kind)) for kind in ("float32", "int8")]
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):  # of every row
        z = torch.randn(N, 256, generator=generator)
        for store in stores:
            store.update(torch.arange(N), z)
    exact, small = (nn.functional.normalize(store.read(torch.arange(N)), dim=1) for store in stores)
    assert (exact - small).abs().max() < 1e-2


def test_a_ramp_is_a_cosine_from_start_to_end() -> None:
    ramp = Ramp(0.5, 0.8)
    assert [ramp.at(fraction) for fraction in (0.0, 0.5, 1.0)] == pytest.approx([0.5, 0.65, 0.8])
    assert Ramp(0.99, 0.99).at(0.3) == pytest.approx(0.99)


class _Plain(nn.Module):
    """A head without batch normalisation, so that a part of a batch sees what the whole would."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(num_inputs, num_outputs)

    def forward(self, features: Tensor) -> Tensor:
        return cast(Tensor, self.layer(features))


def _targets_after(kind: str) -> Tensor:
    objective = SelfSupervised(**SMALL)
    training = _training(objective, storage=Storage.parse(kind))
    encoders = cast(Encoders, training.model)
    torch.manual_seed(1)
    encoders.projector = _Plain(8, D)
    encoders.predictor = _Plain(D, D)
    encoders.momentum_encoder = nn.Sequential(Smooth(), _Plain(8, D)).requires_grad_(False)
    training.loader.augment = None  # type: ignore[attr-defined]
    rebuilt = Training(
        objective, encoders, training.targets, training.loader, training.settings, num_classes=3, device=training.device
    )
    fit(rebuilt)
    assert rebuilt.targets is not None
    return rebuilt.targets.read(torch.arange(N))


def _save_targets(folder: Path, kind: str) -> None:
    torch.save(_targets_after(kind), folder / f"{distributed.rank()}.pt")


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["float32", "sharded:float32"])
def test_two_processes_give_the_targets_of_one(kind: str, tmp_path: Path) -> None:
    in_processes(2, _save_targets, tmp_path, kind)
    alone = _targets_after("float32")
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), alone, rtol=0, atol=1e-5)
