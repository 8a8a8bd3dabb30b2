"""A training method, whole: what it may be told, what it needs, how it trains, and what it can be asked afterwards.

A method is a frozen dataclass in a file of its own. Its fields made by `setting` are its options. It is an objective
for the loop, and most are nothing else; one that takes several trainings asks a bench for them in `train`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, Self

from torch import Tensor, nn

from selfadapt.attacks.attack import Attack
from selfadapt.core.progress import ProgressCallback
from selfadapt.objectives.objective import Objective


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a method knows of its run before it trains."""

    num_classes: int
    num_samples: int
    epochs: int
    data: str = ""  # their name, for what a method's authors do on one set alone
    seed: int = 0
    views: int = 1
    optimizer: str = "sgd"
    has_validation: bool = True
    noise_rate: float | None = None  # the share of wrong labels, where noise was put in
    linear: bool = False  # whether the network is a linear head on vectors
    sees_images: bool = True  # whether the network takes images, and not features of them or other vectors


@dataclass(frozen=True)
class AttackAfterEpoch:
    """An attack on the network as it is after an epoch, on so many of the test images, the same each time."""

    attack: Attack
    images: int


class Trained(Protocol):
    """A training that is done."""

    model: nn.Module


class Vectors(NamedTuple):
    """The training samples of a head: vectors (N×D), labels, and which belong together, if any do."""

    values_ND: Tensor
    labels_N: Tensor
    groups_N: Tensor | None


class Bench(Protocol):
    """Where a method trains: it gives named trainings, each with checkpoints of its own."""

    has_validation: bool

    def fit(self, name: str, objective: Objective, *, begin: Callable[[nn.Module], None] | None = None) -> Trained:
        """The training of this name, done: loaded if it was finished before, resumed if it was begun.

        The one called `main` gives the run its network. `begin` gets a new training's model before the first step.
        """
        ...

    def settle(self, solve: Callable[[Vectors, nn.Module, ProgressCallback], Tensor]) -> Trained:
        """The main training, if it takes no steps: `solve` gives the model its weights, and returns predictions (N×K).

        The predictions become the targets.
        """
        ...

    def predict(self, trained: Trained, part: Literal["train", "validation"]) -> Tensor:
        """Class probabilities (n×K) of those samples of a part that can be read."""
        ...

    def holding_out(self, share: float) -> "Bench":
        """A bench for choices: its training samples are these without a share, which is its validation part.

        The share is larger where classes are tiny. The run's own validation samples stay untouched. It has no training
        called `main`.
        """
        ...

    def area_under_risk(self, trained: Trained, objective: Objective) -> float:
        """The area under the risk-coverage curve of the validation part, by the objective's own confidence."""
        ...

    def note(self, **chosen: float) -> None:
        """Write into run.json what the method chose while it trained."""
        ...


class Method(Objective, Protocol):
    description: ClassVar[str]  # what it is, in a few words
    paper: ClassVar[str]  # where it comes from
    needs: ClassVar[str]  # what it needs beyond labelled samples, in words
    result: ClassVar[str]  # which network is the result, in words
    settles: ClassVar[bool]  # whether it trains in one go, without steps
    abstains: ClassVar[bool]  # whether it says itself how confident it is
    views: ClassVar[int]  # augmented views of an image in a step, as its authors have it
    uses_up_validation: ClassVar[bool]  # whether it chooses by the validation samples, which then cannot vouch for it

    def suited(self, task: Task) -> Self:
        """The method with what was left open chosen for this task; a UserError if it does not suit it."""
        ...

    def train(self, bench: Bench) -> Trained:
        """Train to the end."""
        ...

    def summary(self) -> str:
        """What it was told or found out that other methods were not, in words for a table; mostly nothing."""
        ...

    def attack_after(self, epoch: int) -> AttackAfterEpoch | None:
        """What the network is to be measured under after this epoch (from 1 on), if anything. Nothing goes by it."""
        ...
