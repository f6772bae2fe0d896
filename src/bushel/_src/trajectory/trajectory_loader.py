"""Datasets and batches for training, from a configuration: `get_dataset` and `get_dataloader`. And whole pipelines.

`make_single_dataset` and `make_interleaved_dataset` have the original's arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bushel._src.base import blocks, checks, shown_text, trees
from bushel._src.base.errors import BushelWarning
from bushel._src.base.late_imports import import_package
from bushel._src.base.options import (
    DatasetOptions,
    ExecutionTrackingMode,
    MultiprocessingOptions,
    NoSharding,
    ShardOptions,
    WorkerOptions,
    read_workers,
)
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.datasets.iterator import DatasetIterator
from bushel._src.engine.report import Report
from bushel._src.graph.cursors import State
from bushel._src.graph.origins import ElementOrigin
from bushel._src.trajectory import text_processing
from bushel._src.trajectory.backends import BACKENDS, Running, import_grain
from bushel._src.trajectory.config_values import accept_configs, list_functions, load_function, refuse_unknown
from bushel._src.trajectory.data_utils import Compat, Tree, allocate_threads, get_entry, is_text, reproduces_faults
from bushel._src.trajectory.dataset_transforms import apply_frame_transforms, apply_trajectory_transforms
from bushel._src.trajectory.episodes import Constant
from bushel._src.trajectory.make_dataset import make_dataset_from_rlds
from bushel._src.trajectory.mixture_config import MixtureConfig, choose_backend
from bushel._src.trajectory.samples import LANGUAGES, WORDS, Samples, Transforms
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset

_OVERRIDE = "override_traj_transform_kwargs"
_DATASETS_FILTER = "frame_filter"
_OPENVLA_FILTER = "dataset_frame_transform_kwargs"  # a dict with a "chunk_filter_fn"
_FINISH = "post_chunk_transforms"  # applied after `unify_layouts`


@public("bushel.trajectory")
@accept_configs
def make_single_dataset(
    dataset_kwargs: Mapping[str, Any],
    *,
    train: bool,
    traj_transform_kwargs: Mapping[str, Any] | None = None,
    frame_transform_kwargs: Mapping[str, Any] | None = None,
) -> TrajectoryDataset:
    """Return the trajectories of one data set after all transforms. `.flatten()` returns their frames.

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
    ...     options = {"name": "mine", "data_dir": folder, "train_split": "train", "cache_dir": folder}
    ...     ds = make_single_dataset(options, train=True, traj_transform_kwargs={"window_size": 2, "action_horizon": 3})
    ...     len(ds.flatten()), next(ds.flatten().iterator())["action"].shape
    (20, (2, 3, 2))
    """
    options, kwargs = dict(dataset_kwargs), dict(traj_transform_kwargs or {})
    override, filtered = options.pop(_OVERRIDE, None) or {}, _pop_filter(options)
    dataset, statistics = make_dataset_from_rlds(**options, train=train)
    kwargs |= filtered if reproduces_faults(options.get("compat")) else {**override, **filtered}
    dataset = apply_trajectory_transforms(dataset, **kwargs, train=train)
    frames = {"seed": options.get("seed", 0), "compat": options.get("compat"), **(frame_transform_kwargs or {})}
    dataset = apply_frame_transforms(dataset, **frames, train=train)
    dataset.dataset_statistics = statistics
    return dataset


@public("bushel.trajectory")
@accept_configs
def create_validation_dataset(
    dataset_kwargs: Mapping[str, Any],
    traj_transform_kwargs: Mapping[str, Any] | None = None,
    frame_transform_kwargs: Mapping[str, Any] | None = None,
    train: bool = False,
) -> TrajectoryDataset:
    """Return the validation trajectories of one data set of a mixture, in their order:

    `make_single_dataset` without shuffle.

    The original's function of this name also sets numbers of threads, to bound its memory. Here they stay as they are.
    """
    options = {**dataset_kwargs, "shuffle": False}
    return make_single_dataset(
        options, train=train, traj_transform_kwargs=traj_transform_kwargs, frame_transform_kwargs=frame_transform_kwargs
    )


@public("bushel.trajectory")
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
    """Return an endless mixture of frames of several data sets, in exact proportions, shuffled globally, in batches.

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
    ...     options = {"name": "mine", "data_dir": folder, "train_split": "train"}
    ...     ds = make_interleaved_dataset([options], train=True, batch_size=8, cache_dir=folder)
    ...     next(ds.iterator())["action"].shape
    (8, 1, 1, 2)
    """
    if not dataset_kwargs_list:
        raise ValueError("make_interleaved_dataset needs at least one data set.")
    checks.seed(seed)
    faithful = reproduces_faults(compat)
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
    reads = _divide_threads(traj_read_threads, weights)
    for number, (kwargs, threads) in enumerate(zip(dataset_kwargs_list, reads)):
        options = {"seed": _derive_seed(seed, number), "compat": compat, "num_parallel_reads": threads, **kwargs}
        options["cache_dir"] = options.get("cache_dir") or cache_dir
        override, filtered = options.pop(_OVERRIDE, None) or {}, _pop_filter(options)
        dataset, statistics[options["name"]] = make_dataset_from_rlds(**options, train=train)
        if faithful:
            shared |= override  # the original changes what all later data sets get
        asked = {**shared, **override, **filtered}
        heads = asked.get("head_to_dataset")
        if heads and not any(options["name"] in data_sets for data_sets in heads.values()):
            headless.append(options["name"])
        finishing.append([load_function(function) for function in list_functions(asked.pop(_FINISH, None))])
        parts.append(apply_trajectory_transforms(dataset, **asked, train=train))
    if headless and not reproduces_faults(compat):
        _report_headless(headless, names)
    if balance_weights:
        hint = "balance_weights=True needs it. Pass dataset_statistics that have it, or leave them out."
        sizes = [
            float(get_entry(facts, "num_transitions", of=f"The dict of statistics given for {name}", hint=hint))
            for name, facts in statistics.items()
        ]
        weights = [weight * size for weight, size in zip(weights, sizes)]
    if not reproduces_faults(compat):
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


def _divide_threads(threads: int | None, weights: Sequence[float]) -> list[int | None]:
    """Return the hint for the number of threads of each data set, at least 1; None for each if there is no hint for
    all.
    """
    if threads is None or threads <= 0:
        return [None] * len(weights)
    return [int(count) for count in allocate_threads(max(threads, len(weights)), weights)]


def _report_headless(headless: Sequence[str], names: Sequence[str]) -> None:
    """Warn of data sets that train no head. Raise ValueError if no data set of the mixture trains one."""
    message = f"head_to_dataset has no head for {', '.join(headless)}: actions of these data sets train nothing."
    if len(headless) == len(names):
        raise ValueError(f"{message} Its values must be names of data sets, which are {', '.join(names)}.")
    warnings.warn(message, BushelWarning, stacklevel=4)


def _derive_seed(seed: int, number: int) -> int:
    """Return the seed of one of several data sets.

    Samples of the same number then have different draws in each of them.
    """
    return (seed + number * 0x9E3779B1) % (1 << 32)


def _pop_filter(dataset_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove the filter of frames from the arguments of one data set, and return it as a keyword argument."""
    frame_filter = dataset_kwargs.pop(_DATASETS_FILTER, None)
    of_openvla = dict(dataset_kwargs.pop(_OPENVLA_FILTER, None) or {})
    refuse_unknown(of_openvla, ["chunk_filter_fn"], _OPENVLA_FILTER, "argument")
    frame_filter = of_openvla.get("chunk_filter_fn") if frame_filter is None else frame_filter
    return {} if frame_filter is None else {_DATASETS_FILTER: frame_filter}


def unify_layouts(parts: Sequence[TrajectoryDataset]) -> list[TrajectoryDataset]:
    """Return the data sets with the same leaves in all samples: missing entries become padding, actions get the largest
    width.

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
    filled = {samples.name: given or width for samples, given, width in zip(known, asked, widths)}
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
        sentences = [
            f"{setting} must be the same for all data sets of a mixture, since all samples have one shape; it is "
            f"{listing}.",
            "See override_traj_transform_kwargs.",
        ]
        if setting == "window_size":
            sentences.insert(1, "For shorter histories set override_window_size, which masks the rest.")
        raise ValueError(" ".join(sentences))


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
    """Return a column of padding with the dtype and the shape of a column of another data set."""
    entry = column.take(np.zeros(1, dtype=np.int64))
    return Constant(b"" if entry.dtype == object else np.zeros(entry.shape[1:], entry.dtype), frames, present=False)


@public("bushel.trajectory")
def get_dataset(config: Any, *, train: bool | None = None, **changes: Any) -> TrajectoryDataset:
    """Return the frames of an endless mixture, shuffled and transformed; in batches if the config has a batch size.

    Args:
      config: a `MixtureConfig` or a `DatasetConfig`, a dict of fields, or a JSON or YAML file.
      train: True for training, False for validation; by default as in the config.
      changes: fields of the `MixtureConfig` with other values.

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds({"train": [{"steps": steps}] * 4}, name="mine", data_dir=folder)
    ...     options = {"name": "mine", "data_dir": folder, "train_split": "train", "cache_dir": folder}
    ...     ds = get_dataset({"datasets": [options], "batch_size": 4})
    ...     next(ds.iterator())["action"].shape
    (4, 1, 1, 2)
    """
    chosen = _load_config(config, train, changes)
    return make_interleaved_dataset(**chosen.to_kwargs())


@public("bushel.trajectory")
def build_dataset_from_config(config: Any, *, train: bool | None = None, **changes: Any) -> TrajectoryDataset:
    """Return the dataset that a config describes: the trajectories of a single data set, or the frames of a mixture.

    The arguments are those of `get_dataset`. For trajectories the weight and the batch size have no effect.
    """
    chosen = _load_config(config, train, changes)
    if len(chosen.datasets) > 1:
        return get_dataset(chosen)
    (one,) = chosen.datasets
    return make_single_dataset(
        {
            **one.to_kwargs(),
            "seed": chosen.seed,
            "compat": chosen.compat,
            "cache_dir": one.cache_dir or chosen.cache_dir,
        },
        train=chosen.train,
        traj_transform_kwargs=chosen.traj_transform_kwargs,
        frame_transform_kwargs=chosen.frame_transform_kwargs,
    )


@public("bushel.trajectory")
def get_dataloader(
    config: Any,
    *,
    train: bool | None = None,
    batch_size: int | None = None,
    workers: int | WorkerOptions | None = None,
    arrays: Literal["numpy", "jax"] = "numpy",
    shard_options: ShardOptions | None = None,
    process_text: Any = None,
    data_backend: Literal["bushel", "grain"] | None = None,
    use_grain: bool | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    skip_limit: int | None = None,
    execution_tracking_mode: ExecutionTrackingMode | Literal["disabled", "stage_timing"] = "disabled",
    **changes: Any,
) -> TrajectoryLoader:
    """Return batches for training: an endless iterable whose iterators have `get_state` and `set_state`.

    The order, the draws and the rows depend only on the config, not on workers, threads, hosts or the back end.

    Args:
      config: a `MixtureConfig` or a `DatasetConfig`, a dict of fields, or a JSON or YAML file.
      train: for training or for validation; by default as the config says.
      batch_size: rows per batch, over all hosts; by default as in the config.
      workers: number of worker processes, or options for them. By default this process computes the batches. With
        `MultiprocessingOptions(num_workers=None)` Bushel measures how many workers help. The hints for threads
        (`traj_transform_threads`, `traj_read_threads`, `num_parallel_calls`) set the number of prefetching threads, at
        most one per core.
      arrays: "numpy", or "jax" for `jax.numpy` arrays. Texts are always NumPy arrays, since JAX has none.
      shard_options: which host this is, for example `ShardByJaxProcess()`. The host gets its own rows of each batch.
      process_text: a `TextProcessor`, whose arrays replace `task/language_instruction` (`dataset_name` is then left
        out, as in the original); or any function of a batch.
      data_backend: "bushel", or "grain" for Google's Grain; by default as in the config.
      use_grain: True for "grain", False for "bushel".
      on_error: "skip" skips frames that raise an error, for example an image that cannot be decoded, and counts them in
        `iterator.skipped`; later frames fill the batch. It needs a single host and Bushel's engine. Its states cannot
        be restored without it. With "raise" the error is raised, and `next` tries again.
      skip_limit: how many frames may be skipped before the next failure raises; None for any number.
      execution_tracking_mode: "stage_timing" times every stage, for `iterator.report()` and Prometheus.
      changes: fields of the `MixtureConfig` with other values.

    >>> import tempfile
    >>> from bushel._src.trajectory.rlds.writer import write_rlds
    >>> steps = {"observation": {"state": np.zeros((20, 3), np.float32)}, "action": np.zeros((20, 2), np.float32)}
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = write_rlds({"train": [{"steps": steps}] * 3, "val": [{"steps": steps}]}, name="arm", data_dir=folder.name)
    >>> config = {"name": "arm", "data_dir": folder.name, "proprio_obs_keys": {"arm": "state"}}
    >>> loader = get_dataloader(config, batch_size=8, traj_transform_kwargs={"window_size": 2, "action_horizon": 4})
    >>> with iter(loader) as batches:
    ...     next(batches)["action"].shape, batches.get_state()["global_next_index"]
    ((8, 2, 4, 2), 8)
    >>> folder.cleanup()
    """
    asked = {"batch_size": batch_size, "data_backend": choose_backend(data_backend, use_grain)}
    checks.unused(
        {"skip_limit": skip_limit is not None and on_error == "raise"}, 'without on_error="skip"', "Pass both"
    )
    options = DatasetOptions(on_error=on_error, skip_limit=skip_limit, execution_tracking_mode=execution_tracking_mode)
    chosen = _load_config(config, train, changes | {name: value for name, value in asked.items() if value is not None})
    if chosen.batch_size is None:
        raise ValueError("A loader needs a batch_size, as an argument or in its config.")
    checks.choice(arrays, ("numpy", "jax"), "arrays")
    if chosen.data_backend == "grain":
        import_grain()
        if on_error == "skip":
            raise ValueError('on_error="skip" needs Bushel\'s engine. Leave out data_backend="grain".')
    if isinstance(process_text, str) or not (
        process_text is None or callable(process_text) or hasattr(process_text, "encode")
    ):
        raise TypeError(f"process_text must have a method `encode`, or be a function of a batch; got {process_text!r}.")
    running = Running(
        get_dataset(chosen, batch_size=None),
        chosen.batch_size,
        NoSharding() if shard_options is None else shard_options,
        read_workers(workers) or MultiprocessingOptions(),
        options,
    )
    return TrajectoryLoader(running, chosen.data_backend, _Finish(process_text, arrays))


def _load_config(config: Any, train: bool | None, changes: Mapping[str, Any]) -> MixtureConfig:
    asked = {} if train is None else {"train": train}
    return MixtureConfig.of(config).changed(**asked, **changes)


@in_states("finish_batch")
@dataclasses.dataclass(frozen=True)
class _Finish:
    """The last steps on a batch, in the consumer's process: texts, and arrays of JAX."""

    process_text: Any
    arrays: str

    def __call__(self, batch: Tree) -> Tree:
        batch = trees.map_leaves(_texts_as_objects, batch)
        if hasattr(self.process_text, "encode"):
            batch = text_processing.process_text(batch, self.process_text)
            batch.pop("dataset_name", None)
        elif self.process_text is not None:
            batch = self.process_text(batch)
        return batch if self.arrays == "numpy" else _convert_to_jax(batch)


def _texts_as_objects(leaf: Any) -> Any:
    return leaf.astype(object) if leaf.dtype.kind == "S" else leaf


def _convert_to_jax(batch: Tree) -> Tree:
    jax_numpy: Any = import_package("jax.numpy", "jax", "Batches of jax.numpy arrays")
    return trees.map_leaves(lambda leaf: leaf if _is_text(leaf) else jax_numpy.asarray(leaf), batch)


def _is_text(leaf: Any) -> bool:
    return isinstance(leaf, (str, bytes)) or (isinstance(leaf, np.ndarray) and is_text(leaf))


@public("bushel.trajectory")
class TrajectoryLoader:
    """Batches of a mixture. `get_dataloader` makes it. Iterators of it can save and restore their state."""

    def __init__(self, running: Running, backend: str, finish: _Finish):
        self._running, self._finish = running, finish
        self.data_backend = backend
        """The engine that runs the pipeline: "bushel" or "grain"."""

    @property
    def dataset(self) -> TrajectoryDataset:
        """The dataset of single frames."""
        return self._running.dataset

    @property
    def dataset_statistics(self) -> Any:
        """The statistics of actions and proprioception, by the names of the data sets."""
        return self.dataset.dataset_statistics

    @property
    def sample_weights(self) -> np.ndarray:
        """The share of each data set."""
        weights = self.dataset.sample_weights
        return np.ones(1) if weights is None else weights

    @functools.cached_property
    def element_spec(self) -> Any:
        """Shapes and dtypes of a batch on this host, before `process_text`. Computes one frame to find them."""
        rows = self._running.rows
        batch = trees.map_leaves(_texts_as_objects, blocks.stack([self.dataset.dataset[0]]))
        return trees.map_leaves(lambda leaf: ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), batch)

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(BACKENDS[self.data_backend](self._running), self._finish)

    def __repr__(self) -> str:
        shard = self._running.shard
        names = ", ".join(self.dataset_statistics)
        return (
            f"<loader of {names}: batches of {self._running.batch_size}, host {shard.shard_index} of "
            f"{shard.shard_count}, on {self.data_backend}>"
        )

    def _repr_html_(self) -> str:
        return shown_text.paragraph(repr(self)) + self.dataset._repr_html_()


@public("bushel.trajectory")
class LoaderIterator(DatasetIterator[Tree]):
    """An iterator over the batches of a loader. Its state is the same on all hosts.

    Any back end, with any number of hosts, can restore it.
    """

    _same_on_all_processes = True

    def __init__(self, batches: DatasetIterator[Any], finish: Callable[[Tree], Tree]):
        super().__init__(batches)
        self._finish, self._lock = finish, threading.RLock()
        self._held: tuple[State, Any] | None = None
        """A batch for which `_finish` failed, and the state before it. `next` tries it again."""

    def __next__(self) -> Tree:
        with self._lock:
            self._assert_not_closed()
            if self._held is None:
                self._held = self._parent.get_state(), next(self._parent)
            batch = self._finish(self._held[1])
            self._held = None
            return batch

    @property
    def skipped(self) -> int:
        """How many frames failed and were skipped so far, with `on_error="skip"`."""
        return self._parent.skipped

    def report(self) -> Report:
        """Return the time that each stage takes, see `bushel.Report`. Not available with Grain as the back end."""
        return self._parent.report()

    def origins(self, steps: int = 1) -> list[ElementOrigin]:
        """Return the frames of this host's rows in the next batches. Nothing is read."""
        with self._lock:
            if self._held is not None:  # the next batch is the held one: the parent must stand before it
                self.set_state(self._held[0])
            return self._parent.origins(steps)

    def get_state(self) -> State:
        """Return the global position, as plain JSON data."""
        with self._lock:
            return self._parent.get_state() if self._held is None else self._held[0]

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Go to a saved position, of any host and any number of hosts and workers, and of either back end.

        Args:
          state: what `get_state` returned.
          check: False restores the state of another config as far as its form fits.
        """
        with self._lock:
            batches: Any = self._parent
            batches.set_state(state, check=check)
            self._held = None
