"""Which frame of a video belongs to each row: the frame that is shown at the time of the row, within a tolerance.

`find_overlaps` looks at the spans of time that episodes have in one video file, before any frame is looked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

_DRIFT = 0.1  # of the time between two rows


@dataclasses.dataclass(frozen=True)
class Span:
    """The time that an episode has in a video file, in seconds.

    Attributes:
      episode: its `episode_index`.
      length: how many rows it has.
      start_s: when its first frame is shown.
      stop_s: when its frames end, as `meta` says; None if it does not say.
    """

    episode: int
    length: int
    start_s: float
    stop_s: float | None


def find_overlaps(spans: Sequence[Span], fps: float, tolerance_s: float = 1e-4) -> dict[int, str]:
    """What is wrong with the spans of the episodes of one video file, by episode. Empty if nothing is.

    The frames of an episode must lie within its span, and the spans of episodes must follow each other in the order of
    the episodes, as lerobot writes them. All of it holds within half the time between two rows plus `tolerance_s`:
    `from_timestamp` is a sum of rounded durations, and a span that is off by less than half a row leaves no doubt which
    frames are meant.

    >>> find_overlaps([Span(0, 10, 0.0, 1.0), Span(1, 10, 0.5, 1.5)], fps=10)[1]
    'its span from 0.5 to 1.5 s begins before the end of episode 0, at 1 s'
    """
    slack, wrong = 0.5 / fps + tolerance_s, {}
    before: Span | None = None
    end = -np.inf  # of the spans so far
    for span in sorted(spans, key=lambda one: one.episode):
        needed = span.start_s + span.length / fps
        stop = needed if span.stop_s is None else span.stop_s
        if span.start_s < -slack:
            wrong[span.episode] = f"its span begins at {span.start_s:.6g} s"
        elif stop < needed - slack:
            wrong[span.episode] = (
                f"its span from {span.start_s:.6g} to {stop:.6g} s is too short for {span.length} rows at {fps:g} fps"
            )
        elif before is not None and span.start_s < end - slack:
            wrong[span.episode] = (
                f"its span from {span.start_s:.6g} to {stop:.6g} s begins before the end of episode {before.episode}, "
                f"at {end:.6g} s"
            )
            # Which of the two is wrong cannot be seen.
            wrong.setdefault(before.episode, f"its span ends at {end:.6g} s, after the begin of episode {span.episode}")
        if max(stop, needed) > end:
            before, end = span, max(stop, needed)
    return wrong


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
