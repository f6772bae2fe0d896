"""The random changes of images: what each operation draws, and what it does with the drawn parameter.

An operation turns uniform numbers into a parameter, and applies a parameter to planes of float32 between 0 and 1, with
NumPy or JAX (`xp`). `augmentations.py` draws the numbers on the host, `device_augmentations.py` on a device. On
the host `host_augmentations.py` applies most operations in less time than the definitions here would take.

Each operation is a continuous function of its planes and its parameter. XLA computes a value anew in each loop that
uses it, and the results may differ in their last bit. So `high == red` can be False although `high` is the maximum of
red, green and blue, and an index `floor(x)` need not belong to the fraction `x - floor(x)`. Therefore no operation
compares floats for equality, and none uses a rounded float as an index. Then `jit` changes values by rounding only.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bushel._src.base import checks

Array = Any
"""An array of NumPy or of JAX."""

_TINY = np.float32(1e-30)  # instead of zero as a divisor


@dataclasses.dataclass(frozen=True)
class Operation(abc.ABC):
    """A random change of an image. Its fields are the limits of what is drawn."""

    uniforms: ClassVar[int] = 1
    """How many uniform numbers one draw needs."""

    @abc.abstractmethod
    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """The parameter of `apply`, computed from `uniforms` numbers between 0 and 1."""

    @abc.abstractmethod
    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Planes (..., channels, height, width) after the change. Values may lie outside [0, 1]."""


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Operation):
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
        """The box. The four numbers give its area, its ratio, and its two offsets."""
        area = _scale_uniform(uniforms[0], *self.scale)
        ratio = xp.exp(_scale_uniform(uniforms[1], math.log(self.ratio[0]), math.log(self.ratio[1])))
        height, width = xp.minimum(xp.sqrt(area / ratio), 1), xp.minimum(xp.sqrt(area * ratio), 1)
        top, left = uniforms[2] * (1 - height), uniforms[3] * (1 - width)
        return xp.asarray([top, left, top + height, left + width])

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """The box, stretched over the whole image."""
        top, left, bottom, right = xp.asarray(parameter, dtype=np.float32)
        rows, columns = _weigh(top, bottom, planes.shape[-2], xp), _weigh(left, right, planes.shape[-1], xp)
        exact = {} if xp is np else {"precision": "highest"}  # otherwise some devices would multiply with 16 bits
        return xp.matmul(rows, xp.matmul(planes, columns.T, **exact), **exact)


@dataclasses.dataclass(frozen=True)
class RandomBrightness(Operation):
    """A number between -max_delta and max_delta added to all values."""

    max_delta: float

    def __post_init__(self) -> None:
        if not self.max_delta >= 0:
            raise ValueError(f"max_delta of random_brightness must not be negative, got {self.max_delta}.")

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """The number."""
        return _scale_uniform(uniforms[0], -self.max_delta, self.max_delta)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Values plus the number."""
        return planes + xp.asarray(parameter, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class RandomContrast(Operation):
    """Distances from the mean of each channel times a number between lower and upper."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        _check_ascending(self.lower, self.upper, "random_contrast")

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """The number."""
        return _scale_uniform(uniforms[0], self.lower, self.upper)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """Values nearer to the mean of their channel, or farther from it."""
        mean = planes.mean(axis=(-2, -1), keepdims=True)
        return (planes - mean) * xp.asarray(parameter, dtype=np.float32) + mean


@dataclasses.dataclass(frozen=True)
class RandomSaturation(Operation):
    """The saturation of each pixel times a number between lower and upper; hue and value stay."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        _check_ascending(self.lower, self.upper, "random_saturation")

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """The number."""
        return _scale_uniform(uniforms[0], self.lower, self.upper)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """All channels of a pixel moved towards its largest channel, or away from it, but not below zero."""
        check_three_channels(planes, "random_saturation")
        high = planes.max(axis=-3, keepdims=True)
        below = high - planes
        most = high / xp.maximum(below.max(axis=-3, keepdims=True), _TINY)  # the factor at which the saturation is 1
        return high - below * xp.minimum(xp.asarray(parameter, dtype=np.float32), most)


@dataclasses.dataclass(frozen=True)
class RandomHue(Operation):
    """The hue of each pixel turned by a number between -max_delta and max_delta of the circle."""

    max_delta: float

    def __post_init__(self) -> None:
        if not 0 <= self.max_delta <= 0.5:
            raise ValueError(f"max_delta of random_hue must be between 0 and 0.5, got {self.max_delta}.")

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """The number."""
        return _scale_uniform(uniforms[0], -self.max_delta, self.max_delta)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """The hue, in sixths of the circle, is turned. Each channel then follows from its distance to the new hue."""
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
class RandomFlipLeftRight(Operation):
    """The image mirrored left to right, half of the time."""

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Whether to mirror the image."""
        return uniforms[0] < 0.5

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """The columns in reverse order, if the parameter is true."""
        return xp.where(parameter, planes[..., ::-1], planes)


@dataclasses.dataclass(frozen=True)
class RandomFlipUpDown(Operation):
    """The image mirrored upside down, half of the time."""

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """Whether to mirror the image."""
        return uniforms[0] < 0.5

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """The rows in reverse order, if the parameter is true."""
        return xp.where(parameter, planes[..., ::-1, :], planes)


@dataclasses.dataclass(frozen=True)
class RandomRot90(Operation):
    """The image turned counterclockwise by 0, 1, 2 or 3 quarters. With JAX it must be square."""

    def parameter(self, uniforms: Array, xp: Any = np) -> Array:
        """The number of quarter turns."""
        return xp.asarray(uniforms[0] * 4, dtype=np.int32)

    def apply(self, planes: Array, parameter: Array, xp: Any = np) -> Array:
        """The image, turned."""
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


OPERATIONS: dict[str, type[Operation]] = {
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


def make_operations(augment_order: Sequence[str], **augment_kwargs: Any) -> tuple[Operation, ...]:
    """The operations of `augment_order`. The arguments of each are a mapping or a sequence under its name.

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
    """Weights (points, elements) of linear interpolation at `length` points from the fraction `start` to `stop`."""
    distances = _spread_points(start, stop, length, xp)[:, None] - xp.arange(length, dtype=np.float32)
    return xp.maximum(1 - abs(distances), 0)


def _spread_points(start: Array, stop: Array, length: int, xp: Any) -> Array:
    """`length` points from the fraction `start` of an axis to the fraction `stop`, in elements of the axis."""
    last = length - 1
    points = start * last + xp.arange(length, dtype=np.float32) * ((stop - start) * last / max(last, 1))
    return xp.clip(points, 0, last)


def _scale_uniform(uniform: Array, low: float, high: float) -> Array:
    return uniform * np.float32(high - low) + np.float32(low)


def _check_ascending(lower: float, upper: float, name: str) -> None:
    if not 0 <= lower < upper:
        raise ValueError(f"{name} takes 0 <= lower < upper, got {lower} and {upper}.")


def check_three_channels(planes: Array, name: str) -> None:
    """Raises ValueError unless planes (..., channels, height, width) have three channels."""
    if planes.shape[-3] != 3:
        raise ValueError(f"{name} needs images with 3 channels, got one with {planes.shape[-3]}.")
