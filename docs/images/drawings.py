"""Drawings of docs/how-it-works.md: `python docs/images/drawings.py` writes them beside this file (half a minute).

One is a sketch of a step. The other is measured: the digits and the network of examples/own_loop.py with seed 0, once
with cross entropy and once with self-adaptive targets that start to move after 5 of 60 epochs.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import torch
from matplotlib import pyplot
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt import SelfAdaptiveLoss

HERE = Path(__file__).resolve().parent
EPOCHS, START = 60, 5
GIVEN, TRUE = "#c8553d", "#2f6690"
matplotlib.rcParams |= {
    "svg.hashsalt": "selfadapt",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def curves() -> dict[str, list[tuple[float, float]]]:
    """For the wrongly labelled samples, after each epoch: the mean probability of the given and of the true class."""
    bunch: Any = load_digits()
    images, truth = torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target)
    torch.manual_seed(0)
    labels = torch.where(torch.rand(len(truth)) < 0.4, torch.randint(10, truth.shape), truth)
    wrong = (labels != truth).nonzero()[:, 0]

    def means(rows: Tensor) -> tuple[float, float]:
        return float(rows[range(len(wrong)), labels[wrong]].mean()), float(rows[range(len(wrong)), truth[wrong]].mean())

    found: dict[str, list[tuple[float, float]]] = {"predictions": [], "targets": []}
    for name, own in found.items():
        adaptive = name == "targets"
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
        criterion = SelfAdaptiveLoss(labels, epochs=EPOCHS, start_epoch=START)
        for _ in range(EPOCHS):
            for index in torch.randperm(len(labels)).split(100):
                logits = model.train()(images[index])
                loss = criterion(logits, index) if adaptive else cross_entropy(logits, labels[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if adaptive:
                criterion.end_epoch()
            with torch.no_grad():
                rows = criterion.targets.read(wrong) if adaptive else model.eval()(images[wrong]).softmax(1)
                own.append(means(rows))
        most_likely = (rows.argmax(1) == truth[wrong]).float().mean()
        print(f"{name}: given {own[-1][0]:.2f}, true {own[-1][1]:.2f}; the true class is largest for {most_likely:.0%}")
    return found


def draw_curves(file: Path) -> None:
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    found = curves()
    titles = "Cross entropy: the network's predictions", "Self-adaptive training: the targets"
    for axes, title, pairs in zip(panels, titles, found.values(), strict=True):
        for which, (name, colour) in enumerate((("the given, wrong label", GIVEN), ("the true class", TRUE))):
            values = [100 * pair[which] for pair in pairs]
            axes.plot(range(1, EPOCHS + 1), values, color=colour, linewidth=2, label=name)
        axes.set(title=title, xlabel="epoch", ylim=(0, 102), xlim=(0, EPOCHS))
        axes.title.set_fontsize(11)
    panels[0].set_ylabel("mean probability, %")
    panels[1].axvline(START, color="#6b7280", linestyle=":")
    panels[1].text(START + 1, 96, "targets start to move", color="#6b7280")
    panels[0].legend(frameon=False, loc="upper left")
    figure.savefig(file, metadata={"Date": None})


def draw_step(file: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(9, 2.7), layout="constrained")
    axes.set(xlim=(0, 10), ylim=(0, 4))
    axes.axis("off")
    boxes = {
        "sample": (0.9, 3.2, "sample $x_i$", "label $y_i$, index $i$", "#6b7280"),
        "network": (3.9, 3.2, "network", "probabilities $p_i$", TRUE),
        "store": (3.9, 0.8, "target store", r"$t_i \leftarrow \alpha\,t_i + (1-\alpha)\,p_i$", "#5b8e4b"),
        "weight": (8.4, 0.8, "weight", r"$w_i$: largest entry of $t_i$", "#5b8e4b"),
        "loss": (8.4, 3.2, "loss", "$w_i$ × cross entropy of $p_i$ with $t_i$", GIVEN),
    }
    patches = {}
    for name, (x, y, title, text, colour) in boxes.items():
        look = {"boxstyle": "round,pad=0.6", "facecolor": "white", "edgecolor": colour, "linewidth": 1.8}
        own = axes.text(x, y, f"{title}\n{text}", ha="center", va="center", linespacing=1.6, bbox=look)
        patches[name] = own.get_bbox_patch()
    for start, end, style in (
        ("sample", "network", "-"), ("sample", "store", "-"), ("network", "loss", "-"), ("network", "store", "--"),
        ("store", "weight", "-"), ("store", "loss", "-"), ("weight", "loss", "-"),
    ):  # fmt: skip
        arrow = {"arrowstyle": "-|>", "linestyle": style, "color": "#6b7280", "lw": 1.5, "shrinkA": 4, "shrinkB": 4}
        ends = {"patchA": patches[start], "patchB": patches[end]}
        axes.annotate("", boxes[end][:2], boxes[start][:2], arrowprops=arrow | ends)
    axes.text(4.05, 2.0, "without\ngradient", va="center", color="#6b7280", fontsize=9)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    draw_step(HERE / "one-step.svg")
    draw_curves(HERE / "targets-over-epochs.svg")
