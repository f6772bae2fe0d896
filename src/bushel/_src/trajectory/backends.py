"""The engines that can run a loader: Bushel's own, or Google's Grain. Batches and states are the same for both."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base import blocks
from bushel._src.base.errors import StateMismatch
from bushel._src.base.options import (
    DatasetOptions,
    MultiprocessingOptions,
    RayOptions,
    ReadOptions,
    ShardOptions,
    WorkerOptions,
)
from bushel._src.base.state_names import in_states
from bushel._src.datasets.iter_dataset import WithOptionsIterDataset
from bushel._src.datasets.iterator import DatasetIterator
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.engine.report import Report
from bushel._src.graph.cursors import State, read_count
from bushel._src.graph.origins import ElementOrigin
from bushel._src.index import epochs
from bushel._src.loaders.elastic import ElasticIterator
from bushel._src.state import identity, state_forms
from bushel._src.trajectory.single_pass import prefetch
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset

_POSITION = "global_next_index"  # the key of ElasticIterator, so that each back end restores the states of the other


@dataclasses.dataclass(frozen=True, eq=False)
class Running:
    """How batches are computed from the frames of a dataset. The rows are the same; `shard` says which a host gets."""

    dataset: TrajectoryDataset
    batch_size: int
    shard: ShardOptions
    workers: WorkerOptions
    options: DatasetOptions

    def __post_init__(self) -> None:
        if not isinstance(self.shard, ShardOptions):
            raise TypeError(f"shard_options must be ShardOptions, got {self.shard!r}.")
        if self.batch_size % self.shard.shard_count:
            raise ValueError(
                f"batch_size counts the rows of all hosts: {self.batch_size} rows cannot be divided equally among "
                f"{self.shard.shard_count} hosts. Choose a multiple."
            )
        if self.options.on_error == "skip" and self.shard.shard_count > 1:
            raise ValueError(
                'on_error="skip" works with a single host: other hosts would not know which frames this one skips, so '
                "rows would be delivered twice. Find the frames that fail with a loader of one host, and remove them "
                "with frame_filter or filter_functions."
            )

    @property
    def rows(self) -> int:
        """The number of rows of a batch on this host."""
        return self.batch_size // self.shard.shard_count


def run_on_bushel(running: Running) -> DatasetIterator[Any]:
    """Return batches computed by Bushel's engine."""
    if running.options.on_error == "skip":
        return _skip_failures(running)
    return ElasticIterator(
        running.dataset.dataset,
        running.batch_size,
        running.shard,
        read_options=running.dataset._read_options,
        multiprocessing_options=None if running.workers.num_workers == 0 else running.workers,
        options=running.options,
    )


def _skip_failures(running: Running) -> DatasetIterator[Any]:
    """Return batches of the frames that do not fail.

    Later frames take the places of skipped ones, so all batches are full.
    """
    frames = running.dataset.dataset.to_iter_dataset(running.dataset._read_options)
    stream = WithOptionsIterDataset(frames.batch(running.batch_size, drop_remainder=True), running.options)
    return iter(stream if running.workers.num_workers == 0 else prefetch(stream, running.workers))


def run_on_grain(running: Running) -> DatasetIterator[Any]:
    """Return the same batches computed by Google's Grain."""
    return _GrainIterator(running)


BACKENDS: dict[str, Callable[[Running], DatasetIterator[Any]]] = {"bushel": run_on_bushel, "grain": run_on_grain}


def import_grain() -> Any:
    """Return the package of Google's Grain, or an error that says how to install it."""
    try:
        package = importlib.import_module("grain")
    except ImportError as error:
        raise ImportError(
            'data_backend="grain" needs Google\'s Grain: pip install grain. Leave it out to run on Bushel.',
            name="grain",
        ) from error
    if package.MapDataset is MapDataset:
        raise ImportError(
            'data_backend="grain" needs Google\'s Grain, but in this program `import grain` imports Bushel. '
            "Run it with plain Python, not with `bushel run`."
        )
    return package


@in_states("backend_positions")
@dataclasses.dataclass(frozen=True, eq=False)
class _Positions:
    """A random-access source for Grain: from the number of a batch to the positions of this host's rows."""

    running: Running
    start: int

    def __len__(self) -> int:
        return (len(self.running.dataset) - self.start) // self.running.batch_size

    def __getitem__(self, batch: int) -> np.ndarray:
        shard, rows = self.running.shard, self.running.rows
        positions = int(batch) * rows + np.arange(rows)
        return self.start + epochs.shard(positions, index=shard.shard_index, count=shard.shard_count)


@in_states("backend_frames")
@dataclasses.dataclass(frozen=True, eq=False)
class _FramesOfBatch:
    """A function from positions to a batch of their frames. Draws are functions of the position."""

    dataset: MapDataset[Any]

    def __call__(self, positions: np.ndarray) -> Any:
        return blocks.stack(self.dataset.get(positions))


class _GrainIterator(DatasetIterator[Any]):
    """Batches of a pipeline of Grain. The state is a global position, which either back end can restore."""

    _same_on_all_processes = True

    def __init__(self, running: Running):
        super().__init__()
        if isinstance(running.workers, RayOptions):
            raise ValueError("Grain has no actors of a Ray cluster. Give workers=N.")
        if running.workers.num_workers is None:
            raise ValueError("Grain cannot choose the number of workers. Give workers=N.")
        if running.workers.num_workers and not importlib.import_module("absl.flags").FLAGS.is_parsed():
            raise RuntimeError(
                "Grain's workers read flags of absl, which this program has not parsed. Start the program with "
                "absl.app.run(main), or call absl.flags.FLAGS.mark_as_parsed() first."
            )
        self._grain, self._running = import_grain(), running
        self._identity = identity.identify(running.dataset.dataset._node)
        self._move_to(0)

    def _move_to(self, start: int) -> None:
        self._start, self._delivered = start, 0
        self._iterator: Any = iter(self._build_pipeline(start))

    def _build_pipeline(self, start: int) -> Any:
        running, options = self._running, self._running.dataset._read_options
        batches = self._grain.MapDataset.source(_Positions(running, start)).map(_FramesOfBatch(running.dataset.dataset))
        stream = batches.to_iter_dataset(_convert_options(self._grain.ReadOptions, options))
        if not isinstance(running.workers, MultiprocessingOptions) or not running.workers.num_workers:
            return stream
        return stream.mp_prefetch(_convert_options(self._grain.MultiprocessingOptions, running.workers))

    def __next__(self) -> Any:
        self._assert_not_closed()
        batch = next(self._iterator)
        self._delivered += 1
        return batch

    def start_prefetch(self) -> None:
        self._assert_not_closed()
        self._iterator.start_prefetch()

    def report(self) -> Report:
        raise NotImplementedError(
            'With data_backend="grain" Google\'s Grain runs the pipeline, and Bushel cannot measure it. '
            "Leave out data_backend for a report: the batches are the same."
        )

    def origins(self, steps: int = 1) -> list[ElementOrigin]:
        raise NotImplementedError(
            'With data_backend="grain" Google\'s Grain runs the pipeline, and cannot say what its next batches are '
            "made of. Restore the state of this iterator in a loader without data_backend: its batches are the same."
        )

    def get_state(self) -> State:
        position = self._start + self._delivered * self._running.batch_size
        return state_forms.seal({_POSITION: position}, self._identity)

    def set_state(self, state: State, *, check: bool = True) -> None:
        position = read_count(state_forms.unseal(state, self._identity, check=check), _POSITION)
        length = len(self._running.dataset)
        if position > length:
            raise StateMismatch(
                f"This state is at frame {position}; the dataset has {length}. Was it saved with more?", _POSITION
            )
        before = self._iterator
        self._move_to(position)
        before.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if "_iterator" in vars(self):
                self._iterator.close()
                del self._iterator  # its destructor would fail when the interpreter exits


def _convert_options(kind: Any, options: ReadOptions | MultiprocessingOptions) -> Any:
    """Grain's options, with those fields of Bushel's that Grain has too."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in dataclasses.asdict(options).items() if name in known})
