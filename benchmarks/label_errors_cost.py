"""The table of docs/results/label-errors-cost.md: what judging every label costs, by samples and classes.

    python -m benchmarks.label_errors_cost [--samples 1000,10000,100000] [--classes 10,100,1000] [--threads 2]

Synthetic features, 1,280 of them: a Gaussian around the mean of the class, 20 % symmetric noise. Processor seconds and
wall seconds of `cross_fit` with the statement of quality, and the most memory the process held, each size in a process
of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.grid import table
from selfadapt.core.rng import seeded
from selfadapt.data.splits import assign_folds
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.recovery import average_precision
from selfadapt.objectives.cross_fitting.cross_fit import cross_fit

HOME = Path("runs/label-errors-cost")
PAGE = Path("docs/results/label-errors-cost.md")
FEATURES = 1280


def measure(samples: int, classes: int) -> dict[str, float]:
    generator = seeded(0, "cost")
    truth_N = torch.randint(classes, (samples,), generator=generator)
    means_KF = torch.randn(classes, FEATURES, generator=generator) * 0.15
    features_NF = torch.randn(samples, FEATURES, generator=generator)
    for rows in torch.arange(samples).split(8192):
        features_NF[rows] += means_KF[truth_N[rows]]
    drawn_N = torch.randint(classes, (samples,), generator=generator)
    labels_N = torch.where(torch.rand(samples, generator=generator) < 0.2, drawn_N, truth_N)
    wall_start, cpu_start = time.monotonic(), time.process_time()
    fitted = cross_fit(features_NF, labels_N, assign_folds(labels_N, 5, 0), classes)
    found = judge_out_of_sample(fitted.predicted_NK, labels_N, fitted.noise.matrix_KK)
    return {
        "processor seconds": time.process_time() - cpu_start,
        "seconds": time.monotonic() - wall_start,
        "GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "average precision": average_precision(torch.from_numpy(found.ranked_indices), labels_N != truth_N) or 0.0,
    }


def write_page() -> None:
    files = sorted(HOME.glob("*.json"), key=lambda file: [int(part) for part in file.stem.split("x")])
    rows = [(file.stem.split("x"), json.loads(file.read_text())) for file in files]
    lines = [[*size, *(f"{value:.2f}" for value in row.values())] for size, row in rows]
    header = ["samples", "classes", *rows[0][1]]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    words = (__doc__ or "").split("\n\n", 2)[2].strip()
    PAGE.write_text("\n".join(["# What judging every label costs", "", words, "", *table(header, lines)]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", default="1000,10000,100000")
    parser.add_argument("--classes", default="10,100,1000")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", action="store_true", help="measure one size in this process and print the result")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.one:
        print(json.dumps(measure(int(chosen.samples), int(chosen.classes))))
        return
    HOME.mkdir(parents=True, exist_ok=True)
    for samples in chosen.samples.split(","):
        for classes in chosen.classes.split(","):
            size = ["--samples", samples, "--classes", classes, "--threads", str(chosen.threads)]
            command = [sys.executable, "-m", "benchmarks.label_errors_cost", "--one", *size]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            (HOME / f"{samples}x{classes}.json").write_text(done.stdout)
            print(samples, classes, done.stdout.strip(), flush=True)
            write_page()


if __name__ == "__main__":
    main()
