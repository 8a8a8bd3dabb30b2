"""What each table and figure of the paper trains, and what stands for it at laptop scale, for one seed.

python -m benchmarks.budgets        prints the table of docs/results/reproduced.md, and the CPU time of an image

Methods that train several times count once. The recipes have the numbers, except for the sizes of the data sets.
"""

import time

import torch

from selfadapt.data.inputs import InputSpec
from selfadapt.models.registry import backbone
from selfadapt.recipes.index import RECIPES
from selfadapt.recipes.recipe import Experiment, Trial

IMAGES = {
    "cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257, "stl10": 105_000, "imagenet": 1_281_167, "cats-dogs": 20_000,
    "fashion-mnist": 60_000, "digits": 1_397,
}  # fmt: skip


def images(trial: Trial) -> int:
    """Training images of an epoch."""
    validation = trial.settings.get("validation", 0.1) if trial.kind == "labels" else 0.0
    return int(trial.settings.get("limit") or round(IMAGES[trial.settings["data"]] * (1 - validation)))


def described(experiment: Experiment) -> tuple[str, int]:
    """The networks and trainings of an experiment in words, and the images that they process in total."""
    sizes = [(trial.settings["model"], trial.settings["epochs"], images(trial)) for trial in experiment.trials]
    networks = ", ".join(dict.fromkeys(network for network, *_ in sizes))
    each = " or ".join(dict.fromkeys(f"{epochs:,} × {count:,}" for _, epochs, count in sizes))
    return f"{len(sizes)} of {networks}: {each}", sum(epochs * count for _, epochs, count in sizes)


def table() -> str:
    lines = ["| name | paper: trainings of epochs × images | here | share of the images |", "|---|---|---|---|"]
    for name, recipe in RECIPES.items():
        if recipe.scaled_down and recipe.paper.timing is None:
            (paper, processed), (here, own) = described(recipe.paper), described(recipe.laptop)
            lines.append(f"| `{name}` | {paper} | {here} | {100 * own / processed:.2g} % |")
    return "\n".join(lines)


def milliseconds(network: str, precision: torch.dtype, batch_size: int = 32, steps: int = 3) -> float:
    """CPU time of forward and backward for an image of CIFAR10, over the steps after a first one."""
    model, images_BCHW = backbone(network, InputSpec.of((3, 32, 32))), torch.rand(batch_size, 3, 32, 32)
    start = 0.0
    for step in range(steps + 1):
        if step == 1:
            start = time.process_time()
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            features_BD = model(images_BCHW)
        features_BD.float().square().mean().backward()
    return 1000 * (time.process_time() - start) / (steps * batch_size)


if __name__ == "__main__":
    print(table())
    for network in ("resnet18", "resnet34"):
        times = ", ".join(f"{milliseconds(network, own):.1f} ms in {own}" for own in (torch.bfloat16, torch.float32))
        print(f"{network}: {times}")
