"""`Windows`: which frames and actions a sample has, as arithmetic on times. It reads no data.

`traj_transforms.py` and `samples.py` gather the data.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.compat import Compat, is_faithful
from bushel._src.trajectory.numpy_or_jax import get_namespace


@public("bushel.trajectory")
@in_states("frame_windows")
@dataclasses.dataclass(frozen=True)
class Windows:
    """The frames of a sample at time t: a window of past observations, and a chunk of actions for each of them.

    Slot w of a window of W slots is the time t - W + 1 + w. For times before the episode the first frame is repeated,
    for times after it the last action. A mask is true exactly where the data are real. An action is real if the time of
    its slot is not before the episode and its own time is not after the goal. The goal is the last frame of the
    episode, unless another one is given. With `override_window_size=n` all slots except the last n count as padding,
    for observations and actions.

    With `compat="crossformer"` actions are masked as in the original: only from two steps after the goal on, and not in
    slots that are padding.

    >>> times, real = Windows(window_size=2).observations([0, 1])
    >>> times.tolist(), real.tolist()
    ([[0, 0], [0, 1]], [[False, True], [True, True]])
    >>> times, real = Windows(action_horizon=3).actions([0, 1], lengths=2)
    >>> times.tolist(), real.tolist()
    ([[[0, 1, 1]], [[1, 1, 1]]], [[[True, True, False]], [[True, False, False]]])
    """

    window_size: int = 1
    action_horizon: int = 1
    override_window_size: int | None = None
    compat: Compat | None = None

    def __post_init__(self) -> None:
        checks.positive(self.window_size, "window_size")
        checks.positive(self.action_horizon, "action_horizon")
        if self.override_window_size is not None:
            checks.not_negative(self.override_window_size, "override_window_size")
        is_faithful(self.compat)

    def observations(self, times: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """For times int64[N]: the times of the frames, int64[N, W], and which of them are real, bool[N, W]."""
        history = self._list_times(times)
        return np.maximum(history, 0), (history >= 0) & self._not_overridden

    def actions(self, times: ArrayLike, lengths: ArrayLike, goals: Any = None) -> tuple[np.ndarray, Any]:
        """For times int64[N]: the times of the actions, int64[N, W, H], and which of them are real, bool[N, W, H].

        `lengths` and `goals` have one number per row, or are one number for all rows. Rows may be of different
        episodes.
        """
        last = np.asarray(lengths, np.int64).reshape(-1, 1, 1) - 1
        ahead = np.arange(self.action_horizon)
        seen, real = self.observations(times)
        acted = ~self.completed(times, lengths, goals) & self.acting(real)[:, :, None]
        return np.minimum(seen[:, :, None] + ahead, last), acted

    def completed(self, times: ArrayLike, lengths: ArrayLike, goals: Any = None) -> Any:
        """Which actions are after the goal, bool[N, W, H]. In slots before the episode too only the time counts.

        >>> Windows(window_size=2, action_horizon=2).completed([0, 1], lengths=2).tolist()
        [[[False, False], [False, False]], [[False, False], [False, True]]]
        """
        return np.arange(self.action_horizon) >= self.reach(times, lengths, goals)[:, :, None]

    def reach(self, times: ArrayLike, lengths: ArrayLike, goals: Any = None) -> Any:
        """The number of actions of each slot that are not after the goal, int64[N, W]. They are the first of the slot.

        The arguments are those of `actions`. If `goals` is an array of JAX, the result is one too.

        >>> Windows(window_size=2, action_horizon=3).reach([0, 1, 2], lengths=3).tolist()
        [[3, 3], [3, 2], [2, 1]]
        """
        last = np.asarray(lengths, np.int64).reshape(-1, 1) - 1
        xp = get_namespace(goals)
        goals = last if goals is None else xp.asarray(goals, np.int64 if xp is np else None).reshape(-1, 1)
        history = self._list_times(times)
        if (history[:, -1:] > last).any():
            raise ValueError(f"A time is outside its episode: times {times}, lengths {lengths}.")
        if is_faithful(self.compat):
            return xp.maximum(xp.minimum(goals + 2 - history, self.action_horizon), 0)
        return xp.maximum(xp.minimum(xp.minimum(goals, last) + 1 - history, self.action_horizon), 0)

    def acting(self, real: np.ndarray) -> np.ndarray:
        """Which slots may have real actions, bool[N, W]: those with `real` observations. In the original, all slots."""
        return np.ones_like(real) if is_faithful(self.compat) else real

    @functools.cached_property
    def _not_overridden(self) -> np.ndarray:
        kept = self.window_size if self.override_window_size is None else self.override_window_size
        return np.arange(self.window_size) >= self.window_size - kept

    def _list_times(self, times: ArrayLike) -> np.ndarray:
        rows = np.asarray(times, np.int64)
        if rows.ndim != 1 or (rows < 0).any():
            raise ValueError(f"Times must be a list of integers that are not negative, got {times}.")
        return rows[:, None] + np.arange(1 - self.window_size, 1)
