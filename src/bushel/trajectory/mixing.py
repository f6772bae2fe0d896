"""Whole pipelines, as the original makes them: one data set, or several mixed frame by frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel.trajectory.applying import apply_frame_transforms, apply_trajectory_transforms
from bushel.trajectory.columns import Constant, Numbers
from bushel.trajectory.compat import faithful
from bushel.trajectory.data_utils import allocate_threads
from bushel.trajectory.dataset import TrajectoryDataset
from bushel.trajectory.reading import make_dataset_from_rlds
from bushel.trajectory.samples import LANGUAGES, WORDS, Samples

_OVERRIDE = "override_traj_transform_kwargs"
_OWN_FILTER = "frame_filter"


def make_single_dataset(
    dataset_kwargs: Mapping[str, Any],
    *,
    train: bool,
    traj_transform_kwargs: Mapping[str, Any] | None = None,
    frame_transform_kwargs: Mapping[str, Any] | None = None,
) -> TrajectoryDataset:
    """One data set as trajectories, transformed; `.flatten()` makes frames of them.

    Args:
      dataset_kwargs: of `make_dataset_from_rlds`; "override_traj_transform_kwargs" in it goes before
        `traj_transform_kwargs` (with compat="crossformer" it has no effect, as in the original), and so does a
        "frame_filter".
      train: whether it is for training.
      traj_transform_kwargs: of `apply_trajectory_transforms`.
      frame_transform_kwargs: of `apply_frame_transforms`.
    """
    own, kwargs = dict(dataset_kwargs), dict(traj_transform_kwargs or {})
    override, filtered = own.pop(_OVERRIDE, {}), _own_filter(own)
    dataset, statistics = make_dataset_from_rlds(**own, train=train)
    kwargs |= filtered if faithful(own.get("compat")) else {**override, **filtered}
    dataset = apply_trajectory_transforms(dataset, **kwargs, train=train)
    frames = {"seed": own.get("seed", 0), "compat": own.get("compat"), **(frame_transform_kwargs or {})}
    dataset = apply_frame_transforms(dataset, **frames, train=train)
    dataset.dataset_statistics = statistics
    return dataset


def make_interleaved_dataset(
    dataset_kwargs_list: Sequence[Mapping[str, Any]],
    sample_weights: Sequence[float] | None = None,
    *,
    train: bool,
    shuffle_buffer_size: int | None = None,
    traj_transform_kwargs: Mapping[str, Any] | None = None,
    frame_transform_kwargs: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    balance_weights: bool = False,
    traj_transform_threads: int | None = None,
    traj_read_threads: int | None = None,
    seed: int = 0,
    compat: str | None = None,
) -> TrajectoryDataset:
    """Frames of several data sets without end, in exact proportions, shuffled over all of them, in batches.

    Robots may differ: what one has and another lacks is padding there, with masks, and actions are filled up to the
    widest. (With compat="crossformer" the data sets must agree already, as in the original.)

    Args:
      dataset_kwargs_list: for each data set the arguments of `make_dataset_from_rlds`, and in
        "override_traj_transform_kwargs" what differs for it from `traj_transform_kwargs`, and in "frame_filter" its
        own one.
      sample_weights: shares of frames, in any unit; by default all alike.
      train: whether it is for training.
      shuffle_buffer_size: accepted for the original's sake. There is no buffer: frames are shuffled over all data.
      traj_transform_kwargs: of `apply_trajectory_transforms`.
      frame_transform_kwargs: of `apply_frame_transforms`.
      batch_size: frames of a batch; None gives single ones.
      balance_weights: multiplies weights by the numbers of frames.
      traj_transform_threads, traj_read_threads: hints for how many threads work for all data sets together.
      seed: of order and draws.
      compat: "crossformer" for the original's output with all its faults.
    """
    if not dataset_kwargs_list:
        raise ValueError("make_interleaved_dataset needs at least one data set.")
    names = [kwargs["name"] for kwargs in dataset_kwargs_list]
    if len(set(names)) != len(names):
        raise ValueError(f"Names of data sets must differ, since statistics go by them; got {names}.")
    weights = [1.0] * len(names) if sample_weights is None else list(sample_weights)
    if len(weights) != len(names):
        raise ValueError(f"{len(names)} data sets need as many sample_weights, got {len(weights)}.")
    shared = dict(traj_transform_kwargs or {})
    statistics: dict[str, Any] = {}
    parts: list[TrajectoryDataset] = []
    reads = allocate_threads(traj_read_threads, weights)
    for kwargs, threads in zip(dataset_kwargs_list, reads):
        own = dict(kwargs)
        override, filtered = own.pop(_OVERRIDE, {}), _own_filter(own)
        made, found = make_dataset_from_rlds(
            **{"seed": seed, "compat": compat, "num_parallel_reads": threads} | own, train=train
        )
        statistics[own["name"]] = found
        if faithful(compat):
            shared |= override  # the original changes what all later data sets get
        made = apply_trajectory_transforms(made, **(shared | dict(override) | filtered), train=train)
        parts.append(made)
    if balance_weights:
        weights = [weight * found["num_transitions"] for weight, found in zip(weights, statistics.values())]
    if not faithful(compat):
        parts = unified(parts)
    flat = [part.repeat().flatten() for part in parts]
    mixed = TrajectoryDataset.sample_from_datasets(flat, weights).shuffle(shuffle_buffer_size, seed=seed)
    frames = {"seed": seed, "compat": compat, **(frame_transform_kwargs or {})}
    mixed = apply_frame_transforms(mixed.with_threads(traj_transform_threads), **frames, train=train)
    mixed.dataset_statistics = statistics
    return mixed if batch_size is None else mixed.batch(batch_size)


def _own_filter(dataset_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The filter of frames of one data set, taken out of its arguments: no other data set gets it."""
    found = dataset_kwargs.pop(_OWN_FILTER, None)
    return {} if found is None else {_OWN_FILTER: found}


def unified(parts: Sequence[TrajectoryDataset]) -> list[TrajectoryDataset]:
    """Data sets whose samples have the same leaves: what one lacks is padding, actions are as wide as the widest.

    Those that a function was applied to that the library cannot look into are left as they are.
    """
    known = [part.samples for part in parts]
    if len(parts) == 1 or any(samples is None for samples in known):
        return list(parts)
    tables = [samples.episodes for samples in known if samples is not None]
    one_width = all(s is not None and s.transforms is not None and s.transforms.max_proprio_dim for s in known)
    observed: dict[str, Any] = {}
    spoken = any({WORDS, LANGUAGES} & set(table.columns.get("task", {})) for table in tables)
    widths = []
    for table in tables:
        for name, column in table.columns["observation"].items():
            other = observed.get(name)
            if other is None or isinstance(other, Constant):
                observed[name] = column
            elif isinstance(column, Numbers) and column.entry_shape != other.entry_shape and not one_width:
                raise ValueError(
                    f"{name} is {list(other.entry_shape)} per frame in one data set and {list(column.entry_shape)} in "
                    "another: give them different names in proprio_obs_keys, or one width by max_proprio_dim."
                )
        widths.append(table.columns["action"].values.shape[-1])
    width = max(widths) if len(set(widths)) > 1 else None
    return [
        part.with_samples(_filled_up(samples, observed, spoken, width))
        for part, samples in zip(parts, known)
        if samples is not None
    ]


def _filled_up(samples: Samples, observed: Mapping[str, Any], spoken: bool, width: int | None) -> Samples:
    table = samples.episodes
    more = {
        name: _padding(column, table.frames)
        for name, column in observed.items()
        if name not in table.columns["observation"]
    }
    columns: dict[str, Any] = {"observation": more}
    if spoken and not {WORDS, LANGUAGES} & set(table.columns.get("task", {})):
        columns["task"] = {WORDS: Constant(b"", table.frames, present=False)}
    transforms = samples.transforms
    if transforms is not None and transforms.max_action_dim is None and width is not None:
        transforms = dataclasses.replace(transforms, max_action_dim=width)
    return dataclasses.replace(samples, episodes=table.with_columns(columns), transforms=transforms)


def _padding(column: Any, frames: int) -> Constant:
    """Padding in place of what another data set has in this column."""
    entry = column.take(np.zeros(1, dtype=np.int64))
    return Constant(b"" if entry.dtype == object else np.zeros(entry.shape[1:], entry.dtype), frames, present=False)
