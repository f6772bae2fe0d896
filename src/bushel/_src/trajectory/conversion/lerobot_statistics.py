"""Statistics as LeRobot keeps them: for each feature, of each episode and of all of them.

Those of numbers are exact. Those of images are exact over a sample of frames and pixels, which LeRobot chooses in the
same way: a histogram of 256 values for each channel gives all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_SAMPLED_PIXELS = 150


def summarize_numbers(values: np.ndarray) -> dict[str, Any]:
    """The statistics of rows of numbers, as lists."""
    rows = values.reshape(len(values), -1) if values.ndim < 2 else values
    exact = rows.astype(np.float64)
    found = {
        "min": rows.min(axis=0),
        "max": rows.max(axis=0),
        "mean": exact.mean(axis=0),
        "std": exact.std(axis=0),
    }
    quantiles = np.quantile(exact, list(QUANTILES.values()), axis=0)
    statistics = {name: value.tolist() for name, value in (found | dict(zip(QUANTILES, quantiles))).items()}
    return {**statistics, "count": [len(values)]}


def sample_frames(count: int) -> np.ndarray:
    """Which frames of an episode count for the statistics of images: all up to 100, then fewer and fewer."""
    wanted = min(count, min(max(100, int(count**0.75)), 10_000))
    return np.round(np.linspace(0, count - 1, wanted)).astype(np.int64)


def count_pixels(pixels: np.ndarray) -> np.ndarray:
    """A histogram of each channel of an image, int64 (3, 256). Of large images only every n-th pixel counts."""
    stride = max(1, max(pixels.shape[:2]) // _SAMPLED_PIXELS)
    some = pixels[::stride, ::stride]
    return np.stack([np.bincount(some[..., channel].ravel(), minlength=256) for channel in range(3)])


def summarize_pixels(histogram: np.ndarray, frames: int) -> dict[str, Any]:
    """The statistics of images from their histogram, between 0 and 1, with the shape (3, 1, 1)."""
    values = np.arange(256) / 255.0
    counts = histogram.astype(np.float64)
    total = counts.sum(axis=1)
    mean = counts @ values / total
    deviation = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0))
    below = np.cumsum(histogram, axis=1)
    found: dict[str, Any] = {
        "min": values[(histogram > 0).argmax(axis=1)],
        "max": values[255 - (histogram[:, ::-1] > 0).argmax(axis=1)],
        "mean": mean,
        "std": deviation,
    }
    for name, share in QUANTILES.items():
        found[name] = values[(below >= share * total[:, None]).argmax(axis=1)]
    return {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()} | {"count": [frames]}
