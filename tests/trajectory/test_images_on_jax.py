"""The images of frames on JAX: what functions give inside of `jit` is what NumPy gives, and draws follow their keys."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bushel._src.trajectory.augmentations import augment_image, draw_parameters
from bushel._src.trajectory.data_utils import make_key
from bushel._src.trajectory.obs_transforms import choose_images, over_window
from bushel._src.trajectory.pixels import resize_depth_image, resize_image
from bushel._src.trajectory.task_augmentation import delete_conditioning
from bushel.trajectory.obs_transforms import augment, decode_and_resize, image_dropout
from bushel.trajectory.task_augmentation import delete_task_conditioning

KEYS = (jax.random.key, jax.random.PRNGKey)
AUGMENT = {
    "augment_order": ["random_resized_crop", "random_brightness", "random_hue"],
    "random_resized_crop": {"scale": [0.5, 0.9], "ratio": [0.9, 1.1]},
    "random_brightness": [0.2],
    "random_hue": [0.1],
}


def pictures(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def assert_same_pixels(ours, theirs) -> None:
    """Equal but for values that lie within float32's error of a half."""
    assert isinstance(ours, jax.Array) and ours.dtype == theirs.dtype and ours.shape == theirs.shape
    apart = np.abs(np.asarray(ours).astype(int) - theirs)
    assert apart.max(initial=0) <= 1 and np.count_nonzero(apart) <= 1e-3 * apart.size


# ---------------------------------------------------------------------------------------------------------------------
# Resizing


@pytest.mark.parametrize(
    ("shape", "size"), [((40, 52, 3), (16, 24)), ((9, 7, 1), (20, 31)), ((12, 10, 3), (12, 5)), ((8, 8, 3), (8, 8))]
)
def test_an_image_is_resized_as_on_the_host(shape, size):
    image, resize = pictures(*shape), functools.partial(resize_image, size=size)
    expected = resize(image)
    assert isinstance(expected, np.ndarray)
    assert_same_pixels(resize(jnp.asarray(image)), expected)
    assert_same_pixels(jax.jit(resize)(image), expected)
    assert_same_pixels(jax.jit(jax.vmap(resize))(np.stack([image, image[::-1]]))[0], expected)


@pytest.mark.parametrize("shape", [(40, 52), (40, 52, 1)])
def test_a_depth_image_is_resized_as_on_the_host(shape):
    depth = np.random.default_rng(0).random(shape, np.float32)
    expected, found = resize_depth_image(depth, (16, 60)), jax.jit(lambda d: resize_depth_image(d, (16, 60)))(depth)
    assert isinstance(found, jax.Array) and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_pixels_of_a_frame_are_resized_inside_of_jit():
    obs = {"image_primary": pictures(20, 24, 3), "depth_primary": np.ones((20, 24), np.float32), "state": np.ones(3)}
    resize = functools.partial(decode_and_resize, resize_size=(8, 12), depth_resize_size={"primary": (5, 5)})
    found, expected = jax.jit(resize)(obs), resize(obs)
    assert_same_pixels(found["image_primary"], expected["image_primary"])
    np.testing.assert_allclose(found["depth_primary"], expected["depth_primary"], atol=1e-6)
    with pytest.raises(ValueError, match=r"image_primary must be encoded or uint8, got float32 \(4, 4, 3\)"):
        jax.jit(resize)({"image_primary": np.zeros((4, 4, 3), np.float32)})


# ---------------------------------------------------------------------------------------------------------------------
# Dropping


@pytest.mark.parametrize("keep_padding", [False, True])
@pytest.mark.parametrize("keep", [None, 1])
def test_the_same_draws_keep_the_same_images(keep, keep_padding):
    rng = np.random.default_rng(0)
    real, uniforms = rng.random((300, 3)) < 0.6, rng.random((300, 4), np.float32)
    kept = functools.partial(choose_images, dropout_prob=0.7, keep=keep, keep_padding=keep_padding)
    found = jax.jit(jax.vmap(kept))(real, uniforms)
    for own, numbers, one in zip(real, uniforms, np.asarray(found), strict=True):
        expected = kept(own, numbers)
        assert isinstance(expected, np.ndarray)
        np.testing.assert_array_equal(one, expected)
        if own.any() and (keep is None or own[keep] or not keep_padding):
            assert expected.any()
    assert len(np.unique(found, axis=0)) >= 7


def cameras(*real: bool) -> dict:
    images = {f"image_{name}": pictures(4, 5, 3) | 1 for name, _ in zip("abc", real)}
    return {**images, "pad_mask_dict": dict(zip(images, map(np.bool_, real))), "state": np.ones(2)}


def test_images_are_dropped_by_keys():
    obs = cameras(True, True, False)
    keys = jax.random.split(jax.random.key(0), 2000)
    many = jax.jit(jax.vmap(lambda key: image_dropout(obs, key, 0.4)))(keys)
    many, masks = jax.tree.map(np.asarray, (many, many["pad_mask_dict"]))
    for name, mask in masks.items():
        np.testing.assert_array_equal(many[name].any(axis=(1, 2, 3)), mask)  # dropped ones are black
        assert (many[name][mask] == obs[name]).all()
    assert (masks["image_a"] | masks["image_b"]).all() and not masks["image_c"].any()
    for name in ("image_a", "image_b"):  # one of the two stays, the other one with 0.6
        assert abs(masks[name].mean() - 0.8) < 5 * np.sqrt(0.8 * 0.2 / 2000)
    alone = image_dropout(obs, keys[7], 0.4)  # outside of jit
    for name, mask in alone["pad_mask_dict"].items():
        assert mask == masks[name][7] and isinstance(alone[name], jax.Array)
        np.testing.assert_array_equal(alone[name], many[name][7])


def test_the_image_that_is_always_kept():
    drop = functools.partial(image_dropout, dropout_prob=1.0, always_keep_key="image_b")
    for compat, there, kept in (
        (None, True, "b"),
        ("crossformer", True, "b"),
        ("crossformer", False, ""),
        (None, False, "ac"),
    ):
        found = jax.jit(functools.partial(drop, compat=compat))(cameras(True, there, True), jax.random.key(0))
        left = "".join(name[-1] for name, mask in found["pad_mask_dict"].items() if mask)
        assert len(left) == min(len(kept), 1) and set(left) <= set(kept)


def test_encoded_images_are_dropped_outside_of_jit_alone():
    obs = {"image_a": b"jpeg", "image_b": b"jpeg", "pad_mask_dict": {"image_a": True, "image_b": True}}
    found = image_dropout(obs, jax.random.key(0), 1.0)
    assert sorted([found["image_a"], found["image_b"]]) == [b"", b"jpeg"]
    with pytest.raises(ValueError, match=r"image_a is still encoded.*Decode it before"):
        jax.jit(lambda key: image_dropout(obs, key, 1.0)["pad_mask_dict"])(jax.random.key(0))


# ---------------------------------------------------------------------------------------------------------------------
# Changing at random


def test_an_image_is_changed_by_a_key_as_its_parameters_say():
    image, order = pictures(20, 20, 3), AUGMENT["augment_order"]
    arguments = {name: value for name, value in AUGMENT.items() if name != "augment_order"}
    change = functools.partial(augment_image, augment_order=order, **arguments)
    compiled = jax.jit(lambda image, key: (change(image, rng=key), draw_parameters(order, rng=key, **arguments)))
    for number in range(3):
        found, drawn = compiled(image, jax.random.key(number))
        expected = change(image, parameters=[np.asarray(parameter) for parameter in drawn])
        assert isinstance(expected, np.ndarray)
        assert_same_pixels(found, expected)
    brighter = functools.partial(augment_image, augment_order=["random_brightness"], random_brightness=[0.2])
    outside, inside = brighter(image, rng=jax.random.key(0)), jax.jit(lambda i, k: brighter(i, rng=k))
    assert_same_pixels(outside, np.asarray(inside(image, jax.random.key(0))))
    assert_same_pixels(brighter(jnp.asarray(image), parameters=[0.1]), brighter(image, parameters=[0.1]))
    with pytest.raises(ValueError, match=r"inside jit or vmap needs rng, a jax\.random key"):
        jax.jit(lambda i: change(i, rng=0))(image)


def frames(steps: int) -> dict:
    masks = {"image_a": np.arange(steps) != 1, "image_b": np.ones(steps, bool)}
    return {"image_a": pictures(steps, 16, 16, 3), "image_b": pictures(steps, 16, 16, 3), "pad_mask_dict": masks}


BRIGHTER = {"augment_order": ["random_brightness"], "random_brightness": [0.2]}


def test_frames_are_changed_by_their_keys_and_padding_is_not():
    batch, keys = frames(4), jax.random.split(jax.random.key(0), 4)
    found = jax.jit(jax.vmap(lambda obs, key: augment(obs, key, BRIGHTER)))(batch, keys)
    obs = jax.tree.map(lambda leaf: leaf[2], batch)
    alone = augment(obs, keys[2], BRIGHTER)  # outside of jit
    for name in ("image_a", "image_b"):
        assert_same_pixels(alone[name], np.asarray(found[name][2]))
    np.testing.assert_array_equal(found["image_a"][1], batch["image_a"][1])  # padding
    added = {name: np.asarray(found[name]).astype(int) - batch[name] for name in ("image_a", "image_b")}
    assert len({int(np.median(added[name][n])) for name in added for n in (0, 2, 3)}) == 6  # each image by itself
    only = augment(obs, keys[0], {"b": BRIGHTER})
    assert only["image_a"] is obs["image_a"] and (only["image_b"] != obs["image_b"]).any()


def test_the_steps_of_a_window_are_changed_alike_inside_of_jit():
    window = frames(3)
    window["image_b"] = np.repeat(window["image_b"][:1], 3, axis=0)

    @jax.jit
    def change(obs, key):
        obs = over_window(decode_and_resize)(obs, (12, 12), {})
        obs = over_window(image_dropout)(obs, key, 0.5)
        return over_window(augment)(obs, key, BRIGHTER)

    seen = set()
    for number in range(24):
        found = change(window, jax.random.key(number))
        assert found["image_b"].shape == (3, 12, 12, 3) and found["pad_mask_dict"]["image_a"].shape == (3,)
        shown = np.asarray(found["pad_mask_dict"]["image_b"])
        seen.add(tuple(shown.tolist()))
        assert all((found["image_b"][n] == found["image_b"][0]).all() for n in (0, 2) if shown[n] == shown[0])
    assert len(seen) > 1


def test_seeds_of_all_kinds_make_keys_for_images_of_jax():
    obs = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), frames(1))
    for seed in (3, 2**40 + 3, [3, 4], np.array([3, 4]), np.random.default_rng(0), jnp.array([3, 4])):
        found = augment(obs, seed, BRIGHTER)
        assert isinstance(found["image_a"], jax.Array) and (found["image_a"] != obs["image_a"]).any()
    raw = np.array([3, 4], np.uint32)  # as `with_keys` gives them
    np.testing.assert_array_equal(
        augment(obs, raw, BRIGHTER)["image_a"], augment(obs, jnp.asarray(raw), BRIGHTER)["image_a"]
    )
    assert make_key(2**40 + 3) != make_key(3) and make_key(2**32) != make_key(2**33)


# ---------------------------------------------------------------------------------------------------------------------
# Tasks


def conditioned(steps: int, seed: int = 0) -> dict:
    """A task with words as tokens and with decoded goal images, of which some are padding."""
    rng = np.random.default_rng(seed)
    tokens = {"input_ids": rng.integers(1, 9, (steps, 4)), "attention_mask": np.ones((steps, 4), np.int64)}
    masks = {name: rng.random(steps) < 0.7 for name in ("language_instruction", "image_a", "image_b")}
    images = {name: rng.integers(1, 9, (steps, 2, 2, 3), np.uint8) for name in ("image_a", "image_b")}
    task = {"language_instruction": tokens, **images, "timestep": np.arange(steps, dtype=np.int32)}
    return {"task": {**task, "pad_mask_dict": masks}, "action": np.zeros((steps, 2))}


@pytest.mark.parametrize("compat", [None, "crossformer"])
@pytest.mark.parametrize("make", KEYS)
def test_conditioning_is_deleted_by_keys(make, compat):
    traj, delete = conditioned(400), functools.partial(delete_task_conditioning, keep_image_prob=0.3, compat=compat)
    found = jax.jit(lambda traj, key: delete(traj, rng=key))(traj, make(1))["task"]
    plain = delete(traj, rng=make(1))["task"]
    jax.tree.map(np.testing.assert_array_equal, found, plain)
    masks, given_masks = found["pad_mask_dict"], traj["task"]["pad_mask_dict"]
    words, images = np.asarray(masks["language_instruction"]), np.asarray(masks["image_a"] | masks["image_b"])
    assert not (words & images).any()
    both = given_masks["language_instruction"] & (given_masks["image_a"] | given_masks["image_b"])
    assert abs(images[both].mean() - 0.3) < 5 * np.sqrt(0.21 / both.sum())
    ids = np.asarray(found["language_instruction"]["input_ids"])
    assert (ids[words] != 0).all() and (ids[both & ~words] == 0).all()
    assert (np.asarray(found["timestep"])[words] == 399).all()


def test_the_same_draws_delete_the_same():
    task, numbers = conditioned(50, 3)["task"], np.random.default_rng(2).random(50).astype(np.float32)
    expected = delete_conditioning(task, numbers, 50, 0.5)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(expected))
    found = jax.jit(lambda task, numbers: delete_conditioning(task, numbers, 50, 0.5))(task, numbers)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_texts_inside_of_jit_are_told():
    task = {"language_instruction": np.full(3, b"lift", object), "image_a": np.zeros((3, 2, 2, 3), np.uint8)}
    task["pad_mask_dict"] = {name: np.ones(3, bool) for name in task}
    traj = {"task": task, "action": np.zeros((3, 1))}
    with pytest.raises(
        ValueError, match=r"task/language_instruction holds texts.*instructions encoded by process_text"
    ):
        jax.jit(lambda key: delete_task_conditioning(traj, 0.5, rng=key)["task"]["image_a"])(jax.random.key(0))
