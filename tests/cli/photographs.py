"""Small photographs of two kinds, in many sizes, for tests: cuttings of scikit-learn's palace and flower."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

KINDS = ("flower", "palace")


@lru_cache(maxsize=1)
def _originals() -> dict[str, Image.Image]:
    palace, flower = load_sample_images().images
    return {"palace": Image.fromarray(palace), "flower": Image.fromarray(flower)}


def write_photo(path: Path, kind: str, seed: int) -> None:
    """A cutting whose place, shape and size the seed decides."""
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    width, height, across, down = (int(n) for n in generator.integers((200, 200, 40, 40), (400, 400, 90, 90)))
    left, top = int(generator.integers(0, 640 - width)), int(generator.integers(0, 427 - height))
    cutting = _originals()[kind].crop((left, top, left + width, top + height))
    cutting.resize((across, down), Image.Resampling.BICUBIC).save(path, quality=95)


def write_photos(root: Path, **parts: int) -> Path:
    """So many photographs of each kind for each part."""
    for part, count in parts.items():
        for number in range(count):
            for place, kind in enumerate(KINDS):
                write_photo(root / part / kind / f"{number}.jpg", kind, 1000 * len(part) + 2 * number + place)
    return root
