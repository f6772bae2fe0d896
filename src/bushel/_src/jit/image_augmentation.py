"""Random changes of images on the device: flip, crop, cutout, colours, mixtures of two images.

The keys come from source.py.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from bushel._src.base import checks, trees
from bushel._src.base.public import public
from bushel._src.jit.common_transforms import get_entry_spec, replace_entry
from bushel._src.jit.source import ElementTransform, Tree


class ImageAugmentation(ElementTransform):
    """A random change of each image, before or after a `BatchTransform`.

    Images are (rows, columns) or (rows, columns, colours).
    """

    random = True
    image_key: str

    @abc.abstractmethod
    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        """Return one image, changed."""

    def check(self, spec: Tree) -> None:
        get_entry_spec(spec, self.image_key, type(self).__name__)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        assert keys is not None
        image, change = value[self.image_key], self.change
        if image.ndim - keys.ndim not in (2, 3):
            raise ValueError(
                f"{type(self).__name__} takes images (rows, columns) or (rows, columns, colours), "
                f"got {trees.describe(image)}, of which the first {keys.ndim} axes are those of the batch."
            )
        for _ in keys.shape:
            change = jax.vmap(change)
        return replace_entry(value, self.image_key, change(image, keys)), mask


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class RandomFlipTransform(ImageAugmentation):
    """Mirror images left to right, each with this probability.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource, BatchTransform, DataLoader
    >>> images = {"image": np.zeros((4, 8, 8, 3), np.float32)}
    >>> loader = DataLoader([ArraySource(images), BatchTransform(2), RandomFlipTransform()])
    >>> loader.batch_at(0, 0)[0]["image"].shape
    (2, 8, 8, 3)
    """

    image_key: str = "image"
    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_fraction(self.probability, "probability")

    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.where(jax.random.uniform(key) < self.probability, image[:, ::-1], image)


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class RandomCropTransform(ImageAugmentation):
    """Pad images with a border of `padding` pixels, then cut out a random part of the original size.

    Args:
      padding: the width of the border in pixels.
      image_key: the name of the entry with the image.
      mode: what the border shows: "constant" for zeros, "reflect" for the mirrored image.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource, BatchTransform, DataLoader
    >>> images = {"image": np.zeros((4, 8, 8, 3), np.float32)}
    >>> loader = DataLoader([ArraySource(images), BatchTransform(2), RandomCropTransform(padding=2)])
    >>> loader.batch_at(0, 0)[0]["image"].shape
    (2, 8, 8, 3)
    """

    padding: int = 4
    image_key: str = "image"
    mode: Literal["constant", "reflect"] = "constant"

    def __post_init__(self) -> None:
        checks.positive(self.padding, "padding")
        checks.choice(self.mode, ("constant", "reflect"), "mode")

    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        border = [(self.padding, self.padding)] * 2 + [(0, 0)] * (image.ndim - 2)
        wide = jnp.pad(image, border, mode=self.mode)
        row, column = jax.random.randint(key, (2,), 0, 2 * self.padding + 1)
        return jax.lax.dynamic_slice(wide, (row, column, *[0] * (image.ndim - 2)), image.shape)


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class CutoutTransform(ImageAugmentation):
    """Set a square of `size` x `size` pixels around a random pixel to zero. At the edges the square is cut off."""

    size: int = 8
    image_key: str = "image"

    def __post_init__(self) -> None:
        checks.positive(self.size, "size")

    def change(self, image: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.where(_draw_box(image.shape, key, self.size, self.size), jnp.zeros((), image.dtype), image)


def _draw_box(shape: tuple[int, ...], key: jax.Array, height: Any, width: Any) -> jax.Array:
    """Return a mask that is True inside a box around a random pixel."""
    row_key, column_key = jax.random.split(key)
    top = jax.random.randint(row_key, (), 0, shape[0]) - height // 2
    left = jax.random.randint(column_key, (), 0, shape[1]) - width // 2
    rows, columns = jnp.arange(shape[0]), jnp.arange(shape[1])
    inside = ((rows >= top) & (rows < top + height))[:, None] & ((columns >= left) & (columns < left + width))
    return inside.reshape(*inside.shape, *(1,) * (len(shape) - 2))


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class ColorJitterTransform(ImageAugmentation):
    """Change brightness, contrast and saturation of images, each by a random factor from 1 - x to 1 + x.

    Images of integers are clipped to the range of their dtype; images of floats are not clipped.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    image_key: str = "image"

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            _check_fraction(getattr(self, name), name)

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


class PairMixture(ElementTransform):
    """A mixture of each record of a batch with the record before it. Labels become a share for each class."""

    random = True
    num_classes: int
    alpha: float
    image_key: str
    label_key: str

    @abc.abstractmethod
    def mix_pair(self, image: jax.Array, other: jax.Array, share: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return a mixture of two images, and the share that the first has in it."""

    def check(self, spec: Tree) -> None:
        checks.positive(self.num_classes, "num_classes")
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive, got {self.alpha}.")
        get_entry_spec(spec, self.image_key, type(self).__name__)
        get_entry_spec(spec, self.label_key, type(self).__name__)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        assert keys is not None
        if keys.ndim != 1:
            raise ValueError(f"{type(self).__name__} mixes the records of a batch: put it after a BatchTransform.")
        # A record is not mixed with padding: where the record before it is padding, it is mixed with itself.
        other = jnp.where(jnp.roll(mask, 1), jnp.roll(jnp.arange(len(mask)), 1), jnp.arange(len(mask)))
        share_keys, place_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        shares = jax.vmap(lambda key: jax.random.beta(key, self.alpha, self.alpha))(share_keys)
        image = value[self.image_key]
        image, kept = jax.vmap(self.mix_pair)(image, image[other], shares, place_keys)
        classes = jax.nn.one_hot(value[self.label_key], self.num_classes)
        labels = kept[:, None] * classes + (1 - kept[:, None]) * classes[other]
        return replace_entry(replace_entry(value, self.image_key, image), self.label_key, labels), mask


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class MixupTransform(PairMixture):
    """Blend each image with another image of its batch, with a share drawn from Beta(alpha, alpha)."""

    num_classes: int
    alpha: float = 0.2
    image_key: str = "image"
    label_key: str = "label"

    def mix_pair(self, image: jax.Array, other: jax.Array, share: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        image, other = image.astype(jnp.float32), other.astype(jnp.float32)
        return share * image + (1 - share) * other, share


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class CutMixTransform(PairMixture):
    """Paste a box of another image of the batch into each image. The shares of the labels are those of the pixels."""

    num_classes: int
    alpha: float = 1.0
    image_key: str = "image"
    label_key: str = "label"

    def mix_pair(self, image: jax.Array, other: jax.Array, share: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        side = jnp.sqrt(1 - share)
        height, width = ((side * size).astype(jnp.int32) for size in image.shape[:2])
        inside = _draw_box(image.shape, key, height, width)
        return jnp.where(inside, other, image), 1 - inside.mean()


def _check_fraction(value: float, name: str) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}.")
