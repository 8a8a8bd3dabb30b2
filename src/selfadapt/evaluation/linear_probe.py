"""What features are worth: a linear classifier and the nearest neighbours on them, and whether they collapsed.

Linear evaluation as in the paper (Section 7.1): the network is frozen, the projector is left out, 100 epochs of SGD
with momentum 0.9, no decay, batches of 512, a learning rate of 0.4 that falls to a tenth after 60 and after 80 of them.
It comes in two ways:

`linear_probe`               features are taken once, without augmentation, and brought to mean 0 and deviation 1 by the
                             training part, so that one learning rate suits every network, also one never trained
`LinearClassifier.learn_all` the field's: every epoch forwards images that were augmented anew, and the features stay
                             as they are. It costs a forward pass over all images in each epoch.

Shapes: N samples, B of a batch, F features, K classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.loader import Loader

_FEATURE_STD, _OUTPUT_STD, _DIRECTIONS = 0.05, 0.04, 2.0  # below which features count as collapsed


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    epochs: int = 100
    batch_size: int = 512
    lr: float = 0.4
    schedule: str = "step"  # or cosine
    augment: str = "none"  # else what classifiers also learn from, augmented anew in each epoch
    milestones: tuple[int, ...] = (60, 80)  # of 100 epochs
    neighbours: int = 200
    temperature: float = 0.07  # of the neighbours' votes
    seed: int = 0

    def rate(self, epoch: int) -> float:
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.lr * 0.1 ** sum(100 * epoch >= milestone * self.epochs for milestone in self.milestones)


class Features(NamedTuple):
    """Features with their labels to learn from, and features to tell the class of."""

    train_NF: Tensor
    labels_N: Tensor
    test_nF: Tensor
    num_classes: int


class LinearClassifier:
    """A linear layer that begins with zeros and learns by SGD with momentum and no decay."""

    def __init__(self, num_features: int, num_classes: int, device: torch.device) -> None:
        self.layer = nn.Linear(num_features, num_classes).to(device)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.0, momentum=0.9)
        self.epochs = 0  # that it has learned for

    def learn(self, features_BF: Tensor, labels_B: Tensor, rate: float) -> None:
        """One step on a batch."""
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
        """Every epoch that is left, on what the frozen network makes of the loader's batches."""
        was_training = network.training
        network.eval()
        for epoch in range(self.epochs, settings.epochs):
            for step, batch in enumerate(loader.epoch(epoch), 1):
                with torch.no_grad():
                    features_BF = network(batch.input).float()
                self.learn(features_BF, batch.label, settings.rate(epoch))
                on_progress(epoch * loader.steps_per_epoch + step, settings.epochs * loader.steps_per_epoch)
            self.epochs = epoch + 1
            after_epoch()
        network.train(was_training)

    @torch.no_grad()
    def classes(self, features_nF: Tensor) -> Tensor:
        """The likeliest class of each sample."""
        found: Tensor = self.layer(features_nF).argmax(1)
        return found

    def state(self) -> dict[str, Tensor]:
        """All that it takes to go on after an epoch."""
        moving = {
            f"{name} momentum": self.optimizer.state[value]["momentum_buffer"]
            for name, value in self.layer.named_parameters()
        }
        return {**self.layer.state_dict(), **moving, "epochs": torch.tensor(self.epochs)}

    def load(self, state: dict[str, Tensor]) -> None:
        self.epochs = int(state["epochs"])
        self.layer.load_state_dict({name: state[name] for name in self.layer.state_dict()})
        for name, value in self.layer.named_parameters():
            self.optimizer.state[value]["momentum_buffer"] = state[f"{name} momentum"].to(value.device)


def linear_probe(features: Features, settings: ProbeSettings, on_progress: ProgressCallback = no_progress) -> Tensor:
    """The class of each test sample by a linear classifier that is trained on the features."""
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
    """The class of each test sample by the votes of its nearest training samples, each counting exp(cosine/tau)."""
    train_NF, labels_N, test_nF, num_classes = features
    train_NF, test_nF = normalize(train_NF, dim=1), normalize(test_nF, dim=1)
    count = min(settings.neighbours, len(train_NF))
    found = []
    for piece_BF in test_nF.split(1024):
        nearness_Bk, index_Bk = (piece_BF @ train_NF.T).topk(count, dim=1)
        votes_BK = torch.zeros(len(piece_BF), num_classes, device=piece_BF.device)
        votes_BK.scatter_add_(1, labels_N[index_Bk], ((nearness_Bk - 1) / settings.temperature).exp())
        found.append(votes_BK.argmax(1))
        on_progress(sum(map(len, found)), len(test_nF))
    return torch.cat(found)


def spread(features_NF: Tensor) -> float:
    """The standard deviation of normalised features, times the root of their number: 1 at most, 0 when collapsed."""
    return float(normalize(features_NF, dim=1).std(0).mean() * features_NF.shape[1] ** 0.5)


def effective_rank(features_NF: Tensor) -> float:
    """exp(entropy of the singular values' shares): how many directions the features use (Roy and Vetterli, 2007)."""
    values = torch.linalg.svdvals((features_NF - features_NF.mean(0)).double())
    share = values / values.sum().clamp_min(1e-300)
    return float(torch.special.entr(share).sum().exp())


def collapsed(feature_std: float, output_std: float, rank: float, largest_rank: int) -> bool:
    """Whether the network says nearly the same of every image, by its features, their projections or their rank.

    A few images have few directions, whatever the network.
    """
    directions = min(_DIRECTIONS, largest_rank / 2)
    fine = feature_std > _FEATURE_STD and output_std > _OUTPUT_STD and rank > directions
    return not fine  # NaN is not fine
