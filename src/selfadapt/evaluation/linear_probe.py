"""Evaluation of features: linear classification, nearest neighbours, and detection of collapse.

Linear evaluation as in the paper (Section 7.1): the network is frozen, the projector is left out, 100 epochs of SGD
with momentum 0.9, no weight decay, batches of 512, a learning rate of 0.4 divided by ten after 60 and after 80 epochs.
There are two variants:

`linear_probe`               on frozen features without augmentation, standardised with the training split, so that one
                             learning rate suits every network, including an untrained one
`LinearClassifier.learn_all` the usual protocol: images are augmented in each epoch, and features are not standardised.
                             It costs a forward pass over all images in each epoch.

Shapes: N training samples, n test samples, B of a batch, F features, K classes, k neighbours.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from selfadapt.core import distributed
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.loader import Loader
from selfadapt.evaluation.probe_settings import ProbeSettings
from selfadapt.models.backbone import evaluation_mode

_MIN_FEATURE_STD, _MIN_OUTPUT_STD, _MIN_RANK = 0.05, 0.04, 2.0  # thresholds below which features count as collapsed


class Features(NamedTuple):
    """Labelled features for training, and features for testing."""

    train_NF: Tensor
    labels_N: Tensor
    test_nF: Tensor
    num_classes: int


class LinearClassifier:
    """A linear layer, initialised to zero, trained by SGD with momentum and without weight decay."""

    def __init__(self, num_features: int, num_classes: int, device: torch.device) -> None:
        self.layer = nn.Linear(num_features, num_classes).to(device)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.0, momentum=0.9)
        self.epochs = 0  # finished

    def learn(self, features_BF: Tensor, labels_B: Tensor, rate: float) -> None:
        """Take a step on a batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        cross_entropy(self.layer(features_BF), labels_B).backward()
        self.optimizer.step()

    def learn_all(
        self,
        network: nn.Module,
        loader: Loader,
        settings: ProbeSettings,
        *,
        after_epoch: Callable[[], None] = lambda: None,
        on_progress: ProgressCallback = no_progress,
    ) -> None:
        """Train for the remaining epochs on features of the loader's batches."""
        with evaluation_mode(network):
            for epoch in range(self.epochs, settings.epochs):
                for step, (features_BF, labels_B) in enumerate(self._features(network, loader, epoch), 1):
                    self.learn(features_BF, labels_B, settings.rate(epoch))
                    on_progress(epoch * loader.steps_per_epoch + step, settings.epochs * loader.steps_per_epoch)
                self.epochs = epoch + 1
                after_epoch()

    @torch.no_grad()
    def _features(self, network: nn.Module, loader: Loader, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features and labels of each batch of an epoch. Processes take turns, and all get every batch."""
        processes = distributed.world_size()
        own = loader.epoch(epoch, start=distributed.rank(), stride=processes)
        device = self.layer.weight.device
        for _ in range(0, loader.steps_per_epoch, processes):
            features_BF = torch.zeros(0, self.layer.in_features, device=device)
            labels_B = torch.zeros(0, dtype=torch.int64, device=device)
            for batch in islice(own, 1):
                features_BF, labels_B = network(batch.input).float(), batch.label
            of_all = (distributed.all_to_all_rows([rows] * processes) for rows in (features_BF, labels_B))
            yield from (pair for pair in zip(*of_all, strict=True) if len(pair[1]))

    @torch.no_grad()
    def classes(self, features_nF: Tensor) -> Tensor:
        """Return the most likely class of each sample."""
        classes_n: Tensor = self.layer(features_nF).argmax(1)
        return classes_n

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to resume after an epoch."""
        momenta = {
            f"{name} momentum": self.optimizer.state[value]["momentum_buffer"]
            for name, value in self.layer.named_parameters()
        }
        return {**self.layer.state_dict(), **momenta, "epochs": torch.tensor(self.epochs)}

    def load(self, state: dict[str, Tensor]) -> None:
        self.epochs = int(state["epochs"])
        self.layer.load_state_dict({name: state[name] for name in self.layer.state_dict()})
        for name, value in self.layer.named_parameters():
            self.optimizer.state[value]["momentum_buffer"] = state[f"{name} momentum"].to(value.device)


def linear_probe(features: Features, settings: ProbeSettings, on_progress: ProgressCallback = no_progress) -> Tensor:
    """Train a linear classifier on the features, and return the class of each test sample."""
    train_NF, labels_N, test_nF, num_classes = features
    mean_F, std_F = train_NF.mean(0), train_NF.std(0, correction=0).clamp_min(1e-6)
    train_NF, test_nF = (train_NF - mean_F) / std_F, (test_nF - mean_F) / std_F
    classifier = LinearClassifier(train_NF.shape[1], num_classes, train_NF.device)
    steps = -(-len(train_NF) // settings.batch_size)
    for epoch in range(settings.epochs):
        order_N = torch.randperm(len(train_NF), generator=seeded(settings.seed, "probe", epoch))
        for index_B in order_N.tensor_split(steps):
            classifier.learn(train_NF[index_B], labels_N[index_B], settings.rate(epoch))
        on_progress(epoch + 1, settings.epochs)
    return classifier.classes(test_nF)


def nearest_neighbours(
    features: Features, settings: ProbeSettings, on_progress: ProgressCallback = no_progress
) -> Tensor:
    """Return the class of each test sample by votes of its nearest training samples, weighted by exp(cosine/tau)."""
    train_NF, labels_N, test_nF, num_classes = features
    train_NF, test_nF = normalize(train_NF, dim=1), normalize(test_nF, dim=1)
    count = min(settings.neighbours, len(train_NF))
    classes_n = torch.zeros(len(test_nF), dtype=torch.int64, device=test_nF.device)
    chunks = torch.arange(len(test_nF)).split(1024)[distributed.rank() :: distributed.world_size()]
    for chunk_B in chunks:
        similarity_Bk, index_Bk = (test_nF[chunk_B] @ train_NF.T).topk(count, dim=1)
        votes_BK = torch.zeros(len(chunk_B), num_classes, device=test_nF.device)
        votes_BK.scatter_add_(1, labels_N[index_Bk], ((similarity_Bk - 1) / settings.temperature).exp())
        classes_n[chunk_B] = votes_BK.argmax(1)
        on_progress(min((int(chunk_B[0]) // 1024 + 1) * 1024, len(test_nF)), len(test_nF))
    return distributed.all_reduce_sum(classes_n)


def spread(features_NF: Tensor) -> float:
    """Return the standard deviation of normalised features times sqrt(F): at most 1, and 0 if collapsed."""
    return float(normalize(features_NF, dim=1).std(0).mean() * features_NF.shape[1] ** 0.5)


def effective_rank(features_NF: Tensor) -> float:
    """Return the effective rank of the features (Roy and Vetterli, 2007): exp(entropy of the normalised spectrum)."""
    values = torch.linalg.svdvals((features_NF - features_NF.mean(0)).double())
    share = values / values.sum().clamp_min(1e-300)
    return float(torch.special.entr(share).sum().exp())


def collapsed(feature_std: float, output_std: float, rank: float, largest_rank: int) -> bool:
    """Return whether the outputs are nearly constant, by the spread of features or projections or by their rank.

    A small number of images limits the rank for any network.
    """
    min_rank = min(_MIN_RANK, largest_rank / 2)
    fine = feature_std > _MIN_FEATURE_STD and output_std > _MIN_OUTPUT_STD and rank > min_rank
    return not fine  # NaN is not fine
