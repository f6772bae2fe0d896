"""What is done to the images of a frame: golden frames, which images are dropped, and windows step by step."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.trajectory.augmentations import augment_image
from bushel._src.trajectory.obs_transforms import choose_images, over_window
from bushel.trajectory.obs_transforms import augment, decode_and_resize, image_dropout

FOLDER = Path(__file__).parent / "golden" / "frame"
FRAMES = np.load(FOLDER / "decode_resize.npz")
DROPPED = json.loads((FOLDER / "image_dropout_distribution.json").read_text())
SIZES = [(16, 16), (24, 40), (64, 64), (33, 17), (32, 32), (7, 90)]

AUGMENT = {
    "augment_order": ["random_resized_crop", "random_brightness", "random_flip_left_right"],
    "random_resized_crop": {"scale": [0.8, 1.0], "ratio": [0.9, 1.1]},
    "random_brightness": [0.2],
}


def picture(seed: int = 0, height: int = 12, width: int = 14) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def jpeg(seed: int = 0) -> bytes:
    return simplejpeg.encode_jpeg(picture(seed))


def frame(real: list[bool]) -> dict:
    """A frame with images a, b, c ... of which some are padding."""
    keys = [f"image_{letter}" for letter, _ in zip("abcdef", real)]
    images = {
        key: picture(seed) if is_real else np.zeros((12, 14, 3), np.uint8)
        for seed, (key, is_real) in enumerate(zip(keys, real))
    }
    return {**images, "proprio": np.ones(3, np.float32), "pad_mask_dict": dict(zip(keys, map(np.bool_, real)))}


def copied(tree: dict) -> dict:
    return {key: copied(value) if isinstance(value, dict) else np.copy(value) for key, value in tree.items()}


def assert_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_same(found[key], value)
        else:
            assert np.asarray(found[key]).dtype == np.asarray(value).dtype
            np.testing.assert_array_equal(found[key], value)


# ---------------------------------------------------------------------------------------------------------------------
# decode_and_resize


@pytest.mark.parametrize("compat", [None, "crossformer"])
@pytest.mark.parametrize("size", SIZES)
def test_a_golden_frame(size, compat):
    obs = {
        "image_primary": FRAMES["jpeg0@bytes"].tobytes(),
        "image_wrist": FRAMES["png0@bytes"].tobytes(),
        "image_pad": b"",
        "depth_primary": FRAMES["depth0@bytes"].tobytes(),
        "depth_pad": b"",
        "timestep": np.int32(3),
    }
    found = decode_and_resize(obs, size, size, compat=compat)
    golden = {key: FRAMES[f"t0/resize_{size[0]}x{size[1]}/{key}"] for key in obs if key != "timestep"}
    for key in ("image_primary", "image_wrist"):
        assert np.abs(found[key].astype(int) - golden[key]).max() <= 1 and found[key].dtype == golden[key].dtype
    np.testing.assert_allclose(found["depth_primary"], golden["depth_primary"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found["image_pad"], golden["image_pad"])
    expected = golden["depth_pad"] if compat else golden["depth_pad"][..., 0]
    assert found["depth_pad"].dtype == expected.dtype
    np.testing.assert_array_equal(found["depth_pad"], expected)
    assert found["timestep"] == 3 and obs["image_pad"] == b""


def test_without_a_size_images_keep_theirs_and_a_warning_says_so():
    obs = {"image_primary": jpeg(), "image_pad": b"", "depth_pad": b""}
    with pytest.warns(UserWarning) as caught:
        found = decode_and_resize(obs, {}, {})
    shapes = {key: value.shape for key, value in found.items()}
    assert shapes == {"image_primary": (12, 14, 3), "image_pad": (1, 1, 3), "depth_pad": (1, 1)}
    assert len(caught) == 3 and "There is no size for image_primary" in str(caught[0].message)
    with pytest.warns(UserWarning):
        assert decode_and_resize(obs, {}, {}, compat="crossformer")["depth_pad"].shape == (1, 1, 1)


def test_a_warning_is_shown_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            decode_and_resize({"image_primary": b""}, {}, {})
    assert len(caught) == 1


def test_each_camera_gets_the_size_of_its_name():
    obs = {"image_a": jpeg(), "image_b": jpeg(), "depth_a": b""}
    found = decode_and_resize(obs, {"a": (4, 5), "b": [6, 7], "c": (1, 1)}, {"a": (2, 3)})
    assert [found[key].shape for key in obs] == [(4, 5, 3), (6, 7, 3), (2, 3)]


def test_pixels_are_resized_too():
    obs = {"image_a": picture(), "depth_a": np.ones((4, 4), np.float32), "depth_b": np.ones((4, 4, 1), np.float32)}
    found = decode_and_resize(obs, (6, 6), (2, 2))
    assert [found[key].shape for key in obs] == [(6, 6, 3), (2, 2), (2, 2, 1)]


@pytest.mark.parametrize(
    ("obs", "sentence"),
    [
        ({"image_a": np.zeros((2, 2, 3), np.float32)}, r"image_a must be encoded or uint8, got float32 \(2, 2, 3\)"),
        ({"depth_a": np.zeros((2, 2), np.uint16)}, r"depth_a must be encoded or float32, got uint16 \(2, 2\)"),
        ({"image_a": b"nonsense"}, "These 8 bytes are not a complete image"),
    ],
)
def test_wrong_images_are_refused(obs, sentence):
    with pytest.raises(ValueError, match=sentence):
        decode_and_resize(obs, (4, 4), (4, 4))


# ---------------------------------------------------------------------------------------------------------------------
# augment

seeds = st.one_of(st.integers(0, 1 << 62), st.tuples(st.integers(0, 1 << 31), st.integers(0, 1 << 31)))
masks = st.lists(st.booleans(), min_size=1, max_size=5)


@given(seed=seeds, real=masks, compat=st.sampled_from([None, "crossformer"]))
@settings(max_examples=30, deadline=None)
def test_the_same_seed_changes_a_frame_alike_and_leaves_padding(seed, real, compat):
    obs = frame(real)
    before = copied(obs)
    found = augment(obs, seed, AUGMENT, compat=compat)
    assert_same(found, augment(dict(reversed(obs.items())), seed, AUGMENT, compat=compat))
    assert_same(obs, before)
    for key, is_real in obs["pad_mask_dict"].items():
        assert (found[key] is obs[key]) == (not is_real)
    assert found["proprio"] is obs["proprio"]


def test_images_are_changed_differently_and_each_by_its_own_name():
    obs = frame([True] * 3)
    for key in obs["pad_mask_dict"]:
        obs[key] = picture()
    found = augment(obs, 7, AUGMENT)
    assert len({found[key].tobytes() for key in obs["pad_mask_dict"]}) == 3
    one_is_padding = obs | {"pad_mask_dict": obs["pad_mask_dict"] | {"image_a": np.False_}}
    np.testing.assert_array_equal(augment(one_is_padding, 7, AUGMENT)["image_c"], found["image_c"])


def test_each_camera_gets_the_augmentations_of_its_name():
    obs = frame([True] * 3)
    dark = {"augment_order": ["random_brightness"], "random_brightness": [0.5]}
    found = augment(obs, 7, {"b": dark, "unknown": dark})
    assert found["image_a"] is obs["image_a"] and found["image_c"] is obs["image_c"]
    assert (found["image_b"] != obs["image_b"]).any()
    both = augment(obs, 7, {"a": {"augment_order": []}, "b": dark})
    np.testing.assert_array_equal(both["image_a"], obs["image_a"])
    np.testing.assert_array_equal(both["image_b"], found["image_b"])


def test_a_generator_goes_on():
    obs = frame([True, True])
    rng = np.random.default_rng(0)
    first, second = augment(obs, rng, AUGMENT), augment(obs, rng, AUGMENT)
    assert (first["image_a"] != second["image_a"]).any()
    assert_same(first, augment(obs, np.random.default_rng(0), AUGMENT))


def test_compat_reaches_the_crop(monkeypatch):
    asked = []

    def watched(image, **kwargs):
        asked.append(kwargs["compat"])
        return augment_image(image, **kwargs)

    monkeypatch.setattr("bushel._src.trajectory.obs_transforms.augment_image", watched)
    default = augment(frame([True]), 0, AUGMENT)["image_a"]
    original = augment(frame([True]), 0, AUGMENT, compat="crossformer")["image_a"]
    assert asked == [None, "crossformer"] and (default != original).any()


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        (["random_hue"], ValueError, "augment_kwargs must be a mapping with 'augment_order'"),
        ({"a": {"random_hue": [0.1]}}, ValueError, "The augmentations of image_a have no 'augment_order'"),
        ({"augment_order": ["random_blur"]}, ValueError, "There is no augmentation 'random_blur'"),
    ],
)
def test_wrong_augmentations_are_refused(given, error, sentence):
    with pytest.raises(error, match=sentence):
        augment(frame([True]), 0, given)


@pytest.mark.parametrize("function", [lambda obs: augment(obs, 0, AUGMENT), lambda obs: image_dropout(obs, 0, 0.5)])
def test_a_frame_without_masks_is_refused(function):
    with pytest.raises(KeyError, match="The frame has no pad_mask_dict/image_a, which says whether image_a is padding"):
        function({"image_a": picture()})


@pytest.mark.parametrize("seed", [-1, 1.5, (1, -2), "seed"])
def test_wrong_seeds_are_refused(seed):
    with pytest.raises((TypeError, ValueError), match="Seed must be an integer"):
        augment(frame([True]), seed, AUGMENT)


# ---------------------------------------------------------------------------------------------------------------------
# image_dropout


@given(seed=seeds, real=masks, probability=st.floats(0, 1), keep=st.booleans())
@settings(max_examples=150, deadline=None)
def test_dropped_images_are_black_and_one_real_image_stays(seed, real, probability, keep):
    obs = frame(real)
    before = copied(obs)
    found = image_dropout(obs, seed, probability, "image_a" if keep else None)
    kept = found["pad_mask_dict"]
    assert any(kept.values()) == any(real)
    for key, is_real in zip(kept, real):
        assert not kept[key] or is_real
        np.testing.assert_array_equal(found[key], obs[key] if kept[key] else np.zeros_like(obs[key]))
    if keep and real[0]:
        assert kept["image_a"]
    assert_same(obs, before)
    assert_same(found, image_dropout(dict(reversed(obs.items())), seed, probability, "image_a" if keep else None))


PADS = {"all3": [1, 1, 1], "one_pad": [1, 0, 1], "only_one": [0, 1, 0], "none": [0, 0, 0]}


@pytest.mark.parametrize("case", DROPPED)
def test_outcomes_have_the_golden_distribution(case):
    pads, keep, probability = case.split("/")
    keep, probability = keep.removeprefix("keep="), float(probability.removeprefix("p="))
    obs, always = frame([bool(value) for value in PADS[pads]]), None if keep == "None" else keep
    counts: dict[str, int] = {}
    for seed in range(600):
        found = image_dropout(obs, seed, probability, always, compat="crossformer")["pad_mask_dict"]
        outcome = str(tuple(int(value) for value in found.values()))
        counts[outcome] = counts.get(outcome, 0) + 1
    golden = DROPPED[case]
    assert counts.keys() == golden.keys()
    # Two samples of 600: twice the variance. At six degrees one in 10,000 exceeds 27.9.
    assert sum((counts[key] - golden[key]) ** 2 / (counts[key] + golden[key]) for key in golden) < 27.9


@pytest.mark.parametrize("compat", [None, "crossformer"])
def test_a_padding_image_cannot_be_the_one_that_stays(compat):
    obs = frame([True, False, True])
    outcomes = {
        tuple(map(bool, image_dropout(obs, seed, 1.0, "image_b", compat=compat)["pad_mask_dict"].values()))
        for seed in range(50)
    }
    everything_dropped = {(False, False, False)}
    assert outcomes == (everything_dropped if compat else {(True, False, False), (False, False, True)})


def test_encoded_images_need_not_be_decoded_to_be_dropped():
    obs = {"image_a": jpeg(0), "image_b": jpeg(1), "pad_mask_dict": {"image_a": True, "image_b": True}}
    early = decode_and_resize(image_dropout(obs, 3, 1.0), (8, 8), {})
    late = image_dropout(decode_and_resize(obs, (8, 8), {}), 3, 1.0)
    assert_same(early, late)
    assert b"" in image_dropout(obs, 3, 1.0).values()


@given(
    real=st.lists(st.booleans(), min_size=1, max_size=6),
    uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=7, max_size=7),
    probability=st.sampled_from([0.0, 0.3, 1.0]),
)
@settings(deadline=None)
def test_what_stays_is_real_and_never_nothing(real, uniforms, probability):
    real = np.array(real)
    kept = choose_images(real, np.array(uniforms[: len(real) + 1]), probability)
    assert not (kept & ~real).any() and kept.any() == real.any()
    if probability == 0:
        np.testing.assert_array_equal(kept, real)
    if probability == 1:
        assert kept.sum() == real.any()


def test_frames_without_images_stay():
    obs = {"proprio": np.ones(3)}
    assert_same(image_dropout(obs, 0, 0.5), obs)


@pytest.mark.parametrize(
    ("probability", "keep", "sentence"),
    [
        (1.5, None, "dropout_prob must be between 0 and 1, got 1.5"),
        (float("nan"), None, "dropout_prob must be between 0 and 1, got nan"),
        (0.5, "primary", "always_keep_key is 'primary', and the images are image_a"),
    ],
)
def test_wrong_arguments_of_dropout_are_refused(probability, keep, sentence):
    with pytest.raises(ValueError, match=sentence):
        image_dropout(frame([True]), 0, probability, keep)


@pytest.mark.parametrize(
    "function",
    [
        lambda: decode_and_resize({}, {}, {}, compat="octo"),
        lambda: augment({}, 0, {}, compat="octo"),
        lambda: image_dropout({}, 0, 0.5, compat="octo"),
    ],
)
def test_compat_is_checked(function):
    with pytest.raises(ValueError, match="compat must be None"):
        function()


def test_importing_loads_no_decoder_and_no_jax():
    program = (
        "import sys\n"
        "from bushel._src.trajectory import augmentations, obs_transforms, pixels\n"
        "print(sorted({'PIL', 'jax', 'simplejpeg', 'scipy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=250)
    assert done.stdout == "[]\n"


# ---------------------------------------------------------------------------------------------------------------------
# Windows


class Handle:
    """An encoded image that counts how often it is read."""

    def __init__(self, data: bytes):
        self.data = data
        self.reads = 0

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        self.reads += 1
        return self.data


def window(*images: object) -> dict:
    """A window of encoded images and other leaves, as chunking gathers it."""
    steps = np.empty(len(images), object)
    steps[:] = images
    count = np.arange(len(images), dtype=np.int32)
    real = np.array([len(image) > 0 for image in images])
    return {"image_a": steps, "timestep": count, "pad_mask_dict": {"image_a": real, "timestep": count >= 0}}


def step(tree: dict, at: int) -> dict:
    return {key: step(value, at) if isinstance(value, dict) else value[at] for key, value in tree.items()}


@given(
    seed=seeds,
    steps=st.lists(st.sampled_from([b"", jpeg(0), jpeg(1), jpeg(2)]), min_size=1, max_size=4),
)
@settings(max_examples=20, deadline=None)
def test_a_window_is_each_of_its_frames(seed, steps):
    obs = window(*steps)
    decoded = over_window(decode_and_resize)(obs, (9, 8), {})
    assert decoded["image_a"].shape == (len(steps), 9, 8, 3)
    dropped = over_window(image_dropout)(decoded, seed, 0.5)
    changed = over_window(augment)(dropped, seed, augment_kwargs=AUGMENT)
    for at in range(len(steps)):
        one = decode_and_resize(step(obs, at), (9, 8), {})
        assert_same(step(decoded, at), one)
        one = image_dropout(one, seed, 0.5)
        assert_same(step(dropped, at), one)
        assert_same(step(changed, at), augment(one, seed, AUGMENT))


def test_a_window_has_one_draw_even_from_a_generator():
    obs = over_window(decode_and_resize)(window(jpeg(), jpeg(), jpeg()), (9, 8), {})
    found = over_window(augment)(obs, np.random.default_rng(0), AUGMENT)["image_a"]
    np.testing.assert_array_equal(found, found[:1].repeat(3, axis=0))
    np.testing.assert_array_equal(found[0], augment(step(obs, 0), np.random.default_rng(0), AUGMENT)["image_a"])


def test_a_repeated_image_is_read_and_decoded_once():
    first, last = Handle(jpeg(0)), Handle(jpeg(1))
    found = over_window(decode_and_resize)(window(first, first, first, last), (9, 8), {})["image_a"]
    assert (first.reads, last.reads) == (1, 1)
    expected = [decode_and_resize({"image_a": jpeg(seed)}, (9, 8), {})["image_a"] for seed in (0, 0, 0, 1)]
    np.testing.assert_array_equal(found, expected)


def test_what_stays_encoded_comes_back_as_it_was():
    first, last = Handle(jpeg(0)), Handle(jpeg(1))
    obs = window(first, first, last)
    found = over_window(image_dropout)(obs, 0, 0.0)["image_a"]
    assert found.dtype == object and [image is given for image, given in zip(found, obs["image_a"])] == [True] * 3
    assert (first.reads, last.reads) == (0, 0)


def test_steps_of_different_sizes_are_refused():
    with (
        pytest.raises(ValueError, match=r"images of the shapes \[\(1, 1, 3\), \(12, 14, 3\)\]"),
        pytest.warns(UserWarning),
    ):
        over_window(decode_and_resize)(window(jpeg(), b""), {}, {})


@pytest.mark.parametrize("lengths", [(2, 3), (0, 0)])
def test_windows_without_a_common_length_are_refused(lengths):
    obs = {"timestep": np.zeros(lengths[0]), "proprio": np.zeros((lengths[1], 4))}
    with pytest.raises(ValueError, match="All leaves of a window must have the same number of steps, at least one"):
        over_window(decode_and_resize)(obs, (4, 4), {})
