"""From a configuration to batches: datasets, and loaders that a training loop iterates over."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from bushel.base import blocks, tables, trees
from bushel.base.options import DatasetOptions, ExecutionTrackingMode, MultiprocessingOptions
from bushel.base.sharding import NoSharding, ShardOptions
from bushel.base.specs import ShapeDtypeStruct
from bushel.engine import Report
from bushel.graph.explain import Explanation
from bushel.graph.state_fields import State
from bushel.iterator import DatasetIterator
from bushel.sources.needs import package
from bushel.trajectory import text_processing
from bushel.trajectory.arrays import is_text
from bushel.trajectory.backends import BACKENDS, Running, grain
from bushel.trajectory.config import MixtureConfig, backend_of
from bushel.trajectory.dataset import TrajectoryDataset
from bushel.trajectory.mixing import make_interleaved_dataset, make_single_dataset
from bushel.trajectory.restructure import Tree

_ARRAYS = ("numpy", "jax")


def get_dataset(config: Any, *, train: bool | None = None, **changes: Any) -> TrajectoryDataset:
    """The frames of a mixture without end, shuffled and transformed; in batches, if the config has a batch size.

    Args:
      config: a `MixtureConfig` or a `DatasetConfig`, a dict of fields, or a JSON or YAML file.
      train: for training or for validation; by default as the config says.
      changes: other values of fields of the `MixtureConfig`.

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds(folder, "mine", {"train": [{"steps": steps}] * 4})
    ...     own = {"name": "mine", "data_dir": folder, "train_split": "train", "cache_dir": folder}
    ...     ds = get_dataset({"datasets": [own], "batch_size": 4})
    ...     next(ds.iterator())["action"].shape
    (4, 1, 1, 2)
    """
    chosen = _chosen(config, train, changes)
    return make_interleaved_dataset(
        [one.to_kwargs() for one in chosen.datasets],
        chosen.weights,
        train=chosen.train,
        shuffle_buffer_size=chosen.shuffle_buffer_size,
        traj_transform_kwargs=chosen.traj_transform_kwargs,
        frame_transform_kwargs=chosen.frame_transform_kwargs,
        batch_size=chosen.batch_size,
        balance_weights=chosen.balance_weights,
        traj_transform_threads=chosen.traj_transform_threads,
        traj_read_threads=chosen.traj_read_threads,
        seed=chosen.seed,
        compat=chosen.compat,
        cache_dir=chosen.cache_dir,
    )


def build_dataset_from_config(config: Any, *, train: bool | None = None, **changes: Any) -> TrajectoryDataset:
    """What a config describes: of one data set its trajectories, transformed; of several the frames of the mixture.

    Arguments are those of `get_dataset`; weight and batch size say nothing about trajectories.
    """
    chosen = _chosen(config, train, changes)
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


def get_dataloader(
    config: Any,
    *,
    train: bool | None = None,
    batch_size: int | None = None,
    workers: int | MultiprocessingOptions | None = 0,
    arrays: str = "numpy",
    shard_options: ShardOptions | None = None,
    process_text: Any = None,
    data_backend: str | None = None,
    use_grain: bool | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    skip_limit: int | None = None,
    execution_tracking_mode: ExecutionTrackingMode | Literal["disabled", "stage_timing"] = "disabled",
    **changes: Any,
) -> TrajectoryLoader:
    """Batches for training: an endless iterable, whose iterators have `get_state` and `set_state`.

    Order, draws and rows depend on the config alone: not on workers, threads, hosts or the back end.

    Args:
      config: a `MixtureConfig` or a `DatasetConfig`, a dict of fields, or a JSON or YAML file.
      train: for training or for validation; by default as the config says.
      batch_size: rows of a batch, over all hosts; by default as the config says.
      workers: processes that make batches, or options for them; None leaves the number to the library. Hints for
        threads (`traj_transform_threads`, `traj_read_threads`, `num_parallel_calls`) are honoured as an option of the
        engine, at most one thread per core.
      arrays: "numpy", or "jax" for `jax.numpy` arrays; texts are NumPy's in either case, since JAX has none.
      shard_options: which host this is: it gets its rows of each batch, `ShardByJaxProcess()` for example.
      process_text: a `TextProcessor`, whose arrays take the place of `task/language_instruction` (and `dataset_name`
        is left out, as in the original); or any function of a batch.
      data_backend: "bushel", or "grain" for Google's Grain; by default as the config says.
      use_grain: the same as a switch.
      on_error: "skip" leaves out frames that fail, an image that cannot be decoded for example, and counts them in
        `iterator.skipped`; the next ones move up. On one host and Bushel's engine, with states of their own: they do
        not move to loaders without it. "raise" raises, and `next` tries again.
      skip_limit: how many may be left out before the next one raises; None for any number.
      execution_tracking_mode: "stage_timing" times every stage, for `iterator.report()` and Prometheus.
      changes: other values of fields of the `MixtureConfig`.

    >>> import tempfile
    >>> from bushel.trajectory.rlds_writer import write_rlds
    >>> steps = {"observation": {"state": np.zeros((20, 3), np.float32)}, "action": np.zeros((20, 2), np.float32)}
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = write_rlds(folder.name, "arm", {"train": [{"steps": steps}] * 3, "val": [{"steps": steps}]})
    >>> config = {"name": "arm", "data_dir": folder.name, "proprio_obs_keys": {"arm": "state"}}
    >>> loader = get_dataloader(config, batch_size=8, traj_transform_kwargs={"window_size": 2, "action_horizon": 4})
    >>> with iter(loader) as batches:
    ...     next(batches)["action"].shape, batches.get_state()["global_next_index"]
    ((8, 2, 4, 2), 8)
    >>> folder.cleanup()
    """
    asked = {"batch_size": batch_size, "data_backend": backend_of(data_backend, use_grain)}
    chosen = _chosen(config, train, changes | {name: value for name, value in asked.items() if value is not None})
    if chosen.batch_size is None:
        raise ValueError("A loader needs a batch_size, as an argument or in its config.")
    if arrays not in _ARRAYS:
        raise ValueError(f"arrays must be one of {', '.join(_ARRAYS)}; got {arrays!r}.")
    if chosen.data_backend == "grain":
        grain()
        if on_error == "skip":
            raise ValueError('on_error="skip" is done by Bushel\'s engine. Leave out data_backend="grain".')
    if isinstance(process_text, str) or not (
        process_text is None or callable(process_text) or hasattr(process_text, "encode")
    ):
        raise TypeError(f"process_text must have a method `encode`, or be a function of a batch; got {process_text!r}.")
    running = Running(
        get_dataset(chosen, batch_size=None),
        chosen.batch_size,
        NoSharding() if shard_options is None else shard_options,
        workers if isinstance(workers, MultiprocessingOptions) else MultiprocessingOptions(workers),
        DatasetOptions(on_error=on_error, skip_limit=skip_limit, execution_tracking_mode=execution_tracking_mode),
    )
    return TrajectoryLoader(running, chosen.data_backend, _Finish(process_text, arrays))


def _chosen(config: Any, train: bool | None, changes: Mapping[str, Any]) -> MixtureConfig:
    asked = {} if train is None else {"train": train}
    return MixtureConfig.of(config).changed(**asked, **changes)


@dataclasses.dataclass(frozen=True)
class _Finish:
    """What is done to a batch in the process that asked for it."""

    process_text: Any
    arrays: str

    def __call__(self, batch: Tree) -> Tree:
        batch = trees.map_leaves(_texts_as_objects, batch)
        if hasattr(self.process_text, "encode"):
            batch = text_processing.process_text(batch, self.process_text)
            batch.pop("dataset_name", None)
        elif self.process_text is not None:
            batch = self.process_text(batch)
        return batch if self.arrays == "numpy" else _on_jax(batch)


def _texts_as_objects(leaf: Any) -> Any:
    return leaf.astype(object) if leaf.dtype.kind == "S" else leaf


def _on_jax(batch: Tree) -> Tree:
    jax_numpy: Any = package("jax.numpy", "jax", "Batches of jax.numpy arrays")
    return trees.map_leaves(lambda leaf: leaf if _is_text(leaf) else jax_numpy.asarray(leaf), batch)


def _is_text(leaf: Any) -> bool:
    return isinstance(leaf, (str, bytes)) or (isinstance(leaf, np.ndarray) and is_text(leaf))


class TrajectoryLoader:
    """Batches of a mixture: iterate over it, or take an iterator for its state. Made by `get_dataloader`."""

    def __init__(self, running: Running, backend: str, finish: _Finish):
        self._running, self._finish = running, finish
        self.data_backend = backend
        """What drives it."""

    @property
    def dataset(self) -> TrajectoryDataset:
        """The frames that batches are made of."""
        return self._running.dataset

    @property
    def dataset_statistics(self) -> Any:
        """Of actions and proprioception, by the names of the data sets."""
        return self.dataset.dataset_statistics

    @property
    def sample_weights(self) -> np.ndarray:
        """Shares of the data sets."""
        weights = self.dataset.sample_weights
        return np.ones(1) if weights is None else weights

    @functools.cached_property
    def element_spec(self) -> Any:
        """Shapes and dtypes of a batch on this host, before `process_text`. One frame is made to see them."""
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
        return tables.paragraph(repr(self)) + self.dataset._repr_html_()


class LoaderIterator(DatasetIterator[Tree]):
    """A position in the batches of a loader, the same on all hosts; any back end and number of hosts restores it."""

    _same_on_all_processes = True

    def __init__(self, batches: DatasetIterator[Any], finish: Callable[[Tree], Tree]):
        super().__init__(batches)
        self._finish, self._lock = finish, threading.RLock()
        self._held: tuple[State, Any] | None = None
        """A batch that could not be finished, for the next try, and the state before it."""

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
        """How many frames failed and were left out so far, with `on_error="skip"`."""
        return self._parent.skipped

    def report(self) -> Report:
        """Where the time went: see `bushel.Report`. Grain as the back end keeps no account."""
        return self._parent.report()

    def explain(self, steps: int = 1) -> list[Explanation]:
        """Of which frames this host's rows of the next batches are made. Nothing is read."""
        with self._lock:
            if self._held is not None:  # the next batch is the one that could not be finished: it is made again
                self.set_state(self._held[0])
            return self._parent.explain(steps)

    def get_state(self) -> State:
        """The global position, as plain JSON data."""
        with self._lock:
            return self._parent.get_state() if self._held is None else self._held[0]

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Goes to a position that any host has saved, with any number of hosts, workers, and either back end.

        Args:
          state: what `get_state` returned.
          check: False restores the state of another config as far as its form fits.
        """
        with self._lock:
            batches: Any = self._parent
            batches.set_state(state, check=check)
            self._held = None
