"""`get_dataset` and `get_dataloader`: datasets and batches for training, from a configuration."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from bushel.base import blocks, checks, tables, trees
from bushel.base.options import (
    DatasetOptions,
    ExecutionTrackingMode,
    MultiprocessingOptions,
    WorkerOptions,
    read_workers,
)
from bushel.base.sharding import NoSharding, ShardOptions
from bushel.base.specs import ShapeDtypeStruct
from bushel.base.state_names import in_states
from bushel.engine import Report
from bushel.graph.origins import ElementOrigin
from bushel.graph.state_fields import State
from bushel.iterator import DatasetIterator
from bushel.sources.optional_packages import import_package
from bushel.trajectory import text_processing
from bushel.trajectory.backends import BACKENDS, Running, import_grain
from bushel.trajectory.data_utils import Tree
from bushel.trajectory.dataset import TrajectoryDataset
from bushel.trajectory.mixture_config import MixtureConfig, choose_backend
from bushel.trajectory.numpy_or_jax import is_text
from bushel.trajectory.pipelines import make_interleaved_dataset, make_single_dataset


def get_dataset(config: Any, *, train: bool | None = None, **changes: Any) -> TrajectoryDataset:
    """The frames of an endless mixture, shuffled and transformed; in batches if the config has a batch size.

    Args:
      config: a `MixtureConfig` or a `DatasetConfig`, a dict of fields, or a JSON or YAML file.
      train: True for training, False for validation; by default as in the config.
      changes: fields of the `MixtureConfig` with other values.

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds({"train": [{"steps": steps}] * 4}, name="mine", data_dir=folder)
    ...     own = {"name": "mine", "data_dir": folder, "train_split": "train", "cache_dir": folder}
    ...     ds = get_dataset({"datasets": [own], "batch_size": 4})
    ...     next(ds.iterator())["action"].shape
    (4, 1, 1, 2)
    """
    chosen = _load_config(config, train, changes)
    return make_interleaved_dataset(**chosen.to_kwargs())


def build_dataset_from_config(config: Any, *, train: bool | None = None, **changes: Any) -> TrajectoryDataset:
    """The dataset that a config describes: the trajectories of a single data set, or the frames of a mixture.

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
    """Batches for training: an endless iterable whose iterators have `get_state` and `set_state`.

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
    >>> from bushel.trajectory.rlds.writer import write_rlds
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
        return tables.paragraph(repr(self)) + self.dataset._repr_html_()


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
        """The time that each stage takes, see `bushel.Report`. Not available with Grain as the back end."""
        return self._parent.report()

    def origins(self, steps: int = 1) -> list[ElementOrigin]:
        """The frames of this host's rows in the next batches. Nothing is read."""
        with self._lock:
            if self._held is not None:  # the next batch is the held one: the parent must stand before it
                self.set_state(self._held[0])
            return self._parent.origins(steps)

    def get_state(self) -> State:
        """The global position, as plain JSON data."""
        with self._lock:
            return self._parent.get_state() if self._held is None else self._held[0]

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Goes to a saved position, of any host and any number of hosts and workers, and of either back end.

        Args:
          state: what `get_state` returned.
          check: False restores the state of another config as far as its form fits.
        """
        with self._lock:
            batches: Any = self._parent
            batches.set_state(state, check=check)
            self._held = None
