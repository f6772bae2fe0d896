"""Goal relabelling: a step gets a frame of its own future as its goal. Strategies are functions of this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bushel._src.base import checks, trees
from bushel._src.base.public import public
from bushel._src.trajectory.data_utils import Tree, get_entry, take, tree_merge
from bushel._src.trajectory.numpy_or_jax import Rng, draw_uniform, get_namespace, is_jax


@public("bushel.trajectory.goal_relabeling")
def choose_goals(times: ArrayLike, lengths: ArrayLike, draws: Any, max_goal_distance: int | None = None) -> Any:
    """The times of the goals, int64[N], of steps at `times` in episodes of these lengths, by draws from [0, 1).

    All frames from the present one to the last one are equally likely. With `max_goal_distance=d` only the first d of
    them are possible, so 1 means the present frame. Rows may come from different episodes.

    >>> choose_goals([0, 0, 2], lengths=4, draws=[0.0, 0.99, 0.5]).tolist()
    [0, 3, 3]
    """
    low = np.asarray(times, np.int64)
    high = np.asarray(lengths, np.int64)
    if max_goal_distance is not None:
        high = np.minimum(low + checks.positive(max_goal_distance, "max_goal_distance"), high)
    xp = get_namespace(draws)
    ahead = (xp.asarray(draws) * (high - low)).astype(np.int32 if is_jax(draws) else np.int64)
    return xp.minimum(low + ahead, high - 1)  # the product may have been rounded up to high - low


@public("bushel.trajectory.goal_relabeling")
def uniform(traj: Mapping[str, Any], max_goal_distance: int | None = None, *, rng: Rng = None) -> Tree:
    """Adds an observation of each step's future to `task`. It replaces entries of the same names.

    With a `jax.random` key as `rng` it runs inside `jit` and `vmap`.

    >>> traj = {"observation": {"timestep": np.arange(3)}, "task": {}}
    >>> uniform(traj, max_goal_distance=1)["task"]["timestep"].tolist()
    [0, 1, 2]
    """
    observation = get_entry(traj, "observation")
    leaves = trees.leaves(observation)
    if not leaves:
        raise ValueError("The observation is empty, so there is no goal to choose.")
    times = np.arange(len(leaves[0]))
    chosen = choose_goals(times, len(times), draw_uniform(rng, len(times)), max_goal_distance)
    return {**traj, "task": tree_merge(get_entry(traj, "task"), take(observation, chosen))}
