"""Top-8 against dense targets with a hundred classes: `python -m benchmarks.many_classes`

Two handwritten digits side by side form one image of 8×16 pixels in one of a hundred classes. 6,000 pairs, 40 %
symmetric noise, the perceptron, 60 epochs, three seeds. Training and test pairs share no digit image.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

HOME = Path("runs/many-classes")
PAGE = Path("docs/results/many-classes.md")
KINDS = ("float32", "topk:8")


def _pairs(images: Any, labels: Any, count: int, seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    left, right = draw.integers(0, len(images), (2, count))
    return np.concatenate([images[left], images[right]], axis=2), 10 * labels[left] + labels[right]


def main() -> None:
    digits = load_digits()
    images, labels = (digits.images * 15.9).astype(np.uint8), digits.target
    HOME.mkdir(parents=True, exist_ok=True)
    path = HOME / "pairs.npz"
    if not path.exists():
        x_train, y_train = _pairs(images[:1400], labels[:1400], 6000, 0)
        x_test, y_test = _pairs(images[1400:], labels[1400:], 2000, 1)
        np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    accuracies: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in range(3):
        for kind in KINDS:
            out = HOME / f"{kind.replace(':', '-')}-{seed}"
            command = [
                sys.executable,
                "-m",
                "selfadapt",
                "train",
                str(path),
                "--noise",
                "symmetric:0.4",
                "--model",
                "mlp",
            ]
            command += [
                "--augment",
                "none",
                "--targets",
                kind,
                "--seed",
                str(seed),
                "--out",
                str(out),
                "--resume",
                "--json",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            accuracies[kind].append(100 * json.loads(done.stdout.splitlines()[-1])["test_accuracy"])
            print(kind, seed, accuracies[kind][-1], flush=True)
    lines = [
        f"| {kind} | {statistics.fmean(found):.1f} ± {statistics.stdev(found):.1f} |"
        for kind, found in accuracies.items()
    ]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(
        "# " + (__doc__ or "").strip() + "\n\n| targets | test accuracy (%) |\n|---|---|\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    main()
