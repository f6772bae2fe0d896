"""Video files as LeRobot has them: encoded episode by episode, joined without encoding them again, and verified."""

from __future__ import annotations

import contextlib
import dataclasses
import fractions
import io
import os
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import DamagedFile
from bushel._src.base.late_imports import import_package

Codec = Literal["h264", "hevc", "av1"]
CODECS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
"""The encoder of FFmpeg for each codec."""

_BLOCKS = 8
_TOLERANCE = 24.0
"""How far the mean of a block of pixels may move by encoding, in steps of 255, on the average over all blocks."""


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How frames are encoded.

    Args:
      codec: "h264", "hevc" or "av1".
      key_frame_interval: frames from one key frame to the next. A random frame costs as much as all frames since the
        key frame before it, and a small interval makes large files; 2 is LeRobot's choice.
      crf: the quality: larger numbers give smaller files and worse pictures.
    """

    codec: Codec = "h264"
    key_frame_interval: int = 2
    crf: int = 30

    def __post_init__(self) -> None:
        checks.choice(self.codec, CODECS, "codec")
        checks.positive(self.key_frame_interval, "key_frame_interval")
        checks.not_negative(self.crf, "crf")

    def options(self) -> dict[str, str]:
        """Return the options of the encoder."""
        interval = str(self.key_frame_interval)
        known = {"crf": str(self.crf), "g": interval}
        if self.codec == "h264":
            return known | {"bf": "0"}
        if self.codec == "hevc":
            return known | {"x265-params": f"bframes=0:keyint={interval}:min-keyint=1:open-gop=0:log-level=none"}
        return known | {"preset": "12"}


def choose_pixel_format(height: int, width: int) -> str:
    """Return the format of pixels in the video: colours have half the resolution, unless the size is odd."""
    return "yuv444p" if height % 2 or width % 2 else "yuv420p"


def as_rate(fps: float) -> fractions.Fraction:
    """Return frames per second as a fraction, exact for whole numbers and for 29.97 and its kin."""
    rate = fractions.Fraction(fps).limit_denominator(1001)
    if rate <= 0:
        raise ValueError(f"fps must be positive, got {fps}.")
    return rate


def load_av() -> Any:
    """PyAV."""
    return import_package("av", "video", "Video files")


def encode_frames(frames: Iterable[np.ndarray], fps: float, encoding: Encoding) -> tuple[bytes, np.ndarray]:
    """Return an MP4 file of these frames, in memory; and small fingerprints of the frames, for `verify_video`.

    Args:
      frames: uint8 (height, width, 3), all of the same size; at least one.
      fps: frames per second.
      encoding: how they are encoded.
    """
    av, rate = load_av(), as_rate(fps)
    output, prints = io.BytesIO(), []
    os.environ.setdefault("SVT_LOG", "1")  # the encoder of AV1 writes to the terminal unless this is set
    with av.open(output, "w", format="mp4") as container:
        stream: Any = None
        for number, pixels in enumerate(frames):
            if stream is None:
                stream = container.add_stream(CODECS[encoding.codec], rate, options=encoding.options())
                stream.height, stream.width = pixels.shape[:2]
                stream.pix_fmt = choose_pixel_format(*pixels.shape[:2])
                stream.codec_context.thread_count = 1  # processes work side by side on different files
                stream.codec_context.time_base = 1 / rate
            prints.append(summarize_frame(pixels))
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        if stream is None:
            raise ValueError("A video needs at least one frame.")
        container.mux(stream.encode(None))
    return output.getvalue(), np.stack(prints)


class VideoJoiner:
    """Joins encoded videos to one file, one after another, without encoding them again.

    Args:
      path: the file to write.
      fps: frames per second of all of them.
    """

    def __init__(self, path: str, fps: float):
        self._container = load_av().open(path, "w", format="mp4")
        self._rate, self._stream = as_rate(fps), None
        self.frames = 0

    def add(self, video: bytes, count: int) -> None:
        """Add a video of `count` frames."""
        with load_av().open(io.BytesIO(video)) as container:
            source = container.streams.video[0]
            if self._stream is None:
                self._stream = self._container.add_stream_from_template(source, opaque=True)
                self._stream.time_base = source.time_base
            ticks = 1 / (self._rate * source.time_base)
            if ticks.denominator != 1:
                raise ValueError(f"{float(self._rate)} frames per second are not a whole number of ticks of a video.")
            shift = self.frames * int(ticks)
            for packet in container.demux(source):
                if packet.size:
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = self._stream
                    self._container.mux(packet)
        self.frames += count

    def close(self) -> None:
        """Complete the file."""
        self._container.close()


@contextlib.contextmanager
def joining(path: str, fps: float) -> Iterator[VideoJoiner]:
    """A `VideoJoiner` that is closed at the end of the block."""
    joiner = VideoJoiner(path, fps)
    try:
        yield joiner
    finally:
        joiner.close()


def summarize_frame(pixels: np.ndarray) -> np.ndarray:
    """Return the means of 8 x 8 blocks of pixels: enough to tell a frame from another one after lossy encoding."""
    height, width = pixels.shape[:2]
    grey = pixels.mean(axis=2, dtype=np.float32)
    rows = np.add.reduceat(grey, np.arange(_BLOCKS) * height // _BLOCKS if height >= _BLOCKS else [0], axis=0)
    cells = np.add.reduceat(rows, np.arange(_BLOCKS) * width // _BLOCKS if width >= _BLOCKS else [0], axis=1)
    return (cells * (cells.size / grey.size)).astype(np.float32)


def decode_all(file: Any, shown: str) -> Iterator[tuple[float, bool, np.ndarray]]:
    """Yield all frames of a video in order: time in seconds, whether it is a key frame, pixels (uint8 RGB)."""
    av = load_av()
    try:
        with av.open(file) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            for frame in container.decode(stream):
                yield float(frame.pts * frame.time_base), bool(frame.key_frame), frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, IndexError) as error:
        raise DamagedFile(f"{shown} is not a complete video: {error}") from error


def verify_video(path: str, shown: str, fps: float, prints: np.ndarray, starts: Iterable[int] = (0,)) -> None:
    """Decode a video and compares it with what was encoded. A difference raises DamagedFile.

    Args:
      path: the file.
      shown: what messages call it.
      fps: frames per second.
      prints: the fingerprints of the frames, from `encode_frames`.
      starts: the frames that must be key frames: the first frame of each episode.
    """
    firsts, count = set(starts), 0
    for number, (time, is_key, pixels) in enumerate(decode_all(path, shown)):
        count += 1
        if number >= len(prints):
            continue
        if abs(time - number / fps) > 1e-3 / fps:
            raise DamagedFile(f"{shown}: frame {number} is shown at {time} s, and should be at {number / fps} s.")
        if number in firsts and not is_key:
            raise DamagedFile(f"{shown}: frame {number}, the first of an episode, is no key frame.")
        if np.abs(summarize_frame(pixels) - prints[number]).mean() > _TOLERANCE:
            raise DamagedFile(f"{shown}: frame {number} does not show what was encoded. Is the quality (crf) too low?")
    if count != len(prints):
        raise DamagedFile(f"{shown} has {count} frames, and {len(prints)} were written.")
