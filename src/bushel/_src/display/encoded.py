"""Encoded images and videos, decoded for display. Their sizes are limited, since the data may come from anywhere."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from bushel._src.sources.optional_packages import import_package

PIXELS = 64_000_000
"""Larger images are not decoded."""


def decode_image(content: bytes) -> np.ndarray:
    """An encoded image as uint8 [height, width] or [height, width, channels]."""
    pillow: Any = import_package("PIL.Image", "view", "Pictures")
    with pillow.open(io.BytesIO(content)) as image:
        if image.width * image.height > PIXELS:
            raise ValueError(f"The image has {image.width} x {image.height} pixels, which is too large to show.")
        if image.mode in ("I;16", "I", "F"):  # depth
            return np.asarray(image)
        return np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))


def decode_video(content: bytes, count: int) -> tuple[np.ndarray, int, float]:
    """The first frames of a video, how many it has, and how many it shows per second."""
    av: Any = import_package("av", "video", "Videos")
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        if stream.width * stream.height > PIXELS:
            raise ValueError(f"The video has {stream.width} x {stream.height} pixels, which is too large to show.")
        frames = []
        for frame in container.decode(stream):
            frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == count:
                break
        return np.stack(frames), max(stream.frames, len(frames)), float(stream.average_rate or 10)
