"""What each method costs relative to ordinary training: time, passes through the network, and memory.

    python -m benchmarks.prices             writes prices.json in src/selfadapt/objectives, and docs/noisy-labels.md
    python -m benchmarks.prices elr sop     measures these methods again and keeps the others

Each method trains the small ResNet on 128 random images of 3×16×16 for 60 epochs in batches of 64, with the views and
the settings that it has by default and all trainings that it consists of. Time is CPU time of one thread, divided by
the mean of two ordinary trainings, one before and one after it. Evaluation after an epoch is left out. Passes are
counted: one forward pass is one sample through one network, and one backward pass is one that has a gradient.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.grid import put_between, table
from benchmarks.step import CPU, random_samples
from selfadapt.data.dataset import Samples
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training, fit
from selfadapt.evaluation.classification import outputs
from selfadapt.models.backbone import Normalised
from selfadapt.models.registry import backbone
from selfadapt.objectives.method import Method, Problem, Task, Trained
from selfadapt.objectives.methods import METHODS, ORDINARY
from selfadapt.objectives.objective import Metrics, Objective
from selfadapt.objectives.prices import FILE, Price
from selfadapt.runs.lifecycle.environment import commit
from selfadapt.targets.store import Storage

PAGE = Path("docs/noisy-labels.md")
_CLASSES, _BATCH, _EPOCHS, _SHAPE = 10, 64, 60, (3, 16, 16)


@dataclass
class CountingBench:
    """A bench that counts the passes and the memory of its trainings, and writes nothing."""

    method: Method
    samples: Samples
    epochs: int
    seconds: float = 0.0
    forward: int = 0
    backward: int = 0
    parameters: int = 0
    bytes: int = 0
    has_validation: bool = True
    chosen: dict[str, float] = field(default_factory=dict)

    def fit(
        self,
        name: str,
        objective: Objective,
        *,
        initialise: Callable[[nn.Module], None] | None = None,
        constant_rate: bool = False,
    ) -> Training:
        torch.manual_seed(0)
        network = Normalised(
            backbone("resnet-small", InputSpec("images", _SHAPE)), torch.full((3,), 0.5), torch.full((3,), 0.25)
        )
        training = Training(
            objective,
            objective.build(network, _CLASSES),
            objective.initial_targets(self.samples.labels, _CLASSES, Storage()),
            SampleLoader(self.samples, batch_size=_BATCH, seed=0, device=CPU, views=self.method.views),
            FitSettings(epochs=self.epochs),
            num_classes=_CLASSES,
            device=CPU,
        )
        if initialise is not None:
            initialise(training.model)
        self.parameters = max(self.parameters, sum(own.numel() for own in training.model.parameters()))
        if training.targets is not None:
            self.bytes = max(self.bytes, training.targets.rows.nbytes)
        for module in training.model.modules():
            if isinstance(module, Normalised):
                module.register_forward_hook(self._count)
        began = time.process_time()
        fit(training, after_epoch=self._metrics)
        self.seconds += time.process_time() - began
        return training

    def _count(self, module: nn.Module, inputs: tuple[Tensor, ...], features_BF: Tensor) -> None:
        self.forward += len(features_BF)
        self.backward += len(features_BF) * features_BF.requires_grad

    def _metrics(self, training: Training) -> Metrics:
        return {"validation_accuracy_given": 0.0}

    def solve(self, name: str, problem: Problem) -> Trained:
        raise NotImplementedError("methods that solve have no steps")

    def predict(self, trained: Trained, part: Literal["train", "validation"]) -> Tensor:
        return self.outputs(trained, part)[:, :_CLASSES].softmax(1)

    def outputs(self, trained: Trained, part: Literal["train", "validation"]) -> Tensor:
        began = time.process_time()
        found_NO = outputs(trained.model, self.samples.inputs, CPU)
        self.seconds += time.process_time() - began
        return found_NO

    def holding_out(self, share: float) -> "CountingBench":
        return self

    def area_under_risk(self, trained: Trained, objective: Objective) -> float:
        return float(self.outputs(trained, "validation").std())  # any number: choices cost the same

    def note(self, **chosen: float) -> None:
        self.chosen |= chosen


def measured(name: str, samples: Samples, epochs: int) -> CountingBench:
    """Train a method with its defaults, and return the bench that counted."""
    known: Any = METHODS["labels"][name]()
    task = Task(
        num_classes=_CLASSES, num_samples=len(samples), epochs=epochs, views=known.views, noise_rate=_noise(known)
    )
    method: Method = known.suited(task)
    bench = CountingBench(method, samples, epochs)
    method.train(bench)
    return bench


def _noise(method: Any) -> float | None:
    """Noise is injected, and known, where a method would use that."""
    return 0.4 if hasattr(method, "noise_rate") else None


def price(own: CountingBench, before: CountingBench, after: CountingBench) -> Price:
    """The price of a method between two ordinary trainings."""
    return Price(
        time=round(own.seconds / ((before.seconds + after.seconds) / 2), 2),
        forward=round(own.forward / before.forward, 2),
        backward=round(own.backward / before.backward, 2),
        parameters=round(own.parameters / before.parameters, 2),
        bytes_per_sample=own.bytes // len(own.samples),
    )


def write_table(prices: dict[str, Any], made: str) -> None:
    rows = [
        [
            f"`{name}`",
            f"{own['time']:.1f}",
            f"{own['forward']:.1f}",
            f"{own['backward']:.1f}",
            f"{own['parameters']:.0f}",
            str(own["bytes_per_sample"]),
            METHODS["labels"][name].needs,
        ]
        for name, own in sorted(prices.items(), key=lambda item: item[1]["time"])
    ]
    header = ["method", "time", "forward passes", "backward passes", "networks", "bytes per sample", "needs"]
    put_between(PAGE, "prices", [f"Measured {made}.", "", *table(header, rows)])


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    samples = random_samples(128, _SHAPE)
    content = json.loads(FILE.read_text()) if FILE.exists() else {"prices": {}}
    steps = [name for name, method in METHODS["labels"].items() if not method.solves]
    measured(ORDINARY, samples, 2)  # warm-up
    before = measured(ORDINARY, samples, _EPOCHS)
    for name in names or steps:
        own = measured(name, samples, _EPOCHS)
        after = measured(ORDINARY, samples, _EPOCHS)
        content["prices"][name] = asdict(price(own, before, after))
        before = after
        print(name, content["prices"][name], flush=True)
    content["measured"] = f"{date.today().isoformat()} at commit {commit()}, torch {torch.__version__}"
    content["prices"] = {name: content["prices"][name] for name in steps if name in content["prices"]}
    FILE.write_text(json.dumps(content, indent=2) + "\n")
    write_table(content["prices"], content["measured"])


if __name__ == "__main__":
    main(sys.argv[1:])
