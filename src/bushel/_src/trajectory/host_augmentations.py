"""The operations of `image_operations.py` with NumPy, in place and in few passes over the image.

`Operation.apply` is the definition of an operation. The functions here compute the same values to within float32's
error: a pass over an image takes longer than the arithmetic in it, so passes are what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.trajectory.image_operations import (
    Operation,
    RandomBrightness,
    RandomContrast,
    RandomHue,
    RandomResizedCrop,
    RandomSaturation,
    check_three_channels,
    interpolate,
)
from bushel._src.trajectory.scratch import SCRATCHES, Scratch

_BAND = 16  # columns that one matrix product computes
_STRIP = 1 << 16  # pixels whose colours are changed together, so that intermediate results fit into the CPU's cache
_SHORT_STRIP = 8_192  # the same where results lie in new memory: the C library asks the system for more than 128 KiB
_TINY = np.float32(1e-30)  # instead of zero as a divisor
_LARGE = np.float32(1e30)  # no limit: `np.clip` takes a third of the time of `np.maximum` with one number
_SIGN_BIT = np.int32(-(1 << 31))


def change_image(chosen: Sequence[Operation], image: np.ndarray, parameters: Sequence[Any]) -> np.ndarray:
    """An image (height, width, channels) of uint8 or float32 after these operations, each with its parameter."""
    with SCRATCHES.lend() as scratch:
        planes = _load_planes(image, scratch)
        steps = list(zip(chosen, parameters))
        while steps:
            operation, parameter = steps.pop(0)
            if isinstance(operation, RandomSaturation):
                follows = bool(steps) and isinstance(steps[0][0], RandomHue)
                planes = _shift_colours(planes, parameter, steps.pop(0)[1] if follows else None, scratch)
            elif isinstance(operation, RandomHue):
                _apply_in_strips(operation, planes, parameter)
            elif isinstance(operation, RandomResizedCrop):
                planes = _crop(planes, parameter, scratch)
            elif isinstance(operation, RandomBrightness):
                planes = _add(planes, parameter)
            elif isinstance(operation, RandomContrast):
                planes = _stretch_contrast(planes, parameter)
            else:
                planes = np.ascontiguousarray(operation.apply(planes, parameter, np))
        return _store_planes(planes, image.dtype, scratch)


def _load_planes(image: np.ndarray, scratch: Scratch) -> np.ndarray:
    """An image as planes (channels, height, width) of float32, 255 as 1, in scratch memory."""
    height, width, channels = image.shape
    planes = scratch.get("planes", (channels, height, width), np.float32)
    if image.dtype == np.float32:
        np.clip(np.moveaxis(image, -1, 0), 0, 1, out=planes)
        return planes
    values = scratch.get("values", image.shape, np.float32)
    np.copyto(values, image)  # NumPy converts values that lie next to each other several times faster
    for channel in range(channels):
        np.multiply(values[..., channel], np.float32(1 / 255), out=planes[channel])
    return planes


def _store_planes(planes: np.ndarray, dtype: Any, scratch: Scratch) -> np.ndarray:
    """Planes as an image (height, width, channels) of its own. The values of uint8 stand for equal ranges."""
    channels, height, width = planes.shape
    image = np.empty((height, width, channels), dtype)
    if dtype == np.float32:
        np.clip(np.moveaxis(planes, 0, -1), 0, 1, out=image)
        return image
    pixels = scratch.get("pixels", planes.shape, np.uint8)
    np.multiply(planes, np.float32(255.5), out=planes)
    np.copyto(pixels, planes, casting="unsafe")
    for channel in range(channels):
        image[..., channel] = pixels[channel]
    return image


def _crop(planes: np.ndarray, box: Any, scratch: Scratch) -> np.ndarray:
    """The box, stretched over the whole image. Rows are copied and mixed; columns, which lie apart, are products."""
    channels, height, width = planes.shape
    top, left, bottom, right = np.asarray(box, dtype=np.float32)
    before, after, share = interpolate(top, bottom, height)
    rows = planes.take(before, axis=1, out=scratch.get("rows", planes.shape, np.float32), mode="clip")
    below = planes.take(after, axis=1, out=scratch.get("below", planes.shape, np.float32), mode="clip")
    np.subtract(below, rows, out=below)
    np.multiply(below, share[:, None], out=below)
    np.add(rows, below, out=rows)

    before, after, share = interpolate(left, right, width)
    columns, weights = np.arange(width), scratch.get("weights", (width, width), np.float32)
    weights.fill(0)  # (column of `rows`, column of the crop)
    weights[before, columns] = 1 - share
    weights[after, columns] += share
    before, after = before.tolist(), after.tolist()
    rows, cropped = rows.reshape(channels * height, width), planes.reshape(channels * height, width)
    for start in range(0, width, _BAND):
        stop = min(start + _BAND, width)
        ends = before[start], before[stop - 1], after[start], after[stop - 1]  # a box may also be mirrored
        inputs = slice(min(ends), max(ends) + 1)
        np.matmul(rows[:, inputs], weights[inputs, start:stop], out=cropped[:, start:stop])
    return planes


def _add(planes: np.ndarray, number: Any) -> np.ndarray:
    np.add(planes, np.float32(number), out=planes)
    return np.clip(planes, 0, 1, out=planes)


def _stretch_contrast(planes: np.ndarray, factor: Any) -> np.ndarray:
    factor, mean = np.float32(factor), planes.mean(axis=(1, 2), keepdims=True)
    np.multiply(planes, factor, out=planes)
    np.add(planes, mean * (1 - factor), out=planes)
    return np.clip(planes, 0, 1, out=planes)


def _apply_in_strips(operation: Operation, planes: np.ndarray, parameter: Any) -> None:
    """Applies the definition of an operation that looks at each pixel by itself, in place."""
    channels, height, width = planes.shape
    pixels = planes.reshape(channels, 1, height * width)
    for start in range(0, height * width, _SHORT_STRIP):
        strip = pixels[..., start : start + _SHORT_STRIP]
        strip[:] = operation.apply(strip, parameter, np)


def _shift_colours(planes: np.ndarray, factor: Any, turn: Any, scratch: Scratch) -> np.ndarray:
    """The saturation of each pixel times `factor`; and its hue turned by the fraction `turn` of the circle, or None.

    The largest channel of a pixel stays. A turn of the hue alone is not computed here: TensorFlow rounds the hue, and
    `RandomHue.apply` rounds it in the same way.
    """
    check_three_channels(planes, "random_saturation")
    sixths = None if turn is None else 6 * float(turn)
    if sixths is not None and abs(sixths) > 1:
        thirds = round(sixths / 2)  # a third of the circle turns red into green, green into blue, and blue into red
        planes, sixths = np.roll(planes, thirds, axis=0), sixths - 2 * thirds
    pixels = planes.reshape(3, -1)
    for start in range(0, pixels.shape[1], _STRIP):
        _shift_strip(pixels[:, start : start + _STRIP], np.float32(factor), sixths, scratch)
    return planes


def _shift_strip(pixels: np.ndarray, factor: np.float32, sixths: float | None, scratch: Scratch) -> None:
    """Changes pixels (3, count) in place. The turn of the hue is between -1 and 1 sixths of the circle.

    Let h, m and l be the channels of a pixel in descending order. Saturation moves each channel away from h. The
    distance of the hue from red is (h + m - 2 red) / (h - l) - 1 sixths. This is a linear function of the channels, so
    no hue is computed. If green is larger than blue, the distance grows with the turn, else it shrinks. So red becomes
    h - clip(h + m - 2 red +- turn * (h - l), 0, h - l). The same holds for the other channels. All terms are computed
    as halves, which saves the pass for 2 red.
    """
    red, green, blue = pixels
    high, low, half, work = scratch.get("colours", (4, _STRIP), np.float32)[:, : red.size]
    np.maximum(red, green, out=high)
    np.maximum(high, blue, out=high)
    np.minimum(red, green, out=low)
    np.minimum(low, blue, out=low)
    np.subtract(high, low, out=half)
    np.multiply(half, np.float32(0.5), out=half)
    if sixths is None:
        np.subtract(high, pixels, out=pixels)
        np.multiply(pixels, np.float32(0.5), out=pixels)
    else:
        turned = scratch.get("turned", (3, _STRIP), np.float32)[:, : red.size]
        np.subtract(green, blue, out=turned[0])
        np.subtract(blue, red, out=turned[1])
        np.subtract(red, green, out=turned[2])
        np.subtract(red, low, out=work)
        np.add(work, green, out=work)
        np.add(work, blue, out=work)
        np.multiply(work, np.float32(0.5), out=work)  # (h + m) / 2
        np.subtract(work, pixels, out=pixels)
        # The turn, with the signs of the differences. `np.copysign` takes several times as long.
        np.multiply(half, np.float32(sixths), out=work)
        bits = turned.view(np.int32)
        np.bitwise_and(bits, _SIGN_BIT, out=bits)
        np.bitwise_xor(bits, work.view(np.int32), out=bits)
        np.add(pixels, turned, out=pixels)
        np.minimum(pixels, half, out=pixels)
        np.clip(pixels, 0, _LARGE, out=pixels)
    np.clip(half, _TINY, _LARGE, out=half)
    np.divide(high, half, out=half)
    np.clip(half, 0, 2 * factor, out=half)  # at most the factor with which the lowest channel becomes 0
    np.multiply(pixels, half, out=pixels)
    np.subtract(high, pixels, out=pixels)
