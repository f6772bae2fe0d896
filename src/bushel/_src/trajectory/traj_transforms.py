"""Functions of whole trajectories: windows, masks, padding, goals.

`Windows` is the arithmetic: which frames and actions a sample has. It reads no data.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bushel._src.base import checks, trees
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.data_utils import (
    Compat,
    Rng,
    Tree,
    draw_uniform,
    get_entry,
    get_namespace,
    is_jax,
    is_text,
    not_empty,
    reproduces_faults,
    take,
    tree_merge,
)

__all__ = [
    "add_head_action_mask",
    "add_pad_mask_dict",
    "chunk_act_obs",
    "pad_actions_and_proprio",
    "subsample",
    "zero_out_future_proprio",
]


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
        reproduces_faults(self.compat)

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
        """Return which actions are after the goal, bool[N, W, H]. In slots before the episode too only the time counts.

        >>> Windows(window_size=2, action_horizon=2).completed([0, 1], lengths=2).tolist()
        [[[False, False], [False, False]], [[False, False], [False, True]]]
        """
        return np.arange(self.action_horizon) >= self.reach(times, lengths, goals)[:, :, None]

    def reach(self, times: ArrayLike, lengths: ArrayLike, goals: Any = None) -> Any:
        """Return the number of actions of each slot that are not after the goal, int64[N, W].

        They are the first of the slot.

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
        if reproduces_faults(self.compat):
            return xp.maximum(xp.minimum(goals + 2 - history, self.action_horizon), 0)
        return xp.maximum(xp.minimum(xp.minimum(goals, last) + 1 - history, self.action_horizon), 0)

    def acting(self, real: np.ndarray) -> np.ndarray:
        """Return which slots may have real actions, bool[N, W]: those with `real` observations.

        In the original, all slots.
        """
        return np.ones_like(real) if reproduces_faults(self.compat) else real

    @functools.cached_property
    def _not_overridden(self) -> np.ndarray:
        kept = self.window_size if self.override_window_size is None else self.override_window_size
        return np.arange(self.window_size) >= self.window_size - kept

    def _list_times(self, times: ArrayLike) -> np.ndarray:
        rows = np.asarray(times, np.int64)
        if rows.ndim != 1 or (rows < 0).any():
            raise ValueError(f"Times must be a list of integers that are not negative, got {times}.")
        return rows[:, None] + np.arange(1 - self.window_size, 1)


@public("bushel.trajectory.traj_transforms")
def chunk_act_obs(
    traj: Mapping[str, Any],
    window_size: int = 1,
    action_horizon: int = 1,
    override_window_size: int | None = None,
    *,
    compat: Compat | None = None,
) -> Tree:
    """Return observations as windows of the past, [T, W, ...], and actions as chunks of the future, [T, W, H, A].

    Adds `observation/timestep_pad_mask` [T, W] and `observation/task_completed` [T, W, H], and combines both with
    `action_pad_mask` [T, W, H, A]. `Windows` explains the masks, and the effect of `compat="crossformer"`.

    Actions may already be chunks [T, N, A] with N of at least `action_horizon`: then only the window is added. (With
    `compat="crossformer"` N must be `action_horizon`, and the masks are those of step t instead of each action.)

    >>> traj = {"observation": {"x": np.arange(3)}, "task": {}, "action": np.arange(3.0)[:, None]}
    >>> traj = chunk_act_obs(pad_actions_and_proprio(traj, None, None), window_size=2, action_horizon=2)
    >>> traj["observation"]["x"].tolist(), traj["action"].shape
    ([[0, 0], [0, 1], [1, 2]], (3, 2, 2, 1))
    """
    action = get_entry(traj, "action")
    mask = get_entry(traj, "action_pad_mask", hint="pad_actions_and_proprio makes it.")
    if action.ndim not in (2, 3):
        raise ValueError(f"Actions must have the shape [T, A], or [T, N, A] in chunks; got {list(action.shape)}.")
    windows = Windows(window_size, action_horizon, override_window_size, compat)
    times = np.arange(len(action))
    seen, seen_real = windows.observations(times)
    goals = traj.get("task", {}).get("timestep")
    acted, acted_real = windows.actions(times, len(action), goals)
    if action.ndim == 3:
        check_chunks(action.shape[1], action_horizon, compat)
        mask = mask if mask.ndim == 3 else mask[:, None]  # one mask for all actions of a chunk
        action, mask = action[:, :action_horizon], mask[:, :action_horizon]
    at = acted if action.ndim == 2 else seen  # a row of `action` is one action, or a chunk
    if reproduces_faults(compat):
        mask = mask[:, None, None] if mask.ndim == 2 else mask[:, None]
    else:
        mask = mask[at]
    observation = take(get_entry(traj, "observation"), seen)
    completed = windows.completed(times, len(action), goals)
    return {
        **traj,
        "observation": observation | {"timestep_pad_mask": seen_real, "task_completed": completed},
        "action": action[at],
        "action_pad_mask": mask & acted_real[..., None],
    }


def check_chunks(chunk: int, action_horizon: int, compat: Compat | None) -> None:
    """Raise ValueError if the chunks of actions in the data are shorter than the horizon."""
    if chunk < action_horizon:
        raise ValueError(
            f"The actions are chunks of {chunk}, which is less than action_horizon={action_horizon}. "
            "Make the chunks longer or the horizon shorter."
        )
    if reproduces_faults(compat) and chunk > action_horizon:
        raise ValueError(
            f"The original cannot cut chunks of {chunk} actions to action_horizon={action_horizon}. Leave out compat."
        )


@public("bushel.trajectory.traj_transforms")
def add_head_action_mask(traj: Mapping[str, Any], head_to_dataset: Mapping[str, Iterable[str]] | None = None) -> Tree:
    """Add `action_head_masks`: for each head of a model, which steps are of one of its data sets.

    Without `head_to_dataset` there is one head "action" for all data sets.

    >>> traj = {"dataset_name": np.array([b"bridge"] * 2, object)}
    >>> add_head_action_mask(traj, {"arm": ["bridge"], "nav": ["gnm"]})["action_head_masks"]
    {'arm': array([ True,  True]), 'nav': array([False, False])}
    """
    names = get_entry(traj, "dataset_name")
    if head_to_dataset is None:
        return {**traj, "action_head_masks": {"action": np.ones(names.shape, bool)}}
    present = [_text(name) for name in names.ravel().tolist()]
    masks = {}
    for head, datasets in head_to_dataset.items():
        if isinstance(datasets, str):
            raise TypeError(f"head_to_dataset[{head!r}] must be a list of names, got the string {datasets!r}.")
        wanted = {_text(name) for name in datasets}
        masks[head] = np.array([name in wanted for name in present], bool).reshape(names.shape)
    return {**traj, "action_head_masks": masks}


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def choose_steps(numbers: Any, subsample_length: int) -> Any:
    """Return the steps that `subsample` keeps, int64, from one random number per step. All steps are equally likely.

    >>> choose_steps(np.array([0.9, 0.1, 0.5]), 2).tolist()
    [1, 2]
    """
    length = checks.positive(subsample_length, "subsample_length")
    return get_namespace(numbers).argsort(numbers)[:length] if len(numbers) > length else np.arange(len(numbers))


@public("bushel.trajectory.traj_transforms")
def subsample(traj: Mapping[str, Any], subsample_length: int, *, rng: Rng = None) -> Tree:
    """Return at most `subsample_length` steps of a trajectory, drawn without repetition, in random order.

    With a `jax.random` key as `rng` it runs inside `jit` and `vmap`.

    >>> sorted(subsample({"action": np.arange(5)}, 9)["action"].tolist())
    [0, 1, 2, 3, 4]
    """
    length = len(get_entry(traj, "action"))
    if length <= checks.positive(subsample_length, "subsample_length"):
        return dict(traj)
    return take(traj, choose_steps(draw_uniform(rng, length), subsample_length))


@public("bushel.trajectory.traj_transforms")
def zero_out_future_proprio(traj: Mapping[str, Any], *, compat: Compat | None = None) -> Tree:
    """Set proprioception [T, W, ...] to zero except in the first slot: "proprio" and every "proprio_*".

    With `compat="crossformer"` only "proprio" is set to zero, and it must exist.

    >>> traj = zero_out_future_proprio({"observation": {"proprio_arm": np.ones((1, 3, 1))}})
    >>> traj["observation"]["proprio_arm"].tolist()
    [[[1.0], [0.0], [0.0]]]
    """
    observation = dict(get_entry(traj, "observation"))
    if reproduces_faults(compat):
        get_entry(observation, "proprio", of="The original's observation")
    for name in list_proprio_names(observation, compat):
        leaf = observation[name]
        xp = get_namespace(leaf)
        observation[name] = xp.concatenate([leaf[:, :1], xp.zeros_like(leaf[:, 1:])], axis=1)
    return {**traj, "observation": observation}


def list_proprio_names(observation: Mapping[str, Any], compat: Compat | None) -> list[str]:
    """Return the entries of an observation that are proprioception. In the original it is only the entry "proprio"."""
    every = not reproduces_faults(compat)
    return [name for name in observation if name == "proprio" or (every and name.startswith("proprio_"))]


@public("bushel.trajectory.traj_transforms")
def add_pad_mask_dict(traj: Mapping[str, Any], missing: Iterable[str] = ()) -> Tree:
    """Add `pad_mask_dict` to observation and task: for each entry one bool per step, False for padding.

    An empty string is padding. Numbers are data, except in the entries of the observation that `missing` names: those
    that the robot does not have.

    >>> traj = {"observation": {"image": np.array([b"", b"x"], object)}, "task": {}, "action": np.zeros((2, 1))}
    >>> add_pad_mask_dict(traj)["observation"]["pad_mask_dict"]["image"].tolist()
    [False, True]
    """
    length = len(get_entry(traj, "action"))
    missing = set(missing)
    if unknown := missing - set(get_entry(traj, "observation")):
        raise ValueError(
            f"No entry of the observation is named {sorted(unknown)}: there are {sorted(traj['observation'])}."
        )
    changed: Tree = dict(traj)
    for part in ("observation", "task"):
        masks = {}
        for name, leaf in get_entry(traj, part).items():
            if name == "pad_mask_dict":
                continue
            if isinstance(leaf, dict):
                raise ValueError(f"{part}/{name} is a dict, but pad_mask_dict needs one array per entry of {part}.")
            if part == "observation" and name in missing:
                masks[name] = np.zeros(length, bool)
            else:
                masks[name] = not_empty(leaf) if is_text(leaf) else np.ones(length, bool)
        changed[part] = {**traj[part], "pad_mask_dict": masks}
    return changed


@public("bushel.trajectory.traj_transforms")
def pad_actions_and_proprio(
    traj: Mapping[str, Any], max_action_dim: int | None, max_proprio_dim: int | None, *, compat: Compat | None = None
) -> Tree:
    """Return pad actions and proprioception with zeros to one width, so that data sets can be mixed.

    Adds `action_pad_mask`, which is false for the zeros. Proprioception is "proprio" and every "proprio_*"; with
    `compat="crossformer"` only "proprio". With None the width stays as it is.

    >>> traj = pad_actions_and_proprio({"observation": {}, "action": np.ones((1, 2))}, 3, None)
    >>> traj["action"].tolist(), traj["action_pad_mask"].tolist()
    ([[1.0, 1.0, 0.0]], [[True, True, False]])
    """
    reproduces_faults(compat)  # a misspelt word is an error also without max_proprio_dim
    action = get_entry(traj, "action")
    observation = dict(get_entry(traj, "observation"))
    if max_proprio_dim is not None:
        for name in list_proprio_names(observation, compat):
            observation[name] = _pad_width(observation[name], max_proprio_dim, f"observation/{name}", "max_proprio_dim")
    mask = np.ones(action.shape, bool)
    if max_action_dim is not None:
        action = _pad_width(action, max_action_dim, "action", "max_action_dim")
        mask = _pad_width(mask, max_action_dim, "action", "max_action_dim")
    return {**traj, "observation": observation, "action": action, "action_pad_mask": mask}


def _pad_width(leaf: Any, width: int, name: str, limit: str) -> Any:
    check_width(leaf.shape, width, name, limit)
    return get_namespace(leaf).pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, width - leaf.shape[-1])])


def check_width(shape: Sequence[int], width: int, name: str, limit: str) -> None:
    """Raise ValueError for entries that cannot be padded to a width: entries without an axis, or wider ones."""
    if len(shape) < 2:
        raise ValueError(
            f"{name} is one number per step, so {limit}={width} cannot pad it. Make it [T, 1], in standardize_fn for "
            f"example, or leave out {limit}."
        )
    if shape[-1] > width:
        raise ValueError(f"{name} has {shape[-1]} dimensions, more than {limit}={width}. Raise {limit}.")


def choose_goals(times: ArrayLike, lengths: ArrayLike, draws: Any, max_goal_distance: int | None = None) -> Any:
    """Return the times of the goals, int64[N], of steps at `times` in episodes of these lengths, by draws from [0, 1).

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
    """Add an observation of each step's future to `task`. It replaces entries of the same names.

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
