"""Decodes images and sounds. Other threads can run meanwhile: the decoders release the GIL."""

from __future__ import annotations

import io
import re
import struct
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import TooLarge
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.sources.size_limits import check_pixels, check_record

_JPEG = b"\xff\xd8\xff"
_COLOURS = {"RGB": "RGB", "L": "GRAY"}
_DEEP = ("I", "F")  # Pillow's modes with more than 8 bits begin so: "I;16", "I", "F"
_HALVED = re.compile(r";16[BLN]")  # in Pillow's name for the file's own mode; "BGR;16" has 5, 6 and 5 bits
_CHUNKS = {b"RIFF": ("<I", b"data"), b"FORM": (">I", b"SSND")}  # WAV and AIFF: where the samples are
_UNKNOWN = 0x7FFF_F000  # a size from here on means "until the end": the writer could not go back to fill it in
_LAST_PAGE = 4


ImageMode = Literal[
    "1", "CMYK", "F", "HSV", "I", "I;16", "I;16B", "I;16L", "I;16N", "L", "LA", "La", "LAB", "P", "PA", "RGB", "RGBA",
    "RGBa", "RGBX", "YCbCr",
]  # fmt: skip
"""The modes of Pillow."""
AudioType = Literal["float32", "float64", "int16", "int32"]


@public("bushel.sources")
def decode_image(data: bytes, mode: ImageMode | None = "RGB") -> np.ndarray:
    """Decode an image to a uint8 array of height x width x channels.

    JPEG files are decoded by simplejpeg if it is installed, other formats by Pillow. Images of 16 bits, 32 bits or
    floats (depth, height maps) do not fit into uint8; they are decoded only with `mode=None`.

    Args:
      data: the content of an image file of any format that Pillow can read.
      mode: "RGB", "L" (one channel), "RGBA", another mode of Pillow's, or None for the file's own mode and dtype.

    >>> import io, PIL.Image
    >>> file = io.BytesIO()
    >>> PIL.Image.new("RGB", (32, 24), "red").save(file, "png")
    >>> image = decode_image(file.getvalue())
    >>> image.shape, image[0, 0].tolist()
    ((24, 32, 3), [255, 0, 0])
    """
    _check_bytes(data, "decode_image", "an image file")
    if data[:3] == _JPEG and mode in _COLOURS:
        try:
            import simplejpeg
        except ImportError:
            pass
        else:
            try:
                height, width, *_ = simplejpeg.decode_jpeg_header(data)
                check_pixels(int(height), int(width))
                return simplejpeg.decode_jpeg(data, colorspace=_COLOURS[mode])
            except TooLarge as error:
                raise _too_large_error(data, "an image", error) from None
            except ValueError as error:
                raise ValueError(f"These {len(data)} bytes are not a complete JPEG image: {error}") from error
    images = import_package("PIL.Image", "image", "Images")
    if mode is not None:
        checks.choice(mode, images.MODES, "mode")
    try:
        with images.open(io.BytesIO(data)) as image:
            check_image(image)
            has, halved = image.mode, _is_halved(image)
            fits = not halved and (mode is None or mode.startswith(_DEEP) or not has.startswith(_DEEP))
            found = np.array(image if mode is None else image.convert(mode)) if fits else None
    except TooLarge as error:
        raise _too_large_error(data, "an image", error) from None
    except (OSError, SyntaxError, ValueError, images.DecompressionBombError) as error:
        raise ValueError(f"These {len(data)} bytes are not a complete image: {error}") from error
    if halved:
        raise ValueError(
            f"This image has 16 bits per channel, but Pillow reads it as {has!r}, without the lower 8 bits. "
            "Write it with 8 bits per channel, or decode it with another library."
        )
    if found is None:
        raise ValueError(
            f"This image has Pillow's mode {has!r}, whose values do not fit into {mode!r}: they would be cut off. "
            "Pass mode=None to get the values unchanged."
        )
    return found[:, :, None] if found.ndim == 2 else found


def check_image(image: Any) -> None:
    """Raise an error for an image that Pillow has opened, if decoding it would take too much memory or run code.

    An EPS file is a program in PostScript, which Pillow would run with Ghostscript.
    """
    check_pixels(image.height, image.width)
    if image.format == "EPS":
        raise ValueError("EPS files are not decoded, because they are programs that Ghostscript would run")


def _too_large_error(data: bytes, what: str, error: TooLarge) -> TooLarge:
    return TooLarge(f"These {len(data)} bytes are {what} that is not decoded: {error}")


def _is_halved(image: Any) -> bool:
    """Return whether Pillow would return only 8 of 16 bits: it has no mode for colours with more bits."""
    if image.mode.startswith(_DEEP):
        return False
    return any(
        _HALVED.search(str(settings)) or (decoder == "ppm" and settings[-1] > 255)
        for decoder, _, _, settings in image.tile
    )


@public("bushel.sources")
def decode_audio(data: bytes, dtype: AudioType = "float32") -> tuple[np.ndarray, int]:
    """Decode a sound (WAV, FLAC, OGG, MP3) with soundfile. Return samples (frames x channels) and the sample rate.

    A sound that was cut short is an error, except in files that do not state their length: some MP3 files, and WAV and
    AIFF files whose writer did not know it.

    >>> import io, numpy as np, soundfile
    >>> file = io.BytesIO()
    >>> soundfile.write(file, np.zeros((800, 2)), 16_000, format="wav")
    >>> samples, rate = decode_audio(file.getvalue())
    >>> samples.shape, rate
    ((800, 2), 16000)
    """
    _check_bytes(data, "decode_audio", "a sound file")
    checks.choice(dtype, AudioType, "dtype")
    soundfile: Any = import_package("soundfile", "audio", "Sounds")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            check_record(sound.frames * sound.channels * np.dtype(dtype).itemsize)
            samples, rate, stated = sound.read(dtype=dtype, always_2d=True), sound.samplerate, sound.frames
    except TooLarge as error:
        raise _too_large_error(data, "a sound", error) from None
    except (soundfile.LibsndfileError, OSError, ValueError) as error:
        raise ValueError(f"These {len(data)} bytes are not a complete sound: {error}") from error
    why = _find_missing_end(data)
    if why is None and len(samples) < stated:
        why = f"it has {len(samples)} of {stated} frames"
    if why is not None:
        raise ValueError(f"These {len(data)} bytes are not a complete sound: {why}.")
    return samples, int(rate)


def _find_missing_end(data: bytes) -> str | None:
    """Return what is missing at the end of a WAV, AIFF or OGG file, or None.

    Their decoders do not report missing data.
    """
    if bytes(data[:4]) in _CHUNKS:
        return _find_missing_samples(data, *_CHUNKS[bytes(data[:4])])
    if data[:4] != b"OggS":
        return None
    page = bytes(data).rfind(b"OggS\0")
    sizes = data[page + 27 : page + 27 + data[page + 26]] if len(data) > page + 26 else None
    if sizes is None or page + 27 + data[page + 26] + sum(sizes) > len(data):
        return "its last page ends early"
    return None if data[page + 5] & _LAST_PAGE else "its last page is missing"


def _find_missing_samples(data: bytes, size_format: str, name: bytes) -> str | None:
    place = 12
    while place + 8 <= len(data):
        (size,) = struct.unpack_from(size_format, data, place + 4)
        there = len(data) - place - 8
        if data[place : place + 4] == name:
            return f"it has {there} of {size} bytes of samples" if there < size < _UNKNOWN else None
        place += 8 + size + size % 2
    return None


def _check_bytes(data: Any, who: str, what: str) -> None:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"{who} needs the bytes of {what}, got {type(data).__name__}. For an array, pass data.tobytes()."
        )
