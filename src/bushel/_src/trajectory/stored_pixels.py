"""Arrays of pixels as bytes, with NumPy's own header, so that frames which are stored as plain arrays travel as images.

All of `bushel.trajectory` takes an image for bytes until `pixels.py` decodes it: an empty image is padding, a dropped
one is never decoded. Frames of HDF5 and `.npz` files are not encoded, so they get the header of an `.npy` file instead.
"""

from __future__ import annotations

import functools
import math

import numpy as np

MAGIC = b"\x93NUMPY"
_HEADER_BYTES = 128


def pack_pixels(pixels: np.ndarray) -> bytes:
    """The bytes of an array of pixels: those of an `.npy` file.

    >>> len(pack_pixels(np.zeros((2, 4, 3), np.uint8)))
    152
    """
    return make_header(pixels.dtype.str, pixels.shape) + pixels.tobytes()


def unpack_pixels(content: bytes) -> np.ndarray:
    """The array that `pack_pixels` has packed, as an array of its own.

    >>> unpack_pixels(pack_pixels(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))).tolist()
    [[[0, 1, 2], [3, 4, 5]]]
    """
    dtype, shape = _parse_header(content[:_HEADER_BYTES])
    if len(content) - _HEADER_BYTES != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"These {len(content)} bytes are not a complete array {dtype}{list(shape)} of pixels.")
    return np.frombuffer(content, dtype, offset=_HEADER_BYTES).reshape(shape).copy()


@functools.lru_cache(maxsize=256)
def make_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of an `.npy` file, 128 bytes, for an array in C's order."""
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
