"""Random changes of images as dlimp makes them: operations one after another, each clipped to black and white.

The operations themselves are in `image_operations.py`, and with NumPy in `host_augmentations.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base.public import public
from bushel._src.trajectory.compat import Compat, is_faithful
from bushel._src.trajectory.host_augmentations import change_image
from bushel._src.trajectory.image_operations import Array, Operation, make_operations
from bushel._src.trajectory.numpy_or_jax import Rng, draw_uniform, get_namespace, is_jax, is_traced


def draw_parameters(
    augment_order: Sequence[str],
    *,
    rng: Rng = None,
    compat: Compat | None = None,
    **augment_kwargs: Any,
) -> list[Any]:
    """One parameter for each operation of `augment_order`. `augment_image` takes them as `parameters`.

    >>> draw_parameters(["random_flip_left_right"], rng=0)
    [np.False_]

    Args:
      augment_order: names of operations.
      rng: a generator, a seed, or None for a fresh one; with a `jax.random` key the parameters are arrays of JAX.
      compat: "crossformer" uses one number for all draws of an operation, as dlimp does: the area of
        `random_resized_crop`, its ratio and both offsets are then the same fraction of their ranges.
      **augment_kwargs: arguments of operations, by name.
    """
    return draw(make_operations(augment_order, **augment_kwargs), rng, is_faithful(compat))


def draw(chosen: Sequence[Operation], rng: Rng, same: bool) -> list[Any]:
    """One parameter for each operation. With `same` an operation uses one number for all of its draws.

    >>> draw(make_operations(["random_flip_up_down"]), 0, same=False)
    [np.False_]
    """
    count = sum(operation.uniforms for operation in chosen)
    xp = get_namespace(rng) if is_jax(rng) else np
    uniforms = draw_uniform(rng, count, np.float32)
    parameters, start = [], 0
    for operation in chosen:
        own, start = uniforms[start : start + operation.uniforms], start + operation.uniforms
        parameters.append(operation.parameter(xp.full_like(own, own[0]) if same else own, xp))
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
    """An image after the random changes of `augment_order`, one after another, each clipped to black and white.

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
        parameters = draw(chosen, rng, is_faithful(compat))
    elif len(parameters) != len(chosen):
        raise ValueError(f"augment_order has {len(chosen)} operations, and there are {len(parameters)} parameters.")
    return change(chosen, image, parameters, xp)


def change(chosen: Sequence[Operation], image: Array, parameters: Sequence[Any], xp: Any = np) -> Array:
    """An image after these operations, each with its parameter.

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


def _change_on_host(chosen: Sequence[Operation], images: np.ndarray, parameters: Sequence[Any]) -> np.ndarray:
    """One image (height, width, channels) after the other. Together they would not fit into the CPU's cache."""
    if images.ndim == 3:
        return change_image(chosen, images, parameters)
    *lead, height, width, channels = images.shape
    changed = [change_image(chosen, image, parameters) for image in images.reshape(-1, height, width, channels)]
    return np.stack(changed).reshape(*lead, *changed[0].shape) if changed else images.copy()
