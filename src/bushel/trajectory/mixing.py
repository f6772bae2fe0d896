"""Whole pipelines, as the original makes them: one data set, or several mixed frame by frame."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.base import checks
from bushel.trajectory.applying import apply_frame_transforms, apply_trajectory_transforms
from bushel.trajectory.columns import Constant
from bushel.trajectory.compat import faithful
from bushel.trajectory.data_utils import allocate_threads, entry
from bushel.trajectory.dataset import TrajectoryDataset
from bushel.trajectory.functions import instantiated, listed
from bushel.trajectory.plain import takes_configs
from bushel.trajectory.reading import make_dataset_from_rlds
from bushel.trajectory.samples import LANGUAGES, WORDS, Samples, Transforms

_OVERRIDE = "override_traj_transform_kwargs"
_OWN_FILTER = "frame_filter"
_FINISH = "post_chunk_transforms"  # after data sets are made alike


@takes_configs
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

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds(folder, "mine", {"train": [{"steps": steps}] * 4})
    ...     own = {"name": "mine", "data_dir": folder, "train_split": "train", "cache_dir": folder}
    ...     ds = make_single_dataset(own, train=True, traj_transform_kwargs={"window_size": 2, "action_horizon": 3})
    ...     len(ds.flatten()), next(ds.flatten().iterator())["action"].shape
    (20, (2, 3, 2))
    """
    own, kwargs = dict(dataset_kwargs), dict(traj_transform_kwargs or {})
    override, filtered = own.pop(_OVERRIDE, None) or {}, _own_filter(own)
    dataset, statistics = make_dataset_from_rlds(**own, train=train)
    kwargs |= filtered if faithful(own.get("compat")) else {**override, **filtered}
    dataset = apply_trajectory_transforms(dataset, **kwargs, train=train)
    frames = {"seed": own.get("seed", 0), "compat": own.get("compat"), **(frame_transform_kwargs or {})}
    dataset = apply_frame_transforms(dataset, **frames, train=train)
    dataset.dataset_statistics = statistics
    return dataset


@takes_configs
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
    cache_dir: str | None = None,
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
      cache_dir: where the tables of data sets are kept that do not say it themselves.

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds(folder, "mine", {"train": [{"steps": steps}] * 4})
    ...     own = {"name": "mine", "data_dir": folder, "train_split": "train"}
    ...     ds = make_interleaved_dataset([own], train=True, batch_size=8, cache_dir=folder)
    ...     next(ds.iterator())["action"].shape
    (8, 1, 1, 2)
    """
    if not dataset_kwargs_list:
        raise ValueError("make_interleaved_dataset needs at least one data set.")
    checks.seed(seed)
    names = [
        entry(kwargs, "name", of=f"Data set {number} of dataset_kwargs_list")
        for number, kwargs in enumerate(dataset_kwargs_list)
    ]
    if len(set(names)) != len(names):
        raise ValueError(f"Names of data sets must differ, since statistics go by them; got {names}.")
    weights = list(() if sample_weights is None else sample_weights) or [1.0] * len(names)
    if len(weights) != len(names):
        raise ValueError(f"{len(names)} data sets need as many sample_weights, got {len(weights)}.")
    shared = dict(traj_transform_kwargs or {})
    statistics: dict[str, Any] = {}
    parts: list[TrajectoryDataset] = []
    finishing: list[list[Callable[..., Any]]] = []
    headless: list[str] = []
    reads = _shares(traj_read_threads, weights)
    for number, (kwargs, threads) in enumerate(zip(dataset_kwargs_list, reads)):
        own = {"seed": _seed_of(seed, number), "compat": compat, "num_parallel_reads": threads, **kwargs}
        own["cache_dir"] = own.get("cache_dir") or cache_dir
        override, filtered = own.pop(_OVERRIDE, None) or {}, _own_filter(own)
        made, found = make_dataset_from_rlds(**own, train=train)
        statistics[own["name"]] = found
        if faithful(compat):
            shared |= override  # the original changes what all later data sets get
        asked = {**shared, **override, **filtered}
        heads = asked.get("head_to_dataset")
        if heads and not any(own["name"] in data_sets for data_sets in heads.values()):
            headless.append(own["name"])
        finishing.append([instantiated(function) for function in listed(asked.pop(_FINISH, None))])
        parts.append(apply_trajectory_transforms(made, **asked, train=train))
    if headless and not faithful(compat):
        _tell_headless(headless, names)
    if balance_weights:
        told = "These are the dataset_statistics that were given for {}."
        sizes = [
            float(entry(found, "num_transitions", of="balance_weights=True", hint=told.format(name)))
            for name, found in statistics.items()
        ]
        weights = [weight * size for weight, size in zip(weights, sizes)]
    if not faithful(compat):
        parts = unified(parts)
    for number, functions in enumerate(finishing):
        for function in functions:
            parts[number] = parts[number].traj_map(function)
    flat = [part.repeat().flatten() for part in parts]
    mixed = TrajectoryDataset.sample_from_datasets(flat, weights).shuffle(shuffle_buffer_size, seed=seed)
    frames = {"seed": seed, "compat": compat, **(frame_transform_kwargs or {})}
    mixed = apply_frame_transforms(mixed.with_threads(traj_transform_threads), **frames, train=train)
    mixed.dataset_statistics = statistics
    return mixed if batch_size is None else mixed.batch(batch_size)


def _shares(threads: int | None, weights: Sequence[float]) -> list[int | None]:
    """A hint for each data set, of a hint for all of them: nothing of one that says nothing, and at least 1."""
    if threads is None or threads <= 0:
        return [None] * len(weights)
    return [int(share) for share in allocate_threads(max(threads, len(weights)), weights)]


def _tell_headless(headless: Sequence[str], names: Sequence[str]) -> None:
    """Refuses a mixture of which no data set trains any head; warns where some do not."""
    told = f"head_to_dataset has no head for {', '.join(headless)}: actions of these data sets train nothing."
    if len(headless) == len(names):
        raise ValueError(f"{told} It takes data sets by their names, which are {', '.join(names)}.")
    warnings.warn(told, stacklevel=4)


def _seed_of(seed: int, number: int) -> int:
    """The seed of one of several data sets: samples of the same number in different ones draw differently."""
    return (seed + number * 0x9E3779B1) % (1 << 32)


def _own_filter(dataset_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The filter of frames of one data set, taken out of its arguments: no other data set gets it."""
    found = dataset_kwargs.pop(_OWN_FILTER, None)
    return {} if found is None else {_OWN_FILTER: found}


def unified(parts: Sequence[TrajectoryDataset]) -> list[TrajectoryDataset]:
    """Data sets whose samples have the same leaves: what one lacks is padding, actions are as wide as the widest.

    What cannot be made the same is refused, with the names of the data sets.
    """
    known = [part.samples for part in parts if part.samples is not None]
    if len(known) == 1:
        return list(parts)
    for setting, of in _SHAPING.items():
        _refuse_different(setting, {samples.name: of(_transforms(samples)) for samples in known})
    observed: dict[str, Any] = {}
    for name in dict.fromkeys(name for samples in known for name in _observed(samples)):
        columns = {samples.name: _observed(samples)[name] for samples in known if name in _observed(samples)}
        if name.startswith("proprio") and _transforms(known[0]).max_proprio_dim is None:
            _refuse_widths(name, columns)
        real = [column for column in columns.values() if not isinstance(column, Constant)]
        observed[name] = [*real, *columns.values()][0]
    spoken = any({WORDS, LANGUAGES} & set(samples.episodes.columns.get("task", {})) for samples in known)
    asked = [_transforms(samples).max_action_dim for samples in known]
    widths = [samples.episodes.columns["action"].entry_shape[-1] for samples in known]
    filled = {samples.name: given or own for samples, given, own in zip(known, asked, widths)}
    width = max(filled.values())
    if any(given not in (None, width) for given in asked):
        _refuse_different("max_action_dim", filled)
    if len({*widths, width}) == 1:
        width = None  # nothing to fill up
    return [part.with_samples(_filled_up(samples, observed, spoken, width)) for part, samples in zip(parts, known)]


def _transforms(samples: Samples) -> Transforms:
    assert samples.transforms is not None
    return samples.transforms


def _observed(samples: Samples) -> Mapping[str, Any]:
    return samples.episodes.columns.get("observation", {})


_SHAPING: dict[str, Callable[[Transforms], Any]] = {
    "window_size": lambda transforms: transforms.windows.window_size,
    "action_horizon": lambda transforms: transforms.windows.action_horizon,
    "goal_relabeling_strategy": lambda transforms: "uniform" if transforms.relabel_goals else None,
    "head_to_dataset": lambda transforms: sorted(transforms.head_to_dataset or ("action",)),
    "max_proprio_dim": lambda transforms: transforms.max_proprio_dim,
}
"""Settings on which the leaves of a sample and their shapes depend."""


def _refuse_different(setting: str, values: Mapping[str, Any]) -> None:
    if any(value != next(iter(values.values())) for value in values.values()):
        told = ", ".join(f"{value} for {name}" for name, value in values.items())
        more = " For shorter histories set override_window_size, which masks the rest." * (setting == "window_size")
        raise ValueError(
            f"{setting} must be the same for all data sets of a mixture, whose samples have one shape; it is {told}."
            f"{more} See override_traj_transform_kwargs."
        )


def _refuse_widths(name: str, columns: Mapping[str, Any]) -> None:
    if len({column.entry_shape for column in columns.values()}) > 1:
        told = ", ".join(
            f"{list(column.entry_shape)} in {data_set}"
            + (" (padding, by its proprio_obs_dims)" if isinstance(column, Constant) else "")
            for data_set, column in columns.items()
        )
        raise ValueError(
            f"{name} is {told} for each frame: give what differs different names in proprio_obs_keys, or one width by "
            "max_proprio_dim."
        )


def _filled_up(samples: Samples, observed: Mapping[str, Any], spoken: bool, width: int | None) -> Samples:
    table = samples.episodes
    more = {name: _padding(column, table.frames) for name, column in observed.items() if name not in _observed(samples)}
    columns: dict[str, Any] = {"observation": more}
    if spoken and not {WORDS, LANGUAGES} & set(table.columns.get("task", {})):
        columns["task"] = {WORDS: Constant(b"", table.frames, present=False)}
    transforms = dataclasses.replace(_transforms(samples), max_action_dim=width)
    return dataclasses.replace(samples, episodes=table.with_columns(columns), transforms=transforms)


def _padding(column: Any, frames: int) -> Constant:
    """Padding in place of what another data set has in this column."""
    entry = column.take(np.zeros(1, dtype=np.int64))
    return Constant(b"" if entry.dtype == object else np.zeros(entry.shape[1:], entry.dtype), frames, present=False)
