"""Decodes and resizes images with the pixels of TensorFlow. `obs_transforms.py` applies it to frames.

Frames that are stored as plain arrays travel as images, too: as bytes with NumPy's own header.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import TooLarge
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.sources.local_files import HandlePool
from bushel._src.sources.media import check_image
from bushel._src.sources.size_limits import check_pixels
from bushel._src.trajectory.data_utils import get_namespace, is_jax

_LARGEST = 32 << 20  # bytes. A larger array is not kept, so that a single huge image does not fill the memory


class Scratch:
    """Arrays by name, for results that no caller sees. One thread at a time may use them: see `SCRATCHES`.

    An image has hundreds of kilobytes. The C library takes memory of that size from the system and gives it back, and
    the system clears each page again, which takes longer than most operations on the pixels.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised array. The next call with the same name returns the same memory.

        >>> scratch = Scratch()
        >>> scratch.get("rows", (2, 3), np.float32).shape
        (2, 3)
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            if size > _LARGEST:
                return np.empty(shape, dtype)
            buffer = self._buffers[name] = np.empty(size, np.uint8)
        return np.ndarray(shape, dtype, buffer)


SCRATCHES = HandlePool(Scratch, limit=16)
"""Who needs scratch memory takes one of these: `with SCRATCHES.lend() as scratch`."""


MAGIC = b"\x93NUMPY"
_HEADER_BYTES = 128


def pack_pixels(pixels: np.ndarray) -> bytes:
    """Return the bytes of an array of pixels: those of an `.npy` file.

    >>> len(pack_pixels(np.zeros((2, 4, 3), np.uint8)))
    152
    """
    return make_header(pixels.dtype.str, pixels.shape) + pixels.tobytes()


def unpack_pixels(content: bytes) -> np.ndarray:
    """Return the array that `pack_pixels` has packed, as an array of its own.

    >>> unpack_pixels(pack_pixels(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))).tolist()
    [[[0, 1, 2], [3, 4, 5]]]
    """
    dtype, shape = _parse_header(content[:_HEADER_BYTES])
    if len(content) - _HEADER_BYTES != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"These {len(content)} bytes are not a complete array {dtype}{list(shape)} of pixels.")
    return np.frombuffer(content, dtype, offset=_HEADER_BYTES).reshape(shape).copy()


@functools.lru_cache(maxsize=256)
def make_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of an `.npy` file, 128 bytes, for an array in C's order."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return (
        MAGIC
        + b"\x01\x00"
        + (_HEADER_BYTES - 10).to_bytes(2, "little")
        + text.ljust(_HEADER_BYTES - 11).encode()
        + b"\n"
    )


@functools.lru_cache(maxsize=256)
def _parse_header(header: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    # All frames of a camera have the same header, so it is parsed once.
    import ast

    try:
        fields = ast.literal_eval(header[10:].decode())
        return np.dtype(fields["descr"]), tuple(fields["shape"])
    except (ValueError, SyntaxError, LookupError, TypeError) as error:
        raise ValueError(f"These bytes are not an array of pixels: {error}") from error


_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_GREY, _GREY_ALPHA = 0, 4  # colour types of PNG
_COLOURS = {"Gray": "GRAY", "YCbCr": "RGB", "RGB": "RGB"}

# ---------------------------------------------------------------------------------------------------------------------
# Decoding


@public("bushel.trajectory")
def decode_image(data: Any) -> np.ndarray:
    """Return the pixels of an encoded image: uint8 (height, width, channels), with as many channels as the file has.

    Equal to `tf.io.decode_image(data, expand_animations=False)`: grey images have one channel, images with transparency
    four (grey ones two). Of 16 bits the upper 8 are kept. Of a GIF, and of any other format of Pillow, the first frame
    is returned as RGB.

    >>> decode_image(open("frame.jpg", "rb").read()).shape  # doctest: +SKIP
    (256, 256, 3)

    Args:
      data: the content of an image file, as `bytes` or as an object that `bytes(data)` reads.
    """
    return _decode_uint8(_read_content(data))


def decode_resized(data: Any, size: Sequence[int]) -> np.ndarray:
    """Return the same as `resize_image(decode_image(data), size)`, in less time: no array is made for the decoded
    image.

    Args:
      data: the content of an image file, as `bytes` or as an object that `bytes(data)` reads.
      size: the new height and width.
    """
    content = _read_content(data)
    with SCRATCHES.lend() as scratch:
        pixels = _decode_uint8(content, scratch)
        resized = resize_image(pixels, size)
        return resized.copy() if resized is pixels else resized


def _decode_uint8(content: bytes, scratch: Scratch | None = None) -> np.ndarray:
    pixels = _decode(content, scratch)
    if pixels.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"An image has uint8 or uint16 pixels, got {pixels.dtype}. Is it a depth image?")
    return (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels


def has_16_bits(content: bytes) -> bool:
    """Return whether an encoded image has more than 8 bits for each channel, of which `decode_image` keeps the
    upper 8.
    """
    if content.startswith(MAGIC):
        return unpack_pixels(content).dtype == np.uint16
    return content.startswith(_PNG) and len(content) > 24 and content[24] == 16


@public("bushel.trajectory")
def decode_depth(data: Any) -> np.ndarray:
    """Return the first channel of an encoded depth image: float32 (height, width) between 0 and 1.

    Equal to `tf.io.decode_image(data, dtype=tf.float32)[..., 0]`: values are divided by 65535 if the file has 16 bits,
    else by 255. Frames of an array of floats (in an HDF5 file, for example) stay as they are.

    Args:
      data: the content of an image file, usually a PNG of 16 bits, as `bytes` or as an object that `bytes(data)` reads.
    """
    content = _read_content(data)
    pixels = _decode(content)
    if pixels.dtype.kind == "f":
        return pixels[..., 0].astype(np.float32)
    if content.startswith(MAGIC):
        return pixels[..., 0].astype(np.float32) * np.float32(1 / np.iinfo(pixels.dtype).max)
    if content.startswith(_PNG):
        if content[24] == 16 and pixels.dtype == np.uint8:
            raise ValueError(
                f"This depth image is a PNG of 16 bits with {pixels.shape[2]} channels, of which Pillow reads only 8 "
                "bits. Write depth as a PNG with one channel."
            )
        wide = pixels[..., 0].astype(np.uint16) * np.uint16(1 if pixels.dtype == np.uint16 else 257)
        return wide.astype(np.float32) * np.float32(1 / 65535)
    return pixels[..., 0].astype(np.float32) * np.float32(1 / 255)


def _read_content(data: Any) -> bytes:
    content = data if isinstance(data, bytes) else bytes(data)
    if not content:
        raise ValueError("An empty string is a padding image and has no pixels. Check its length first.")
    return content


def _decode(content: bytes, scratch: Scratch | None = None) -> np.ndarray:
    """Return the pixels with a channel axis, uint8; uint16 for a grey PNG of 16 bits; any numbers for a stored array.

    With `scratch` the pixels may lie in that memory.
    """
    if content.startswith(_JPEG):
        return _decode_jpeg(content, scratch)
    if content.startswith(MAGIC):
        pixels = unpack_pixels(content)
        return pixels[:, :, None] if pixels.ndim == 2 else pixels
    images = import_package("PIL.Image", "robots", "Images")
    try:
        with images.open(io.BytesIO(content)) as image:
            check_image(image)
            pixels = _read_png(image, content) if content.startswith(_PNG) else np.array(image.convert("RGB"))
    except TooLarge as error:
        raise TooLarge(f"These {len(content)} bytes are an image that is not decoded: {error}") from None
    except (OSError, SyntaxError, ValueError, images.DecompressionBombError) as error:
        raise ValueError(f"These {len(content)} bytes are not a complete image: {error}") from error
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _decode_jpeg(content: bytes, scratch: Scratch | None) -> np.ndarray:
    simplejpeg: Any = import_package("simplejpeg", "robots", "JPEG images")
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
        check_pixels(height, width)
        if colours in _COLOURS:
            shape = (height, width, 1 if colours == "Gray" else 3)
            # simplejpeg would clear new memory before it decodes into it.
            pixels = np.empty(shape, np.uint8) if scratch is None else scratch.get("decoded", shape, np.uint8)
            simplejpeg.decode_jpeg(content, _COLOURS[colours], fastdct=True, fastupsample=False, buffer=pixels)
            return pixels
    except TooLarge as error:
        raise TooLarge(f"These {len(content)} bytes are an image that is not decoded: {error}") from None
    except ValueError as error:
        raise ValueError(f"These {len(content)} bytes are not a complete JPEG image: {error}") from error
    raise ValueError(f"This JPEG image has the colours {colours}. Convert it to RGB or grey before it is stored.")


def _read_png(image: Any, content: bytes) -> np.ndarray:
    """Return the pixels as libpng returns them.

    Byte 24 of the header is the bits per channel, byte 25 the colour type.
    """
    if image.mode == "P":
        return np.array(image.convert("RGBA" if "transparency" in image.info else "RGB"))
    bits, colours = content[24], content[25]
    if colours == _GREY:
        return np.array(image).astype(np.uint16) if bits == 16 else np.array(image.convert("L"))
    pixels = np.array(image)
    return pixels[:, :, [0, -1]] if colours == _GREY_ALPHA else pixels


# ---------------------------------------------------------------------------------------------------------------------
# Resizing


@public("bushel.trajectory")
def resize_image(image: Any, size: Sequence[int]) -> Any:
    """Return a resized image: Lanczos with three lobes and antialiasing, rounded.

    Equal to `tf.image.resize(image, size, "lanczos3", antialias=True)`, rounded and clipped to uint8, except for single
    values within float32's error of a half. An array of JAX gives an array of JAX, also inside `jit` and `vmap`.

    >>> resize_image(np.zeros((256, 320, 3), np.uint8), (224, 224)).shape
    (224, 224, 3)

    Args:
      image: uint8 (height, width, channels).
      size: the new height and width.
    """
    image = get_namespace(image).asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3:
        raise ValueError(
            f"resize_image takes uint8 (height, width, channels), got {image.dtype} {image.shape}. "
            "For depth images use resize_depth_image."
        )
    height, width, channels = image.shape
    new = check_size(size)
    if (height, width) == new:
        return image
    if is_jax(image):
        xp = get_namespace(image)
        resized = _resample_on_jax(xp.moveaxis(image, -1, 0).astype(np.float32), new, _lanczos3)
        return xp.moveaxis(xp.clip(xp.rint(resized), 0, 255).astype(np.uint8), 0, -1)
    pixels = np.empty((*new, channels), np.uint8)
    with SCRATCHES.lend() as scratch:
        values = scratch.get("pixels", (height, width * channels), np.float32)
        np.copyto(values, image.reshape(height, width * channels))
        resized = _resample(values, channels, new, _lanczos3, scratch)
        np.rint(resized, out=resized)
        np.clip(resized, 0, 255, out=resized)
        np.copyto(pixels, resized.reshape(pixels.shape), casting="unsafe")
    return pixels


@public("bushel.trajectory")
def resize_depth_image(depth: Any, size: Sequence[int]) -> Any:
    """Return a resized depth image: bilinear with antialiasing.

    Equal to `tf.image.resize(depth[..., None], size, "bilinear", antialias=True)[..., 0]` within 1e-6. An array of JAX
    gives an array of JAX, also inside `jit` and `vmap`.

    >>> resize_depth_image(np.ones((4, 6), np.float32), (2, 2))
    array([[1., 1.],
           [1., 1.]], dtype=float32)

    Args:
      depth: float32 (height, width), or (height, width, 1) for a result with that axis.
      size: the new height and width.
    """
    depth = get_namespace(depth).asarray(depth)
    if depth.dtype != np.float32 or not (depth.ndim == 2 or (depth.ndim == 3 and depth.shape[2] == 1)):
        raise ValueError(
            f"resize_depth_image takes float32 (height, width) or (height, width, 1), got {depth.dtype} {depth.shape}."
        )
    new = check_size(size)
    if is_jax(depth):
        return _resample_on_jax(depth.reshape(depth.shape[:2]), new, _triangle).reshape(*new, *depth.shape[2:])
    with SCRATCHES.lend() as scratch:
        resized = _resample(depth.reshape(depth.shape[:2]), 1, new, _triangle, scratch)
        # A copy: the result is the argument itself if no axis changes, else scratch memory.
        return resized.copy().reshape(*new, *depth.shape[2:])


def check_size(size: Sequence[int]) -> tuple[int, int]:
    """Return a size (height, width) as plain integers, after a check that both are positive.

    >>> check_size([224, 320])
    (224, 320)
    """
    if len(size) != 2:
        raise ValueError(f"A size must be (height, width), got {size!r}.")
    return checks.positive(size[0], "The height of an image"), checks.positive(size[1], "The width of an image")


class _Band(NamedTuple):
    """A range of outputs, the range of inputs that they depend on, and the weights (outputs, inputs)."""

    outputs: slice
    inputs: slice
    weights: np.ndarray


_Kernel = Callable[[np.ndarray], np.ndarray]


def _lanczos3(distance: np.ndarray) -> np.ndarray:
    return np.where(distance < 3, np.sinc(distance) * np.sinc(distance / 3), 0)


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distance, 0)


def _resample(
    values: np.ndarray, channels: int, size: tuple[int, int], kernel: _Kernel, scratch: Scratch
) -> np.ndarray:
    """Resize an image (height, width * channels) of float32, first along the height. The result may be scratch memory.

    The channels stay next to each other, as images are stored: to separate and to join them would take longer than the
    products with zeros in the second pass.
    """
    height, width = len(values), values.shape[1] // channels
    if height != size[0]:
        rows = scratch.get("rows", (size[0], width * channels), np.float32)
        for outputs, inputs, weights in _split_rows(height, size[0], width * channels, kernel):
            np.matmul(weights, values[inputs], out=rows[outputs])
        values = rows
    if width != size[1]:
        columns = scratch.get("columns", (size[0], size[1] * channels), np.float32)
        for outputs, inputs, weights in _split_columns(width, size[1], size[0], kernel, channels):
            np.matmul(values[:, inputs], weights, out=columns[:, outputs])
        values = columns
    return values


def _resample_on_jax(planes: Any, size: tuple[int, int], kernel: _Kernel) -> Any:
    """Return the same with arrays of JAX: two products with full matrices, which are faster than bands on a device."""
    xp, (height, width) = get_namespace(planes), planes.shape[-2:]
    if height != size[0]:
        planes = xp.matmul(_compute_weights(height, size[0], kernel), planes, precision="highest")
    if width != size[1]:
        planes = xp.matmul(planes, _compute_weights(width, size[1], kernel).T, precision="highest")
    return planes


def _find_scale(length: int, size: int) -> np.float32:
    # TensorFlow computes positions in float32. Exact positions would change the result by more than rounding does.
    return np.float32(1 / (np.float64(np.float32(size) / np.float32(length))))


@functools.lru_cache(maxsize=64)
def _compute_weights(length: int, size: int, kernel: _Kernel) -> np.ndarray:
    """Return the weights (size, length) that resize `length` pixels to `size`."""
    scale = _find_scale(length, size)
    centres = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * scale
    distances = np.abs(np.arange(length, dtype=np.float32) + np.float32(0.5) - centres[:, None])
    weights = kernel((distances * (1 / np.maximum(scale, np.float32(1)))).astype(np.float64))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


_ROWS, _COLUMNS = 8, 16  # outputs per band
_BAND_PRODUCTS = 1 << 19  # multiplications per product; for more BLAS would start threads


@functools.lru_cache(maxsize=128)
def _split_rows(length: int, size: int, across: int, kernel: _Kernel) -> list[_Band]:
    """Return the weights (outputs, inputs) of the first pass. `across` is the length of the other axis."""
    return _split_bands(_compute_weights(length, size, kernel), 1, _ROWS, across)


@functools.lru_cache(maxsize=128)
def _split_columns(length: int, size: int, across: int, kernel: _Kernel, channels: int) -> list[_Band]:
    """Return the weights (inputs, outputs) of the second pass, where the channels of a pixel lie next to each other."""
    bands = _split_bands(_compute_weights(length, size, kernel), channels, _COLUMNS, across)
    return [band._replace(weights=np.ascontiguousarray(band.weights.T)) for band in bands]


def _split_bands(weights: np.ndarray, channels: int, outputs: int, across: int) -> list[_Band]:
    """Return the weights of each pixel (outputs, inputs) as weights of values, in bands of at most so many outputs.

    A pixel has `channels` values, and a value depends on those of its own channel. Most weights of a full matrix are
    zero, so bands save work. They are narrower if `across`, the length of the other axis, is large.
    """
    bands = []
    for start in range(0, len(weights) * channels, outputs):
        stop = min(start + outputs, len(weights) * channels)
        first = start // channels  # pixel
        some = weights[first : (stop - 1) // channels + 1]
        (used,) = np.nonzero(some.any(axis=0))
        inputs = slice(int(used[0]), int(used[-1]) + 1)
        band = np.kron(some[:, inputs], np.eye(channels, dtype=np.float32))[start - first * channels :][: stop - start]
        if outputs > 1 and band.size * across > _BAND_PRODUCTS:
            return _split_bands(weights, channels, outputs // 2, across)
        inputs = slice(inputs.start * channels, inputs.stop * channels)
        bands.append(_Band(slice(start, stop), inputs, np.ascontiguousarray(band)))
    return bands
