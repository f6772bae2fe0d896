"""Every operation on images gives inside `jit`, `vmap` and `scan` what it gives outside of them.

Tolerance: an operation that only moves pixels gives equal bits. An operation that computes gives uint8 values that
differ by at most 1; float32 values between 0 and 1 differ by at most 1e-5. XLA may fuse a product and a sum into one
instruction with one rounding, so equal bits cannot be promised there: a value on the border of two uint8 values may
fall on either side. In noise that is fewer than 1 of 1,000 values; pictures of few colours may have many such values.

`make test` lets JAX compile with fewer optimizations, and then nothing is fused. So these tests compile as users do.
Each case is compiled alone: XLA fuses less where one function gives many results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.jit import image_augmentation
from bushel._src.trajectory.augmentations import OPERATIONS, augment_image, augment_images, draw_parameters
from bushel._src.trajectory.pixels import resize_depth_image, resize_image
from bushel.trajectory.obs_transforms import augment, decode_and_resize, image_dropout

AS_USERS_DO = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
MOVES = ["random_flip_left_right", "random_flip_up_down", "random_rot90"]
# A crop of the whole image is the hardest case: its points lie on pixels, where the neighbouring pixels change.
CROPS = [{"scale": [1.0, 1.0], "ratio": [1.0, 1.0]}, {"scale": [0.3, 1.0], "ratio": [0.7, 1.4]}]
ARGUMENTS = {
    "random_resized_crop": CROPS[0],
    "random_brightness": [0.3],
    "random_contrast": [0.5, 1.5],
    "random_saturation": [0.5, 1.5],
    "random_hue": [0.2],
}


def compile_fully(function: Callable[..., Any], *args: Any) -> Any:
    """What the compiled function gives for these arguments."""
    return jax.jit(function).lower(*args).compile(compiler_options=AS_USERS_DO)(*args)


def pictures(count: int, size: int) -> np.ndarray:
    """Noise, grey noise, a smooth picture, and one of pure colours, in turn: uint8 (count, size, size, 3)."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    kinds = [
        rng.integers(0, 256, (size, size, 3)),
        np.repeat(rng.integers(0, 256, (size, size, 1)), 3, axis=-1),
        np.stack([3 * x % 256, 3 * y % 256, 2 * (x + y) % 256], axis=-1),
        np.where(rng.random((size, size, 3)) < 0.5, 0, 255),
    ]
    return np.stack([kinds[number % 4] for number in range(count)]).astype(np.uint8)


def assert_same(ours: Any, expected: Any, *, exact: bool = False) -> None:
    ours, expected = np.asarray(ours), np.asarray(expected)
    assert ours.dtype == expected.dtype and ours.shape == expected.shape
    if exact:
        np.testing.assert_array_equal(ours, expected)
    elif ours.dtype == np.uint8:
        assert np.abs(ours.astype(int) - expected).max(initial=0) <= 1
    else:
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def assert_mostly_equal(ours: Any, expected: Any) -> None:
    """For pictures of noise."""
    apart = np.count_nonzero(np.asarray(ours) != np.asarray(expected))
    assert apart <= 1e-3 * np.size(expected) + 1


def choose(order: list[str]) -> dict[str, Any]:
    return {name: ARGUMENTS[name] for name in order if name in ARGUMENTS}


def change_on_host(images: np.ndarray, keys: Any, order: list[str], given: dict[str, Any]) -> np.ndarray:
    """The images as NumPy changes them, with the numbers that these keys give."""
    changed = []
    for image, key in zip(images, keys, strict=True):
        drawn = [np.asarray(parameter) for parameter in draw_parameters(order, rng=key, **given)]
        changed.append(augment_image(image, order, parameters=drawn, **given))
    return np.stack(changed)


# ---------------------------------------------------------------------------------------------------------------------
# The changes of images


@pytest.mark.parametrize("first", ARGUMENTS)
def test_each_pair_of_operations_gives_inside_jit_what_numpy_gives(first):
    images, keys = pictures(4, 12), jax.random.split(jax.random.key(1), 4)
    for second in ARGUMENTS:
        change = functools.partial(augment_images, augment_order=[first, second], **choose([first, second]))
        expected = change_on_host(images, keys, [first, second], choose([first, second]))
        found = compile_fully(change, images, keys)
        assert_same(found, expected)
        assert_mostly_equal(found[0], expected[0])


@pytest.mark.parametrize("move", MOVES)
def test_a_move_gives_equal_bits_inside_jit(move):
    images, keys = pictures(4, 12), jax.random.split(jax.random.key(1), 4)
    found = compile_fully(functools.partial(augment_images, augment_order=[move]), images, keys)
    assert_same(found, change_on_host(images, keys, [move], {}), exact=True)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    order=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=6),
    crop=st.sampled_from(CROPS),
    size=st.sampled_from([1, 2, 17, 64]),
    floats=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_order_gives_inside_jit_vmap_and_scan_what_it_gives_outside(order, crop, size, floats, seed):
    images, keys = pictures(4, size), jax.random.split(jax.random.key(seed), 4)
    images = images.astype(np.float32) / np.float32(255) if floats else images
    given = choose(order) | ({"random_resized_crop": crop} if "random_resized_crop" in order else {})

    def many(images: Any, keys: Any) -> Any:
        return augment_images(images, keys, order, **given)

    def one(image: Any, key: Any) -> Any:
        return augment_image(image, order, rng=key, **given)

    def in_turn(images: Any, keys: Any) -> Any:
        return jax.lax.scan(lambda carry, pair: (carry, one(*pair)), 0, (images, keys))[1]

    expected, exact = change_on_host(images, keys, order, given), set(order) <= set(MOVES) and not floats
    for found in (
        many(images, keys),
        compile_fully(many, images, keys),
        compile_fully(jax.vmap(one), images, keys),
        compile_fully(in_turn, images, keys),
        jnp.stack([one(jnp.asarray(image), key) for image, key in zip(images, keys, strict=True)]),
    ):
        assert_same(found, expected, exact=exact)


def test_the_functions_of_frames_give_inside_jit_what_they_give_outside():
    images, key = pictures(2, 24), jax.random.key(5)
    masks = {"image_a": np.True_, "image_b": np.True_}
    obs = {"image_a": images[0], "image_b": images[1], "depth_a": images[0, :, :, 0] / np.float32(255)}
    obs = jax.tree.map(jnp.asarray, {**obs, "pad_mask_dict": masks})
    order = ["random_resized_crop", "random_brightness", "random_hue"]
    given = {"augment_order": order, **choose(order)}

    def change(obs: Any, key: Any) -> Any:
        obs = decode_and_resize(obs, (16, 20), (10, 30))
        return augment(image_dropout(obs, key, 0.5), key, given)

    jax.tree.map(assert_same, compile_fully(change, obs, key), change(obs, key))
    dropped = functools.partial(image_dropout, dropout_prob=0.5)
    many = jax.random.split(key, 20)
    found = compile_fully(jax.vmap(dropped, (None, 0)), obs, many)["image_a"]
    assert_same(found, np.stack([dropped(obs, one)["image_a"] for one in many]), exact=True)


@pytest.mark.parametrize("size", [(5, 7), (24, 48), (31, 24)])
def test_a_resized_image_is_the_same_inside_jit_vmap_and_scan(size):
    images = pictures(4, 24)
    depths = images[..., 0] / np.float32(255)
    for resize, values in ((resize_image, images), (resize_depth_image, depths)):
        one = functools.partial(resize, size=size)

        def change_all(values: Any, one: Callable[..., Any] = one) -> Any:
            return one(values[0])[None], jax.vmap(one)(values), jax.lax.map(one, values)

        for found in compile_fully(change_all, values):
            expected = np.stack([one(value) for value in values])[: len(found)]
            assert_same(found, expected)
            if expected.dtype == np.uint8:
                assert_mostly_equal(found[0], expected[0])


# ---------------------------------------------------------------------------------------------------------------------
# The transforms of bushel.jit

TRANSFORMS = [
    (image_augmentation.RandomFlipTransform(), True),
    (image_augmentation.RandomCropTransform(padding=3, mode="reflect"), True),
    (image_augmentation.CutoutTransform(size=5), True),
    (image_augmentation.ColorJitterTransform(0.4, 0.4, 0.4), False),
    (image_augmentation.CutMixTransform(num_classes=3), True),
    (image_augmentation.MixupTransform(num_classes=3), False),
]


@pytest.mark.parametrize(("transform", "exact"), TRANSFORMS, ids=[type(t).__name__ for t, _ in TRANSFORMS])
def test_a_transform_of_the_loader_gives_inside_jit_what_it_gives_outside(transform, exact):
    batch = {"image": pictures(4, 12), "label": np.arange(4) % 3}
    mask, keys = jnp.ones(4, bool), jax.random.split(jax.random.key(2), 4)
    batch = jax.tree.map(jnp.asarray, batch)
    found = compile_fully(lambda *args: transform.apply(*args)[0]["image"], batch, mask, keys)
    expected = transform.apply(batch, mask, keys)[0]["image"]
    scale = np.float32(1 / 255) if found.dtype == np.float32 else np.uint8(1)
    assert_same(found * scale, expected * scale, exact=exact)
