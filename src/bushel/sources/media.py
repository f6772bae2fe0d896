"""Images and sounds out of bytes. Decoders let other threads run meanwhile."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from bushel.sources.needs import package

_JPEG = b"\xff\xd8\xff"
_COLOURS = {"RGB": "RGB", "L": "GRAY"}
_DEEP = ("I", "F")  # how Pillow calls modes of more than 8 bits: "I;16", "I", "F"


def decode_image(data: bytes, mode: str | None = "RGB") -> np.ndarray:
    """An image as uint8 of height x width x channels: JPEG by simplejpeg where it is installed, the rest by Pillow.

    Images of 16 bits, 32 bits or floats (depth, height maps) do not fit into uint8 and are given with `mode=None` only.

    Args:
      data: the content of an image file of any format that Pillow knows.
      mode: "RGB", "L" (one channel), "RGBA", another mode of Pillow's, or None for what the file has, with its dtype.
    """
    if data[:3] == _JPEG and mode in _COLOURS:
        try:
            import simplejpeg
        except ImportError:
            pass
        else:
            try:
                return simplejpeg.decode_jpeg(data, colorspace=_COLOURS[mode])
            except ValueError as error:
                raise ValueError(f"These {len(data)} bytes are no complete JPEG image: {error}") from error
    images = package("PIL.Image", "image", "Images")
    if mode is not None and mode not in images.MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, images.MODES))}, or None, got {mode!r}.")
    try:
        with images.open(io.BytesIO(data)) as image:
            has = image.mode
            fits = mode is None or mode.startswith(_DEEP) or not has.startswith(_DEEP)
            found = np.array(image if mode is None else image.convert(mode)) if fits else None
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"These {len(data)} bytes are no complete image: {error}") from error
    if found is None:
        raise ValueError(
            f"This image is of Pillow's mode {has!r}, whose values do not fit into {mode!r}: they would be cut off. "
            "Pass mode=None to get them as they are."
        )
    return found[:, :, None] if found.ndim == 2 else found


def decode_audio(data: bytes, dtype: str = "float32") -> tuple[np.ndarray, int]:
    """A sound as samples (frames x channels) and the number of frames per second: WAV, FLAC, OGG, MP3 by soundfile."""
    soundfile: Any = package("soundfile", "audio", "Sounds")
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype=dtype, always_2d=True)
    except (soundfile.LibsndfileError, OSError, ValueError) as error:
        raise ValueError(f"These {len(data)} bytes are no complete sound: {error}") from error
    return samples, int(rate)
