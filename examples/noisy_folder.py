"""A folder of badly labelled images to practise on.

    python examples/noisy_folder.py photos             writes it
    python examples/noisy_folder.py corrected.csv      says how many labels of a corrected table are right

Writes 1,797 handwritten digits as small PNG files, a folder for each class, and puts three in ten into a wrong folder.
The name of a file tells the truth (`0042-is-7.png`), which selfadapt does not look at.
"""

import csv
import random
import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits


def write(folder: Path, share: float = 0.3, seed: int = 0) -> int:
    """Write the images and return how many lie in a wrong folder."""
    draw = random.Random(seed)
    digits = load_digits()
    wrong = 0
    for number, (pixels, truth) in enumerate(zip(digits.images, digits.target, strict=True)):
        label = draw.choice([k for k in range(10) if k != truth]) if draw.random() < share else truth
        wrong += label != truth
        path = folder / str(label) / f"{number:04d}-is-{truth}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8")).save(path)
    return wrong


def score(table: Path) -> dict[str, float]:
    """The share of right labels in a table that `selfadapt labels` wrote, as given and as corrected."""
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        column: sum(f"-is-{row[column]}.png" in row["id"] for row in rows) / len(rows) for column in ("given", "label")
    }


if __name__ == "__main__":
    path = Path(sys.argv[1])
    if path.suffix == ".csv":
        right = score(path)
        print(f"right labels: {right['given']:.1%} as given, {right['label']:.1%} as corrected")
    else:
        print(f"{write(path)} of 1797 images lie in a wrong folder of {path}")
