"""The augmentations of `augmentations.py` on a device: one key per sample, inside `jit`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from bushel._src.base.public import public
from bushel._src.sources.optional_packages import import_package
from bushel._src.trajectory.augmentations import change, draw
from bushel._src.trajectory.compat import Compat, is_faithful
from bushel._src.trajectory.image_operations import Operation, make_operations


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
    """A batch of images after random changes, with draws of its own for each sample. May be called inside `jax.jit`.

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
    draw_all, change_all = _compile(chosen, is_faithful(compat))
    images = jax.numpy.asarray(images)
    if images.ndim < 4:
        raise ValueError(f"augment_images takes (samples, ..., height, width, channels), got shape {images.shape}.")
    own = draw_all(_split_keys(jax, keys, len(images))) if parameters is None else list(parameters)
    if len(own) != len(chosen):
        raise ValueError(f"augment_order has {len(chosen)} operations, and there are {len(own)} parameters.")
    changed = change_all(images, [jax.numpy.asarray(parameter) for parameter in own])
    if mask is None:
        return changed
    mask = jax.numpy.asarray(mask, dtype=bool)
    if mask.shape != images.shape[:-3]:
        raise ValueError(
            f"The mask of images {images.shape} must have the shape {images.shape[:-3]}, got {mask.shape}."
        )
    return jax.numpy.where(mask[..., None, None, None], changed, images)


@functools.lru_cache(maxsize=64)
def _compile(chosen: tuple[Operation, ...], same: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two functions of a batch, compiled once per list of operations: keys to parameters, and images to images."""
    import jax

    def draw_one(key: Any) -> list[Any]:
        return draw(chosen, key, same)

    def change_one(image: Any, own: list[Any]) -> Any:
        return change(chosen, image, own, jax.numpy)

    return jax.jit(jax.vmap(draw_one)), jax.jit(jax.vmap(change_one))


def _split_keys(jax: Any, keys: Any, samples: int) -> Any:
    """One key per sample, from one key or one per sample, typed or as words of uint32."""
    if not jax.numpy.issubdtype(keys.dtype, jax.dtypes.prng_key):
        keys = jax.random.wrap_key_data(keys)
    if keys.ndim == 0:
        return jax.random.split(keys, samples)
    if keys.shape != (samples,):
        raise ValueError(f"{samples} samples need one key or {samples} of them, got keys of shape {keys.shape}.")
    return keys
