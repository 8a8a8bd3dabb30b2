"""Images that look alike without being duplicates."""

from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

Array = np.ndarray[Any, np.dtype[Any]]


def noise_textures(count: int, side: int) -> list[Array]:
    """White noise, noise of three smoothnesses, slanted stripes and upright stripes with a little noise, in turn."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:side, :side]
    found: list[Array] = []
    for number in range(count):
        kind = number % 6
        if kind < 4:
            noise = generator.normal(size=(side, side, 3))
            noise = gaussian_filter(noise, (sigma, sigma, 0)) if (sigma := (0, 2, 5, 12)[kind]) else noise
            values = 128 + 40 * noise / noise.std()
        elif kind == 4:
            across, down, phase = generator.uniform(0.02, 0.2), generator.uniform(0.02, 0.2), generator.uniform(0, 6.3)
            values = 128 + 60 * np.sin(2 * np.pi * (columns * across + rows * down) + phase)[:, :, None].repeat(3, 2)
        else:
            period = int(generator.integers(4, 16))
            stripes = (columns + generator.integers(period)) // period % 2 * 120.0 + 60
            values = stripes[:, :, None] + generator.normal(0, 8, (side, side, 3))
        found.append(np.clip(values, 0, 255).astype(np.uint8))
    return found
