"""The tables of docs/results/self-supervised.md: learning without labels on CIFAR10, judged by a linear classifier.

    python -m benchmarks.pretraining --jobs 2              all of it, some hours on two cores
    python -m benchmarks.pretraining --only headline       the first table

4,000 images, the small ResNet, heads of 512 and 64, 40 epochs; linear evaluation on 4,000 training and 10,000 test
images. Runs are kept below runs/pretraining, and what is finished is not repeated.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = Path("runs/pretraining")
PAGE = Path("docs/results/self-supervised.md")
SHARED = (
    "cifar10", "--limit", "4000", "--model", "resnet-small", "--hidden", "512", "--dimensions", "64", "--epochs", "40",
    "--batch-size", "128", "--lr", "0.1",
)  # fmt: skip
SUPERVISED = (
    "cifar10", "--method", "erm", "--limit", "4000", "--epochs", "40", "--batch-size", "128", "--augment", "crop-flip",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    table: str
    words: str
    name: str
    options: tuple[str, ...]
    seeds: int


def _ablation() -> list[Row]:
    """Table 7: predictor and momentum of the slow copy, for BYOL (two views) and self-adaptive training (one)."""
    rows = []
    for method, words, views in (("byol", "BYOL, two views", "2"), ("sat", "SAT, one view", "1")):
        for predictor in ("--no-predictor", "--predictor"):
            for beta in ("0", "0.99", "0.999"):
                alpha = ("--momentum", "0.9") if method == "sat" and predictor == "--no-predictor" else ()
                text = f"{words}, {'with' if predictor == '--predictor' else 'without'} predictor, β = {beta}"
                options = ("--method", method, "--views", views, predictor, "--beta", beta, *alpha)
                rows.append(Row("ablation", text, f"{method}{predictor}-{beta}", options, 1))
    return rows


ROWS = (
    Row("headline", "SAT, one view", "sat-1", ("--method", "sat"), 3),
    Row("headline", "BYOL, one view", "byol-1", ("--method", "byol"), 3),
    Row("headline", "MoCo v2, one view", "moco-1", ("--method", "moco"), 3),
    Row("headline", "SAT, two views", "sat-2", ("--method", "sat", "--views", "2"), 3),
    Row("headline", "BYOL, two views", "byol-2", ("--method", "byol", "--views", "2"), 3),
    Row("rivals", "MoCo v2, two views", "moco-2", ("--method", "moco", "--views", "2"), 1),
    Row("rivals", "SimCLR, two views", "simclr-2", ("--method", "simclr", "--views", "2"), 1),
    Row("rivals", "SimSiam, two views", "simsiam-2", ("--method", "simsiam", "--views", "2"), 1),
    Row("figure 2", "fixed noise as targets", "noise", ("--method", "noise"), 1),
    Row("figure 2", "a random network's outputs as targets", "random-network", ("--method", "random-network"), 1),
    *_ablation(),
)


def _program(*arguments: str | Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "selfadapt", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _run(job: tuple[Row, int]) -> None:
    row, seed = job
    folder = HOME / f"{row.name}-{seed}"
    if not (folder / "probe.json").exists():
        _program("pretrain", *SHARED, *row.options, "--seed", str(seed), "--resume", "--out", folder)
        _program("probe", folder, "--limit", "4000")
    print(folder, flush=True)


def _supervised() -> None:
    folder = HOME / "supervised"
    if not (folder / "run.json").exists() or "result" not in json.loads((folder / "run.json").read_text()):
        _program("train", *SUPERVISED, "--resume", "--out", folder)
    print(folder, flush=True)


def _shown(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.fmean(known):.1f}" + (f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else "")


def write_page() -> None:
    lines = [
        "# Learning without labels: linear evaluation on CIFAR10",
        "",
        "Accuracy in percent on the 10,000 test images of a linear classifier on frozen features, last epoch, mean ±",
        "standard deviation over seeds (a figure without ± is one seed, a dash a run that was not made). 4,000 images,",
        "the small ResNet (stages of 16, 32, 64), 40 epochs, batches of 128; the classifier has 4,000 labels. Made",
        "by `python -m benchmarks.pretraining --jobs 2`. This is a thousandth of the paper's computation: there,",
        "ResNet-18 after 800 epochs has 92.3 (SAT, one view), 91.8 (BYOL, two views), 44.4 (BYOL, one view).",
        "",
    ]
    untrained: list[float | None] = []
    for table in dict.fromkeys(row.table for row in ROWS):
        lines += [
            f"## {table}",
            "",
            "| | linear | nearest neighbours | online probe | collapsed |",
            "|---|---|---|---|---|",
        ]
        for row in (row for row in ROWS if row.table == table):
            probes, results = [], []
            for seed in range(row.seeds):
                folder = HOME / f"{row.name}-{seed}"
                if (folder / "probe.json").exists():
                    probes.append(json.loads((folder / "probe.json").read_text())["cifar10"])
                    results.append(json.loads((folder / "run.json").read_text())["result"])
            untrained += [probe["random_network_accuracy"] for probe in probes]
            cells = (
                _shown([probe["test_accuracy"] for probe in probes]),
                _shown([probe["knn_accuracy"] for probe in probes]),
                _shown([result["online_probe_accuracy"] for result in results]),
                ", ".join("yes" if result["collapsed"] else "no" for result in results) or "–",
            )
            lines.append(f"| {row.words} | " + " | ".join(cells) + " |")
        lines.append("")
    supervised = HOME / "supervised" / "run.json"
    result = json.loads(supervised.read_text()).get("result") if supervised.exists() else None
    lines += [
        f"The untrained network: {_shown(untrained[:3])}. The same network trained with the 4,000 labels, 40 epochs: "
        f"{_shown([result['test_accuracy']]) if result else '–'}.",
        "",
    ]
    PAGE.write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    jobs = [(row, seed) for row in ROWS if row.table.startswith(chosen.only) for seed in range(row.seeds)]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        supervised = pool.submit(_supervised)
        for _ in pool.map(_run, sorted(jobs, key=lambda job: job[1])):
            write_page()
        supervised.result()
    write_page()


if __name__ == "__main__":
    main()
