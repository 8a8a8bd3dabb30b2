"""The tables of docs/results/self-supervised.md: learning without labels on CIFAR10, judged by a linear classifier.

    python -m benchmarks.pretraining --jobs 2              all of it, about 80 minutes on two cores
    python -m benchmarks.pretraining --only headline       the first table

4,000 images, the small ResNet, heads of 512 and 64, 20 epochs; linear evaluation on 4,000 training and 10,000 test
images. Runs are kept below runs/pretraining, and what is finished is not repeated.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.grid import is_finished, program, shown, table, work_through

HOME = Path("runs/pretraining")
PAGE = Path("docs/results/self-supervised.md")
SHARED = (
    "cifar10", "--limit", "4000", "--model", "resnet-small", "--hidden", "512", "--dimensions", "64", "--epochs", "20",
    "--batch-size", "128", "--lr", "0.4",
)  # fmt: skip
SUPERVISED = (
    "cifar10", "--method", "erm", "--limit", "4000", "--epochs", "20", "--batch-size", "128", "--augment", "crop-flip",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    table: str
    words: str
    name: str
    options: tuple[str, ...]
    seeds: int


HEADLINES = {
    "sat-1": ("--method", "sat"),
    "byol-1": ("--method", "byol"),
    "moco-1": ("--method", "moco"),
    "sat-2": ("--method", "sat", "--views", "2"),
    "byol-2": ("--method", "byol", "--views", "2"),
}


def _ablation() -> list[Row]:
    """Table 7: predictor and the momentum encoder's beta, for BYOL (two views) and self-adaptive training (one)."""
    rows = []
    for method, words, views in (("byol", "BYOL, two views", "2"), ("sat", "SAT, one view", "1")):
        for predictor in ("--no-predictor", "--predictor"):
            for beta in ("0", "0.99", "0.999"):
                text = f"{words}, {'with' if predictor == '--predictor' else 'without'} predictor, β = {beta}"
                if (predictor, beta) == ("--predictor", "0.99"):  # the method as it is
                    name = f"{method}-{views}"
                    rows.append(Row("ablation", text, name, HEADLINES[name], 1))
                    continue
                alpha = ("--target-momentum", "0.9") if method == "sat" and predictor == "--no-predictor" else ()
                options = ("--method", method, "--views", views, predictor, "--beta", beta, *alpha)
                rows.append(Row("ablation", text, f"{method}{predictor}-{beta}", options, 1))
    return rows


ABLATION = _ablation()
ROWS = (
    Row("headline", "SAT, one view", "sat-1", HEADLINES["sat-1"], 3),
    Row("headline", "BYOL, one view", "byol-1", HEADLINES["byol-1"], 3),
    Row("headline", "MoCo v2, one view", "moco-1", HEADLINES["moco-1"], 3),
    Row("headline", "SAT, two views", "sat-2", HEADLINES["sat-2"], 3),
    Row("headline", "BYOL, two views", "byol-2", HEADLINES["byol-2"], 3),
    Row("baselines", "MoCo v2, two views", "moco-2", ("--method", "moco", "--views", "2"), 1),
    Row("baselines", "SimCLR, two views", "simclr-2", ("--method", "simclr", "--views", "2"), 1),
    Row("baselines", "SimSiam, two views", "simsiam-2", ("--method", "simsiam", "--views", "2"), 1),
    Row("figure 2", "fixed noise as targets", "noise", ("--method", "noise"), 1),
    Row("figure 2", "a random network's outputs as targets", "random-network", ("--method", "random-network"), 1),
    *(
        replace(row, table="figure 2", words="self-adaptive targets, without predictor and momentum encoder")
        for row in ABLATION
        if row.name == "sat--no-predictor-0"
    ),
    *ABLATION,
)


def _run(job: tuple[Row, int] | None) -> None:
    if job is None:
        folder = HOME / "supervised"
        if not is_finished(folder):
            program("train", *SUPERVISED, "--resume", "--out", folder)
    else:
        row, seed = job
        folder = HOME / f"{row.name}-{seed}"
        if not (folder / "probe.json").exists():
            program("pretrain", *SHARED, *row.options, "--seed", str(seed), "--resume", "--out", folder)
            program("probe", folder, "--limit", "4000")
    print(folder, flush=True)


def write_page() -> None:
    lines = [
        "# Learning without labels: linear evaluation on CIFAR10",
        "",
        "Accuracy in percent on the 10,000 test images of a linear classifier on frozen features, last epoch, mean ±",
        "standard deviation over seeds (a number without ± is one seed, a dash a run that was not made). 4,000 images,",
        "the small ResNet (stages of 16, 32, 64), 20 epochs, batches of 128; the classifier has 4,000 labels. Made",
        "by `python -m benchmarks.pretraining --jobs 2`. This is a small part of the paper's computation: there,",
        "ResNet-18 after 800 epochs has 92.3 (SAT, one view), 91.8 (BYOL, two views), 44.4 (BYOL, one view).",
        "",
    ]
    untrained: dict[int, float] = {}
    for name in dict.fromkeys(row.table for row in ROWS):
        cells = []
        for row in (row for row in ROWS if row.table == name):
            probes, results = [], []
            for seed in range(row.seeds):
                folder = HOME / f"{row.name}-{seed}"
                if (folder / "probe.json").exists():
                    probes.append(json.loads((folder / "probe.json").read_text())["cifar10"])
                    results.append(json.loads((folder / "run.json").read_text())["result"])
                    untrained[seed] = 100 * probes[-1]["random_network_accuracy"]
            cells.append(
                [
                    row.words,
                    shown([100 * probe["test_accuracy"] for probe in probes]),
                    shown([100 * probe["knn_accuracy"] for probe in probes]),
                    shown([100 * result["online_probe_accuracy"] for result in results]),
                    shown([result["effective_rank"] for result in results]),
                    ", ".join("yes" if result["collapsed"] else "no" for result in results) or "–",
                ]
            )
        header = ["", "linear", "nearest neighbours", "online probe", "rank", "collapsed"]
        lines += [f"## {name}", "", *table(header, cells)]
    supervised = []
    if is_finished(HOME / "supervised"):
        supervised = [100 * json.loads((HOME / "supervised/run.json").read_text())["result"]["test_accuracy"]]
    lines += [
        f"The untrained network, linear: {shown(list(untrained.values()))}. The same network trained with the 4,000",
        f"labels: {shown(supervised)}.",
        "",
    ]
    PAGE.write_text("\n".join(lines))


def _jobs(only: str) -> list[tuple[Row, int] | None]:
    """Supervised training, and the runs, the first seed of each before the second."""
    runs = {(row.name, seed): (row, seed) for row in ROWS if row.table.startswith(only) for seed in range(row.seeds)}
    return [None, *sorted(runs.values(), key=lambda job: job[1])]


if __name__ == "__main__":
    work_through(_jobs, _run, write_page)
