"""Random changes of images as dlimp makes them: operations one after another, each clipped to black and white.

An operation says what it draws and what it does. NumPy runs it in place and in few passes; JAX runs it inside `jit`,
with one key per sample.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bushel._src.base import checks
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.trajectory.data_utils import (
    Compat,
    Rng,
    draw_uniform,
    get_namespace,
    is_jax,
    is_traced,
    reproduces_faults,
)
from bushel._src.trajectory.pixels import SCRATCHES, Scratch

Array = Any
"""An array of NumPy or of JAX."""

_TINY = np.float32(1e-30)  # instead of zero as a divisor


@dataclasses.dataclass(frozen=True)
class ImageOperation(abc.ABC):
    """A random change of an image. Its fields are the limits of what is drawn."""

    uniforms: ClassVar[int] = 1
    """How many uniform numbers one draw needs."""

    @abc.abstractmethod
    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return the parameter of `apply`, computed from `uniforms` numbers between 0 and 1."""

    @abc.abstractmethod
    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return planes (..., channels, height, width) after the change. Values may lie outside [0, 1]."""


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(ImageOperation):
    """A random crop, resized to the size of the whole image. Its area and its ratio width / height are drawn.

    The parameter is a box (top, left, bottom, right) in fractions of the image. Pixels are interpolated bilinearly,
    corner on corner, as in `tf.image.crop_and_resize`.
    """

    scale: Sequence[float]
    ratio: Sequence[float]
    uniforms = 4

    def __post_init__(self) -> None:
        for limits, name in ((self.scale, "scale"), (self.ratio, "ratio")):
            if len(limits) != 2 or not 0 < limits[0] <= limits[1]:
                raise ValueError(f"{name} of random_resized_crop takes 0 < lower <= upper, got {limits!r}.")
            object.__setattr__(self, name, tuple(limits))  # hashable: compiled functions are cached by operations

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return the box. The four numbers give its area, its ratio, and its two offsets."""
        area = _scale_uniform(uniforms[0], *self.scale)
        ratio = xp.exp(_scale_uniform(uniforms[1], math.log(self.ratio[0]), math.log(self.ratio[1])))
        height, width = xp.minimum(xp.sqrt(area / ratio), 1), xp.minimum(xp.sqrt(area * ratio), 1)
        top, left = uniforms[2] * (1 - height), uniforms[3] * (1 - width)
        return xp.asarray([top, left, top + height, left + width])

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return the box, stretched over the whole image."""
        top, left, bottom, right = xp.asarray(parameter, dtype=np.float32)
        rows, columns = _weigh(top, bottom, planes.shape[-2], xp), _weigh(left, right, planes.shape[-1], xp)
        exact = {} if xp is np else {"precision": "highest"}  # otherwise some devices would multiply with 16 bits
        return xp.matmul(rows, xp.matmul(planes, columns.T, **exact), **exact)


@dataclasses.dataclass(frozen=True)
class RandomBrightness(ImageOperation):
    """A number between -max_delta and max_delta added to all values."""

    max_delta: float

    def __post_init__(self) -> None:
        if not self.max_delta >= 0:
            raise ValueError(f"max_delta of random_brightness must not be negative, got {self.max_delta}.")

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return the number."""
        return _scale_uniform(uniforms[0], -self.max_delta, self.max_delta)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return values plus the number."""
        return planes + xp.asarray(parameter, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class RandomContrast(ImageOperation):
    """Distances from the mean of each channel times a number between lower and upper."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        _check_ascending(self.lower, self.upper, "random_contrast")

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return the number."""
        return _scale_uniform(uniforms[0], self.lower, self.upper)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return values nearer to the mean of their channel, or farther from it."""
        mean = planes.mean(axis=(-2, -1), keepdims=True)
        return (planes - mean) * xp.asarray(parameter, dtype=np.float32) + mean


@dataclasses.dataclass(frozen=True)
class RandomSaturation(ImageOperation):
    """The saturation of each pixel times a number between lower and upper; hue and value stay."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        _check_ascending(self.lower, self.upper, "random_saturation")

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return the number."""
        return _scale_uniform(uniforms[0], self.lower, self.upper)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return all channels of a pixel moved towards its largest channel, or away from it, but not below zero."""
        check_three_channels(planes, "random_saturation")
        high = planes.max(axis=-3, keepdims=True)
        below = high - planes
        most = high / xp.maximum(below.max(axis=-3, keepdims=True), _TINY)  # the factor at which the saturation is 1
        return high - below * xp.minimum(xp.asarray(parameter, dtype=np.float32), most)


@dataclasses.dataclass(frozen=True)
class RandomHue(ImageOperation):
    """The hue of each pixel turned by a number between -max_delta and max_delta of the circle."""

    max_delta: float

    def __post_init__(self) -> None:
        if not 0 <= self.max_delta <= 0.5:
            raise ValueError(f"max_delta of random_hue must be between 0 and 0.5, got {self.max_delta}.")

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return the number."""
        return _scale_uniform(uniforms[0], -self.max_delta, self.max_delta)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return the hue, in sixths of the circle, is turned.

        Each channel then follows from its distance to the new hue.
        """
        check_three_channels(planes, "random_hue")
        red, green, blue = (planes[..., channel, :, :] for channel in range(3))
        high, low = planes.max(axis=-3), planes.min(axis=-3)
        spread = high - low
        # `>=` between channels, not `high == red`: see the module's first paragraphs. On a tie both formulas agree.
        from_blue = xp.where(green >= blue, 2 * spread + blue - red, 4 * spread + red - green)
        red_leads = (red >= green) & (red >= blue)
        hue = xp.where(red_leads, green - blue, from_blue) / xp.maximum(spread, _TINY)
        hue = hue + 6 * xp.asarray(parameter, dtype=np.float32)
        hue = hue - 6 * xp.floor(hue * np.float32(1 / 6))
        shares = xp.stack([abs(hue - 3) - 1, 2 - abs(hue - 2), 2 - abs(hue - 4)], axis=-3)
        return low[..., None, :, :] + spread[..., None, :, :] * xp.clip(shares, 0, 1)


@dataclasses.dataclass(frozen=True)
class RandomFlipLeftRight(ImageOperation):
    """The image mirrored left to right, half of the time."""

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return whether to mirror the image."""
        return uniforms[0] < 0.5

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return the columns in reverse order, if the parameter is true."""
        return xp.where(parameter, planes[..., ::-1], planes)


@dataclasses.dataclass(frozen=True)
class RandomFlipUpDown(ImageOperation):
    """The image mirrored upside down, half of the time."""

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return whether to mirror the image."""
        return uniforms[0] < 0.5

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return the rows in reverse order, if the parameter is true."""
        return xp.where(parameter, planes[..., ::-1, :], planes)


@dataclasses.dataclass(frozen=True)
class RandomRot90(ImageOperation):
    """The image turned counterclockwise by 0, 1, 2 or 3 quarters. With JAX it must be square."""

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Return the number of quarter turns."""
        return xp.asarray(uniforms[0] * 4, dtype=np.int32)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Return the image, turned."""
        if xp is np:
            return np.rot90(planes, int(parameter), axes=(-2, -1))
        if planes.shape[-1] != planes.shape[-2]:
            height, width = planes.shape[-2:]
            raise ValueError(
                f"random_rot90 would turn an image of {height} x {width} into one of {width} x {height}, but shapes "
                "are fixed under JAX. Resize to a square, or leave random_rot90 out of augment_order."
            )
        turned = xp.where(parameter % 2 == 1, xp.rot90(planes, 1, axes=(-2, -1)), planes)
        return xp.where(parameter >= 2, turned[..., ::-1, ::-1], turned)


OPERATIONS: dict[str, type[ImageOperation]] = {
    "random_resized_crop": RandomResizedCrop,
    "random_brightness": RandomBrightness,
    "random_contrast": RandomContrast,
    "random_saturation": RandomSaturation,
    "random_hue": RandomHue,
    "random_flip_left_right": RandomFlipLeftRight,
    "random_flip_up_down": RandomFlipUpDown,
    "random_rot90": RandomRot90,
}
"""The operations by the names that `augment_order` uses."""


def make_operations(augment_order: Sequence[str], **augment_kwargs: Any) -> tuple[ImageOperation, ...]:
    """Return the operations of `augment_order`. The arguments of each are a mapping or a sequence under its name.

    >>> make_operations(["random_brightness"], random_brightness={"max_delta": 0.1})
    (RandomBrightness(max_delta=0.1),)
    """
    if unknown := [name for name in (*augment_order, *augment_kwargs) if name not in OPERATIONS]:
        near = checks.suggest(unknown[0], OPERATIONS)
        raise ValueError(f"There is no augmentation {unknown[0]!r}. There are {', '.join(OPERATIONS)}.{near}")
    operations = []
    for name in augment_order:
        given = augment_kwargs.get(name, ())
        try:
            named = isinstance(given, Mapping)
            operations.append(OPERATIONS[name](**given) if named else OPERATIONS[name](*given))
        except TypeError as error:
            fields = ", ".join(field.name for field in dataclasses.fields(OPERATIONS[name]))
            raise TypeError(f"{name} takes ({fields}), got {given!r}.") from error
    return tuple(operations)


def interpolate(start: Any, stop: Any, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For `length` points from the fraction `start` of an axis to `stop`: the neighbouring indices, and the share.

    With NumPy only. Inside `jit` the indices and the shares need not belong together: see `_weigh`.
    """
    points = _spread_points(start, stop, length, np)
    before = np.floor(points)
    return before.astype(np.int32), np.ceil(points).astype(np.int32), points - before


def _weigh(start: Array, stop: Array, length: int, xp: Any) -> Array:
    """Return weights (points, elements) of linear interpolation at `length` points from the fraction `start` to
    `stop`.
    """
    distances = _spread_points(start, stop, length, xp)[:, None] - xp.arange(length, dtype=np.float32)
    return xp.maximum(1 - abs(distances), 0)


def _spread_points(start: Array, stop: Array, length: int, xp: Any) -> Array:
    """Return `length` points from the fraction `start` of an axis to the fraction `stop`, in elements of the axis."""
    last = length - 1
    points = start * last + xp.arange(length, dtype=np.float32) * ((stop - start) * last / max(last, 1))
    return xp.clip(points, 0, last)


def _scale_uniform(uniform: Array, low: float, high: float) -> Array:
    return uniform * np.float32(high - low) + np.float32(low)


def _check_ascending(lower: float, upper: float, name: str) -> None:
    if not 0 <= lower < upper:
        raise ValueError(f"{name} takes 0 <= lower < upper, got {lower} and {upper}.")


def check_three_channels(planes: Array, name: str) -> None:
    """Raise ValueError unless planes (..., channels, height, width) have three channels."""
    if planes.shape[-3] != 3:
        raise ValueError(f"{name} needs images with 3 channels, got one with {planes.shape[-3]}.")


_BAND = 16  # columns that one matrix product computes
_STRIP = 1 << 16  # pixels whose colours are changed together, so that intermediate results fit into the CPU's cache
_SHORT_STRIP = 8_192  # the same where results lie in new memory: the C library asks the system for more than 128 KiB
_TINY_DIVISOR = np.float32(1e-30)  # instead of zero as a divisor
_LARGE = np.float32(1e30)  # no limit: `np.clip` takes a third of the time of `np.maximum` with one number
_SIGN_BIT = np.int32(-(1 << 31))


def change_image(chosen: Sequence[ImageOperation], image: np.ndarray, parameters: Sequence[Any]) -> np.ndarray:
    """Return an image (height, width, channels) of uint8 or float32 after these operations, each with its parameter."""
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
    """Return an image as planes (channels, height, width) of float32, 255 as 1, in scratch memory."""
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
    """Return planes as an image (height, width, channels) of its own. The values of uint8 stand for equal ranges."""
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
    """Return the box, stretched over the whole image.

    Rows are copied and mixed; columns, which lie apart, are products.
    """
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


def _apply_in_strips(operation: ImageOperation, planes: np.ndarray, parameter: Any) -> None:
    """Apply the definition of an operation that looks at each pixel by itself, in place."""
    channels, height, width = planes.shape
    pixels = planes.reshape(channels, 1, height * width)
    for start in range(0, height * width, _SHORT_STRIP):
        strip = pixels[..., start : start + _SHORT_STRIP]
        strip[:] = operation.apply(strip, parameter, np)


def _shift_colours(planes: np.ndarray, factor: Any, turn: Any, scratch: Scratch) -> np.ndarray:
    """Return the saturation of each pixel times `factor`; and its hue turned by the fraction `turn` of the circle, or
    None.

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
    """Change pixels (3, count) in place. The turn of the hue is between -1 and 1 sixths of the circle.

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
    np.clip(half, _TINY_DIVISOR, _LARGE, out=half)
    np.divide(high, half, out=half)
    np.clip(half, 0, 2 * factor, out=half)  # at most the factor with which the lowest channel becomes 0
    np.multiply(pixels, half, out=pixels)
    np.subtract(high, pixels, out=pixels)


def draw_parameters(
    augment_order: Sequence[str],
    *,
    rng: Rng = None,
    compat: Compat | None = None,
    **augment_kwargs: Any,
) -> list[Any]:
    """Return one parameter for each operation of `augment_order`. `augment_image` takes them as `parameters`.

    >>> draw_parameters(["random_flip_left_right"], rng=0)
    [np.False_]

    Args:
      augment_order: names of operations.
      rng: a generator, a seed, or None for a fresh one; with a `jax.random` key the parameters are arrays of JAX.
      compat: "crossformer" uses one number for all draws of an operation, as dlimp does: the area of
        `random_resized_crop`, its ratio and both offsets are then the same fraction of their ranges.
      **augment_kwargs: arguments of operations, by name.
    """
    return draw(make_operations(augment_order, **augment_kwargs), rng, reproduces_faults(compat))


def draw(chosen: Sequence[ImageOperation], rng: Rng, same: bool) -> list[Any]:
    """Return one parameter for each operation. With `same` an operation uses one number for all of its draws.

    >>> draw(make_operations(["random_flip_up_down"]), 0, same=False)
    [np.False_]
    """
    count = sum(operation.uniforms for operation in chosen)
    xp = get_namespace(rng) if is_jax(rng) else np
    uniforms = draw_uniform(rng, count, np.float32)
    parameters, start = [], 0
    for operation in chosen:
        of_operation, start = uniforms[start : start + operation.uniforms], start + operation.uniforms
        parameters.append(
            operation.parameter(xp.full_like(of_operation, of_operation[0]) if same else of_operation, xp)
        )
    return parameters


@public("bushel.trajectory")
def augment_image(
    image: Any,
    augment_order: Sequence[str],
    *,
    rng: Rng = None,
    parameters: Sequence[Any] | None = None,
    compat: Compat | None = None,
    **augment_kwargs: Any,
) -> Any:
    """Return an image after the random changes of `augment_order`, one after another, each clipped to black and white.

    >>> image = np.full((2, 2, 3), 100, np.uint8)
    >>> int(augment_image(image, ["random_brightness"], random_brightness=[0.1], parameters=[0.1])[0, 0, 0])
    125

    With an image of JAX, or a `jax.random` key as `rng`, the result is an array of JAX, also inside `jit` and
    `vmap`. There `rng` must be a key: numbers drawn on the host would be the same in every call.

    Args:
      image: uint8 or float32 between 0 and 1, (..., height, width, channels); several images get the same change.
      augment_order: names of operations.
      rng: a generator, a seed, or None for a fresh one; or a `jax.random` key.
      parameters: the parameters to use instead of random ones, one for each operation, as from `draw_parameters`.
      compat: see `draw_parameters`.
      **augment_kwargs: arguments of operations, by name: a mapping, or a sequence of positional ones.
    """
    xp = get_namespace(image, rng, *(() if parameters is None else parameters))
    image = xp.asarray(image)
    chosen = make_operations(augment_order, **augment_kwargs)
    if parameters is None:
        if is_traced(image) and not is_jax(rng):
            raise ValueError(
                "augment_image inside jit or vmap needs rng, a jax.random key: numbers drawn on the host would "
                "become constants of the compiled function, the same in every call."
            )
        parameters = draw(chosen, rng, reproduces_faults(compat))
    elif len(parameters) != len(chosen):
        raise ValueError(f"augment_order has {len(chosen)} operations, and there are {len(parameters)} parameters.")
    return change(chosen, image, parameters, xp)


def change(chosen: Sequence[ImageOperation], image: Array, parameters: Sequence[Any], xp: Any = np) -> Array:
    """Return an image after these operations, each with its parameter.

    >>> change(make_operations(["random_flip_up_down"]), np.zeros((4, 6, 3), np.uint8), [True]).shape
    (4, 6, 3)
    """
    if image.ndim < 3 or image.dtype not in (np.uint8, np.float32):
        raise ValueError(
            f"Augmentations take uint8 or float32 images (..., height, width, channels), "
            f"got {image.dtype} {image.shape}."
        )
    if xp is np:
        return _change_on_host(chosen, image, parameters)
    planes = xp.moveaxis(image, -1, -3)
    planes = planes * np.float32(1 / 255) if image.dtype == np.uint8 else planes
    for operation, parameter in zip(chosen, parameters):
        planes = operation.apply(planes, parameter, xp).clip(0, 1)
    images = xp.moveaxis(planes, -3, -1)
    return (images * np.float32(255.5)).astype(np.uint8) if image.dtype == np.uint8 else images


def _change_on_host(chosen: Sequence[ImageOperation], images: np.ndarray, parameters: Sequence[Any]) -> np.ndarray:
    """Return one image (height, width, channels) after the other. Together they would not fit into the CPU's cache."""
    if images.ndim == 3:
        return change_image(chosen, images, parameters)
    *lead, height, width, channels = images.shape
    changed = [change_image(chosen, image, parameters) for image in images.reshape(-1, height, width, channels)]
    return np.stack(changed).reshape(*lead, *changed[0].shape) if changed else images.copy()


@public("bushel.trajectory")
def augment_images(
    images: Any,
    keys: Any,
    augment_order: Sequence[str],
    *,
    mask: Any = None,
    parameters: Sequence[Any] | None = None,
    compat: Compat | None = None,
    **augment_kwargs: Any,
) -> Any:
    """Return a batch of images after random changes, with draws of its own for each sample.

    May be called inside `jax.jit`.

    >>> import jax
    >>> images = jax.numpy.zeros((8, 2, 64, 64, 3), "uint8")  # eight samples, windows of two steps
    >>> augment_images(images, jax.random.key(0), ["random_brightness"], random_brightness=[0.1]).shape
    (8, 2, 64, 64, 3)

    Args:
      images: uint8 or float32 (samples, ..., height, width, channels). All images of a sample get the same change.
      keys: one key, or one for each sample. The change of a sample depends on its own key only.
      augment_order: names of operations.
      mask: bool (samples, ...), False for padding, which stays as it is. None: no image is padding.
      parameters: the parameters to use instead of random ones: for each operation an array with a row per sample, as
        `bushel._src.trajectory.augmentations.draw_parameters` returns for one sample. `keys` is not used then.
      compat: "crossformer" uses one number for all draws of an operation, as dlimp does.
      **augment_kwargs: arguments of operations, by name: a mapping, or a sequence of positional ones.
    """
    jax = import_package("jax", "jax", "Augmentations on a device")
    chosen = make_operations(augment_order, **augment_kwargs)
    draw_all, change_all = _compile(chosen, reproduces_faults(compat))
    images = jax.numpy.asarray(images)
    if images.ndim < 4:
        raise ValueError(f"augment_images takes (samples, ..., height, width, channels), got shape {images.shape}.")
    given = draw_all(_split_keys(jax, keys, len(images))) if parameters is None else list(parameters)
    if len(given) != len(chosen):
        raise ValueError(f"augment_order has {len(chosen)} operations, and there are {len(given)} parameters.")
    changed = change_all(images, [jax.numpy.asarray(parameter) for parameter in given])
    if mask is None:
        return changed
    mask = jax.numpy.asarray(mask, dtype=bool)
    if mask.shape != images.shape[:-3]:
        raise ValueError(
            f"The mask of images {images.shape} must have the shape {images.shape[:-3]}, got {mask.shape}."
        )
    return jax.numpy.where(mask[..., None, None, None], changed, images)


@functools.lru_cache(maxsize=64)
def _compile(chosen: tuple[ImageOperation, ...], same: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two functions of a batch, compiled once per list of operations: keys to parameters, and images to
    images.
    """
    import jax

    def draw_one(key: Any) -> list[Any]:
        return draw(chosen, key, same)

    def change_one(image: Any, given: list[Any]) -> Any:
        return change(chosen, image, given, jax.numpy)

    return jax.jit(jax.vmap(draw_one)), jax.jit(jax.vmap(change_one))


def _split_keys(jax: Any, keys: Any, samples: int) -> Any:
    """Return one key per sample, from one key or one per sample, typed or as words of uint32."""
    if not jax.numpy.issubdtype(keys.dtype, jax.dtypes.prng_key):
        keys = jax.random.wrap_key_data(keys)
    if keys.ndim == 0:
        return jax.random.split(keys, samples)
    if keys.shape != (samples,):
        raise ValueError(f"{samples} samples need one key or {samples} of them, got keys of shape {keys.shape}.")
    return keys
