"""Images and sounds out of bytes. Decoders let other threads run meanwhile."""

from __future__ import annotations

import io
import re
import struct
from typing import Any

import numpy as np

from bushel.base.errors import TooLarge
from bushel.sources.limits import check_pixels, check_record
from bushel.sources.needs import package

_JPEG = b"\xff\xd8\xff"
_COLOURS = {"RGB": "RGB", "L": "GRAY"}
_DEEP = ("I", "F")  # how Pillow calls modes of more than 8 bits: "I;16", "I", "F"
_HALVED = re.compile(r";16[BLN]")  # in Pillow's name for what the file has; "BGR;16" is 5, 6 and 5 bits
_CHUNKS = {b"RIFF": ("<I", b"data"), b"FORM": (">I", b"SSND")}  # WAV and AIFF: where the samples are
_UNKNOWN = 0x7FFF_F000  # from here on a size stands for "until the end": the writer could not go back to it
_LAST_PAGE = 4


def decode_image(data: bytes, mode: str | None = "RGB") -> np.ndarray:
    """An image as uint8 of height x width x channels: JPEG by simplejpeg where it is installed, the rest by Pillow.

    Images of 16 bits, 32 bits or floats (depth, height maps) do not fit into uint8 and are given with `mode=None` only.

    Args:
      data: the content of an image file of any format that Pillow knows.
      mode: "RGB", "L" (one channel), "RGBA", another mode of Pillow's, or None for what the file has, with its dtype.
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
                raise _not_decoded(data, "an image", error) from None
            except ValueError as error:
                raise ValueError(f"These {len(data)} bytes are not a complete JPEG image: {error}") from error
    images = package("PIL.Image", "image", "Images")
    if mode is not None and mode not in images.MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, images.MODES))}, or None, got {mode!r}.")
    try:
        with images.open(io.BytesIO(data)) as image:
            check_image(image)
            has, halved = image.mode, _is_halved(image)
            fits = not halved and (mode is None or mode.startswith(_DEEP) or not has.startswith(_DEEP))
            found = np.array(image if mode is None else image.convert(mode)) if fits else None
    except TooLarge as error:
        raise _not_decoded(data, "an image", error) from None
    except (OSError, SyntaxError, ValueError, images.DecompressionBombError) as error:
        raise ValueError(f"These {len(data)} bytes are not a complete image: {error}") from error
    if halved:
        raise ValueError(
            f"This image has 16 bits for each of its channels, and Pillow reads it as {has!r} without the lower 8. "
            "Write it with 8 bits, or decode it with another library."
        )
    if found is None:
        raise ValueError(
            f"This image is of Pillow's mode {has!r}, whose values do not fit into {mode!r}: they would be cut off. "
            "Pass mode=None to get them as they are."
        )
    return found[:, :, None] if found.ndim == 2 else found


def check_image(image: Any) -> None:
    """Refuses an image that Pillow has opened and not decoded yet, if decoding would take too much memory or run code.

    Pillow decodes EPS by running Ghostscript on the file, which is a program in PostScript.
    """
    check_pixels(image.height, image.width)
    if image.format == "EPS":
        raise ValueError("EPS files are programs for Ghostscript and are not decoded")


def _not_decoded(data: bytes, what: str, error: TooLarge) -> TooLarge:
    return TooLarge(f"These {len(data)} bytes are {what} that is not decoded: {error}.")


def _is_halved(image: Any) -> bool:
    """Whether Pillow gives 8 of 16 bits: it has no mode for colours of more."""
    if image.mode.startswith(_DEEP):
        return False
    return any(
        _HALVED.search(str(settings)) or (decoder == "ppm" and settings[-1] > 255)
        for decoder, _, _, settings in image.tile
    )


def decode_audio(data: bytes, dtype: str = "float32") -> tuple[np.ndarray, int]:
    """A sound as samples (frames x channels) and the number of frames per second: WAV, FLAC, OGG, MP3 by soundfile.

    What was cut short is refused; but for an MP3 file that does not state its length, and WAV and AIFF files whose
    writer did not know it.
    """
    _check_bytes(data, "decode_audio", "a sound file")
    soundfile: Any = package("soundfile", "audio", "Sounds")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            check_record(sound.frames * sound.channels * np.dtype(dtype).itemsize)
            samples, rate, stated = sound.read(dtype=dtype, always_2d=True), sound.samplerate, sound.frames
    except TooLarge as error:
        raise _not_decoded(data, "a sound", error) from None
    except (soundfile.LibsndfileError, OSError, ValueError) as error:
        raise ValueError(f"These {len(data)} bytes are not a complete sound: {error}") from error
    why = _cut_short(data)
    if why is None and len(samples) < stated:
        why = f"there are {len(samples)} frames of {stated}"
    if why is not None:
        raise ValueError(f"These {len(data)} bytes are not a complete sound: {why}.")
    return samples, int(rate)


def _cut_short(data: bytes) -> str | None:
    """What is missing of a file whose decoder takes what is there for all of it."""
    if bytes(data[:4]) in _CHUNKS:
        return _without_samples(data, *_CHUNKS[bytes(data[:4])])
    if data[:4] != b"OggS":
        return None
    page = bytes(data).rfind(b"OggS\0")
    sizes = data[page + 27 : page + 27 + data[page + 26]] if len(data) > page + 26 else None
    if sizes is None or page + 27 + data[page + 26] + sum(sizes) > len(data):
        return "its last page ends early"
    return None if data[page + 5] & _LAST_PAGE else "the page that is marked as the last is missing"


def _without_samples(data: bytes, size_format: str, name: bytes) -> str | None:
    place = 12
    while place + 8 <= len(data):
        (size,) = struct.unpack_from(size_format, data, place + 4)
        there = len(data) - place - 8
        if data[place : place + 4] == name:
            return f"{there} of {size} bytes of samples are there" if there < size < _UNKNOWN else None
        place += 8 + size + size % 2
    return None


def _check_bytes(data: Any, who: str, what: str) -> None:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"{who} takes the bytes of {what}, got {type(data).__name__}: of an array, pass data.tobytes()."
        )
