"""Random changes of images on the device: flip, crop, cutout, colours, mixtures of pairs. Keys come from outside."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bushel.base import checks, trees
from bushel.jit.protocol import Tree
from bushel.jit.transform import Elementwise
from bushel.jit.transforms import entry_spec, replaced


class ImageAugmentation(Elementwise):
    """A random change of each image, (rows, columns) or (rows, columns, colours), before a batch or behind it."""

    random = True
    image_key: str

    @abc.abstractmethod
    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        """One image, changed."""

    def check(self, spec: Tree) -> None:
        entry_spec(spec, self.image_key, type(self).__name__)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        assert keys is not None
        image, change = value[self.image_key], self.change
        if image.ndim - keys.ndim not in (2, 3):
            raise ValueError(
                f"{type(self).__name__} takes images (rows, columns) or (rows, columns, colours), "
                f"got {trees.describe(image)} for {keys.ndim or 'no'} axes of records."
            )
        for _ in keys.shape:
            change = jax.vmap(change)
        return replaced(value, self.image_key, change(image, keys)), mask


@dataclasses.dataclass(frozen=True)
class RandomFlipTransform(ImageAugmentation):
    """Images mirrored left to right, with a probability."""

    image_key: str = "image"
    probability: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.probability)

    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.where(jax.random.uniform(key) < self.probability, image[:, ::-1], image)


@dataclasses.dataclass(frozen=True)
class RandomCropTransform(ImageAugmentation):
    """Images with a border of `padding` pixels, cut to their own size again somewhere in it.

    Args:
      mode: what the border shows: "constant" for zeros, "reflect" for the image mirrored.
    """

    padding: int = 4
    image_key: str = "image"
    mode: str = "constant"

    def __post_init__(self) -> None:
        checks.positive(self.padding, "padding")
        if self.mode not in ("constant", "reflect"):
            raise ValueError(f"mode is 'constant' or 'reflect', got {self.mode!r}.")

    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        border = [(self.padding, self.padding)] * 2 + [(0, 0)] * (image.ndim - 2)
        wide = jnp.pad(image, border, mode=self.mode)
        row, column = jax.random.randint(key, (2,), 0, 2 * self.padding + 1)
        return jax.lax.dynamic_slice(wide, (row, column, *[0] * (image.ndim - 2)), image.shape)


@dataclasses.dataclass(frozen=True)
class CutoutTransform(ImageAugmentation):
    """Images with a square of `size` pixels blanked, around any pixel; at the edges it is cut off."""

    size: int = 8
    image_key: str = "image"

    def __post_init__(self) -> None:
        checks.positive(self.size, "size")

    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.where(_square(image.shape, key, self.size, self.size), jnp.zeros((), image.dtype), image)


def _square(shape: tuple[int, ...], key: jax.Array, height: Any, width: Any) -> jax.Array:
    """True inside a box around a random pixel."""
    row_key, column_key = jax.random.split(key)
    top = jax.random.randint(row_key, (), 0, shape[0]) - height // 2
    left = jax.random.randint(column_key, (), 0, shape[1]) - width // 2
    rows, columns = jnp.arange(shape[0]), jnp.arange(shape[1])
    inside = ((rows >= top) & (rows < top + height))[:, None] & ((columns >= left) & (columns < left + width))
    return inside.reshape(*inside.shape, *(1,) * (len(shape) - 2))


@dataclasses.dataclass(frozen=True)
class ColorJitterTransform(ImageAugmentation):
    """Images made brighter or darker, with more or less contrast and colour, each by a factor from 1 - x to 1 + x.

    Whole numbers stay in their range; floats are not cut off.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    image_key: str = "image"

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}.")

    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        ranges = jnp.array([self.brightness, self.contrast, self.saturation])
        factors = 1 + jax.random.uniform(key, (3,), minval=-1.0) * ranges
        out = image.astype(jnp.float32) * factors[0]
        out = out.mean() + (out - out.mean()) * factors[1]
        if image.ndim == 3:
            grey = out.mean(axis=-1, keepdims=True)
            out = grey + (out - grey) * factors[2]
        if jnp.issubdtype(image.dtype, jnp.integer):
            limits = jnp.iinfo(image.dtype)
            out = jnp.clip(jnp.round(out), limits.min, limits.max)
        return out.astype(image.dtype)


class PairMixture(Elementwise):
    """A mixture of each record of a batch with the one before it; labels become shares of classes."""

    random = True
    num_classes: int
    alpha: float
    image_key: str
    label_key: str

    @abc.abstractmethod
    def mixed(self, image: jax.Array, other: jax.Array, share: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One image with another in it, and the share of the first that is left."""

    def check(self, spec: Tree) -> None:
        checks.positive(self.num_classes, "num_classes")
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive, got {self.alpha}.")
        entry_spec(spec, self.image_key, type(self).__name__)
        entry_spec(spec, self.label_key, type(self).__name__)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        assert keys is not None
        if keys.ndim != 1:
            raise ValueError(f"{type(self).__name__} mixes the records of a batch: put it behind a BatchTransform.")
        # A record whose neighbour is padding stays alone.
        other = jnp.where(jnp.roll(mask, 1), jnp.roll(jnp.arange(len(mask)), 1), jnp.arange(len(mask)))
        share_keys, place_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        shares = jax.vmap(lambda key: jax.random.beta(key, self.alpha, self.alpha))(share_keys)
        image = value[self.image_key]
        image, kept = jax.vmap(self.mixed)(image, image[other], shares, place_keys)
        classes = jax.nn.one_hot(value[self.label_key], self.num_classes)
        labels = kept[:, None] * classes + (1 - kept[:, None]) * classes[other]
        return replaced(replaced(value, self.image_key, image), self.label_key, labels), mask


@dataclasses.dataclass(frozen=True)
class MixupTransform(PairMixture):
    """Each image faded with another of its batch, by a share from Beta(alpha, alpha)."""

    num_classes: int
    alpha: float = 0.2
    image_key: str = "image"
    label_key: str = "label"

    def mixed(self, image: jax.Array, other: jax.Array, share: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        image, other = image.astype(jnp.float32), other.astype(jnp.float32)
        return share * image + (1 - share) * other, share


@dataclasses.dataclass(frozen=True)
class CutMixTransform(PairMixture):
    """Each image with a box of another of its batch in it; shares are those of the pixels."""

    num_classes: int
    alpha: float = 1.0
    image_key: str = "image"
    label_key: str = "label"

    def mixed(self, image: jax.Array, other: jax.Array, share: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        side = jnp.sqrt(1 - share)
        height, width = ((side * size).astype(jnp.int32) for size in image.shape[:2])
        inside = _square(image.shape, key, height, width)
        return jnp.where(inside, other, image), 1 - inside.mean()


def _probability(value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"probability must be from 0 to 1, got {value}.")
