"""Arrays as pictures, sounds and figures: PNG, WAV, heat maps, histograms; encoded images and videos, decoded.

Large arrays are cut, never sent whole. The sizes of what is decoded are limited, since the data may come from anywhere.
"""

from __future__ import annotations

import base64
import functools
import io
import math
import wave
from typing import Any

import numpy as np

from bushel._src.base.late_imports import import_package

IMAGE_EDGE = 512
"""The longest edge of a picture, in pixels. Larger images are made smaller."""
SAMPLE = 200_000
"""How many values of an array a histogram and a summary look at."""
HEAT_EDGE = 256
"""The longest edge of a heat map, in cells."""
CURVE_POINTS = 1_000
"""How many points of a curve are sent."""

_PADDING_RGB = (128, 128, 128)


def data_url(kind: str, content: bytes) -> str:
    """Return a file as an address that holds the file itself.

    >>> data_url("text/plain", b"hi")
    'data:text/plain;base64,aGk='
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def png(pixels: np.ndarray, edge: int = IMAGE_EDGE) -> bytes:
    """Return an image as a PNG file: uint8 [height, width], or with 1, 3 or 4 channels.

    Larger than `edge`, it is reduced.
    """
    pillow: Any = import_package("PIL.Image", "view", "Pictures")
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    height, width = pixels.shape[:2]
    step = max(1, max(height, width) // 4096)  # a huge image is thinned out first, so that it takes no second copy
    image = pillow.fromarray(np.ascontiguousarray(pixels[::step, ::step]))
    if max(image.size) > edge:
        image.thumbnail((edge, edge))
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


def png_url(pixels: np.ndarray, edge: int = IMAGE_EDGE) -> str:
    """Return an image as an address for `<img src=...>`: see `png`."""
    return data_url("image/png", png(pixels, edge))


def to_pixels(values: np.ndarray) -> tuple[np.ndarray, str]:
    """Return an image of any dtype as uint8, and a sentence on how its values were changed; "" if they were not.

    Floats from 0 to 1 and from -1 to 1 are taken for these ranges. All others are stretched from minimum to maximum.

    >>> to_pixels(np.array([[0.0, 1.0]]))
    (array([[  0, 255]], dtype=uint8), 'values 0 to 1')
    """
    if values.dtype == np.uint8:
        return values, ""
    if values.dtype == bool:
        return values.astype(np.uint8) * np.uint8(255), ""
    numbers = values.astype(np.float32)
    known = numbers[np.isfinite(numbers)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if values.dtype.kind in "iu" and low >= 0 and high <= 255:
        low, high, note = 0.0, 255.0, ""
    elif low >= 0 and high <= 1:
        low, high, note = 0.0, 1.0, "values 0 to 1"
    elif low >= -1 and high <= 1:
        low, high, note = -1.0, 1.0, "values -1 to 1"
    else:
        note = f"stretched: black is {low:.4g}, white is {high:.4g}"
    scaled = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return np.clip(np.rint(scaled * 255), 0, 255).astype(np.uint8), note


def draw_mask(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return an image with the part where `mask` is False dimmed and hatched.

    The mask has the image's height and width.
    """
    rgb = np.repeat(pixels[..., None], 3, axis=-1) if pixels.ndim == 2 else pixels
    if rgb.shape[-1] == 1:
        rgb = np.repeat(rgb, 3, axis=-1)
    rows, columns = np.indices(mask.shape)
    hatched = (rows + columns) // max(2, min(mask.shape) // 32) % 2 == 0
    dimmed = (rgb[..., :3].astype(np.uint16) + np.array(_PADDING_RGB, np.uint16) * 2) // 3
    out = rgb[..., :3].copy()
    hidden = ~mask.astype(bool)
    out[hidden] = dimmed[hidden].astype(np.uint8)
    out[hidden & hatched] = _PADDING_RGB
    return out


def sprite(frames: np.ndarray, edge: int = 160) -> dict[str, Any]:
    """Return frames [count, height, width, channels] (uint8) side by side in one picture, with the size of each.

    The page shows it as a strip, and plays it.
    """
    pillow: Any = import_package("PIL.Image", "view", "Pictures")
    count, height, width = frames.shape[:3]
    scale = min(1.0, edge / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    columns = math.ceil(math.sqrt(count))
    sheet = None
    for number in range(count):
        frame = frames[number, ..., 0] if frames.ndim == 4 and frames.shape[-1] == 1 else frames[number]
        image = pillow.fromarray(np.ascontiguousarray(frame))
        if scale < 1:
            image = image.resize(size)
        if sheet is None:
            sheet = pillow.new(image.mode, (columns * size[0], -(-count // columns) * size[1]))
        sheet.paste(image, ((number % columns) * size[0], (number // columns) * size[1]))
    assert sheet is not None
    out = io.BytesIO()
    sheet.save(out, "PNG", compress_level=1)
    return {
        "url": data_url("image/png", out.getvalue()),
        "count": count,
        "width": size[0],
        "height": size[1],
        "columns": columns,
    }


def wav(samples: np.ndarray, rate: int, seconds: float = 30.0) -> bytes:
    """Return sound as a WAV file of 16 bits: [time] or [time, channels], floats from -1 to 1 or integers. It is cut."""
    samples = samples[: int(rate * seconds)]
    if samples.dtype.kind == "f":
        samples = np.clip(np.nan_to_num(samples), -1, 1) * 32767
    elif samples.dtype == np.uint8:
        samples = (samples.astype(np.int16) - 128) * 256
    elif samples.dtype.itemsize > 2:
        samples = samples >> (8 * (samples.dtype.itemsize - 2))
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return out.getvalue()


def take_sample(values: np.ndarray) -> np.ndarray:
    """Return at most about `SAMPLE` values of an array, evenly spread, as one axis."""
    if values.size <= SAMPLE:
        return values.reshape(-1)
    if values.flags.c_contiguous:
        return values.reshape(-1)[:: -(-values.size // SAMPLE)]
    step = math.ceil((values.size / SAMPLE) ** (1 / values.ndim))
    return values[(slice(None, None, step),) * values.ndim].reshape(-1)


def summarize(values: np.ndarray) -> dict[str, Any]:
    """Return minimum, maximum, mean, standard deviation and the share of NaN; of a sample if the array is large."""
    sample = take_sample(values)
    if sample.dtype.kind not in "iufb" or not sample.size:
        return {}
    numbers = sample.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    out: dict[str, Any] = {"sampled": bool(sample.size < values.size), "not_finite": int(numbers.size - finite.size)}
    if finite.size:
        out |= {"min": float(finite.min()), "max": float(finite.max())}
        out |= {"mean": float(finite.mean()), "std": float(finite.std())}
    return out


BINS = (40, 20, 10)
"""How many bins a histogram may have. With ten bins, at most nine can be empty."""
MOST_EMPTY = 9


def histogram(values: np.ndarray) -> dict[str, Any] | None:
    """Return count of values in intervals of equal width: {"edges": [...], "counts": [...]}.

    There are as many bins as have fewer than ten empty ones among them. Edges between whole numbers are halves, and all
    bins then hold equally many whole numbers. None if no value is finite.

    >>> histogram(np.array([1, 2, 2, 3]))
    {'edges': [0.5, 1.5, 2.5, 3.5], 'counts': [1, 2, 1]}
    """
    sample = take_sample(values)
    if sample.dtype.kind not in "iufb":
        return None
    numbers = sample.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return None
    low, high = float(numbers.min()), float(numbers.max())
    whole = sample.dtype.kind in "iub"
    counts, borders = np.array([len(numbers)]), np.array([low - 0.5, high + 0.5])
    for bins in BINS:
        edges = _divide(low, high, bins, whole)
        if len(edges) > 2:
            counts, borders = np.histogram(numbers, bins=edges)
        if np.count_nonzero(counts == 0) <= MOST_EMPTY:
            break
    return {"edges": borders.tolist(), "counts": counts.tolist()}


def _divide(low: float, high: float, bins: int, whole: bool) -> np.ndarray:
    """Return the edges of at most `bins` bins from `low` to `high`."""
    if whole and high - low < 2**52:
        width = math.ceil((high - low + 1) / bins)
        return low - 0.5 + width * np.arange(math.ceil((high - low + 1) / width) + 1)
    return np.unique(np.linspace(low / 2, high / 2, bins + 1) * 2)  # halves, so that no difference overflows


def curve(values: np.ndarray, points: int = CURVE_POINTS) -> dict[str, Any]:
    """Return a long row of numbers as at most `points` points: {"x": [...], "y": [...]}.

    Each stretch gives its smallest and its largest value, so that no peak is lost.
    """
    numbers = values.astype(np.float64)
    if len(numbers) <= points:
        return {"x": list(range(len(numbers))), "y": numbers.tolist()}
    stretch = -(-len(numbers) // (points // 2))
    whole = len(numbers) // stretch * stretch
    rows = np.nan_to_num(numbers[:whole]).reshape(-1, stretch)
    where = (
        np.sort(np.stack([rows.argmin(1), rows.argmax(1)], axis=1), axis=1) + np.arange(len(rows))[:, None] * stretch
    )
    x = np.unique(np.append(where.reshape(-1), len(numbers) - 1))
    return {"x": x.tolist(), "y": numbers[x].tolist()}


def heat_map(values: np.ndarray, mask: np.ndarray | None = None, edge: int = HEAT_EDGE) -> dict[str, Any]:
    """Return a table of numbers [rows, columns] as a picture, dark for small and bright for large values.

    Larger tables are thinned out: every n-th row and column is drawn. NaN is grey, and so is what `mask` hides.
    """
    row_step, column_step = (max(1, -(-size // edge)) for size in values.shape)
    numbers = values[::row_step, ::column_step].astype(np.float64)
    finite = np.isfinite(numbers)
    low, high = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (0.0, 1.0)
    scaled = (np.where(finite, numbers, low) - low) / ((high - low) or 1.0)
    pixels = _colors()[np.clip(np.rint(scaled * 255), 0, 255).astype(np.uint8)]
    hidden = ~finite
    if mask is not None:
        hidden = hidden | ~mask[::row_step, ::column_step].astype(bool)
    pixels[hidden] = _PADDING_RGB
    return {
        "url": png_url(pixels),
        "width": pixels.shape[1],
        "height": pixels.shape[0],
        "low": low,
        "high": high,
        "steps": [row_step, column_step],
    }


@functools.cache
def _colors() -> np.ndarray:
    """Return 256 colours from dark blue over green to yellow, close to Matplotlib's viridis."""
    anchors = [(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)]
    places = np.linspace(0, 255, len(anchors))
    channels = [np.interp(np.arange(256), places, [color[channel] for color in anchors]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=1)).astype(np.uint8)


PIXELS = 64_000_000
"""Larger images are not decoded."""


def decode_image(content: bytes) -> np.ndarray:
    """Return an encoded image as uint8 [height, width] or [height, width, channels]."""
    pillow: Any = import_package("PIL.Image", "view", "Pictures")
    with pillow.open(io.BytesIO(content)) as image:
        if image.width * image.height > PIXELS:
            raise ValueError(f"The image has {image.width} x {image.height} pixels, which is too large to show.")
        if image.mode in ("I;16", "I", "F"):  # depth
            return np.asarray(image)
        return np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))


def decode_video(content: bytes, count: int) -> tuple[np.ndarray, int, float]:
    """Return the first frames of a video, how many it has, and how many it shows per second."""
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
