"""The first tables of docs/results/robustness.md: TRADES against TRADES with self-adaptive targets, along the epochs.

    python -m benchmarks.robustness                    all of it, about half an hour on one core
    python -m benchmarks.robustness --only small       without the search

Few training images, no augmentation and many epochs, so that robust overfitting has room to show. The curve is PGD-20
on test images after every epoch from `curve` on; AutoAttack comes on top at the best of those networks (on validation
images under PGD-20) and at the last. Runs are kept below runs/robustness, and what is finished is not repeated.

`small` is CIFAR10 with every image halved by means over 2×2 pixels, because 32 pixels take four times as long. `search`
has one seed, which is none of the three of `small`, and says which E_s and which alpha `small` takes.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grid import is_finished, program, put_between, shown, table, work_through
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.sources.catalog import open_data
from selfadapt.report.figures import accuracy_curves

HOME = Path("runs/robustness")
PAGE = Path("docs/results/robustness.md")
FIGURE = Path("docs/results/figures/robustness.svg")
HALVED = HOME / "cifar10-16.npz"
MOMENTS = ("best", "last")
PLAIN = ""  # no self-adaptive targets


@dataclass(frozen=True)
class Setting:
    data: str
    options: tuple[str, ...]
    curve: int  # epochs before the curve starts
    variants: tuple[str, ...]  # of the self-adaptive targets: E_s/alpha
    seeds: tuple[int, ...] = (0, 1, 2)
    images: str | None = None  # under AutoAttack


_OPTIONS = (
    "--model", "mlp", "--width", "512", "--augment", "none", "--batch-size", "64", "--lr", "0.05", "--limit", "1000",
    "--epochs", "40", "--schedule", "multistep:20,32", "--weight-decay", "0.0002", "--validation", "0.33",
    "--curve-images", "1000",
)  # fmt: skip
_SEARCHED = (PLAIN, "5/0.9", "10/0.9", "20/0.9", "10/0.7")
SETTINGS = {
    "small": Setting(str(HALVED), _OPTIONS, 1, (PLAIN, "5/0.9"), images="200"),
    "search": Setting(str(HALVED), _OPTIONS, 1, _SEARCHED, (100,)),
}

Job = tuple[str, str, int]  # setting, variant, seed


def _folder(job: Job) -> Path:
    name, variant, seed = job
    return HOME / name / f"{'-'.join(variant.split('/')) or 'trades'}-{seed}"


def _halve(name: str, path: Path) -> None:
    """All training images of a named set and its first 2,000 test images, at half their size."""
    data = open_data(name)
    assert data.test is not None
    arrays = {}
    for part, samples in (("train", data.train), ("test", data.test.first(2000))):
        assert isinstance(samples.inputs, TensorImages)
        values_NCHW = samples.inputs.values_NCHW.numpy()
        count, channels, height, width = values_NCHW.shape
        boxes = values_NCHW.reshape(count, channels, height // 2, 2, width // 2, 2).mean((3, 5))
        arrays[f"x_{part}"] = boxes.round().astype(np.uint8).transpose(0, 2, 3, 1)
        arrays[f"y_{part}"] = samples.labels.numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def _run(job: Job) -> None:
    name, variant, seed = job
    own, folder = SETTINGS[name], _folder(job)
    if not HALVED.exists():
        _halve("cifar10", HALVED)
    if not is_finished(folder):
        method: tuple[str, ...] = ("trades",)
        if variant != PLAIN:
            start, alpha = variant.split("/")
            method = ("trades-sat", "--start-epoch", start, "--target-momentum", alpha)
        program(
            "train", own.data, "--method", *method, "--seed", str(seed), *own.options, "--curve-start", str(own.curve),
            "--resume", "--out", folder,
        )  # fmt: skip
    for moment in MOMENTS if own.images else ():  # earlier results are cached in the run
        program("attack", folder, "--with", "autoattack", "--images", own.images or "", "--at", moment)
    print(folder, flush=True)


def _jobs(only: str) -> Iterable[Job]:
    for name, own in SETTINGS.items():
        if name.startswith(only):
            for seed in own.seeds:
                for variant in own.variants:
                    yield name, variant, seed


def _curve(job: Job) -> list[dict[str, Any]]:
    """The epochs of a finished run whose network was attacked."""
    if not is_finished(_folder(job)):
        return []
    lines = (json.loads(line) for line in (_folder(job) / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "robust_accuracy" in line]


def _measured(job: Job) -> dict[str, float]:
    """Accuracies of a finished run in percent: clean and under PGD-20 at each moment, and under AutoAttack."""
    curve = _curve(job)
    if not curve:
        return {}
    best, last = max(curve, key=lambda line: line["robust_validation_accuracy"]), curve[-1]
    found = {"highest": 100 * max(line["robust_accuracy"] for line in curve), "best epoch": best["epoch"]}
    for moment, line in zip(MOMENTS, (best, last), strict=True):
        found[f"clean {moment}"] = 100 * line["robust_clean_accuracy"]
        found[f"pgd20 {moment}"] = 100 * line["robust_accuracy"]
    file = _folder(job) / "attack.json"
    for own in json.loads(file.read_text()).values() if file.exists() else ():
        found[f"{own['attack']} {own['at']}"] = 100 * own["robust_accuracy"]
    return found


def _words(variant: str) -> str:
    return "`trades`" if variant == PLAIN else "`trades-sat`, E_s {}, alpha {}".format(*variant.split("/"))


def _section(name: str, own: Setting) -> list[str]:
    columns = ["best epoch", *(f"{kind} {moment}" for kind in ("clean", "pgd20") for moment in MOMENTS), "highest"]
    if own.images:
        columns += [f"autoattack {moment}" for moment in MOMENTS]
    rows = []
    for variant in own.variants:
        found = [one for seed in own.seeds if (one := _measured((name, variant, seed)))]
        cells = [shown([one[column] for one in found if column in one]) for column in columns]
        rows.append([_words(variant), str(len(found)), *cells])
    if all(row[1] == "0" for row in rows):
        return [f"## {name}", "", "Not measured yet.", ""]
    settings = f"`{Path(own.data).name} {' '.join(own.options)}`"
    settings += f"; AutoAttack on {own.images} images" if own.images else ""
    return [f"## {name}", "", settings, "", *table(["", "seeds", *columns], rows)]


def _draw(name: str) -> None:
    """The curves of a setting under PGD-20, each the mean over seeds."""
    own = SETTINGS[name]
    records: dict[int, dict[str, Any]] = {}
    for variant in own.variants:
        curves = [curve for seed in own.seeds if (curve := _curve((name, variant, seed)))]
        for lines in zip(*curves, strict=True):
            record = records.setdefault(lines[0]["epoch"], {"epoch": lines[0]["epoch"]})
            record[variant] = statistics.fmean(line["robust_accuracy"] for line in lines)
    lines = [
        (variant, _words(variant).replace("`", ""), colour, "-")
        for variant, colour in zip(own.variants, ("#c8553d", "#2f6690", "#5b8e4b"), strict=False)
    ]
    start = min(int(variant.split("/")[0]) for variant in own.variants if variant != PLAIN)
    if records:
        accuracy_curves([records[epoch] for epoch in sorted(records)], lines, start, FIGURE)


def write_tables() -> None:
    put_between(PAGE, "tables", [line for name, own in SETTINGS.items() for line in _section(name, own)])
    _draw("small")


if __name__ == "__main__":
    work_through(_jobs, _run, write_tables)
