"""The tables of docs/results/robustness.md: TRADES against TRADES with self-adaptive targets, along the epochs.

    python -m benchmarks.robustness --jobs 2           all of it, hours on two cores
    python -m benchmarks.robustness --only quick       the part that takes minutes

Few training images, no augmentation and many epochs, so that robust overfitting has room to show. The curve is PGD-20
on test images after every epoch from E_s on; AutoAttack comes on top at the first, the best (by validation) and the
last of those networks. Runs are kept below runs/robustness, and what is finished is not repeated.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.grid import is_finished, program, shown, table, work_through

HOME = Path("runs/robustness")
PAGE = Path("docs/results/robustness.md")
METHODS = ("trades", "trades-sat")
MOMENTS = ("first", "best", "last")


@dataclass(frozen=True)
class Setting:
    data: str
    options: tuple[str, ...]
    start: int  # E_s, and where the curve begins
    alphas: tuple[str, ...]
    seeds: int
    images: str  # under AutoAttack


_SMALL = ("--model", "resnet-small", "--augment", "none", "--batch-size", "64", "--lr", "0.05")
SETTINGS = {
    "quick": Setting(
        "digits",
        ("--model", "mlp", "--augment", "none", "--batch-size", "50", "--lr", "0.1", "--limit", "300", "--epochs", "80",
         "--schedule", "multistep:40,65", "--eps", "0.1", "--step", "0.025", "--weight-decay", "0.0002",
         "--validation", "0.3"),
        40, ("0.9", "0.7"), 3, "100",
    ),
    "fashion-mnist": Setting(
        "fashion-mnist",
        (*_SMALL, "--limit", "5000", "--epochs", "60", "--schedule", "multistep:30,50", "--eps", "0.1",
         "--step", "0.025", "--weight-decay", "0.0002", "--curve-images", "1000"),
        30, ("0.9", "0.7"), 3, "500",
    ),
    "cifar10": Setting(
        "cifar10",
        (*_SMALL, "--width", "32", "--limit", "10000", "--epochs", "60", "--schedule", "multistep:30,50",
         "--weight-decay", "0.0002", "--curve-images", "1000"),
        30, ("0.9", "0.7"), 3, "500",
    ),
}  # fmt: skip

Job = tuple[str, str, str, int]  # setting, method, alpha, seed


def _folder(job: Job) -> Path:
    name, method, alpha, seed = job
    return HOME / name / (f"{method}-{alpha}-{seed}" if method == "trades-sat" else f"{method}-{seed}")


def _run(job: Job) -> None:
    name, method, alpha, seed = job
    own, folder = SETTINGS[name], _folder(job)
    if not is_finished(folder):
        target = ("--start-epoch", str(own.start), "--target-momentum", alpha) if method == "trades-sat" else ()
        program(
            "train", own.data, "--method", method, "--seed", str(seed), *own.options, *target,
            "--curve-start", str(own.start), "--resume", "--out", folder,
        )  # fmt: skip
    eps = own.options[own.options.index("--eps") + 1] if "--eps" in own.options else "0.031"
    for moment in MOMENTS:  # what was measured before is kept in the run
        program("attack", folder, "--with", "autoattack", "--eps", eps, "--images", own.images, "--at", moment)
    print(folder, flush=True)


def _jobs(only: str) -> Iterable[Job]:
    for name, own in SETTINGS.items():
        if name.startswith(only):
            for seed in range(own.seeds):
                for method in METHODS:
                    for alpha in own.alphas if method == "trades-sat" else ("",):
                        yield name, method, alpha, seed


def _measured(job: Job) -> dict[str, float]:
    """Robust accuracies of a finished run, in percent, by attack and moment; and the clean one at the end."""
    folder = _folder(job)
    if not is_finished(folder):
        return {}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [line for line in lines if "robust_accuracy" in line]
    best = max(curve, key=lambda line: line["validation_accuracy_given"])
    found = {"clean": 100 * curve[-1]["robust_clean_accuracy"]}
    for moment, line in zip(MOMENTS, (curve[0], best, curve[-1]), strict=True):
        found[f"pgd20 {moment}"] = 100 * line["robust_accuracy"]
    attacks: dict[str, Any] = (
        json.loads((folder / "attack.json").read_text()) if (folder / "attack.json").exists() else {}
    )
    for own in attacks.values():
        found[f"{own['attack']} {own['at']}"] = 100 * own["robust_accuracy"]
    return found


def _section(name: str, own: Setting) -> list[str]:
    columns = ["clean", *(f"{attack} {moment}" for attack in ("pgd20", "autoattack") for moment in MOMENTS)]
    rows = []
    for method in METHODS:
        for alpha in own.alphas if method == "trades-sat" else ("",):
            found = [one for seed in range(own.seeds) if (one := _measured((name, method, alpha, seed)))]
            cells = [shown([one[column] for one in found if column in one]) for column in columns]
            rows.append([f"{method}, alpha {alpha}" if alpha else method, str(len(found)), *cells])
    if not any(row[1] != "0" for row in rows):
        return [f"## {name}", "", "Not measured yet.", ""]
    told = f"`{own.data} {' '.join(own.options)}`, E_s = {own.start}, AutoAttack on {own.images} images"
    return [f"## {name}", "", told, "", *table(["", "seeds", *columns], rows)]


def write_tables() -> None:
    """Put the tables between the two marks of the page; the words around them are a person's."""
    first, last = "<!-- tables -->", "<!-- end of tables -->"
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(first)[0], text.split(last)[1]
    tables = "\n".join(line for name, own in SETTINGS.items() for line in _section(name, own))
    PAGE.write_text(f"{before}{first}\n\n{tables}\n{last}{after}", encoding="utf-8")


if __name__ == "__main__":
    work_through(_jobs, _run, write_tables)
