"""The original's whole pipelines: `make_single_dataset`, and `make_interleaved_dataset` for several data sets."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.base import checks
from bushel.base.errors import BushelWarning
from bushel.trajectory.compat import Compat, is_faithful
from bushel.trajectory.config_values import accept_configs, refuse_unknown
from bushel.trajectory.data_utils import allocate_threads, get_entry
from bushel.trajectory.dataset import TrajectoryDataset
from bushel.trajectory.dataset_from_rlds import make_dataset_from_rlds
from bushel.trajectory.dataset_transforms import apply_frame_transforms, apply_trajectory_transforms
from bushel.trajectory.frame_columns import Constant
from bushel.trajectory.module_spec import list_functions, load_function
from bushel.trajectory.samples import LANGUAGES, WORDS, Samples, Transforms

_OVERRIDE = "override_traj_transform_kwargs"
_OWN_FILTER = "frame_filter"
_OPENVLA_FILTER = "dataset_frame_transform_kwargs"  # a dict with a "chunk_filter_fn"
_FINISH = "post_chunk_transforms"  # applied after `unify_layouts`


@accept_configs
def make_single_dataset(
    dataset_kwargs: Mapping[str, Any],
    *,
    train: bool,
    traj_transform_kwargs: Mapping[str, Any] | None = None,
    frame_transform_kwargs: Mapping[str, Any] | None = None,
) -> TrajectoryDataset:
    """The trajectories of one data set after all transforms. `.flatten()` returns their frames.

    Args:
      dataset_kwargs: arguments of `make_dataset_from_rlds`. Its entries "override_traj_transform_kwargs" and
        "frame_filter" take precedence over `traj_transform_kwargs`. (With compat="crossformer" the first of them has no
        effect, as in the original.)
      train: True for training, False for validation.
      traj_transform_kwargs: arguments of `apply_trajectory_transforms`.
      frame_transform_kwargs: arguments of `apply_frame_transforms`.

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds({"train": [{"steps": steps}] * 4}, name="mine", data_dir=folder)
    ...     own = {"name": "mine", "data_dir": folder, "train_split": "train", "cache_dir": folder}
    ...     ds = make_single_dataset(own, train=True, traj_transform_kwargs={"window_size": 2, "action_horizon": 3})
    ...     len(ds.flatten()), next(ds.flatten().iterator())["action"].shape
    (20, (2, 3, 2))
    """
    own, kwargs = dict(dataset_kwargs), dict(traj_transform_kwargs or {})
    override, filtered = own.pop(_OVERRIDE, None) or {}, _pop_filter(own)
    dataset, statistics = make_dataset_from_rlds(**own, train=train)
    kwargs |= filtered if is_faithful(own.get("compat")) else {**override, **filtered}
    dataset = apply_trajectory_transforms(dataset, **kwargs, train=train)
    frames = {"seed": own.get("seed", 0), "compat": own.get("compat"), **(frame_transform_kwargs or {})}
    dataset = apply_frame_transforms(dataset, **frames, train=train)
    dataset.dataset_statistics = statistics
    return dataset


@accept_configs
def create_validation_dataset(
    dataset_kwargs: Mapping[str, Any],
    traj_transform_kwargs: Mapping[str, Any] | None = None,
    frame_transform_kwargs: Mapping[str, Any] | None = None,
    train: bool = False,
) -> TrajectoryDataset:
    """The validation trajectories of one data set of a mixture, in their order: `make_single_dataset` without shuffle.

    The original's function of this name also sets numbers of threads, to bound its memory. Here they stay as they are.
    """
    own = {**dataset_kwargs, "shuffle": False}
    return make_single_dataset(
        own, train=train, traj_transform_kwargs=traj_transform_kwargs, frame_transform_kwargs=frame_transform_kwargs
    )


@accept_configs
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
    compat: Compat | None = None,
    cache_dir: str | None = None,
) -> TrajectoryDataset:
    """An endless mixture of frames of several data sets, in exact proportions, shuffled globally, in batches.

    Robots may differ. An entry that a data set lacks becomes padding with a mask, and actions are padded to the widest.
    (With compat="crossformer" all data sets must have the same entries and widths, as in the original.)

    Args:
      dataset_kwargs_list: for each data set the arguments of `make_dataset_from_rlds`. Two more entries hold for this
        data set only: "override_traj_transform_kwargs", which takes precedence over `traj_transform_kwargs`, and
        "frame_filter".
      sample_weights: shares of frames, in any unit; by default all are equal.
      train: True for training, False for validation.
      shuffle_buffer_size: ignored. The original has it; here the shuffle is global and needs no buffer.
      traj_transform_kwargs: arguments of `apply_trajectory_transforms`.
      frame_transform_kwargs: arguments of `apply_frame_transforms`.
      batch_size: frames per batch; None for single frames.
      balance_weights: multiplies the weights by the numbers of frames.
      traj_transform_threads, traj_read_threads: hints for the number of threads of all data sets together.
      seed: the seed of the order and of all draws.
      compat: "crossformer" for the original's output with all its faults.
      cache_dir: folder for the tables of data sets that have no `cache_dir` of their own.

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds({"train": [{"steps": steps}] * 4}, name="mine", data_dir=folder)
    ...     own = {"name": "mine", "data_dir": folder, "train_split": "train"}
    ...     ds = make_interleaved_dataset([own], train=True, batch_size=8, cache_dir=folder)
    ...     next(ds.iterator())["action"].shape
    (8, 1, 1, 2)
    """
    if not dataset_kwargs_list:
        raise ValueError("make_interleaved_dataset needs at least one data set.")
    checks.seed(seed)
    faithful = is_faithful(compat)
    names = [
        get_entry(kwargs, "name", of=f"Data set {number} of dataset_kwargs_list")
        for number, kwargs in enumerate(dataset_kwargs_list)
    ]
    if len(set(names)) != len(names):
        raise ValueError(f"Names of data sets must differ, since statistics go by them; got {names}.")
    weights = list(() if sample_weights is None else sample_weights) or [1.0] * len(names)
    if len(weights) != len(names):
        raise ValueError(f"{len(names)} data sets need as many sample_weights, got {len(weights)}.")
    checks.weights(weights, len(names), zero_allowed=True)  # before the data are read
    shared = dict(traj_transform_kwargs or {})
    statistics: dict[str, Any] = {}
    parts: list[TrajectoryDataset] = []
    finishing: list[list[Callable[..., Any]]] = []
    headless: list[str] = []
    reads = _share_threads(traj_read_threads, weights)
    for number, (kwargs, threads) in enumerate(zip(dataset_kwargs_list, reads)):
        own = {"seed": _derive_seed(seed, number), "compat": compat, "num_parallel_reads": threads, **kwargs}
        own["cache_dir"] = own.get("cache_dir") or cache_dir
        override, filtered = own.pop(_OVERRIDE, None) or {}, _pop_filter(own)
        dataset, statistics[own["name"]] = make_dataset_from_rlds(**own, train=train)
        if faithful:
            shared |= override  # the original changes what all later data sets get
        asked = {**shared, **override, **filtered}
        heads = asked.get("head_to_dataset")
        if heads and not any(own["name"] in data_sets for data_sets in heads.values()):
            headless.append(own["name"])
        finishing.append([load_function(function) for function in list_functions(asked.pop(_FINISH, None))])
        parts.append(apply_trajectory_transforms(dataset, **asked, train=train))
    if headless and not is_faithful(compat):
        _report_headless(headless, names)
    if balance_weights:
        hint = "These are the dataset_statistics that were given for {}."
        sizes = [
            float(get_entry(facts, "num_transitions", of="balance_weights=True", hint=hint.format(name)))
            for name, facts in statistics.items()
        ]
        weights = [weight * size for weight, size in zip(weights, sizes)]
    if not is_faithful(compat):
        parts = unify_layouts(parts)
    for number, functions in enumerate(finishing):
        for function in functions:
            parts[number] = parts[number].traj_map(function)
    flat = [part.repeat().flatten() for part in parts]
    mixed = TrajectoryDataset.sample_from_datasets(flat, weights).shuffle(shuffle_buffer_size, seed=seed)
    frames = {"seed": seed, "compat": compat, **(frame_transform_kwargs or {})}
    mixed = apply_frame_transforms(mixed._with_threads(traj_transform_threads), **frames, train=train)
    mixed.dataset_statistics = statistics
    return mixed if batch_size is None else mixed.batch(batch_size)


def _share_threads(threads: int | None, weights: Sequence[float]) -> list[int | None]:
    """The hint for the number of threads of each data set, at least 1; None for each if there is no hint for all."""
    if threads is None or threads <= 0:
        return [None] * len(weights)
    return [int(share) for share in allocate_threads(max(threads, len(weights)), weights)]


def _report_headless(headless: Sequence[str], names: Sequence[str]) -> None:
    """Warns of data sets that train no head. Raises ValueError if no data set of the mixture trains one."""
    message = f"head_to_dataset has no head for {', '.join(headless)}: actions of these data sets train nothing."
    if len(headless) == len(names):
        raise ValueError(f"{message} Its values must be names of data sets, which are {', '.join(names)}.")
    warnings.warn(message, BushelWarning, stacklevel=4)


def _derive_seed(seed: int, number: int) -> int:
    """The seed of one of several data sets. Samples of the same number then have different draws in each of them."""
    return (seed + number * 0x9E3779B1) % (1 << 32)


def _pop_filter(dataset_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Removes the filter of frames from the arguments of one data set, and returns it as a keyword argument."""
    frame_filter = dataset_kwargs.pop(_OWN_FILTER, None)
    of_openvla = dict(dataset_kwargs.pop(_OPENVLA_FILTER, None) or {})
    refuse_unknown(of_openvla, ["chunk_filter_fn"], _OPENVLA_FILTER, "argument")
    frame_filter = of_openvla.get("chunk_filter_fn") if frame_filter is None else frame_filter
    return {} if frame_filter is None else {_OWN_FILTER: frame_filter}


def unify_layouts(parts: Sequence[TrajectoryDataset]) -> list[TrajectoryDataset]:
    """The data sets with the same leaves in all samples: missing entries become padding, actions get the largest width.

    Settings that cannot be unified raise ValueError, with the names of the data sets.
    """
    known = [part._samples for part in parts if part._samples is not None]
    if len(known) == 1:
        return list(parts)
    for setting, read in _SHAPING.items():
        _check_equal(setting, {samples.name: read(_get_transforms(samples)) for samples in known})
    observed: dict[str, Any] = {}
    for name in dict.fromkeys(name for samples in known for name in _get_observed(samples)):
        columns = {samples.name: _get_observed(samples)[name] for samples in known if name in _get_observed(samples)}
        if name.startswith("proprio") and _get_transforms(known[0]).max_proprio_dim is None:
            _check_widths(name, columns)
        real = [column for column in columns.values() if not isinstance(column, Constant)]
        observed[name] = [*real, *columns.values()][0]
    has_language = any({WORDS, LANGUAGES} & set(samples.episodes.columns.get("task", {})) for samples in known)
    asked = [_get_transforms(samples).max_action_dim for samples in known]
    widths = [samples.episodes.columns["action"].entry_shape[-1] for samples in known]
    filled = {samples.name: given or own for samples, given, own in zip(known, asked, widths)}
    width = max(filled.values())
    if any(given not in (None, width) for given in asked):
        _check_equal("max_action_dim", filled)
    if len({*widths, width}) == 1:
        width = None  # all actions have this width already
    return [part._with_samples(_fill_up(samples, observed, has_language, width)) for part, samples in zip(parts, known)]


def _get_transforms(samples: Samples) -> Transforms:
    assert samples.transforms is not None
    return samples.transforms


def _get_observed(samples: Samples) -> Mapping[str, Any]:
    return samples.episodes.columns.get("observation", {})


_SHAPING: dict[str, Callable[[Transforms], Any]] = {
    "window_size": lambda transforms: transforms.windows.window_size,
    "action_horizon": lambda transforms: transforms.windows.action_horizon,
    "goal_relabeling_strategy": lambda transforms: "uniform" if transforms.relabel_goals else None,
    "head_to_dataset": lambda transforms: sorted(transforms.head_to_dataset or ("action",)),
    "max_proprio_dim": lambda transforms: transforms.max_proprio_dim,
}
"""The settings that determine the leaves of a sample and their shapes."""


def _check_equal(setting: str, values: Mapping[str, Any]) -> None:
    if any(value != next(iter(values.values())) for value in values.values()):
        listing = ", ".join(f"{value} for {name}" for name, value in values.items())
        more = " For shorter histories set override_window_size, which masks the rest." * (setting == "window_size")
        raise ValueError(
            f"{setting} must be the same for all data sets of a mixture, since all samples have one shape; it is "
            f"{listing}.{more} See override_traj_transform_kwargs."
        )


def _check_widths(name: str, columns: Mapping[str, Any]) -> None:
    if len({column.entry_shape for column in columns.values()}) > 1:
        listing = ", ".join(
            f"{list(column.entry_shape)} in {data_set}"
            + (" (padding, by its proprio_obs_dims)" if isinstance(column, Constant) else "")
            for data_set, column in columns.items()
        )
        raise ValueError(
            f"The shape of {name} per frame is {listing}. Give entries of different shapes different names in "
            "proprio_obs_keys, or one width with max_proprio_dim."
        )


def _fill_up(samples: Samples, observed: Mapping[str, Any], has_language: bool, width: int | None) -> Samples:
    table = samples.episodes
    missing = {name: column for name, column in observed.items() if name not in _get_observed(samples)}
    more = {name: _make_padding(column, table.frames) for name, column in missing.items()}
    columns: dict[str, Any] = {"observation": more}
    if has_language and not {WORDS, LANGUAGES} & set(table.columns.get("task", {})):
        columns["task"] = {WORDS: Constant(b"", table.frames, present=False)}
    transforms = dataclasses.replace(_get_transforms(samples), max_action_dim=width)
    return dataclasses.replace(samples, episodes=table.with_columns(columns), transforms=transforms)


def _make_padding(column: Any, frames: int) -> Constant:
    """A column of padding with the dtype and the shape of a column of another data set."""
    entry = column.take(np.zeros(1, dtype=np.int64))
    return Constant(b"" if entry.dtype == object else np.zeros(entry.shape[1:], entry.dtype), frames, present=False)
