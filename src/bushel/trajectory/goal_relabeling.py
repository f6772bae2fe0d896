"""Which frame of its own future a step gets as its goal. Strategies are found here by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bushel.base import checks, trees
from bushel.trajectory.arrays import Rng, is_jax, namespace
from bushel.trajectory.arrays import draws as drawn
from bushel.trajectory.data_utils import Tree, entry, take, tree_merge


def goals(times: ArrayLike, lengths: ArrayLike, draws: Any, max_goal_distance: int | None = None) -> Any:
    """The goals int64[N] of times in episodes of these lengths, by draws from [0, 1).

    Each of the present, the next, ... up to the last frame is as likely; with `max_goal_distance=d` only the first d of
    them, so 1 means the present frame. Rows may come from different episodes.

    >>> goals([0, 0, 2], lengths=4, draws=[0.0, 0.99, 0.5]).tolist()
    [0, 3, 3]
    """
    low = np.asarray(times, np.int64)
    high = np.asarray(lengths, np.int64)
    if max_goal_distance is not None:
        high = np.minimum(low + checks.positive(max_goal_distance, "max_goal_distance"), high)
    xp = namespace(draws)
    ahead = (xp.asarray(draws) * (high - low)).astype(np.int32 if is_jax(draws) else np.int64)
    return xp.minimum(low + ahead, high - 1)  # a product may have been rounded up


def uniform(traj: Mapping[str, Any], max_goal_distance: int | None = None, *, rng: Rng = None) -> Tree:
    """Puts a whole observation of each step's future into `task`, over what was there under the same names.

    With a `jax.random` key as `rng` it runs inside of `jit` and `vmap`.

    >>> traj = {"observation": {"timestep": np.arange(3)}, "task": {}}
    >>> uniform(traj, max_goal_distance=1)["task"]["timestep"].tolist()
    [0, 1, 2]
    """
    observation = entry(traj, "observation")
    leaves = trees.leaves(observation)
    if not leaves:
        raise ValueError("The observation is empty, so there is nothing to take as a goal.")
    times = np.arange(len(leaves[0]))
    chosen = goals(times, len(times), drawn(rng, len(times)), max_goal_distance)
    return {**traj, "task": tree_merge(entry(traj, "task"), take(observation, chosen))}
