"""The figure of docs/results/photos.md: a head on features, fine-tuning and training from scratch, in the same minutes.

    python -m benchmarks.photos [FOLDER] [--minutes 4] [--seeds 1]       on one core: `taskset -c 0 python …`

FOLDER has class folders under train/ and test/. Each approach gets the same minutes of CPU time, from files to network.
Decoding and features are included; testing during training is not. Labels are the original ones, the method is ordinary
training (`erm`), and all other options have their defaults:

- a linear head on frozen features of EfficientNet-Lite0 at 224 pixels, with an empty cache;
- all of EfficientNet-Lite0 fine-tuned at 128 pixels, for as many epochs as the minutes allow, at least one;
- the small ResNet from scratch, at the default size, for as many epochs as the minutes allow.

For comparison, scikit-learn's logistic regression on the same features. Its regularisation, and whether features are
standardised, are selected by cross-validated accuracy on the given labels (five shuffled folds). The time includes the
features and the search.

With a few hundred test photos a difference of three points is not significant.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.grid import shown, table
from selfadapt.core.atomic_files import atomic_write
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.tabular.vectors import VectorInputs
from selfadapt.engine.fit import Training, fit
from selfadapt.evaluation.classification import accuracy, predict, predicted_classes
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import open_and_plan
from selfadapt.runs.train.build_training import build_training
from selfadapt.targets.store import Storage

HOME = Path("runs/photos-benchmark")
PAGE = Path("docs/results/photos.md")
FIGURE = Path("docs/results/figures/photos.svg")
HEAD, LOGISTIC = "a head on features", "logistic regression on features"
WAYS: dict[str, dict[str, Any]] = {
    HEAD: {"tune": "head"},
    "fine-tuning": {"tune": "all", "image_size": 128},
    "from scratch": {"model": "resnet-small"},
}
DECAYS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 0.3, 1.0)  # C of scikit-learn
PAUSE = 15.0  # seconds of training between two tests
Curve = list[tuple[float, float]]  # seconds, test accuracy


class Clock:
    """Seconds of CPU time, including finished worker processes, minus what is left out."""

    def __init__(self) -> None:
        self.begun = self._now()

    @staticmethod
    def _now() -> float:
        return sum(os.times()[:4])

    def __call__(self) -> float:
        return self._now() - self.begun

    def leave_out(self, seconds: float) -> None:
        self.begun += seconds


class _TimeIsUp(Exception):
    pass


def _test_accuracy(training: Training, test: Samples) -> float:
    found = predicted_classes(predict(training.model, test.inputs, training.num_classes, training.device))
    training.model.train()
    return accuracy(found, test.labels) or 0.0


def _seconds_of_a_step(plan: Plan, data: Data) -> float:
    """Measured over up to three steps of a discarded training, after a warm-up step."""
    training = build_training(plan, data, plan.method, Storage())
    training.model.train()
    first, *others = islice(training.loader.epoch(0), 4)
    training.take_step(first)
    clock = Clock()
    for batch in others or [first]:
        training.take_step(batch)
    return clock() / max(1, len(others))


def _train(way: dict[str, Any], folder: Path, seed: int, budget: float) -> dict[str, Any]:
    given = {"data": str(folder), "method": "erm", "validation": 0.0, "seed": seed, **way}
    clock = Clock()
    plan, data = open_and_plan(Request.of(**given))
    assert data.test is not None
    test, prepared_after = data.test, clock()
    if not plan.on_features:
        trial = Clock()
        steps = -(-len(data.train) // plan.fit.batch_size)
        epochs = int((budget - prepared_after) / (steps * _seconds_of_a_step(plan, data)))
        fit_plan = replace(plan.fit, epochs=max(1, epochs), warmup_epochs=min(1.0, epochs / 4))
        plan = replace(plan, fit=fit_plan)
        clock.leave_out(trial())
    training = build_training(plan, data, plan.method, Storage())
    curve: Curve = []

    def look(training: Training) -> None:
        now = clock()
        if not curve or now - curve[-1][0] >= PAUSE or plan.on_features:
            look = Clock()
            curve.append((now, _test_accuracy(training, test)))
            clock.leave_out(look())
        if now > budget:
            raise _TimeIsUp

    with suppress(_TimeIsUp):
        fit(training, after_step=look)
    seconds = clock()
    curve.append((seconds, _test_accuracy(training, test)))
    size = plan.data.image_size
    return {
        "curve": curve,
        "prepared": prepared_after,
        "seconds": seconds,
        "accuracy": curve[-1][1],
        "words": f"{training.epoch} of {plan.epochs} epochs" + (f", {size} pixels" if size else ""),
    }


def _logistic(folder: Path, seed: int) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    clock = Clock()
    _, data = open_and_plan(Request.of(data=str(folder), tune="head", method="erm", validation=0.0, seed=seed))
    assert data.test is not None
    (x, y), (x_test, y_test) = ((_values(part), part.labels.numpy()) for part in (data.train, data.test))
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        {"standardscaler": [StandardScaler(), "passthrough"], "logisticregression__C": DECAYS},
        cv=StratifiedKFold(5, shuffle=True, random_state=seed),
    )
    search.fit(x, y)
    found = float((search.predict(x_test) == y_test).mean())
    decay, scaled = (search.best_params_[name] for name in ("logisticregression__C", "standardscaler"))
    words = f"C = {decay:g}, {'unscaled' if scaled == 'passthrough' else 'standardised'}"
    return {"seconds": clock(), "accuracy": found, "words": words}


def _values(samples: Samples) -> Any:
    assert isinstance(samples.inputs, VectorInputs)
    return samples.inputs.values.numpy()


def _measure(name: str, folder: Path, seed: int, minutes: float) -> None:
    done = _row_file(name, seed)
    if done.exists():
        return
    with tempfile.TemporaryDirectory() as home:  # an empty cache
        os.environ["SELFADAPT_HOME"] = home
        start = time.monotonic()
        row = _logistic(folder, seed) if name == LOGISTIC else _train(WAYS[name], folder, seed, 60 * minutes)
    row |= {"passed": time.monotonic() - start, "load": os.getloadavg()[1], "date": time.strftime("%Y-%m-%d")}
    done.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(done) as file:
        json.dump({**row, "data": folder.name, "minutes": minutes}, file)
    print(name, seed, row, flush=True)


def _row_file(name: str, seed: int) -> Path:
    return HOME / f"{name.replace(' ', '-')}-{seed}.json"


def _rows(seeds: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for name in (*WAYS, LOGISTIC):
        files = [_row_file(name, seed) for seed in range(seeds)]
        rows = [json.loads(file.read_text()) for file in files if file.exists()]
        if rows:
            found[name] = rows
    return found


def _draw(found: dict[str, list[dict[str, Any]]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, colour in zip(WAYS, ("#2f6690", "#c8553d", "#5b8e4b"), strict=True):
        for number, row in enumerate(found.get(name, [])):
            seconds, accuracies = zip(*row["curve"], strict=True)
            axes.plot(
                [s / 60 for s in seconds],
                [100 * a for a in accuracies],
                color=colour,
                label=name if not number else None,
            )
    for row in found.get(LOGISTIC, []):
        axes.plot(row["seconds"] / 60, 100 * row["accuracy"], "x", color="#1f2430", label=LOGISTIC)
    axes.set_xlabel("minutes of CPU time, including decoding")
    axes.set_ylabel("test accuracy, %")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def _write_page(seeds: int) -> None:
    found = _rows(seeds)
    if not found:
        return
    _draw(found)
    every = [row for rows in found.values() for row in rows]
    header = ["approach", "seeds", "test accuracy, %", "minutes of CPU time", "of them before training", "reached"]
    lines = [
        [
            name,
            str(len(rows)),
            shown([100 * row["accuracy"] for row in rows]),
            shown([row["seconds"] / 60 for row in rows]),
            shown([row["prepared"] / 60 for row in rows if "prepared" in row]),
            rows[0]["words"],
        ]
        for name, rows in found.items()
    ]
    loads = [row["load"] for row in every]
    environment = (
        f"{every[0]['date']}, {every[0]['data']}, {every[0]['minutes']:g} minutes of CPU time for each approach, one\n"
        f"core of {platform.machine()}, torch {torch.__version__}. The machine was busy with other work: a load of "
        f"{min(loads):.0f} to {max(loads):.0f} on\n{os.cpu_count()} cores; "
        f"{sum(row['passed'] for row in every) / 60:.0f} minutes passed in total"
    )
    words = (__doc__ or "").split("\n\n", 2)[2].strip()
    PAGE.write_text(
        "# Photos: a head, fine-tuning, or from scratch\n\nWritten by `python -m benchmarks.photos`.\n\n"
        f"{words}\n\n{environment}.\n\n"
        + "\n".join(table(header, lines))
        + "\n![Test accuracy over time](figures/photos.svg)\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/photos/plantdoc"))
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(chosen.seeds):
        for name in (*WAYS, LOGISTIC):
            _measure(name, chosen.folder, seed, chosen.minutes)
            _write_page(chosen.seeds)
    _write_page(chosen.seeds)
