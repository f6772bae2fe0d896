"""Which frame of a video belongs to each row: the frame that is shown at the time of the row, within a tolerance."""

from __future__ import annotations

import numpy as np

_DRIFT = 0.1  # of the time between two rows


def align_frames(
    seconds: np.ndarray, numbers: np.ndarray, fps: float, start_s: float, times: np.ndarray, tolerance_s: float
) -> np.ndarray:
    """The number of the frame of each row of an episode. Raises ValueError, which says what does not fit.

    Args:
      seconds: the column `timestamp` of the rows.
      numbers: the column `frame_index` of the rows.
      fps: rows per second.
      start_s: the time of the episode's first frame in the video.
      times: when each frame of the video is shown, in seconds, ascending.
      tolerance_s: the largest distance between the time of a row and that of its frame.

    >>> times = np.arange(10) / 10
    >>> align_frames(np.array([0.0, 0.1, 0.2]), np.arange(3), 10, 0.5, times, 1e-4)
    array([5, 6, 7])
    """
    if not len(times):
        raise ValueError("the video has no frames")
    # `timestamp` is float32, which is off by more than the tolerance after some minutes. `frame_index / fps` is exact.
    given, exact = seconds.astype(np.float64), numbers / fps
    rounding = 2 * np.spacing(np.abs(seconds).astype(np.float32)).astype(np.float64) + 1e-6
    wanted = start_s + np.where(np.abs(given - exact) <= rounding, exact, given)
    # The start of an episode in its file is a sum of durations that were rounded, so it drifts. A small difference to
    # the nearest frame does not leave open which frame is meant.
    first = times[_find_nearest(times, np.array([start_s]))[0]]
    if abs(start_s - first) <= _DRIFT / fps:
        wanted = wanted - (start_s - first)
    frames = _find_nearest(times, wanted)
    distance = np.abs(times[frames] - wanted)
    wrong = np.flatnonzero(~(distance <= tolerance_s))  # also where a time is NaN
    if len(wrong):
        row = int(wrong[0])
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0
        if np.isfinite(wanted[row]) and wanted[row] > times[-1] + tolerance_s:
            raise ValueError(
                f"frame {row} should be shown at {wanted[row]:.6g} s, but the video ends at {times[-1]:.6g} s "
                f"({len(times)} frames); {len(wrong)} of {len(wanted)} frames of the episode are missing"
            )
        raise ValueError(
            f"frame {row} should be shown at {wanted[row]:.6g} s, and the nearest frame of the video is shown at "
            f"{times[frames[row]]:.6g} s, {distance[row]:.3g} s away; tolerance_s is {tolerance_s:g}. The video has "
            f"{rate:.4g} frames per second, the rows {fps:g}"
        )
    return frames


def _find_nearest(times: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The number of the nearest time for each wanted one; the earlier of two that are equally near."""
    after = np.clip(np.searchsorted(times, np.nan_to_num(wanted)), 0, len(times) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(np.abs(times[before] - wanted) <= np.abs(times[after] - wanted), before, after)
