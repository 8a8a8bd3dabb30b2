"""A folder of badly labelled images to practise on.

    python examples/noisy_folder.py photos             write it
    python examples/noisy_folder.py photos 0.1 500     10 % mistakes, and 500 random images as a clean test/
    python examples/noisy_folder.py corrected.csv      print the fraction of correct labels in a corrected table

Writes 1,797 handwritten digits as small PNG files, one folder per class, and puts 30 % of them into a wrong folder. The
file name contains the true label (`0042-is-7.png`); selfadapt does not use it.
"""

import csv
import random
import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits


def write(folder: Path, share: float = 0.3, tests: int = 0, seed: int = 0) -> int:
    """Write the images and return the number of those in a wrong folder."""
    draw = random.Random(seed)
    digits = load_digits()
    held_out = set(random.Random(f"test {seed}").sample(range(len(digits.target)), tests))
    wrong = 0
    for number, (pixels, truth) in enumerate(zip(digits.images, digits.target, strict=True)):
        part = ("test" if number in held_out else "train") if tests else ""
        mistaken = part != "test" and draw.random() < share
        label = draw.choice([k for k in range(10) if k != truth]) if mistaken else truth
        wrong += label != truth
        path = folder / part / str(label) / f"{number:04d}-is-{truth}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8")).save(path)
    return wrong


def score(table: Path) -> dict[str, float]:
    """The fraction of correct training labels in a table of `selfadapt labels`, as given and as corrected."""
    with open(table, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "train"]
    return {
        column: sum(f"-is-{row[column]}.png" in row["id"] for row in rows) / len(rows) for column in ("given", "label")
    }


if __name__ == "__main__":
    path = Path(sys.argv[1])
    if path.suffix == ".csv":
        right = score(path)
        print(f"correct labels: {right['given']:.1%} as given, {right['label']:.1%} as corrected")
    else:
        share, tests = (*sys.argv[2:4], *("0.3", "0")[len(sys.argv[2:4]) :])
        wrong = write(path, float(share), int(tests))
        print(f"{wrong} of 1797 images are in a wrong folder of {path}")
