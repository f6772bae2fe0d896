"""Random changes of images: dlimp's golden outputs, each operation's definition, and what is drawn."""

from __future__ import annotations

import colorsys
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.trajectory.augmentations import (
    OPERATIONS,
    RandomResizedCrop,
    augment_image,
    draw_parameters,
    make_operations,
)

FOLDER = Path(__file__).parent / "golden"
GOLDEN = np.load(FOLDER / "frame" / "augment_ops.npz")
CASES = json.loads((FOLDER / "MANIFEST.json").read_text())
DRAWN = next(case["params"] for case in CASES if case["case"] == "frame/augment_ops")

# The arguments of CrossFormer's training, with which the golden images were made.
ARGUMENTS = {
    "random_resized_crop": {"scale": [0.8, 1.0], "ratio": [0.9, 1.1]},
    "random_brightness": [0.1],
    "random_contrast": [0.9, 1.1],
    "random_saturation": [0.9, 1.1],
    "random_hue": [0.05],
}
NAMES_OF_DRAWN = {
    "random_resized_crop": "crop_box",
    "random_brightness": "brightness_delta",
    "random_contrast": "contrast_factor",
    "random_saturation": "saturation_factor",
    "random_hue": "hue_delta",
}
ORDER = list(ARGUMENTS)
MOVES = ["random_flip_left_right", "random_flip_up_down", "random_rot90"]
EVERY = [*ORDER, *MOVES]


def picture(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def one(image: np.ndarray, name: str, parameter: object, arguments: object = None) -> np.ndarray:
    given = {} if name in MOVES else {name: arguments or ARGUMENTS[name]}
    return augment_image(image, [name], parameters=[parameter], **given)


# ---------------------------------------------------------------------------------------------------------------------
# Against dlimp's own output


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("name", ORDER)
def test_each_operation_is_dlimps(name, case):
    found = one(GOLDEN["image"], name, DRAWN[case][NAMES_OF_DRAWN[name]])
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, GOLDEN[f"s{case}/{name}"])


@pytest.mark.parametrize("case", range(4))
def test_all_operations_together_are_dlimps(case):
    drawn = DRAWN[case]["full_chain_params"]
    parameters = [drawn[NAMES_OF_DRAWN[name]] for name in ORDER]
    found = augment_image(GOLDEN["image"], ORDER, parameters=parameters, **ARGUMENTS)
    apart = np.abs(found.astype(int) - GOLDEN[f"s{case}/full"])
    assert apart.max() <= 1 and np.count_nonzero(apart) <= 1e-3 * apart.size


def drawn_number(case: int) -> np.float32:
    """The one number that all operations of a golden case were drawn from: they had the same seed."""
    return np.float32((DRAWN[case]["brightness_delta"] + 0.1) / 0.2)


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("name", EVERY[:-1])
def test_parameters_are_dlimps_for_the_same_number(name, case):
    arguments = ARGUMENTS.get(name, ())
    operation = OPERATIONS[name](**arguments) if isinstance(arguments, dict) else OPERATIONS[name](*arguments)
    found = operation.parameter(np.full(operation.uniforms, drawn_number(case)))
    if name in MOVES:
        np.testing.assert_array_equal(one(GOLDEN["image"], name, found), GOLDEN[f"s{case}/{name}"])
    else:
        np.testing.assert_allclose(found, DRAWN[case][NAMES_OF_DRAWN[name]], rtol=0, atol=2e-7)


@pytest.mark.parametrize("case", range(4))
def test_quarter_turns_are_dlimps(case):
    golden = GOLDEN[f"s{case}/random_rot90"]  # its number of turns is an integer draw, which no other golden shows
    assert sum(np.array_equal(one(GOLDEN["image"], "random_rot90", turns), golden) for turns in range(4)) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Definitions


units = st.floats(0, 1, width=32)


@given(seed=st.integers(0, 99), factor=st.floats(0, 3, width=32))
@settings(max_examples=20, deadline=None)
def test_saturation_is_scaled_in_hue_saturation_value(seed, factor):
    image = np.random.default_rng(seed).random((4, 5, 3), dtype=np.float32)
    image[0, 0], image[0, 1], image[0, 2] = 0, 1, (0.25, 0.25, 0.5)
    found = one(image, "random_saturation", factor)
    for pixel, changed in zip(image.reshape(-1, 3).tolist(), found.reshape(-1, 3)):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        np.testing.assert_allclose(changed, colorsys.hsv_to_rgb(hue, min(saturation * factor, 1), value), atol=2e-6)


@given(seed=st.integers(0, 99), delta=st.floats(-0.5, 0.5, width=32))
@settings(max_examples=20, deadline=None)
def test_hue_is_turned_in_hue_saturation_value(seed, delta):
    image = np.random.default_rng(seed).random((4, 5, 3), dtype=np.float32)
    image[0, 0], image[0, 1], image[0, 2] = 0, 1, (0.5, 0.5, 0.25)
    found = one(image, "random_hue", delta)
    for pixel, changed in zip(image.reshape(-1, 3).tolist(), found.reshape(-1, 3)):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        np.testing.assert_allclose(changed, colorsys.hsv_to_rgb((hue + delta) % 1, saturation, value), atol=5e-6)


@given(seed=st.integers(0, 99), factor=st.floats(0, 3, width=32), delta=st.floats(-0.5, 0.5, width=32))
@settings(max_examples=60, deadline=None)
def test_saturation_and_hue_together_are_one_after_the_other(seed, factor, delta):
    image = np.random.default_rng(seed).random((4, 5, 3), dtype=np.float32)
    image[0], image[1, 0] = [(0, 0, 0), (1, 1, 1), (0.5, 0.5, 0.25), (0.25, 0.5, 0.5), (1, 0, 1)], (0, 0.75, 0)
    order, parameters = ["random_saturation", "random_hue"], [factor, delta]
    found = augment_image(image, order, parameters=parameters, **ARGUMENTS)
    for pixel, changed in zip(image.reshape(-1, 3).tolist(), found.reshape(-1, 3)):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        expected = colorsys.hsv_to_rgb((hue + delta) % 1, min(saturation * factor, 1), value)
        np.testing.assert_allclose(changed, expected, atol=5e-6)


@given(
    seed=st.integers(0, 1 << 40),
    order=st.lists(st.sampled_from(EVERY), max_size=5),
    shape=st.sampled_from([(1, 1), (1, 9), (12, 7), (300, 250)]),
)
@settings(max_examples=40, deadline=None)
def test_images_of_the_host_follow_the_definitions(seed, order, shape):
    """`Operation.apply` defines an operation; on the host it is computed in strips, in place, two at once."""
    image = np.random.default_rng(0).random((*shape, 3), dtype=np.float32)
    parameters = draw_parameters(order, rng=seed, **ARGUMENTS)
    planes = np.moveaxis(image, -1, 0)
    for operation, parameter in zip(make_operations(order, **ARGUMENTS), parameters):
        planes = operation.apply(planes, parameter, np).clip(0, 1)
    found = augment_image(image, order, parameters=parameters, **ARGUMENTS)
    np.testing.assert_allclose(found, np.moveaxis(planes, 0, -1), atol=2e-5)


def test_images_of_different_threads_do_not_mix():
    """Threads keep memory for intermediate results, each its own."""
    images = [picture(60 + number, 50, 3, seed=number) for number in range(8)]
    alone = [augment_image(image, EVERY, rng=5, **ARGUMENTS) for image in images]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            changed = list(pool.map(lambda image: augment_image(image, EVERY, rng=5, **ARGUMENTS), images))
            for ours, theirs in zip(changed, alone):
                np.testing.assert_array_equal(ours, theirs)


@given(height=st.integers(1, 40), width=st.integers(1, 40), box=st.tuples(units, units, units, units))
@settings(max_examples=40, deadline=None)
def test_a_crop_is_interpolated_between_its_corners(height, width, box):
    image = np.random.default_rng(0).random((height, width, 3), dtype=np.float32)
    top, left, bottom, right = box
    rows = np.linspace(top, bottom, height) * (height - 1) if height > 1 else np.zeros(1)
    columns = np.linspace(left, right, width) * (width - 1) if width > 1 else np.zeros(1)
    by_rows = [np.interp(rows, np.arange(height), line) for line in image.transpose(1, 2, 0).reshape(-1, height)]
    half = np.array(by_rows).reshape(width, 3, height)
    expected = [np.interp(columns, np.arange(width), line) for line in half.transpose(2, 1, 0).reshape(-1, width)]
    found = one(image, "random_resized_crop", box)
    np.testing.assert_allclose(found, np.array(expected).reshape(height, 3, width).transpose(0, 2, 1), atol=1e-5)


def test_contrast_is_about_the_mean_of_each_channel():
    image = np.random.default_rng(0).random((6, 7, 3), dtype=np.float32)
    mean = image.mean(axis=(0, 1))
    expected = ((image - mean) * 1.5 + mean).clip(0, 1)
    np.testing.assert_allclose(one(image, "random_contrast", 1.5), expected, atol=1e-6)


def test_brightness_is_cut_off_at_black_and_white():
    image = picture(5, 5, 3)
    assert (one(image, "random_brightness", 1.0) == 255).all()
    assert (one(image, "random_brightness", -1.0) == 0).all()


def test_flips_and_rotations_move_the_pixels_as_they_say():
    image = picture(4, 6, 3)
    np.testing.assert_array_equal(one(image, "random_flip_left_right", True), image[:, ::-1])
    np.testing.assert_array_equal(one(image, "random_flip_up_down", True), image[::-1])
    for quarters in range(4):
        np.testing.assert_array_equal(one(image, "random_rot90", quarters), np.rot90(image, quarters))


@given(values=st.integers(0, 255))
@settings(deadline=None)
def test_what_changes_nothing_gives_back_every_value(values):
    image = np.full((2, 3, 3), values, np.uint8)
    nothing = [[0, 0, 1, 1], 0.0, 1.0, 1.0, 0.0, False, False, 0]
    np.testing.assert_array_equal(augment_image(image, EVERY, parameters=nothing, **ARGUMENTS), image)


# ---------------------------------------------------------------------------------------------------------------------
# Laws


@given(seed=st.integers(0, 1 << 40), order=st.lists(st.sampled_from(EVERY), max_size=5))
@settings(max_examples=40, deadline=None)
def test_the_same_generator_gives_the_same_image_and_the_given_one_stays(seed, order):
    image = picture(12, 12, 3)
    before = image.copy()
    first = augment_image(image, order, rng=seed, **ARGUMENTS)
    np.testing.assert_array_equal(first, augment_image(image, order, rng=np.random.default_rng(seed), **ARGUMENTS))
    parameters = draw_parameters(order, rng=seed, **ARGUMENTS)
    np.testing.assert_array_equal(first, augment_image(image, order, parameters=parameters, **ARGUMENTS))
    np.testing.assert_array_equal(image, before)
    assert first.shape == image.shape and first.dtype == np.uint8 and not np.shares_memory(first, image)


@pytest.mark.parametrize("compat", [None, "crossformer"])
def test_several_images_are_changed_alike(compat):
    images = picture(3, 2, 40, 40, 3)
    found = augment_image(images, EVERY, rng=5, compat=compat, **ARGUMENTS)
    alone = [augment_image(image, EVERY, rng=5, compat=compat, **ARGUMENTS) for image in images.reshape(6, 40, 40, 3)]
    np.testing.assert_array_equal(found, np.reshape(alone, images.shape))


def test_float_images_stay_float_and_are_not_written_to():
    image = np.random.default_rng(0).random((8, 9, 3), dtype=np.float32)
    before = image.copy()
    found = augment_image(image, ORDER, rng=0, **ARGUMENTS)
    assert found.dtype == np.float32 and found.min() >= 0 and found.max() <= 1
    np.testing.assert_array_equal(image, before)


# ---------------------------------------------------------------------------------------------------------------------
# What is drawn

DRAWS = 3000
CHI_SQUARE_9 = 33.7  # exceeded by one in 10,000 of uniform samples


def drawn(name: str, compat: str | None = None, arguments: object = None) -> np.ndarray:
    rng, given = np.random.default_rng(0), {} if name in MOVES else {name: arguments or ARGUMENTS[name]}
    return np.array([draw_parameters([name], rng=rng, compat=compat, **given)[0] for _ in range(DRAWS)])


def chi_square(fractions: np.ndarray) -> float:
    counts = np.histogram(fractions, bins=10, range=(0, 1))[0]
    assert counts.sum() == len(fractions), "outside of its range"
    return float(((counts - len(fractions) / 10) ** 2).sum() / (len(fractions) / 10))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("random_brightness", -0.1, 0.1),
        ("random_contrast", 0.9, 1.1),
        ("random_saturation", 0.9, 1.1),
        ("random_hue", -0.05, 0.05),
    ],
)
def test_numbers_are_uniform_in_their_range(name, low, high):
    assert chi_square((drawn(name) - low) / (high - low)) < CHI_SQUARE_9


def test_the_chi_square_test_can_fail():
    assert chi_square(np.random.default_rng(0).random(DRAWS) ** 1.2) > CHI_SQUARE_9


def test_moves_are_equally_likely():
    for name in MOVES:
        values, counts = np.unique(drawn(name), return_counts=True)
        expected = DRAWS / (4 if name == "random_rot90" else 2)
        assert len(values) * expected == DRAWS
        assert ((counts - expected) ** 2 / expected).sum() < 21.1  # one in 10,000 at three degrees


def fractions_of(boxes: np.ndarray, scale: list[float], ratio: list[float]) -> np.ndarray:
    """Area, logarithm of the ratio and offsets of boxes, each as the fraction of its range that was drawn."""
    height, width = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area = (height * width - scale[0]) / (scale[1] - scale[0])
    shape = np.log(width / height / ratio[0]) / np.log(ratio[1] / ratio[0])
    return np.stack([area, shape, boxes[:, 0] / (1 - height), boxes[:, 1] / (1 - width)], axis=1)


SMALL = {"scale": [0.2, 0.6], "ratio": [0.8, 1.25]}  # never cut off at the whole image


def test_a_crop_draws_area_ratio_and_offsets_independently():
    found = fractions_of(drawn("random_resized_crop", arguments=SMALL).astype(np.float64), **SMALL).clip(0, 1)
    for column in found.T:
        assert chi_square(column) < CHI_SQUARE_9
    correlations = np.corrcoef(found.T)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 0.08


def test_a_crop_of_the_original_draws_one_number():
    found = fractions_of(drawn("random_resized_crop", "crossformer", SMALL).astype(np.float64), **SMALL)
    np.testing.assert_allclose(found, found[:, :1].repeat(4, axis=1), atol=1e-4)
    assert chi_square(found[:, 0].clip(0, 1)) < CHI_SQUARE_9


@given(uniforms=st.lists(st.floats(0, 1, exclude_max=True, width=32), min_size=4, max_size=4))
@settings(deadline=None)
def test_a_box_lies_inside_the_image(uniforms):
    top, left, bottom, right = RandomResizedCrop([0.1, 1.0], [0.5, 2.0]).parameter(np.array(uniforms, np.float32))
    assert 0 <= top < bottom <= 1 + 1e-6 and 0 <= left < right <= 1 + 1e-6


# ---------------------------------------------------------------------------------------------------------------------
# Wrong arguments


@pytest.mark.parametrize(
    ("order", "arguments", "error", "sentence"),
    [
        (["random_blur"], {}, ValueError, "There is no augmentation 'random_blur'. There are random_resized_crop, "),
        ([], {"random_blurr": [1]}, ValueError, "There is no augmentation 'random_blurr'"),
        (["random_brightness"], {}, TypeError, r"random_brightness takes \(max_delta\), got \(\)"),
        (["random_hue"], {"random_hue": {"delta": 1}}, TypeError, r"random_hue takes \(max_delta\), got {'delta': 1}"),
        (["random_hue"], {"random_hue": [0.6]}, ValueError, "max_delta of random_hue must be between 0 and 0.5"),
        (["random_brightness"], {"random_brightness": [-1]}, ValueError, "must not be negative, got -1"),
        (
            ["random_contrast"],
            {"random_contrast": [1.1, 0.9]},
            ValueError,
            "random_contrast takes 0 <= lower < upper, got 1.1 and 0.9",
        ),
        (
            ["random_saturation"],
            {"random_saturation": [1, 1]},
            ValueError,
            "random_saturation takes 0 <= lower < upper",
        ),
        (
            ["random_resized_crop"],
            {"random_resized_crop": [[1, 0.5], [1, 1]]},
            ValueError,
            "scale of random_resized_crop takes 0 < lower",
        ),
        (
            ["random_resized_crop"],
            {"random_resized_crop": [[0.5, 1], [0, 1]]},
            ValueError,
            "ratio of random_resized_crop takes 0 < lower",
        ),
    ],
)
def test_wrong_operations_are_refused(order, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        augment_image(picture(4, 4, 3), order, rng=0, **arguments)


def test_wrong_images_are_refused():
    with pytest.raises(ValueError, match=r"uint8 or float32 images .*, got int64 \(4, 4, 3\)"):
        augment_image(np.zeros((4, 4, 3), np.int64), [])
    for name in ("random_saturation", "random_hue"):
        with pytest.raises(ValueError, match=f"{name} needs images with 3 channels, got one with 1"):
            augment_image(picture(4, 4, 1), [name], rng=0, **ARGUMENTS)


def test_parameters_must_be_as_many_as_operations():
    with pytest.raises(ValueError, match="augment_order has 1 operations, and there are 2 parameters"):
        augment_image(picture(4, 4, 3), ["random_rot90"], parameters=[1, 2])


def test_an_unknown_compat_of_an_augmentation_is_an_error():
    with pytest.raises(ValueError, match="compat must be None"):
        augment_image(picture(4, 4, 3), [], compat="octo")
