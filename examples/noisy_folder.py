"""A folder of badly labelled images to practise on: `python examples/noisy_folder.py photos`

Writes 1,797 handwritten digits as small PNG files, a folder for each class, and puts three in ten into a wrong folder.
The name of a file tells the truth (`0042-is-7.png`), which selfadapt does not look at.
"""

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


if __name__ == "__main__":
    destination = Path(sys.argv[1])
    print(f"{write(destination)} of 1797 images lie in a wrong folder of {destination}")
