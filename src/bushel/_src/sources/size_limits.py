"""Limits on the memory that one record may take after decompression or decoding, and the errors beyond them.

A compressed file of a few megabytes can expand to gigabytes, and an image of 600 bytes can claim any size. So
decompressors and decoders check these limits before they allocate memory.
"""

from __future__ import annotations

import dataclasses
import os

from bushel._src.base import checks
from bushel._src.base.errors import TooLarge
from bushel._src.base.public import public

_VARIABLES = {
    "record_bytes": "BUSHEL_MAX_RECORD_BYTES",
    "image_pixels": "BUSHEL_MAX_IMAGE_PIXELS",
    "array_bytes": "BUSHEL_MAX_ARRAY_BYTES",
    "expansion": "BUSHEL_MAX_EXPANSION",
}
SMALL_BYTES = 256 << 20
"""Up to this size, data may be any number of times as large as in their file."""


@public("bushel.sources")
@dataclasses.dataclass(frozen=True)
class Limits:
    """The most memory that one record, image or array may take. Raise a limit only for files that you trust.

    Attributes:
      record_bytes: the size of a record after decompression, of a chunk of records that are compressed together, of a
        compressed text file, or of the samples of a sound. 1 GiB by default.
      image_pixels: height times width of an image. 2**27 (134 million) by default; an RGB pixel takes 3 bytes.
      array_bytes: the size of an array in a compressed `.npz` file. 16 GiB by default.
      expansion: how many times as large as in its file a column of a row group of a Parquet file may be, if it takes
        more than 256 MiB. 1000 by default: real data compress less well.

    >>> Limits(image_pixels=10**9).image_pixels
    1000000000
    """

    record_bytes: int = 1 << 30
    image_pixels: int = 1 << 27
    array_bytes: int = 1 << 34
    expansion: int = 1000


_current: Limits | None = None


@public("bushel.sources")
def get_limits() -> Limits:
    """Return the present limits of this process.

    They come from the environment variables BUSHEL_MAX_RECORD_BYTES, BUSHEL_MAX_IMAGE_PIXELS, BUSHEL_MAX_ARRAY_BYTES
    and BUSHEL_MAX_EXPANSION, which are read once, when a limit is first needed. `set_limits` changes them.

    >>> get_limits().record_bytes
    1073741824
    """
    return _current or _read_environment()


@public("bushel.sources")
def set_limits(
    *,
    record_bytes: int | None = None,
    image_pixels: int | None = None,
    array_bytes: int | None = None,
    expansion: int | None = None,
) -> Limits:
    """Change some limits, for this process and for workers that start later. Return the limits before the change.

    >>> before = set_limits(record_bytes=4 << 30)
    >>> get_limits().record_bytes
    4294967296
    >>> _ = set_limits(record_bytes=before.record_bytes)
    """
    global _current
    before = get_limits()
    given = {
        "record_bytes": record_bytes,
        "image_pixels": image_pixels,
        "array_bytes": array_bytes,
        "expansion": expansion,
    }
    changes = {name: checks.positive(value, name) for name, value in given.items() if value is not None}
    for name, value in changes.items():
        os.environ[_VARIABLES[name]] = str(value)  # worker processes inherit the environment
    _current = dataclasses.replace(before, **changes)
    return before


def _read_environment() -> Limits:
    global _current
    found: dict[str, int] = {}
    for name, variable in _VARIABLES.items():
        text = os.environ.get(variable)
        if text:
            if not text.isdecimal() or len(text) > 18 or not int(text):
                raise ValueError(
                    f"The environment variable {variable} must be a positive whole number, got {text[:40]!r}."
                )
            found[name] = int(text)
    _current = Limits(**found)
    return _current


def check_record(size: int) -> None:
    """Raise TooLarge if a record of `size` bytes is beyond the limit. Call it before memory is allocated."""
    if size > get_limits().record_bytes:
        raise record_too_large(size)


def record_too_large(size: int | None = None) -> TooLarge:
    """Return the error to raise for a record of `size` bytes.

    None means that the size is unknown, but above the limit.
    """
    return _bytes_too_large("record_bytes", size)


def check_pixels(height: int, width: int) -> None:
    """Raise TooLarge if an image is beyond the limit. Call it before the image is decoded."""
    limit, pixels = get_limits().image_pixels, height * width
    if pixels > limit:
        raise TooLarge(
            f"it would take {pixels:,} pixels once decoded ({height} x {width}), but the limit is {limit:,} pixels. "
            f"{_explain_limit('image_pixels', pixels)}"
        )


def check_array(size: int) -> None:
    """Raise TooLarge if an array of `size` bytes is beyond the limit."""
    if size > get_limits().array_bytes:
        raise _bytes_too_large("array_bytes", size)


def check_expansion(size: int, stored: int, rows: int) -> None:
    """Raise TooLarge if data of `rows` rows would expand to more than is allowed. Call it before they are decoded.

    Args:
      size: how many bytes they take once decoded.
      stored: how many bytes they take in the file.
    """
    check_record(size // max(rows, 1))
    factor = get_limits().expansion
    if size > SMALL_BYTES and size > factor * stored:
        wanted = -(-size // max(stored, 1))
        raise TooLarge(
            f"it would take {size:,} bytes once decoded, {wanted:,} times as many as in the file, but the limit is "
            f"{factor:,} times. {_explain_limit('expansion', wanted)}"
        )


def _bytes_too_large(name: str, size: int | None) -> TooLarge:
    limit = getattr(get_limits(), name)
    has = f"more than {limit:,}" if size is None else f"{size:,}"
    return TooLarge(
        f"it would take {has} bytes once decompressed, but the limit is {limit:,} bytes. "
        f"{_explain_limit(name, size or 4 * limit)}"
    )


def _explain_limit(name: str, enough: int) -> str:
    return (
        f"If you trust the file, raise the limit: bushel.sources.set_limits({name}={enough}), or the environment "
        f"variable {_VARIABLES[name]}."
    )
