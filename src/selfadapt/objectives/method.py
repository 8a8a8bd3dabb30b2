"""A training method: its settings, what it needs, how it trains, and what it can be asked afterwards.

A method is a frozen dataclass in its own file. Its fields made by `setting` are its options. It is an objective for
the training loop, and most methods are nothing else. A method that needs several trainings, or that solves for its
weights instead of training them, asks a bench for that in `train`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from selfadapt.attacks.attack import Attack
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.objectives.objective import Objective
from selfadapt.targets.store import TargetStore

_BLOCK = 65_536  # rows that are read at a time


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a method is given about its run before it trains."""

    num_classes: int
    num_samples: int
    epochs: int
    data: str = ""  # the name of the data set, for choices that a paper makes for one set alone
    seed: int = 0
    views: int = 1
    optimizer: str = "sgd"
    has_validation: bool = True
    noise_rate: float | None = None  # the share of wrong labels, where noise was injected
    linear: bool = False  # whether the network is a linear layer on vectors
    sees_images: bool = True  # whether the network takes images, not features of them or other vectors

    def check_phase(self, option: str, epochs: int, advice: str = "") -> None:
        """Raise a UserError if the first phase of a training, of this many epochs, leaves none for the rest."""
        if epochs >= self.epochs:
            raise UserError(f"{option} {epochs} must be less than --epochs, {self.epochs}{advice}")


@dataclass(frozen=True)
class AttackAfterEpoch:
    """An attack on the network as it is after an epoch, on `images` test images, the same each time."""

    attack: Attack
    images: int


class Trained(Protocol):
    """A finished training or solve."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def targets(self) -> TargetStore | None: ...


def rows_of(trained: Trained) -> Iterator[Tensor]:
    """Yield the targets of all samples after a training, in blocks of rows."""
    if trained.targets is None:
        raise RuntimeError("a training lost its targets")
    for index_n in torch.arange(len(trained.targets)).split(_BLOCK):
        yield trained.targets.read(index_n)


class Vectors(NamedTuple):
    """The training samples of a head: vectors (N×D), labels, and groups of samples that belong together, if any."""

    values_ND: Tensor
    labels_N: Tensor
    groups_N: Tensor | None


class Problem(Objective, Protocol):
    """A fit without steps: a closed-form or convex solve."""

    def solve(self, samples: Vectors, model: nn.Module, on_progress: ProgressCallback) -> Tensor:
        """Give the model its weights.

        Args:
            samples: the training samples.
            model: the network made by `build`, on its device.
            on_progress: called with the work done and the total.

        Returns:
            Class probabilities of the training samples (N×K), which become the targets.

        Raises:
            UserError: if the samples cannot be fitted, with the reason.
        """
        ...


class Bench(Protocol):
    """Where a method trains: named trainings and solves, each with its own checkpoints."""

    has_validation: bool

    def fit(
        self,
        name: str,
        objective: Objective,
        *,
        initialise: Callable[[nn.Module], None] | None = None,
        constant_rate: bool = False,
    ) -> Trained:
        """Train by an objective, step by step.

        Args:
            name: the training called `main` gives the run its network.
            objective: the loss and the heads.
            initialise: called with the model of a new training before its first step.
            constant_rate: keep the largest learning rate of the run to the end. Not for `main`.

        Returns:
            The training: loaded if it was finished before, resumed if it was started.

        Examples:
            >>> bench.fit("main", ERM())
        """
        ...

    def solve(self, name: str, problem: Problem) -> Trained:
        """Solve a problem on the training samples, which must be vectors.

        One process solves, and all get the result.

        Args:
            name: the solve called `main` gives the run its network.
            problem: the head and how to solve for its weights.

        Returns:
            The solution: loaded if it was found before.

        Raises:
            UserError: if the problem cannot be solved.
        """
        ...

    def predict(self, trained: Trained, part: Literal["train", "validation"]) -> Tensor:
        """Predict class probabilities (n×K) for the readable samples of a split."""
        ...

    def outputs(self, trained: Trained, part: Literal["train", "validation"]) -> Tensor:
        """Return the outputs of the network (n×O) for all samples of a split; NaN for unreadable ones."""
        ...

    def holding_out(self, share: float) -> "Bench":
        """Make a bench for choosing hyper-parameters: a share of the training samples becomes its validation split.

        The share is larger where classes are tiny. The validation samples of the run stay untouched. This bench has no
        training called `main`.
        """
        ...

    def area_under_risk(self, trained: Trained, objective: Objective) -> float:
        """Compute the AURC of the validation split, by the objective's own confidence."""
        ...

    def note(self, **chosen: float) -> None:
        """Record in run.json what the method chose while it trained."""
        ...


class Method(Objective, Protocol):
    """A training method, chosen by its name."""

    description: ClassVar[str]  # a few words
    paper: ClassVar[str]
    needs: ClassVar[str] = ""  # beyond labelled samples
    result: ClassVar[str] = "last epoch"  # which network is the result, such as "last epoch"
    solves: ClassVar[bool] = False  # whether it solves for its weights, without steps
    abstains: ClassVar[bool] = False  # whether it estimates its own confidence
    views: ClassVar[int] = 1  # augmented views of an image in a step, as in its paper
    uses_up_validation: ClassVar[bool] = False  # whether it selects by the validation samples, so they are not held out

    def suited(self, task: Task) -> Self:
        """Choose the settings that were not given for this task.

        Raises:
            UserError: if the method does not suit the task.
        """
        return self

    def train(self, bench: Bench) -> Trained:
        """Train to the end."""
        return bench.fit("main", self)

    def summary(self) -> str:
        """Describe what this method was given or estimated that other methods were not; usually empty."""
        return ""

    def attack_after(self, epoch: int) -> AttackAfterEpoch | None:
        """The attack to measure the network under after this epoch, counted from 1. It is logged only."""
        return None
