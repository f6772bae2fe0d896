"""Depth in the videos of a LeRobot data set: 12-bit codes, which stand for millimetres."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.base.state_names import in_states

_LARGEST_CODE = 4095
_LARGEST_MM = 65535
PIXEL_FORMAT = "gray12le"
"""The pixel format of frames that hold codes, as FFmpeg calls it."""


@in_states("depth_code")
@dataclasses.dataclass(frozen=True)
class DepthCode:
    """What the codes of a depth camera mean. The defaults are those of lerobot.

    Attributes:
      min_m, max_m: the depth of the first and of the last code, in metres.
      shift_m: what is added before the logarithm, in metres.
      use_log: whether codes are steps of the logarithm of the depth, and not of the depth itself.
    """

    min_m: float = 0.01
    max_m: float = 10.0
    shift_m: float = 3.5
    use_log: bool = True

    @functools.cached_property
    def millimetres(self) -> np.ndarray:
        """The depth of each code in millimetres, uint16: what lerobot's `dequantize_depth` computes, in float32."""
        low, high = self.min_m, self.max_m
        if self.use_log:
            low, high = float(np.log(low + self.shift_m)), float(np.log(high + self.shift_m))
        # Codes may be larger than the largest one only in damaged videos.
        codes = np.minimum(np.arange(1 << 16), _LARGEST_CODE)
        depth = np.multiply(codes, (high - low) / _LARGEST_CODE, dtype=np.float32)
        depth += np.float32(low)
        if self.use_log:
            # In float64, and then rounded: NumPy's exponential of float32 differs from PyTorch's for some codes.
            depth = np.exp(depth.astype(np.float64)).astype(np.float32) - np.float32(self.shift_m)
        depth = np.clip(depth, np.float32(self.min_m), np.float32(self.max_m)) * np.float32(1000)
        return np.clip(np.rint(depth), 0, _LARGEST_MM).astype(np.uint16)


def read_depth_code(info: Mapping[str, Any]) -> DepthCode | None:
    """The code that a feature's `info` describes; None if its videos do not hold 12 bits, and so no such code."""
    stored = info.get("video.pix_fmt", PIXEL_FORMAT)
    if "12" not in str(stored):
        return None
    names = {"depth_min": "min_m", "depth_max": "max_m", "shift": "shift_m"}
    given = {new: float(info[f"video.{old}"]) for old, new in names.items() if info.get(f"video.{old}") is not None}
    code = DepthCode(use_log=bool(info.get("video.use_log", True)), **given)
    if not code.min_m < code.max_m or (code.use_log and code.min_m + code.shift_m <= 0):
        raise ValueError(f"its depth code cannot be right: {code}")
    return code


def is_depth(entry: Mapping[str, Any]) -> bool:
    """Whether a feature of `meta/info.json` is depth."""
    infos = [entry.get(name) for name in ("info", "video_info")]
    return any(
        info.get(key) for info in infos if isinstance(info, Mapping) for key in ("is_depth_map", "video.is_depth_map")
    )
