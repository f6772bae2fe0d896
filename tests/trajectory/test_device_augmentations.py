"""Random changes on the device: equal to the host's, one key per sample, inside jit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bushel._src.trajectory.augmentations import augment_image, augment_images, draw_parameters

ARGUMENTS = {
    "random_resized_crop": {"scale": [0.8, 1.0], "ratio": [0.9, 1.1]},
    "random_brightness": [0.1],
    "random_contrast": [0.9, 1.1],
    "random_saturation": [0.5, 1.5],
    "random_hue": [0.2],
}
ORDER = list(ARGUMENTS)
MOVES = ["random_flip_left_right", "random_flip_up_down", "random_rot90"]
EVERY = [*ORDER, *MOVES]


def pictures(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("order", [*([name] for name in EVERY), ORDER, EVERY])
def test_the_same_parameters_give_the_hosts_images(order):
    images = pictures(6, 2, 40, 40, 3)
    rng = np.random.default_rng(1)
    drawn = [draw_parameters(order, rng=rng, **ARGUMENTS) for _ in images]
    expected = [
        augment_image(image, order, parameters=own, **ARGUMENTS) for image, own in zip(images, drawn, strict=True)
    ]
    parameters = [np.stack(values) for values in zip(*drawn, strict=True)]
    found = augment_images(images, None, order, parameters=parameters, **ARGUMENTS)
    assert found.dtype == jnp.uint8 and found.shape == images.shape
    apart = np.abs(np.asarray(found).astype(int) - expected)
    assert apart.max() <= 1 and np.count_nonzero(apart) <= 1e-3 * apart.size


def test_inside_jit_the_images_are_the_same():
    images, key = pictures(5, 2, 24, 24, 3), jax.random.key(3)

    @jax.jit
    def change(images: jax.Array, key: jax.Array) -> jax.Array:
        return augment_images(images, key, ORDER, **ARGUMENTS)

    plain = np.asarray(augment_images(images, key, ORDER, **ARGUMENTS)).astype(int)
    assert np.abs(plain - np.asarray(change(images, key))).max() <= 1


def test_a_crop_of_the_original_draws_one_number():
    ramp = np.linspace(0, 1, 11, dtype=np.float32)  # the first and the last value show where a crop begins and ends
    images = np.broadcast_to(np.stack([ramp[:, None] + 0 * ramp, 0 * ramp[:, None] + ramp], axis=-1), (50, 11, 11, 2))
    given = {"random_resized_crop": {"scale": [0.2, 0.6], "ratio": [1.0, 1.0]}}
    key, order = jax.random.key(0), ["random_resized_crop"]
    for compat, alike in ((None, False), ("crossformer", True)):
        found = np.asarray(augment_images(images, key, order, compat=compat, **given))
        top, left, height = found[:, 0, 0, 0], found[:, 0, 0, 1], found[:, -1, 0, 0] - found[:, 0, 0, 0]
        area = (height**2 - 0.2) / 0.4
        assert np.allclose(top, left, atol=1e-5) == alike
        assert np.allclose(top / (1 - height), area, atol=1e-3) == alike


def test_a_sample_depends_on_its_own_key_alone():
    images, keys = pictures(5, 2, 24, 24, 3), jax.random.split(jax.random.key(0), 5)
    found = augment_images(images, keys, ORDER, **ARGUMENTS)
    moved = augment_images(images[::-1], keys[::-1], ORDER, **ARGUMENTS)
    np.testing.assert_array_equal(found, moved[::-1])
    other = augment_images(images, keys.at[:3].set(keys[4]), ORDER, **ARGUMENTS)
    np.testing.assert_array_equal(found[3:], other[3:])
    assert (np.asarray(found[:3]) != np.asarray(other[:3])).any(axis=(1, 2, 3, 4)).all()


def test_all_steps_of_a_window_are_changed_alike_and_samples_are_not():
    images = np.broadcast_to(pictures(1, 1, 24, 24, 3), (5, 2, 24, 24, 3))
    found = np.asarray(augment_images(images, jax.random.key(0), ORDER, **ARGUMENTS))
    np.testing.assert_array_equal(found, found[:, :1].repeat(2, axis=1))
    assert len({sample.tobytes() for sample in found}) == 5


def test_under_vmap_over_batches():
    images, keys = pictures(2, 3, 16, 16, 3), jax.random.split(jax.random.key(0), (2, 3))
    order = ["random_brightness"]
    both = jax.vmap(lambda some, own: augment_images(some, own, order, **ARGUMENTS))(images, keys)
    for some, own, found in zip(images, keys, both, strict=True):
        np.testing.assert_array_equal(augment_images(some, own, order, **ARGUMENTS), found)


def test_keys_of_the_old_kind_are_keys():
    images, order = pictures(3, 16, 16, 3), ["random_brightness"]
    old = augment_images(images, jax.random.PRNGKey(7), order, **ARGUMENTS)
    np.testing.assert_array_equal(old, augment_images(images, jax.random.key(7), order, **ARGUMENTS))


def test_padding_stays_black():
    images = pictures(3, 2, 16, 16, 3)
    mask = np.array([[False, True], [True, True], [False, False]])
    images[~mask] = 0
    given = {"random_brightness": [0.1]}
    bright = [np.full(3, 0.1, np.float32)]
    found = np.asarray(augment_images(images, None, list(given), mask=mask, parameters=bright, **given))
    assert (found[~mask] == 0).all()
    assert (found[mask] > images[mask]).mean() > 0.8


def test_the_draws_are_uniform_and_independent():
    images = np.full((2000, 1, 1, 3), 0.5, np.float32)
    given = {"random_brightness": [0.1]}
    found = augment_images(images, jax.random.key(1), ["random_brightness", "random_brightness"], **given)
    total = np.asarray(found)[:, 0, 0, 0].astype(np.float64) - 0.5  # of two: a triangle
    counts = np.histogram(total, bins=[-0.2, -0.1, 0, 0.1, 0.2])[0]
    expected = 2000 * np.array([1, 3, 3, 1]) / 8
    assert ((counts - expected) ** 2 / expected).sum() < 21.1  # one in 10,000 at three degrees


def test_float_images_stay_float():
    images = np.random.default_rng(0).random((2, 8, 8, 3), dtype=np.float32)
    found = augment_images(images, jax.random.key(0), ["random_brightness"], **ARGUMENTS)
    assert found.dtype == jnp.float32 and (np.asarray(found) != images).any()


@pytest.mark.parametrize(
    ("shape", "keys", "order", "sentence"),
    [
        ((8, 8, 3), 1, [], r"takes \(samples, ..., height, width, channels\), got shape \(8, 8, 3\)"),
        ((4, 8, 8, 3), 3, [], r"4 samples need one key or 4 of them, got keys of shape \(3,\)"),
        ((4, 8, 6, 3), 4, ["random_rot90"], "would turn an image of 8 x 6 into one of 6 x 8"),
        ((4, 8, 6, 3), 4, ["random_blur"], "There is no augmentation 'random_blur'"),
    ],
)
def test_wrong_arguments_are_refused(shape, keys, order, sentence):
    with pytest.raises(ValueError, match=sentence):
        augment_images(pictures(*shape), jax.random.split(jax.random.key(0), keys), order)


def test_wrong_masks_and_parameters_are_refused():
    with pytest.raises(ValueError, match=r"must have the shape \(4, 2\), got \(4,\)"):
        augment_images(pictures(4, 2, 8, 8, 3), jax.random.key(0), [], mask=np.ones(4, bool))
    with pytest.raises(ValueError, match="augment_order has 1 operations, and there are 2 parameters"):
        augment_images(pictures(4, 8, 8, 3), None, ["random_rot90"], parameters=[[1] * 4, [2] * 4])
