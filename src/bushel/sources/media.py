"""Images and sounds out of bytes. Decoders let other threads run meanwhile."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from bushel.sources.needs import package

_JPEG = b"\xff\xd8\xff"
_COLOURS = {"RGB": "RGB", "L": "GRAY"}


def decode_image(data: bytes, mode: str | None = "RGB") -> np.ndarray:
    """An image as uint8 of height x width x channels: JPEG by simplejpeg where it is installed, the rest by Pillow.

    Args:
      data: the content of an image file of any format that Pillow knows.
      mode: "RGB", "L" (one channel), "RGBA", or None for what the file has.
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
    try:
        with images.open(io.BytesIO(data)) as image:
            found = np.array(image if mode is None else image.convert(mode))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"These {len(data)} bytes are no complete image: {error}") from error
    return found[:, :, None] if found.ndim == 2 else found


def decode_audio(data: bytes, dtype: str = "float32") -> tuple[np.ndarray, int]:
    """A sound as samples (frames x channels) and the number of frames per second: WAV, FLAC, OGG, MP3 by soundfile."""
    soundfile: Any = package("soundfile", "audio", "Sounds")
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype=dtype, always_2d=True)
    except (soundfile.LibsndfileError, OSError, ValueError) as error:
        raise ValueError(f"These {len(data)} bytes are no complete sound: {error}") from error
    return samples, int(rate)
