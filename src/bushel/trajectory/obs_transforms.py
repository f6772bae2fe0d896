"""What is done to the images of one frame: decode and resize, drop some, augment the rest. Pixels: images.py.

A frame's `obs` has `image_*` and `depth_*`, and under `pad_mask_dict` whether each is real. Nothing given is changed.
With images of JAX, or a `jax.random` key as the seed, results are arrays of JAX, also inside of `jit` and `vmap`.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.base import checks, trees
from bushel.trajectory.arrays import as_key, draws, folded, is_jax, is_traced, namespace
from bushel.trajectory.augmentations import augment_image
from bushel.trajectory.compat import faithful
from bushel.trajectory.images import checked_size, decode_depth, decode_image, resize_depth_image, resize_image

Size = Sequence[int]
Seed = Any
"""A seed, a sequence of them, a generator, or a `jax.random` key."""
Obs = dict[str, Any]

_IMAGE, _DEPTH = "image_", "depth_"
_AUGMENT, _DROPOUT = 1, 2  # one seed may serve both, with different numbers


def decode_and_resize(
    obs: Mapping[str, Any],
    resize_size: Size | Mapping[str, Size],
    depth_resize_size: Size | Mapping[str, Size],
    *,
    compat: str | None = None,
) -> Obs:
    """A frame with its images as pixels: uint8 (height, width, channels), depth float32 (height, width).

    Padding becomes black, in the size that is asked for, or of one pixel.

    >>> decode_and_resize({"image_primary": b""}, (2, 2), {})["image_primary"].shape
    (2, 2, 3)

    Args:
      obs: a frame. Images are encoded (`bytes`, or what `bytes(image)` reads) or pixels already.
      resize_size: (height, width) for all images, or by name (without `image_`). Others keep their size.
      depth_resize_size: the same for depth images.
      compat: "crossformer" gives padding depth a third axis, which a real one does not have.
    """
    old = faithful(compat)
    found = dict(obs)
    for key, size in _sizes(obs, _IMAGE, resize_size):
        found[key] = _image(obs[key], size, key)
    for key, size in _sizes(obs, _DEPTH, depth_resize_size):
        found[key] = _depth(obs[key], size, key, (1,) if old else ())
    return found


def _sizes(obs: Mapping[str, Any], prefix: str, wanted: Size | Mapping[str, Size]) -> list[tuple[str, Any]]:
    """Keys that begin with `prefix`, and the size of each: None where there is none."""
    found = []
    for key in obs:
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        size = wanted.get(name) if isinstance(wanted, Mapping) else wanted
        if size is None:
            warnings.warn(
                f"There is no size for {key}: it keeps its own, and padding has one pixel. Frames of different sizes "
                f"cannot be batched; name a size for {name!r} to have one.",
                stacklevel=3,
            )
        found.append((key, None if size is None else checked_size(size)))
    return found


def _image(image: Any, size: tuple[int, int] | None, key: str) -> np.ndarray:
    if _is_encoded(image):
        if len(image) == 0:
            return np.zeros((*(size or (1, 1)), 3), np.uint8)
        return _once(image, ("image", size), lambda data: _resized(decode_image(data), size, resize_image))
    _require(image, np.uint8, key)
    return _resized(image, size, resize_image)


def _depth(depth: Any, size: tuple[int, int] | None, key: str, padding_axes: tuple[int, ...]) -> np.ndarray:
    if _is_encoded(depth):
        if len(depth) == 0:
            return np.zeros((*(size or (1, 1)), *padding_axes), np.float32)
        return _once(depth, ("depth", size), lambda data: _resized(decode_depth(data), size, resize_depth_image))
    _require(depth, np.float32, key)
    return _resized(depth, size, resize_depth_image)


def _resized(pixels: Any, size: tuple[int, int] | None, resize: Callable[..., Any]) -> Any:
    return pixels if size is None else resize(pixels, size)


def _require(pixels: Any, dtype: Any, key: str) -> None:
    if pixels.dtype != dtype:
        raise ValueError(f"{key} must be encoded or {np.dtype(dtype).name}, got {pixels.dtype} {pixels.shape}.")


def _is_encoded(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and not is_jax(value)


def augment(
    obs: Mapping[str, Any],
    seed: Seed,
    augment_kwargs: Mapping[str, Any],
    *,
    compat: str | None = None,
) -> Obs:
    """A frame with its images changed at random, each by itself. Padding stays as it is.

    >>> obs = {"image_primary": np.zeros((2, 2, 3), np.uint8), "pad_mask_dict": {"image_primary": True}}
    >>> augment(obs, 0, {"augment_order": ["random_flip_left_right"]})["image_primary"].shape
    (2, 2, 3)

    Args:
      obs: a frame with pixels.
      seed: a seed, two of them, a generator, or a `jax.random` key. The same seed changes all steps of a window in the
        same way.
      augment_kwargs: `augment_order` and the arguments of its operations, for all images; or such a mapping by name
        (without `image_`), and images that are not named stay as they are.
      compat: "crossformer" draws a crop as dlimp does; see `bushel.trajectory.augmentations.draw_parameters`.
    """
    if not isinstance(augment_kwargs, Mapping):
        raise ValueError(
            "augment_kwargs must be a mapping with 'augment_order', or one such mapping for each image name, "
            f"got {augment_kwargs!r}."
        )
    faithful(compat)
    keys, found = sorted(key for key in obs if key.startswith(_IMAGE)), dict(obs)
    generators = _Generators(seed, [obs[key] for key in keys], _AUGMENT)
    for number, key in enumerate(keys):
        every = "augment_order" in augment_kwargs
        own = augment_kwargs if every else augment_kwargs.get(key.removeprefix(_IMAGE))
        real = own is not None and _real(obs, key)
        if own is None or (not is_traced(real) and not real):
            continue
        if "augment_order" not in own:
            raise ValueError(f"The augmentations of {key} have no 'augment_order', got {own!r}.")
        changed = augment_image(obs[key], rng=generators.of(number), compat=compat, **own)
        found[key] = namespace(real).where(real, changed, obs[key]) if is_traced(real) else changed
    return found


def image_dropout(
    obs: Mapping[str, Any],
    seed: Seed,
    dropout_prob: float,
    always_keep_key: str | None = None,
    *,
    compat: str | None = None,
) -> Obs:
    """A frame of which images are dropped at random, but never the last real one: dropped ones are black padding.

    >>> mask = {"image_a": True, "image_b": True}
    >>> obs = {"image_a": np.ones((2, 2, 3), np.uint8), "image_b": np.ones((2, 2, 3), np.uint8), "pad_mask_dict": mask}
    >>> int(sum(image_dropout(obs, 0, 1.0)["pad_mask_dict"].values()))
    1

    Args:
      obs: a frame; images are pixels, or still encoded, in which case a dropped one need not be decoded.
      seed: a seed, two of them, a generator, or a `jax.random` key. The same seed drops the same images.
      dropout_prob: the probability for each image.
      always_keep_key: a key like "image_primary" that is never dropped. Where it is padding itself, another one is
        kept, drawn at random, as without this argument.
      compat: "crossformer" keeps a padding `always_keep_key`, so that all real images may be dropped.
    """
    keys, old = [key for key in sorted(obs) if key.startswith(_IMAGE)], faithful(compat)
    if not 0 <= dropout_prob <= 1:
        raise ValueError(f"dropout_prob must be between 0 and 1, got {dropout_prob}.")
    if not keys:
        return dict(obs)
    if always_keep_key and always_keep_key not in keys:
        raise ValueError(f"always_keep_key is {always_keep_key!r}, and the images are {', '.join(keys)}.")
    uniforms = draws(_Generators(seed, [obs[key] for key in keys], _DROPOUT).of(), len(keys) + 1)
    flags = [_real(obs, key) for key in keys]
    real = namespace(uniforms, *flags).stack(flags)
    keep = keys.index(always_keep_key) if always_keep_key else None
    kept = kept_images(real, uniforms, dropout_prob, keep, keep_padding=old)
    found, masks = dict(obs), dict(obs["pad_mask_dict"])
    for number, key in enumerate(keys):
        stays = masks[key] = kept[number]
        image = obs[key]
        if is_jax(stays) and not _is_encoded(image):
            found[key] = namespace(stays).where(stays, image, 0)
        elif is_traced(stays):
            raise ValueError(f"{key} is still encoded, and inside of jit there are pixels only. Decode it before.")
        elif not stays:
            found[key] = b"" if _is_encoded(image) else np.zeros_like(image)
    return found | {"pad_mask_dict": masks}


def kept_images(
    real: Any, uniforms: Any, dropout_prob: float, keep: int | None = None, *, keep_padding: bool = True
) -> Any:
    """Which of n images stay: those that are real and drawn, and one more in any case.

    >>> kept_images(np.array([True, False, True]), np.array([0.2, 0.9, 0.4, 0.6]), dropout_prob=0.5)
    array([False, False,  True])

    Args:
      real: bool (n,), False for padding.
      uniforms: n numbers between 0 and 1, one for each image, and a last one that chooses which stays in any case.
      dropout_prob: an image is dropped where its number is below.
      keep: the image that stays in any case, instead of one drawn among the real ones.
      keep_padding: whether that holds for one that is padding too. Else one is drawn if it is.
    """
    xp = namespace(real, uniforms)
    count = real.cumsum()
    chosen = real & (count - 1 == (uniforms[-1] * count[-1]).astype(np.int32))  # one of the real ones, by its number
    if keep is not None:
        named = np.arange(len(real)) == keep
        chosen = named if keep_padding else xp.where(real[keep], named, chosen)
    return real & ((uniforms[:-1] >= dropout_prob) | chosen)


def _real(obs: Mapping[str, Any], key: str) -> Any:
    """Whether an image is no padding: a bool, or an array of JAX where that is not known yet."""
    try:
        mask = obs["pad_mask_dict"][key]
        return mask if is_traced(mask) else bool(mask)
    except KeyError:
        raise KeyError(f"The frame has no pad_mask_dict/{key}, which says whether {key} is padding.") from None


class _Generators:
    """What images are changed by: a generator for each, or a key where the seed is one or an image is JAX's."""

    def __init__(self, seed: Seed, images: Sequence[Any], purpose: int):
        self._words: list[int] = []
        self._key = as_key(seed) if is_jax(seed) or any(map(is_jax, images)) else None
        self._purpose = purpose
        if self._key is None:
            self._words = _words(seed)

    def of(self, *numbers: int) -> Any:
        """The generator or the key of an image."""
        if self._key is None:
            return np.random.default_rng([*self._words, self._purpose, *numbers])
        return folded(self._key, self._purpose, *numbers)


def _words(seed: Seed) -> list[int]:
    """A seed as words that generators are made from; a generator is asked for one."""
    if isinstance(seed, np.random.Generator):
        return [int(seed.integers(1 << 63))]
    if isinstance(seed, Sequence | np.ndarray):
        return [checks.seed(word) for word in seed]
    return [checks.seed(seed)]


# ---------------------------------------------------------------------------------------------------------------------
# Windows


class _Once:
    """An encoded image that stands at several steps of a window: what was made of it is kept."""

    def __init__(self, data: Any):
        self.data = data
        self.made: dict[Any, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        return bytes(self.data)


def _once(data: Any, what: Any, make: Callable[[Any], np.ndarray]) -> np.ndarray:
    if not isinstance(data, _Once):
        return make(data)
    if what not in data.made:
        data.made[what] = make(data)
    return data.made[what]


def over_window(function: Callable[..., Obs]) -> Callable[..., Obs]:
    """A function of frames as one of windows: it is called for each step, and the results are stacked.

    Steps share all other arguments; a seed is the same for each of them, so that the draws are. An encoded image that
    stands at several steps (the same object: padding repeats the first frame) is decoded once.

    >>> window = {"image_primary": np.array([b"", b""], object)}
    >>> over_window(decode_and_resize)(window, (4, 4), {})["image_primary"].shape
    (2, 4, 4, 3)
    """

    @functools.wraps(function)
    def windowed(obs: Obs, *args: Any, **kwargs: Any) -> Obs:
        args = tuple(_as_seed(value) for value in args)
        kwargs = {name: _as_seed(value) for name, value in kwargs.items()}
        known: dict[int, _Once] = {}
        window = trees.map_leaves(lambda leaf: _shared(leaf, known), obs)
        lengths = sorted({len(leaf) for leaf in trees.leaves(window)})
        if len(lengths) != 1 or lengths == [0]:
            raise ValueError(f"All leaves of a window have as many steps, at least one; these have {lengths}.")
        steps = [trees.map_leaves(operator.itemgetter(step), window) for step in range(lengths[0])]
        return trees.map_leaves(_stacked, *[function(step, *args, **kwargs) for step in steps])

    return windowed


def _as_seed(value: Any) -> Any:
    """A generator as a seed, drawn once for all steps; anything else as it is."""
    return _words(value)[0] if isinstance(value, np.random.Generator) else value


def _shared(leaf: np.ndarray, known: dict[int, _Once]) -> np.ndarray:
    """An array of objects with one `_Once` for each distinct object; other arrays as they are."""
    return _objects([known.setdefault(id(data), _Once(data)) for data in leaf]) if leaf.dtype == object else leaf


def _stacked(*steps: Any) -> np.ndarray:
    if isinstance(steps[0], bytes | _Once):
        return _objects([step.data if isinstance(step, _Once) else step for step in steps])
    if len(shapes := {np.shape(step) for step in steps}) > 1:
        raise ValueError(f"The steps of a window have images of the shapes {sorted(shapes)}. Name one size for them.")
    return namespace(*steps).stack(steps)


def _objects(values: list[Any]) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = values
    return found
