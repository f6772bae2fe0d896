"""Transforms of the images of one frame: decode and resize, drop some, augment the others. Pixels are in `pixels.py`.

A frame is a dict `obs` with `image_*` and `depth_*`, and `pad_mask_dict`, which says for each image whether it is data
or padding. The functions do not change their arguments. With images of JAX, or a `jax.random` key as the seed, results
are arrays of JAX, also inside `jit` and `vmap`.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, trees
from bushel._src.base.errors import BushelWarning
from bushel._src.base.public import public
from bushel._src.trajectory.augmentations import augment_image
from bushel._src.trajectory.data_utils import (
    Compat,
    draw_uniform,
    fold_in,
    get_namespace,
    is_jax,
    is_traced,
    make_key,
    reproduces_faults,
    to_objects,
)
from bushel._src.trajectory.encoded_images import describe_origin
from bushel._src.trajectory.pixels import (
    check_size,
    decode_depth,
    decode_image,
    decode_resized,
    resize_depth_image,
    resize_image,
)

__all__ = [
    "augment",
    "decode_and_resize",
    "image_dropout",
]

Size = Sequence[int]
Seed = Any
"""A seed, a sequence of them, a generator, or a `jax.random` key."""
Obs = dict[str, Any]

_IMAGE, _DEPTH = "image_", "depth_"
_AUGMENT, _DROPOUT = 1, 2  # numbers that make the draws of both differ under the same seed


@public("bushel.trajectory.obs_transforms")
def decode_and_resize(
    obs: Mapping[str, Any],
    resize_size: Size | Mapping[str, Size],
    depth_resize_size: Size | Mapping[str, Size],
    *,
    compat: Compat | None = None,
) -> Obs:
    """Return a frame with decoded images: uint8 (height, width, channels), depth float32 (height, width).

    Padding becomes a black image of the given size, or of one pixel if no size is given.

    >>> decode_and_resize({"image_primary": b""}, (2, 2), {})["image_primary"].shape
    (2, 2, 3)

    Args:
      obs: a frame. Images are encoded (`bytes`, or handles that `bytes(image)` reads) or pixels already.
      resize_size: (height, width) for all images, or a dict by name (without `image_`). Other images keep their size.
      depth_resize_size: the same for depth images.
      compat: "crossformer" gives padding of depth images a third axis, which real depth images do not have.
    """
    depth_axes = (1,) if reproduces_faults(compat) else ()
    frame = dict(obs)
    for key, size in _choose_sizes(obs, _IMAGE, resize_size):
        frame[key] = _decode(obs[key], size, key, np.uint8, (3,), _load_image, resize_image)
    for key, size in _choose_sizes(obs, _DEPTH, depth_resize_size):
        frame[key] = _decode(obs[key], size, key, np.float32, depth_axes, _load_depth, resize_depth_image)
    return frame


def _choose_sizes(obs: Mapping[str, Any], prefix: str, wanted: Size | Mapping[str, Size]) -> list[tuple[str, Any]]:
    """Return pairs (key, size) for the keys that begin with `prefix`. The size is None where none is given."""
    sizes = []
    for key in obs:
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        size = wanted.get(name) if isinstance(wanted, Mapping) else wanted
        if size is None:
            warnings.warn(
                f"There is no size for {key}: its images keep their own size, and padding has one pixel. Images of "
                f"different sizes cannot be batched. Give a size for {name!r}.",
                BushelWarning,
                stacklevel=3,
            )
        sizes.append((key, None if size is None else check_size(size)))
    return sizes


def _decode(
    image: Any,
    size: tuple[int, int] | None,
    key: str,
    dtype: Any,
    padding_axes: tuple[int, ...],
    load: Callable[..., Any],
    resize: Callable[..., Any],
) -> Any:
    """Return pixels of an image that is encoded, padding, or pixels already, in this size if there is one."""
    if not _is_encoded(image):
        if image.dtype != dtype:
            raise ValueError(f"{key} must be encoded or {np.dtype(dtype).name}, got {image.dtype} {image.shape}.")
        return image if size is None else resize(image, size)
    if len(image) == 0:
        return np.zeros((*(size or (1, 1)), *padding_axes), dtype)
    try:
        return _compute_once(image, (dtype, size), lambda data: load(data, size))
    except ValueError as error:
        origin = describe_origin(image.data if isinstance(image, _ReusedImage) else image)
        raise type(error)(f"{key}{f' ({origin})' if origin else ''}: {error}") from error


def _load_image(data: Any, size: tuple[int, int] | None) -> np.ndarray:
    return decode_image(data) if size is None else decode_resized(data, size)


def _load_depth(data: Any, size: tuple[int, int] | None) -> np.ndarray:
    depth = decode_depth(data)
    return depth if size is None else resize_depth_image(depth, size)


def _is_encoded(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and not is_jax(value)


@public("bushel.trajectory.obs_transforms")
def augment(
    obs: Mapping[str, Any],
    seed: Seed,
    augment_kwargs: Mapping[str, Any],
    *,
    compat: Compat | None = None,
) -> Obs:
    """Return a frame with its images changed at random, each image by draws of its own. Padding stays as it is.

    >>> obs = {"image_primary": np.zeros((2, 2, 3), np.uint8), "pad_mask_dict": {"image_primary": True}}
    >>> augment(obs, 0, {"augment_order": ["random_flip_left_right"]})["image_primary"].shape
    (2, 2, 3)

    Args:
      obs: a frame with pixels.
      seed: a seed, two of them, a generator, or a `jax.random` key. With the same seed all steps of a window are
        changed in the same way.
      augment_kwargs: `augment_order` and the arguments of its operations, for all images; or a dict of such mappings
        by name (without `image_`). Images that are not named stay as they are.
      compat: "crossformer" draws a crop as dlimp does; see `bushel._src.trajectory.augmentations.draw_parameters`.
    """
    if not isinstance(augment_kwargs, Mapping):
        raise ValueError(
            "augment_kwargs must be a mapping with 'augment_order', or one such mapping for each image name, "
            f"got {augment_kwargs!r}."
        )
    reproduces_faults(compat)
    keys, frame = sorted(key for key in obs if key.startswith(_IMAGE)), dict(obs)
    generators = _Generators(seed, [obs[key] for key in keys], _AUGMENT)
    for number, key in enumerate(keys):
        every = "augment_order" in augment_kwargs
        chosen = augment_kwargs if every else augment_kwargs.get(key.removeprefix(_IMAGE))
        real = chosen is not None and _is_real(obs, key)
        if chosen is None or (not is_traced(real) and not real):
            continue
        if "augment_order" not in chosen:
            raise ValueError(f"The augmentations of {key} have no 'augment_order', got {chosen!r}.")
        changed = augment_image(obs[key], rng=generators.of(number), compat=compat, **chosen)
        frame[key] = get_namespace(real).where(real, changed, obs[key]) if is_traced(real) else changed
    return frame


@public("bushel.trajectory.obs_transforms")
def image_dropout(
    obs: Mapping[str, Any],
    seed: Seed,
    dropout_prob: float,
    always_keep_key: str | None = None,
    *,
    compat: Compat | None = None,
) -> Obs:
    """Return a frame with images dropped at random. A dropped image becomes black padding. One real image always stays.

    >>> mask = {"image_a": True, "image_b": True}
    >>> obs = {"image_a": np.ones((2, 2, 3), np.uint8), "image_b": np.ones((2, 2, 3), np.uint8), "pad_mask_dict": mask}
    >>> int(sum(image_dropout(obs, 0, 1.0)["pad_mask_dict"].values()))
    1

    Args:
      obs: a frame. Images are pixels, or still encoded: then dropped images need not be decoded.
      seed: a seed, two of them, a generator, or a `jax.random` key. The same seed drops the same images.
      dropout_prob: the probability that an image is dropped, for each image.
      always_keep_key: a key like "image_primary" that is never dropped. If that image is padding, the image that
        always stays is drawn at random, as without this argument.
      compat: "crossformer" keeps a padding `always_keep_key`, so that all real images may be dropped.
    """
    keys, old = [key for key in sorted(obs) if key.startswith(_IMAGE)], reproduces_faults(compat)
    if not 0 <= dropout_prob <= 1:
        raise ValueError(f"dropout_prob must be between 0 and 1, got {dropout_prob}.")
    if not keys:
        return dict(obs)
    if always_keep_key and always_keep_key not in keys:
        raise ValueError(f"always_keep_key is {always_keep_key!r}, and the images are {', '.join(keys)}.")
    uniforms = draw_uniform(_Generators(seed, [obs[key] for key in keys], _DROPOUT).of(), len(keys) + 1)
    flags = [_is_real(obs, key) for key in keys]
    real = get_namespace(uniforms, *flags).stack(flags)
    keep = keys.index(always_keep_key) if always_keep_key else None
    kept = choose_images(real, uniforms, dropout_prob, keep, keep_padding=old)
    frame, masks = dict(obs), dict(obs["pad_mask_dict"])
    for number, key in enumerate(keys):
        stays = masks[key] = kept[number]
        image = obs[key]
        if is_jax(stays) and not _is_encoded(image):
            frame[key] = get_namespace(stays).where(stays, image, 0)
        elif is_traced(stays):
            raise ValueError(f"{key} is still encoded, but inside jit images must be pixels. Decode it before.")
        elif not stays:
            frame[key] = b"" if _is_encoded(image) else np.zeros_like(image)
    return frame | {"pad_mask_dict": masks}


def choose_images(
    real: Any, uniforms: Any, dropout_prob: float, keep: int | None = None, *, keep_padding: bool = True
) -> Any:
    """Return which of n images stay, bool (n,): the real images that are not dropped, and always one of the real ones.

    >>> choose_images(np.array([True, False, True]), np.array([0.2, 0.9, 0.4, 0.6]), dropout_prob=0.5)
    array([False, False,  True])

    Args:
      real: bool (n,), False for padding.
      uniforms: n numbers between 0 and 1, one for each image, and a last one that chooses the image that always stays.
      dropout_prob: an image is dropped where its number is below this.
      keep: the image that always stays, instead of one drawn among the real ones.
      keep_padding: if False and image `keep` is padding, the image that always stays is drawn.
    """
    xp = get_namespace(real, uniforms)
    count = real.cumsum()
    # The image that always stays, drawn by its rank among the real ones.
    chosen = real & (count - 1 == (uniforms[-1] * count[-1]).astype(np.int32))
    if keep is not None:
        named = np.arange(len(real)) == keep
        chosen = named if keep_padding else xp.where(real[keep], named, chosen)
    return real & ((uniforms[:-1] >= dropout_prob) | chosen)


def _is_real(obs: Mapping[str, Any], key: str) -> Any:
    """Return whether an image is data and not padding: a bool, or an array of JAX inside `jit` and `vmap`."""
    try:
        mask = obs["pad_mask_dict"][key]
        return mask if is_traced(mask) else bool(mask)
    except KeyError:
        raise KeyError(f"The frame has no pad_mask_dict/{key}, which says whether {key} is padding.") from None


class _Generators:
    """One random generator per image. It is a `jax.random` key if the seed is a key or an image is an array of JAX."""

    def __init__(self, seed: Seed, images: Sequence[Any], purpose: int):
        self._words: list[int] = []
        self._key = make_key(seed) if is_jax(seed) or any(map(is_jax, images)) else None
        self._purpose = purpose
        if self._key is None:
            self._words = _split_seed(seed)

    def of(self, *numbers: int) -> Any:
        """Return the generator or the key of an image."""
        if self._key is None:
            return np.random.default_rng([*self._words, self._purpose, *numbers])
        return fold_in(self._key, self._purpose, *numbers)


def _split_seed(seed: Seed) -> list[int]:
    """Return a seed as the words from which generators are made. A generator draws one word."""
    if isinstance(seed, np.random.Generator):
        return [int(seed.integers(1 << 63))]
    if isinstance(seed, Sequence | np.ndarray):
        return [checks.seed(word) for word in seed]
    return [checks.seed(seed)]


# ---------------------------------------------------------------------------------------------------------------------
# Windows


class _ReusedImage:
    """An encoded image that several steps of a window share, with the pixels that were computed from it."""

    def __init__(self, data: Any):
        self.data = data
        self.pixels: dict[Any, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        return bytes(self.data)


def _compute_once(data: Any, what: Any, compute: Callable[[Any], np.ndarray]) -> np.ndarray:
    if not isinstance(data, _ReusedImage):
        return compute(data)
    if what not in data.pixels:
        data.pixels[what] = compute(data)
    return data.pixels[what]


def over_window(function: Callable[..., Obs]) -> Callable[..., Obs]:
    """Make a function of windows from a function of frames: it calls `function` for each step and stacks the results.

    All steps get the same other arguments. They also get the same seed, so that they get the same draws. An encoded
    image that several steps share (padding repeats the object of the first frame) is decoded once.

    >>> window = {"image_primary": np.array([b"", b""], object)}
    >>> over_window(decode_and_resize)(window, (4, 4), {})["image_primary"].shape
    (2, 4, 4, 3)
    """

    @functools.wraps(function)
    def windowed(obs: Obs, *args: Any, **kwargs: Any) -> Obs:
        args = tuple(_as_seed(value) for value in args)
        kwargs = {name: _as_seed(value) for name, value in kwargs.items()}
        known: dict[int, _ReusedImage] = {}
        window = trees.map_leaves(lambda leaf: _reuse_images(leaf, known), obs)
        lengths = sorted({len(leaf) for leaf in trees.leaves(window)})
        if len(lengths) != 1 or lengths == [0]:
            raise ValueError(
                f"All leaves of a window must have the same number of steps, at least one; these have {lengths}."
            )
        steps = [trees.map_leaves(operator.itemgetter(step), window) for step in range(lengths[0])]
        return trees.map_leaves(_stack_steps, *[function(step, *args, **kwargs) for step in steps])

    return windowed


def _as_seed(value: Any) -> Any:
    """Return a generator as a seed, drawn once for all steps. Anything else stays as it is."""
    return _split_seed(value)[0] if isinstance(value, np.random.Generator) else value


def _reuse_images(leaf: np.ndarray, known: dict[int, _ReusedImage]) -> np.ndarray:
    """Return an array of objects with one `_ReusedImage` for each distinct object. Other arrays stay as they are."""
    if leaf.dtype != object:
        return leaf
    return to_objects([known.setdefault(id(data), _ReusedImage(data)) for data in leaf])


def _stack_steps(*steps: Any) -> np.ndarray:
    first = steps[0]
    if len(steps) == 1 and isinstance(first, np.ndarray) and first.base is None:
        return first[None]  # nothing else uses its memory: it is new, not a step of the given window
    if isinstance(first, bytes | _ReusedImage):
        return to_objects([step.data if isinstance(step, _ReusedImage) else step for step in steps])
    if len(shapes := {np.shape(step) for step in steps}) > 1:
        raise ValueError(
            f"The steps of a window have images of the shapes {sorted(shapes)}. Give one size for all of them."
        )
    return get_namespace(*steps).stack(steps)
