"""The table of docs/results/label-errors-cost.md: time and memory of `find_label_errors` by samples, classes, features.

    python -m benchmarks.label_errors_cost [--sizes 50000x100x512,100000x1000x1280] [--threads 2] [--peer-minutes 10]

Synthetic features in a memory-mapped file: a Gaussian around the mean of each class, 20 % symmetric label noise. One
sample in 100 is a duplicate of another, half of these equal, half with a cosine similarity between 0.955 and 1. Each
size runs in a separate process, and after it the peer: five-fold predictions of scikit-learn's LogisticRegression on
standardised features (100 iterations), and cleanlab's label quality scores and issues. It finds neither duplicates nor
outliers. It is stopped after --peer-minutes.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.grid import table
from selfadapt.core.rng import seeded
from selfadapt.evaluation.label_errors.recovery import average_precision

HOME = Path("runs/label-errors-cost")
PAGE = Path("docs/results/label-errors-cost.md")
MEASURES = ("seconds", "CPU seconds", "GB", "average precision", "duplicates found")
_ROWS = 8192
_SEPARATION, _NOISE, _DUPLICATES = 0.15, 0.2, 0.01


def make(folder: Path, samples: int, classes: int, features: int) -> None:
    """Write features.npy, labels.npy, truth.npy and pairs.npy, the duplicates."""
    generator = seeded(0, "cost")
    truth_N = torch.randint(classes, (samples,), generator=generator)
    means_KF = torch.randn(classes, features, generator=generator) * _SEPARATION
    folder.mkdir(parents=True, exist_ok=True)
    features_NF = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (samples, features))
    for rows in torch.arange(samples).split(_ROWS):
        values_nF = means_KF[truth_N[rows]] + torch.randn(len(rows), features, generator=generator)
        features_NF[rows.numpy()] = values_nF.numpy()
    pairs_P2 = torch.randperm(samples, generator=generator)[: 2 * int(samples * _DUPLICATES)].view(-1, 2)
    first_P, second_P = pairs_P2.unbind(1)
    for place in torch.arange(len(pairs_P2)).split(_ROWS):
        values_pF = torch.from_numpy(features_NF[first_P[place].numpy()])
        cosine_p1 = torch.rand(len(place), 1, generator=generator) * 0.045 + 0.955
        noise_pF = torch.randn(values_pF.shape, generator=generator)
        size_p1 = (cosine_p1**-2 - 1).sqrt() * values_pF.norm(dim=1, keepdim=True) / noise_pF.norm(dim=1, keepdim=True)
        similar_pF = cosine_p1 * (values_pF + size_p1 * noise_pF)
        equal_p1 = (place % 2 == 0).unsqueeze(1)
        features_NF[second_P[place].numpy()] = torch.where(equal_p1, values_pF, similar_pF).numpy()
    truth_N[second_P] = truth_N[first_P]
    drawn_N = torch.randint(classes, (samples,), generator=generator)
    labels_N = torch.where(torch.rand(samples, generator=generator) < _NOISE, drawn_N, truth_N)
    for name, values in (("labels", labels_N), ("truth", truth_N), ("pairs", pairs_P2)):
        np.save(folder / f"{name}.npy", values.numpy())


def audit(folder: Path) -> dict[str, Any]:
    """The list of `find_label_errors`, with the memory of this process before it was checked."""
    from selfadapt import find_label_errors

    labels_N, start = np.load(folder / "labels.npy"), time.monotonic()

    def on_pass(name: str, done: int, total: int) -> None:
        if done == 0:
            spent = f"{time.monotonic() - start:8.0f} s {time.process_time():8.0f} CPU s"
            print(f"{spent}  {name}", file=sys.stderr, flush=True)

    report = find_label_errors(labels_N, features=folder / "features.npy", on_pass=on_pass)
    ranked_N = report.ranked_indices
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    group_N, pairs_P2 = report.duplicate_group, np.load(folder / "pairs.npy")
    found_P = (group_N[pairs_P2[:, 0]] == group_N[pairs_P2[:, 1]]) & (group_N[pairs_P2[:, 0]] >= 0)
    return {"GB": memory, "average precision": _quality(ranked_N, folder), "duplicates found": float(found_P.mean())}


def peer(folder: Path) -> dict[str, Any]:
    from cleanlab.experimental.label_issues_batched import find_label_issues_batched
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels_N, features_NF = np.load(folder / "labels.npy"), np.load(folder / "features.npy")
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1e-3))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    predicted_NK = cross_val_predict(model, features_NF, labels_N, cv=folds, method="predict_proba")
    find_label_issues_batched(labels=labels_N, pred_probs=predicted_NK, n_jobs=1)
    ranked_N = np.argsort(get_label_quality_scores(labels_N, predicted_NK), kind="stable")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"GB": memory, "average precision": _quality(ranked_N, folder)}


def _quality(ranked_N: Any, folder: Path) -> float | None:
    wrong_N = np.load(folder / "labels.npy") != np.load(folder / "truth.npy")
    return average_precision(torch.from_numpy(ranked_N.copy()), torch.from_numpy(wrong_N))


def measure(side: str, folder: Path) -> dict[str, Any]:
    wall_start, cpu_start = time.monotonic(), time.process_time()
    result = audit(folder) if side == "selfadapt" else peer(folder)
    return {"seconds": time.monotonic() - wall_start, "CPU seconds": time.process_time() - cpu_start, **result}


def in_process(side: str, size: str, threads: int, minutes: float | None) -> dict[str, Any] | None:
    """The measures in a separate process; None if it takes longer or runs out of memory."""
    command = [sys.executable, "-m", "benchmarks.label_errors_cost", "--one", side, "--sizes", size]
    command += ["--threads", str(threads)]
    limit = None if minutes is None else 60 * minutes
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=limit)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_table() -> None:
    """The rows of all sizes measured so far, for the page."""
    lines = []
    for file in sorted(HOME.glob("*.json"), key=lambda file: [int(part) for part in file.stem.split("x")]):
        for side, found in json.loads(file.read_text()).items():
            values = ["–" if found is None or found.get(name) is None else f"{found[name]:.4g}" for name in MEASURES]
            lines.append([*file.stem.split("x"), side, *values])
    (HOME / "table.md").write_text("\n".join(table(["samples", "classes", "features", "", *MEASURES], lines)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="50000x10x512,50000x100x512,100000x1000x1280")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer-minutes", type=float, default=10.0, help="0 leaves the peer out")
    parser.add_argument("--one", choices=("make", "selfadapt", "scikit-learn + cleanlab"), help="one side, in here")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.one:
        folder = HOME / chosen.sizes
        if chosen.one == "make":
            make(folder, *map(int, chosen.sizes.split("x")))
        else:
            print(json.dumps(measure(chosen.one, folder)))
        return
    for size in chosen.sizes.split(","):
        subprocess.run(
            [sys.executable, "-m", "benchmarks.label_errors_cost", "--one", "make", "--sizes", size], check=True
        )
        results = {"selfadapt": in_process("selfadapt", size, chosen.threads, None)}
        if chosen.peer_minutes:
            name = "scikit-learn + cleanlab"
            results[name] = in_process(name, size, chosen.threads, chosen.peer_minutes)
        (HOME / f"{size}.json").write_text(json.dumps(results, indent=1) + "\n")
        (HOME / size / "features.npy").unlink()
        print(size, json.dumps(results), flush=True)
        write_table()


if __name__ == "__main__":
    main()
