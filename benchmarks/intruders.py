"""Duplicates and outliers among images. Writes docs/results/intruders.md.

    python -m benchmarks.intruders --photos FOLDER --cifar10 cifar10.npz [--seeds 3]

Written by `python -m benchmarks.intruders --photos FOLDER --cifar10 cifar10.npz`. FOLDER has train/CLASS/PHOTO and
test/CLASS/PHOTO. Fifty training photos are duplicated within their class, resized to 60 to 90 % of their size and saved
as JPEG with quality 60 to 90. `selfadapt train` then searches for duplicates. Groups that are found without the added
photos do not count. A pair is false if its photos are neither a photo and its duplicate, nor a pair that is found in
the original folder.

Outliers: 2 % of the samples come from another class or another data set and get one of the existing labels. Features
are enough for this, so the cells with classes of CIFAR10 use those that `selfadapt embed cifar10 --image-size 112`
writes.
"""

import argparse
import csv
import json
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.metrics import roc_auc_score

from benchmarks.grid import program, shown, table
from selfadapt import find_label_errors

PAGE = Path("docs/results/intruders.md")
DUPLICATES, SHARE = 50, 0.02
CELLS = {  # classes of CIFAR10, and the class of the outliers
    "bird among cats and dogs": ((3, 5), 2),
    "ship among cats and dogs": ((3, 5), 8),
    "aeroplane among cars and lorries": ((1, 9), 0),
    "cat among vehicles": ((0, 1, 8, 9), 3),
    "aeroplane among animals": ((2, 3, 4, 5, 6, 7), 0),
}


def groups_in(folder: Path, out: Path) -> set[frozenset[str]]:
    """The pairs of photos that `selfadapt train` finds to be duplicates; an id is the path within the folder."""
    program("train", folder, "--out", out)
    members: dict[str, list[str]] = {}
    if (out / "duplicates.csv").exists():
        for row in _rows(out / "duplicates.csv"):
            members.setdefault(row["group"], []).append(row["id"])
    return {frozenset((a, b)) for group in members.values() for a in group for b in group if a < b}


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def duplicates_found(photos: Path, seed: int, scratch: Path) -> tuple[float, float]:
    """The fraction of duplicates that are found, and of pairs that are false."""
    draw = random.Random(seed)
    before = groups_in(photos, scratch / "before")
    mixed = scratch / "mixed"
    shutil.copytree(photos, mixed)
    expected = set()
    for original in draw.sample(sorted((mixed / "train").rglob("*.jpg")), DUPLICATES):
        with Image.open(original) as image:
            scale = draw.uniform(0.6, 0.9)
            small = image.convert("RGB").resize((round(image.width * scale), round(image.height * scale)))
        copy = original.with_name(f"copy-{original.name}")
        small.save(copy, quality=draw.randint(60, 90))
        expected.add(frozenset(str(path.relative_to(mixed)) for path in (original, copy)))
    found = groups_in(mixed, scratch / "after")
    twins = {path.replace("copy-", "") for pair in before for path in pair}  # share their duplicates
    added = {pair for pair in found - before if not {path.replace("copy-", "") for path in pair} & twins}
    own = {pair for pair in expected if not {path.replace("copy-", "") for path in pair} & twins}
    return len(expected & found) / len(expected), len(added - own) / max(1, len(added))


def outlier_auroc(features: np.ndarray, labels: np.ndarray, foreign: np.ndarray, seed: int) -> float:
    draw = np.random.default_rng(seed)
    count = round(SHARE / (1 - SHARE) * len(labels))
    chosen = foreign[draw.permutation(len(foreign))[:count]]
    given = np.concatenate([labels, draw.choice(labels, count)])
    report = find_label_errors(given, features=np.concatenate([features, chosen]), seed=seed)
    return float(roc_auc_score(np.arange(len(given)) >= len(labels), report.outlier_score))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--cifar10", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    seeds = range(chosen.seeds)
    copies = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            copies.append(duplicates_found(chosen.photos, seed, Path(scratch)))
        print(seed, copies[-1], flush=True)
    with np.load(chosen.cifar10) as arrays:
        features, labels = arrays["x_train"], arrays["y_train"]
    rows = []
    for name, (classes, other) in CELLS.items():
        own = np.isin(labels, classes)
        areas = [outlier_auroc(features[own], labels[own], features[labels == other], seed) for seed in seeds]
        rows.append([name, shown(areas, 3)])
        print(name, json.dumps(areas), flush=True)
    lines = [
        "# Duplicates and outliers",
        "",
        *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(),
        "",
        *table(
            ["", "share"],
            [
                ["duplicates that are found", shown([found for found, _ in copies], 3)],
                ["pairs that are false", shown([false for _, false in copies], 3)],
            ],
        ),
        "AUROC of the column `outsider`, mean ± standard deviation over seeds:",
        "",
        *table(["outliers", "AUROC"], rows),
    ]
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


main()
