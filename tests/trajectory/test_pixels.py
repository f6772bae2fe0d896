"""Pixels equal to TensorFlow's: golden files, every kind of PNG, resizing as sums of weighted pixels, damaged bytes."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bushel._src.base.late_imports import install_command
from bushel._src.trajectory.pixels import decode_depth, decode_image, decode_resized, resize_depth_image, resize_image

GOLDEN = np.load(Path(__file__).parent / "golden" / "frame" / "decode_resize.npz")
# Made by TensorFlow 2.15: one small picture, and what `tf.io.decode_image` gave for it.
JPEGS = np.load(Path(__file__).parent.parent / "data" / "tensorflow_jpegs.npz")
SIZES = [(16, 16), (24, 40), (64, 64), (33, 17), (32, 32), (7, 90)]
SOURCES = {"image_primary": "jpeg", "image_wrist": "png"}


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def png(values: np.ndarray, colours: int, bits: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file of values (rows, numbers of one row), written by hand: Pillow writes only some kinds."""
    rows = values.reshape(len(values), -1)
    if bits == 16:
        packed = [row.astype(">u2").tobytes() for row in rows]
    elif bits == 8:
        packed = [row.astype(np.uint8).tobytes() for row in rows]
    else:
        ones = (rows[..., None] >> np.arange(bits - 1, -1, -1)) & 1
        packed = [np.packbits(row).tobytes() for row in ones.reshape(len(rows), -1)]
    height, width = values.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in packed))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    framed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def pillow(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


# ---------------------------------------------------------------------------------------------------------------------
# Against TensorFlow's own output


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_pixels_are_tensorflows(kind, number):
    found = decode_image(GOLDEN[f"{kind}{number}@bytes"].tobytes())
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, GOLDEN[f"{kind}{number}@decoded"])


@pytest.mark.parametrize("kind", ["444", "422", "440", "420", "411", "grey", "progressive", "rgb"])
def test_every_kind_of_jpeg_has_tensorflows_pixels(kind):
    np.testing.assert_array_equal(decode_image(JPEGS[f"{kind}@bytes"].tobytes()), JPEGS[f"{kind}@decoded"])


@pytest.mark.parametrize("number", range(3))
def test_depth_is_tensorflows(number):
    found = decode_depth(GOLDEN[f"depth{number}@bytes"].tobytes())
    expected = GOLDEN[f"depth{number}@decoded_float32"][..., 0]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_resized_images_are_tensorflows():
    different = values = 0
    for number in range(3):
        for name, kind in SOURCES.items():
            for height, width in SIZES:
                found = resize_image(GOLDEN[f"{kind}{number}@decoded"], (height, width))
                expected = GOLDEN[f"t{number}/resize_{height}x{width}/{name}"]
                assert found.dtype == np.uint8 and found.shape == expected.shape
                apart = np.abs(found.astype(int) - expected)
                assert apart.max() <= 1
                different, values = different + np.count_nonzero(apart), values + apart.size
    assert different <= 1e-4 * values


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_resized_depth_is_tensorflows(height, width):
    found = resize_depth_image(decode_depth(GOLDEN["depth0@bytes"].tobytes()), (height, width))
    expected = GOLDEN[f"t0/resize_{height}x{width}/depth_primary"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Decoding


@pytest.mark.parametrize(("colours", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
@pytest.mark.parametrize("bits", [8, 16])
def test_png_has_the_channels_of_the_file_and_the_upper_bits(colours, channels, bits):
    values = np.random.default_rng(1).integers(0, 1 << bits, (5, 6, channels))
    np.testing.assert_array_equal(decode_image(png(values, colours, bits)), values >> (bits - 8))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_of_few_bits_reaches_white(bits):
    values = np.random.default_rng(1).integers(0, 1 << bits, (5, 8, 1))
    np.testing.assert_array_equal(decode_image(png(values, 0, bits)), values * (255 // ((1 << bits) - 1)))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("transparent", [False, True])
def test_palettes_become_colours_with_transparency_where_there_is_one(bits, transparent):
    rng = np.random.default_rng(2)
    palette, alpha = rng.integers(0, 256, (1 << bits, 3)), rng.integers(0, 256, (1 << bits, 1))
    values = rng.integers(0, 1 << bits, (5, 8, 1))
    chunks = [(b"PLTE", palette.astype(np.uint8).tobytes())]
    if transparent:
        chunks.append((b"tRNS", alpha.astype(np.uint8).tobytes()))
        palette = np.concatenate([palette, alpha], axis=1)
    np.testing.assert_array_equal(decode_image(png(values, 3, bits, *chunks)), palette[values[..., 0]])


@pytest.mark.parametrize(("colours", "channels"), [(0, 1), (2, 3)])
def test_a_transparent_colour_adds_no_channel(colours, channels):
    values = np.random.default_rng(3).integers(0, 256, (5, 6, channels))
    chunk = (b"tRNS", struct.pack(">H", 7) * channels)
    np.testing.assert_array_equal(decode_image(png(values, colours, 8, chunk)), values)


def test_grey_jpeg_has_one_channel():
    grey = picture(20, 30, 1)
    data = simplejpeg.encode_jpeg(grey, colorspace="GRAY")
    expected = simplejpeg.decode_jpeg(data, colorspace="GRAY", fastdct=True, fastupsample=False)
    np.testing.assert_array_equal(decode_image(data), expected)
    assert expected.shape == (20, 30, 1)


def test_the_first_frame_of_a_gif_is_given_as_colours():
    frames = [Image.fromarray(np.full((4, 5, 3), value, np.uint8)) for value in (10, 200)]
    data = pillow(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode_image(data), np.full((4, 5, 3), 10))


def test_depth_of_8_bits_is_a_fraction_of_255():
    values = np.arange(256).reshape(16, 16, 1)
    found = decode_depth(png(values, 0, 8))
    np.testing.assert_allclose(found, values[..., 0] / 255, rtol=0, atol=1e-7)
    jpeg = simplejpeg.encode_jpeg(picture(16, 16))
    np.testing.assert_allclose(decode_depth(jpeg), decode_image(jpeg)[..., 0] / 255, rtol=0, atol=1e-7)


def test_depth_of_16_bits_and_several_channels_is_refused():
    with pytest.raises(ValueError, match="a PNG of 16 bits with 3 channels"):
        decode_depth(png(np.zeros((2, 2, 3), int), 2, 16))


class Handle:
    """What stands for an encoded image until somebody reads it."""

    def __init__(self, data: bytes):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        return self.data


@pytest.mark.parametrize("wrap", [bytes, Handle, memoryview, np.bytes_])
def test_whatever_gives_bytes_is_decoded(wrap):
    data = simplejpeg.encode_jpeg(picture(8, 8))
    np.testing.assert_array_equal(decode_image(wrap(data)), decode_image(data))


@pytest.mark.parametrize("decode", [decode_image, decode_depth])
def test_padding_has_no_pixels(decode):
    with pytest.raises(ValueError, match="An empty string is a padding image"):
        decode(b"")


def test_cut_files_are_refused():
    jpeg, portable = simplejpeg.encode_jpeg(picture(40, 40)), png(picture(20, 20), 2, 8)
    for whole, sentence in ((jpeg, "not a complete JPEG image"), (portable, "not a complete image")):
        for length in (10, 40, len(whole) // 2):
            with pytest.raises(ValueError, match=f"These {length} bytes are {sentence}"):
                decode_image(whole[:length])


def test_damaged_files_are_refused_or_decoded_and_nothing_else():
    rng = np.random.default_rng(0)
    wholes = [simplejpeg.encode_jpeg(picture(20, 20)), png(picture(9, 9), 2, 8), png(picture(9, 9, 1), 0, 16)]
    wholes.append(png(picture(9, 9, 1) >> 4, 3, 4, (b"PLTE", bytes(48)), (b"tRNS", bytes(16))))
    refused = 0
    for number in range(400):
        damaged = bytearray(wholes[number % len(wholes)])
        damaged[rng.integers(8, len(damaged))] ^= 1 << rng.integers(8)
        if damaged.startswith(b"\x89PNG") and number % 3:  # a wrong header with a right checksum gets further
            damaged[29:33] = struct.pack(">I", zlib.crc32(damaged[12:29]))
        try:
            assert decode_image(bytes(damaged)).ndim == 3
        except ValueError as error:
            assert f"These {len(damaged)} bytes are not a complete" in str(error) or "has the colours" in str(error)
            refused += 1
    assert 50 < refused < 400


def test_other_bytes_are_refused():
    with pytest.raises(ValueError, match="These 9 bytes are not a complete image"):
        decode_image(b"no pixels")


def test_print_colours_are_refused():
    image = Image.fromarray(picture(8, 8, 4), "CMYK")
    with pytest.raises(ValueError, match="has the colours CMYK"):
        decode_image(pillow(image, "JPEG"))


@pytest.mark.parametrize(("missing", "data"), [("simplejpeg", b"\xff\xd8\xff\xe0"), ("PIL", b"\x89PNG\r\n\x1a\n")])
def test_a_missing_decoder_is_named_and_not_replaced(missing, data):
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from bushel._src.trajectory.pixels import decode_image\n"
        f"try: decode_image({data!r})\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=250)
    assert f"need the package '{missing}': {install_command('robots')}" in done.stdout


# ---------------------------------------------------------------------------------------------------------------------
# Resizing


def weights(length: int, size: int, radius: int) -> np.ndarray:
    """The definition in float64: a kernel around each output's centre, wider when shrinking."""
    scale = length / size
    centres = (np.arange(size)[:, None] + 0.5) * scale
    x = abs(np.arange(length) + 0.5 - centres) / max(scale, 1.0)
    found = np.where(x < radius, 1 - x if radius == 1 else np.sinc(x) * np.sinc(x / radius), 0)
    return found / found.sum(axis=1, keepdims=True)


def resized(values: np.ndarray, size: tuple[int, int], radius: int) -> np.ndarray:
    rows, columns = weights(values.shape[0], size[0], radius), weights(values.shape[1], size[1], radius)
    return np.einsum("ij,kl,jl...->ik...", rows, columns, values.astype(np.float64), optimize=True)


lengths = st.integers(1, 70)


@given(
    height=lengths, width=lengths, size=st.tuples(lengths, lengths), channels=st.integers(1, 4), seed=st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_a_resized_image_is_the_rounded_weighted_sum(height, width, size, channels, seed):
    image = picture(height, width, channels, seed)
    before = image.copy()
    exact = resized(image, size, 3).clip(0, 255)
    found = resize_image(image, size)
    assert found.shape == (*size, channels) and found.dtype == np.uint8
    assert np.abs(found - exact).max() <= 0.5 + 2e-3
    np.testing.assert_array_equal(image, before)


@given(height=lengths, width=lengths, size=st.tuples(lengths, lengths), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_resized_depth_image_is_the_weighted_sum(height, width, size, seed):
    depth = np.random.default_rng(seed).random((height, width), dtype=np.float32)
    found = resize_depth_image(depth, size)
    np.testing.assert_allclose(found, resized(depth, size, 1), rtol=0, atol=2e-5)
    np.testing.assert_array_equal(resize_depth_image(depth[..., None], size), found[..., None])


@pytest.mark.parametrize("shape", [(256, 256), (480, 640), (1100, 90), (90, 1300)])
def test_large_images_in_narrow_bands_are_the_same_sum(shape):
    image = picture(*shape)
    exact = resized(image, (24, 40), 3).clip(0, 255)
    assert np.abs(resize_image(image, (24, 40)) - exact).max() <= 0.5 + 5e-3


@given(
    images=st.lists(st.tuples(lengths, lengths, st.sampled_from([1, 3])), min_size=1, max_size=4),
    size=st.tuples(lengths, lengths),
)
@settings(max_examples=30, deadline=None)
def test_a_decoded_image_is_resized_in_memory_that_the_next_one_uses(images, size):
    """Results stay as they are when images of other sizes follow, also where an image has the asked size already."""
    pictures = [picture(*shape, seed=number) for number, shape in enumerate([*images, (*size, 3)])]
    colours = {1: "GRAY", 3: "RGB"}
    contents = [simplejpeg.encode_jpeg(image, colorspace=colours[image.shape[2]]) for image in pictures]
    found = [decode_resized(content, size) for content in contents]
    for ours, content in zip(found, contents):
        np.testing.assert_array_equal(ours, resize_image(decode_image(content), size))


@given(value=st.integers(0, 255), height=lengths, width=lengths, size=st.tuples(lengths, lengths))
@settings(max_examples=30, deadline=None)
def test_one_colour_stays_that_colour(value, height, width, size):
    assert (resize_image(np.full((height, width, 3), value, np.uint8), size) == value).all()


def test_resizing_to_the_same_size_changes_nothing():
    image, depth = picture(9, 12), np.random.default_rng(0).random((9, 12), dtype=np.float32)
    np.testing.assert_array_equal(resize_image(image, [9, 12]), image)
    np.testing.assert_array_equal(resize_depth_image(depth, (9, 12)), depth)


@pytest.mark.parametrize("image", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8)])
def test_images_of_another_kind_are_refused(image):
    with pytest.raises(ValueError, match="resize_image takes uint8"):
        resize_image(image, (2, 2))


@pytest.mark.parametrize("depth", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)])
def test_depth_of_another_kind_is_refused(depth):
    with pytest.raises(ValueError, match="resize_depth_image takes float32"):
        resize_depth_image(depth, (2, 2))


@pytest.mark.parametrize(
    ("size", "error", "sentence"),
    [
        ((2,), ValueError, r"A size must be \(height, width\)"),
        ((0, 2), ValueError, "The height of an image must be positive"),
        ((2, 2.5), TypeError, "The width of an image must be an integer"),
    ],
)
def test_wrong_sizes_are_refused(size, error, sentence):
    with pytest.raises(error, match=sentence):
        resize_image(picture(4, 4), size)
