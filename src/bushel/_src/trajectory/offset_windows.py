"""Windows by offsets: for each frame the entries some frames before and after it, inside the episode, with masks.

LeRobot's `delta_timestamps` and robomimic's `frame_stack` and `seq_length` are such offsets. The windows of
CrossFormer, with their chunks of actions and goals, are in `samples.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.dataset import MapDataset
from bushel._src.trajectory.data_utils import flatten_tree, nest_leaves
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.samples import read_images


@public("bushel.trajectory")
def window_frames(episodes: Episodes, offsets: Mapping[str, Sequence[int]]) -> MapDataset[Any]:
    """A dataset with one element for each frame of a table: the frame, with windows of some of its entries.

    An entry with offsets has a leading axis, with one row for each offset. Offsets that lead out of the episode repeat
    its first or last frame. Beside the entry, `<name>_is_pad` is True for these rows. Entries without offsets are those
    of the frame itself.

    >>> table = Episodes.of([{"x": np.arange(3), "y": np.arange(3)}])
    >>> sample = window_frames(table, {"x": [-1, 0]})[0]
    >>> sample["x"], sample["x_is_pad"]
    (array([0, 0]), array([ True, False]))

    Args:
      episodes: the table.
      offsets: offsets in frames, by the name of the entry, such as "action" or "observation/state".
    """
    known = {"/".join(path) for path in flatten_tree(episodes.columns)}
    for name, steps in offsets.items():
        if name not in known:
            raise ValueError(f"The episodes have no entry {name!r}; they have {', '.join(sorted(known))}.")
        if not len(steps):
            raise ValueError(f"The entry {name!r} has no offsets. Leave it out, or give at least [0].")
        for step in steps:
            checks.integer(step, f"an offset of {name}")
    steps_of = {name: tuple(map(int, steps)) for name, steps in offsets.items()}
    windows: Any = _OffsetWindows(episodes, steps_of)
    return MapDataset.range(episodes.frames).map(windows, vectorized=True)


@in_states("offset_windows")
@dataclasses.dataclass(frozen=True, eq=False)
class _OffsetWindows:
    episodes: Episodes
    offsets: Mapping[str, tuple[int, ...]]

    def __call__(self, frames: np.ndarray) -> dict[str, Any]:
        table = self.episodes
        episode = np.searchsorted(table.starts, frames, side="right") - 1
        first = table.starts[episode][:, None]
        last = first + table.lengths[episode][:, None] - 1
        leaves: dict[tuple[str, ...], Any] = {}
        for path, column in flatten_tree(table.columns).items():
            steps = self.offsets.get("/".join(path))
            if steps is None:
                leaves[path] = column.take(frames)
                continue
            wanted = frames[:, None] + np.array(steps, np.int64)
            inside = np.clip(wanted, first, last)
            leaves[path] = column.take(inside)
            leaves[*path[:-1], f"{path[-1]}_is_pad"] = wanted != inside
        return read_images(nest_leaves(leaves))
