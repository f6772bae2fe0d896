"""What drives a loader: Bushel's own engine, or Google's Grain. Batches and states of both are the same."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.base import blocks
from bushel.base.errors import StateMismatch
from bushel.base.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from bushel.base.sharding import ShardOptions
from bushel.dataset import MapDataset, WithOptionsIterDataset
from bushel.elastic import ElasticIterator
from bushel.engine import Report
from bushel.graph.explain import Explanation
from bushel.graph.state_fields import State, read_count
from bushel.index import epochs
from bushel.iterator import DatasetIterator
from bushel.state import envelope, identity
from bushel.trajectory.dataset import TrajectoryDataset

_POSITION = "global_next_index"  # as ElasticIterator has it, so that states move between the two


@dataclasses.dataclass(frozen=True, eq=False)
class Running:
    """How batches are made of the frames of a dataset: none of it changes a row, but which of them this host gets."""

    dataset: TrajectoryDataset
    batch_size: int
    shard: ShardOptions
    workers: MultiprocessingOptions
    options: DatasetOptions

    def __post_init__(self) -> None:
        if not isinstance(self.shard, ShardOptions):
            raise TypeError(f"shard_options must be ShardOptions, got {self.shard!r}.")
        if self.batch_size % self.shard.shard_count:
            raise ValueError(
                f"batch_size is that of all hosts together: {self.batch_size} rows cannot be shared alike by "
                f"{self.shard.shard_count}. Choose a multiple."
            )
        if self.options.on_error == "skip" and self.shard.shard_count > 1:
            raise ValueError(
                'on_error="skip" works on one host: others could not know which frames this one leaves out, and rows '
                "would come twice. Find the frames that fail with a loader of one host, and leave them out by "
                "frame_filter or filter_functions."
            )

    @property
    def rows(self) -> int:
        """Rows of a batch on this host."""
        return self.batch_size // self.shard.shard_count


def on_bushel(running: Running) -> DatasetIterator[Any]:
    """Batches made by Bushel's engine."""
    if running.options.on_error == "skip":
        return _without_failures(running)
    return ElasticIterator(
        running.dataset.dataset,
        running.batch_size,
        running.shard,
        read_options=running.dataset.read_options,
        multiprocessing_options=None if running.workers.num_workers == 0 else running.workers,
        options=running.options,
    )


def _without_failures(running: Running) -> DatasetIterator[Any]:
    """Batches of the frames that do not fail: those after one that does move up, so that all batches are full."""
    frames = running.dataset.dataset.to_iter_dataset(running.dataset.read_options)
    stream = WithOptionsIterDataset(frames.batch(running.batch_size, drop_remainder=True), running.options)
    return iter(stream if running.workers.num_workers == 0 else stream.mp_prefetch(running.workers))


def on_grain(running: Running) -> DatasetIterator[Any]:
    """The same batches made by Google's Grain."""
    return _GrainIterator(running)


BACKENDS: dict[str, Callable[[Running], DatasetIterator[Any]]] = {"bushel": on_bushel, "grain": on_grain}


def grain() -> Any:
    """Google's Grain, or an error that says how to get it."""
    try:
        found = importlib.import_module("grain")
    except ImportError as error:
        raise ImportError(
            'data_backend="grain" needs Google\'s Grain: pip install grain. Leave it out to run on Bushel.',
            name="grain",
        ) from error
    if found.MapDataset is MapDataset:
        raise ImportError(
            'data_backend="grain" needs Google\'s Grain, but in this program `import grain` is answered by Bushel. '
            "Run it with plain Python."
        )
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Positions:
    """A random-access source for Grain: number of a batch -> positions of this host's rows in the mixture."""

    running: Running
    start: int

    def __len__(self) -> int:
        return (len(self.running.dataset) - self.start) // self.running.batch_size

    def __getitem__(self, batch: int) -> np.ndarray:
        shard, rows = self.running.shard, self.running.rows
        own = int(batch) * rows + np.arange(rows)
        return self.start + epochs.shard(own, index=shard.shard_index, count=shard.shard_count)


@dataclasses.dataclass(frozen=True, eq=False)
class _Frames:
    """Positions -> a batch of the frames there: a pure function, in which draws belong to the position."""

    dataset: MapDataset[Any]

    def __call__(self, positions: np.ndarray) -> Any:
        return blocks.stack(blocks.rows_of(self.dataset.take(positions)))


class _GrainIterator(DatasetIterator[Any]):
    """Batches that Grain's pipeline makes, at a global position that either back end restores."""

    _same_on_all_processes = True

    def __init__(self, running: Running):
        super().__init__()
        if running.workers.num_workers is None:
            raise ValueError("Grain does not find out how many workers are good: give a number of them.")
        if running.workers.num_workers and not importlib.import_module("absl.flags").FLAGS.is_parsed():
            raise RuntimeError(
                "Grain's workers read flags of absl, which this program has not parsed: start it by "
                "absl.app.run(main), or call absl.flags.FLAGS.mark_as_parsed() first."
            )
        self._grain, self._running = grain(), running
        self._identity = identity.identify(running.dataset.dataset._node)
        self._go(0)

    def _go(self, start: int) -> None:
        self._start, self._taken = start, 0
        self._iterator: Any = iter(self._pipeline(start))

    def _pipeline(self, start: int) -> Any:
        running, options = self._running, self._running.dataset.read_options
        batches = self._grain.MapDataset.source(_Positions(running, start)).map(_Frames(running.dataset.dataset))
        stream = batches.to_iter_dataset(_as_grains(self._grain.ReadOptions, options))
        if not running.workers.num_workers:
            return stream
        return stream.mp_prefetch(_as_grains(self._grain.MultiprocessingOptions, running.workers))

    def __next__(self) -> Any:
        self._assert_not_closed()
        batch = next(self._iterator)
        self._taken += 1
        return batch

    def start_prefetch(self) -> None:
        self._assert_not_closed()
        self._iterator.start_prefetch()

    def report(self) -> Report:
        raise NotImplementedError(
            'With data_backend="grain" Google\'s Grain runs the pipeline, and Bushel does not measure it. '
            "Leave the back end out for a report: the batches are the same."
        )

    def explain(self, steps: int = 1) -> list[Explanation]:
        raise NotImplementedError(
            'With data_backend="grain" Google\'s Grain runs the pipeline, and does not tell what comes next. Restore '
            "the state of this iterator in a loader without that back end, and ask that one: the batches are the same."
        )

    def get_state(self) -> State:
        position = self._start + self._taken * self._running.batch_size
        return envelope.seal({_POSITION: position}, self._identity)

    def set_state(self, state: State, *, check: bool = True) -> None:
        position = read_count(envelope.unseal(state, self._identity, check=check), _POSITION)
        length = len(self._running.dataset)
        if position > length:
            raise StateMismatch(
                f"This state is at frame {position}; the dataset has {length}. Was it saved with more?", _POSITION
            )
        before = self._iterator
        self._go(position)
        before.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if "_iterator" in vars(self):
                self._iterator.close()
                del self._iterator  # Grain's own would fail when the interpreter ends


def _as_grains(kind: Any, options: ReadOptions | MultiprocessingOptions) -> Any:
    """Options as Grain has them: those fields that it knows too."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in dataclasses.asdict(options).items() if name in known})
