"""Trajectories as a dataset, with the habits of dlimp's `DLataset`: thin names over `MapDataset`.

What has to be known for a global shuffle, an exact mixture and an exact resume stays known as long as it can be: a part
of a dataset is a table of episodes and a description of what becomes of them, until a function is applied that the
library cannot look into.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.base import checks, trees
from bushel.base.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from bushel.dataset import MapDataset, WithOptionsIterDataset
from bushel.iterator import DatasetIterator
from bushel.trajectory.arrays import to_numpy
from bushel.trajectory.episodes import Episodes
from bushel.trajectory.joining import joined
from bushel.trajectory.passes import is_endless, results, verdicts
from bushel.trajectory.rlds import RLDSBuilder
from bushel.trajectory.samples import Samples, read_images
from bushel.trajectory.tickets import tickets

_KEPT_TRAJECTORIES = 8


_Move = Callable[[MapDataset[Any]], MapDataset[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Known:
    """A data set of which it is known what becomes of its episodes: trajectories, or frames by their tickets."""

    samples: Samples
    moves: tuple[_Move, ...] = ()
    """What was done to the order of frames."""
    epochs: int | None = 1
    """How many epochs of it a mixture has; None for no end."""

    def trajectories(self) -> MapDataset[Any]:
        return MapDataset.range(len(self.samples.chosen)).map_with_index(self.samples.trajectory)

    def tickets(self, first: int, total: int) -> MapDataset[Any]:
        found = tickets(len(self.samples), first, total, self.samples.told)
        for move in self.moves:
            found = move(found)
        return found

    def frames(self) -> MapDataset[Any]:
        return self.tickets(0, len(self.samples)).map(self.samples, vectorized=True)

    def moved(self, move: _Move) -> _Known:
        return dataclasses.replace(self, moves=(*self.moves, move))


@dataclasses.dataclass(frozen=True, eq=False)
class _Made:
    """Trajectories or frames that are made by functions the library cannot look into."""

    ds: MapDataset[Any]
    epochs: int | None = 1

    def trajectories(self) -> MapDataset[Any]:
        return self.ds

    def frames(self) -> MapDataset[Any]:
        return self.ds

    def moved(self, move: _Move) -> _Made:
        return dataclasses.replace(self, ds=move(self.ds))


_Part = _Known | _Made


@dataclasses.dataclass(frozen=True, eq=False)
class _OnTrajectories:
    """A function of trajectories."""

    function: Callable[..., Any]

    def after(self, ds: MapDataset[Any], flattened: bool) -> MapDataset[Any]:
        return ds.map(self.function)


@dataclasses.dataclass(frozen=True, eq=False)
class _OnFrames:
    """A function of frames; with a seed, of a frame and a generator."""

    function: Callable[..., Any]
    seed: int | None = None

    def after(self, ds: MapDataset[Any], flattened: bool) -> MapDataset[Any]:
        if self.seed is None:
            return ds.map(self.function if flattened else functools.partial(_each_frame, self.function))
        changed = self.function if flattened else functools.partial(_each_frame_randomly, self.function)
        return ds.random_map(changed, seed=self.seed)


def length_of(trajectory: Mapping[str, Any]) -> int:
    """How many steps a trajectory has."""
    return len(trees.leaves(trajectory)[0])


class _Frames:
    """Frames of trajectories that are made by functions the library cannot look into: each makes its trajectory."""

    def __init__(self, trajectories: MapDataset[Any], lengths: np.ndarray):
        self._trajectories, self._lengths = trajectories, lengths
        self._ends = np.cumsum(lengths)
        self._made: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return _Frames, (self._trajectories, self._lengths)

    def __call__(self, index: int, number: int) -> Any:
        place = int(np.searchsorted(self._ends, number, side="right"))
        time = int(number - (self._ends[place] - self._lengths[place]))
        trajectory = self._trajectory(int(index) // int(self._ends[-1]) * len(self._lengths) + place)
        return trees.map_leaves(lambda leaf: np.array(leaf[time]) if leaf.dtype != object else leaf[time], trajectory)

    def _trajectory(self, index: int) -> Any:
        with self._lock:
            found = self._made.pop(index, None)
        found = trees.map_leaves(to_numpy, self._trajectories[index]) if found is None else found
        with self._lock:
            self._made[index] = found
            while len(self._made) > _KEPT_TRAJECTORIES:
                self._made.popitem(last=False)
        return found


def _flattened(trajectories: MapDataset[Any]) -> _Made:
    found = dict(verdicts(trajectories, length_of, "lengths of trajectories"))
    lengths = np.array([found.get(number, 0) for number in range(len(trajectories))], dtype=np.int64)
    if len(lengths) and not lengths.any():
        raise ValueError(
            f"None of the {len(lengths)} trajectories has a frame: what was applied to them returned None, or nothing, "
            "for all. Did you forget a return?"
        )
    return _Made(MapDataset.range(int(lengths.sum())).map_with_index(_Frames(trajectories, lengths)))


class TrajectoryDataset:
    """Trajectories of one data set; after `flatten`, frames of one or a mixture of several.

    An element is a tree of arrays: of a trajectory with a leading axis of time, of a frame without. Methods return new
    datasets. `shuffle` is over all elements, without a buffer; `repeat` before it or after it is the same; every epoch
    has an order and draws of its own.

    >>> episodes = [{"observation": {"x": np.arange(n)}, "action": np.zeros((n, 2))} for n in (3, 5)]
    >>> ds = TrajectoryDataset.from_trajectories(episodes)
    >>> len(ds), len(ds.flatten())
    (2, 8)
    """

    def __init__(
        self,
        parts: Sequence[_Part],
        *,
        weights: Sequence[float] | None = None,
        flattened: bool = False,
        epochs: int | None = 1,
        seed: int | None = None,
        threads: int = 0,
        operations: Sequence[_OnFrames | _OnTrajectories] = (),
        statistics: Any = None,
        compat: str | None = None,
        options: DatasetOptions | None = None,
    ):
        self._parts: tuple[_Part, ...] = tuple(parts)
        self._weights = None if weights is None else tuple(float(weight) for weight in weights)
        self._epochs, self._seed, self._threads = epochs, seed, threads
        self._operations, self._options = tuple(operations), options
        self.is_flattened = flattened
        self.dataset_statistics: Any = statistics
        """Of actions and proprioception; of a mixture, by the names of its data sets."""
        known = {part.samples.compat if isinstance(part, _Known) else compat for part in self._parts}
        self.compat: str | None = known.pop() if len(known) == 1 else None
        """Which faults of the original it was made with, if all its parts were."""

    def _but(self, parts: Sequence[_Part] | None = None, **changes: Any) -> TrajectoryDataset:
        known: dict[str, Any] = {
            "weights": self._weights,
            "flattened": self.is_flattened,
            "epochs": self._epochs,
            "seed": self._seed,
            "threads": self._threads,
            "operations": self._operations,
            "statistics": self.dataset_statistics,
            "compat": self.compat,
            "options": self._options,
        }
        return TrajectoryDataset(self._parts if parts is None else parts, **(known | changes))

    # Where trajectories come from.

    @staticmethod
    def from_episodes(episodes: Episodes, *, seed: int = 0) -> TrajectoryDataset:
        """The episodes of a table. `seed` is that of all draws that transforms make."""
        return TrajectoryDataset.from_samples(Samples(episodes, np.arange(len(episodes)), seed=seed))

    @staticmethod
    def from_samples(samples: Samples, statistics: Any = None) -> TrajectoryDataset:
        """What is described by `samples`."""
        return TrajectoryDataset([_Known(samples)], statistics=statistics)

    @staticmethod
    def from_trajectories(trajectories: Any, *, seed: int = 0) -> TrajectoryDataset:
        """Trajectories of a list, or of any source: trees of arrays with a leading axis of time.

        `observation/timestep` is counted here, from 0 in each of them, in place of one that they have. None among them
        is no trajectory and is left out, as what a `MapDataset`'s own `filter` refuses.
        """
        ds = trajectories if isinstance(trajectories, MapDataset) else MapDataset.source(trajectories)
        return TrajectoryDataset.from_episodes(Episodes.of(results(ds, "episodes")), seed=seed)

    @staticmethod
    def from_rlds(
        builder: RLDSBuilder, split: str = "train", *, shuffle: bool = True, seed: int = 0
    ) -> TrajectoryDataset:
        """The raw trajectories of a TFDS folder, as they are stored; images are read when they are looked at."""
        made = TrajectoryDataset([_Made(MapDataset.source(builder.episodes(split)))])
        return made.shuffle(seed=seed) if shuffle else made

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[TrajectoryDataset], weights: Sequence[float] | None = None
    ) -> TrajectoryDataset:
        """A mixture of flattened datasets: frames in proportion to weights, exact in every prefix to within one frame.

        An endless mixture takes each dataset over and over, shuffled anew. When a dataset with an end has no frame
        left, the others go on in their proportions, until none is left.
        """
        if not datasets:
            raise ValueError("sample_from_datasets needs at least one dataset.")
        if not all(ds.is_flattened for ds in datasets):
            raise ValueError("sample_from_datasets mixes frames: call flatten() on each dataset first.")
        shares = [1.0] * len(datasets) if weights is None else list(weights)
        if len(shares) != len(datasets):
            raise ValueError(f"{len(datasets)} datasets need as many weights, got {len(shares)}.")
        return TrajectoryDataset(
            [ds._as_part() for ds in datasets],
            weights=shares,
            flattened=True,
            threads=max(ds._threads for ds in datasets),
            compat=datasets[0].compat if len({ds.compat for ds in datasets}) == 1 else None,
            options=next((ds._options for ds in datasets if ds._options is not None), None),
        )

    def with_samples(self, samples: Samples) -> TrajectoryDataset:
        """What is described by `samples`, in place of these trajectories."""
        return self._but([_Known(samples)])

    def as_table(self) -> TrajectoryDataset:
        """The same trajectories, made once and put into a table: their functions are not called again.

        Of several instructions the one that was drawn for the first epoch stays.
        """
        self.refuse_frames("as_table")
        (part,), (elements,) = self._parts, self._elements()
        table = Episodes.of(results(elements, "trajectories"))
        made = Samples(table, np.arange(len(table)))
        if isinstance(part, _Known):
            told, before = part.samples, part.samples.episodes
            made = Samples(table.padded_like(before), made.chosen, seed=told.seed, compat=told.compat)
        return self._but([_Known(made)], operations=())

    def with_threads(self, threads: int | None) -> TrajectoryDataset:
        """So many threads work ahead of an iterator, if none of the calls before asked for more."""
        return self._but(threads=max(self._threads, threads or 0))

    # What becomes of them.

    def traj_map(self, function: Callable[[Any], Any], num_parallel_calls: int | None = None) -> TrajectoryDataset:
        """`function` of each trajectory. Encoded images in it are handles: `bytes(handle)` reads one."""
        self.refuse_frames("traj_map")
        samples = self.samples
        if samples is not None and getattr(function, "rowwise", False):
            return self.with_samples(dataclasses.replace(samples, row_functions=(*samples.row_functions, function)))
        return self._then(_OnTrajectories(function))

    def frame_map(self, function: Callable[[Any], Any], num_parallel_calls: int | None = None) -> TrajectoryDataset:
        """`function` of each frame; of trajectories, frame by frame, and the results stacked."""
        return self.with_threads(num_parallel_calls)._then(_OnFrames(function))

    def random_frame_map(
        self, function: Callable[[Any, np.random.Generator], Any], *, seed: int = 0
    ) -> TrajectoryDataset:
        """`function(frame, rng)`, with a generator that belongs to the place of the frame in the whole stream."""
        return self._then(_OnFrames(function, checks.seed(seed)))

    def with_keys(self, seed: int = 0) -> TrajectoryDataset:
        """Each frame with a "key" of its own, uint32[2], for `jax.random`: it belongs to the place in the stream.

        Functions on the device take it, `augment_images(batch["observation"]["image_primary"], batch["key"], ...)` for
        example, and give the same on any number of workers.
        """
        return self.random_frame_map(_with_key, seed=seed)

    def _as_part(self) -> _Part:
        """All of it, as a part of a mixture."""
        part: _Part
        part, *others = self._parts
        if others:
            return _Made(self.dataset)
        if self._operations:
            part = _Made(self._elements()[0], part.epochs)
        seed = self._seed
        part = part if seed is None else part.moved(lambda ds: ds.shuffle(seed=seed))
        own, times = part.epochs, self._epochs
        return dataclasses.replace(part, epochs=None if own is None or times is None else own * times)

    def _elements(self) -> list[MapDataset[Any]]:
        """One epoch of each part, with all that was done to its trajectories or frames."""
        return [self._done(part.frames() if self.is_flattened else part.trajectories()) for part in self._parts]

    def _then(self, operation: _OnFrames | _OnTrajectories) -> TrajectoryDataset:
        return self._but(operations=(*self._operations, operation))

    def filter(self, predicate: Callable[[Any], Any]) -> TrajectoryDataset:
        """Only the elements for which `predicate` is true; it looks at all of them once, now."""
        parts = []
        for part, elements in zip(self._parts, self._elements()):
            passing = [number for number, verdict in verdicts(elements, predicate, "filter") if bool(verdict)]
            kept = np.zeros(len(elements), dtype=bool)
            kept[passing] = True
            if isinstance(part, _Known) and not self.is_flattened:
                parts.append(_Known(dataclasses.replace(part.samples, chosen=part.samples.chosen[kept])))
            else:
                parts.append(part.moved(lambda ds, kept=kept: ds.where(kept)))
        return self._but(parts)

    def flatten(self, num_parallel_calls: int | None = None) -> TrajectoryDataset:
        """Frames in place of trajectories."""
        self.refuse_frames("flatten")
        made = self.with_threads(num_parallel_calls)
        known = all(isinstance(part, _Known) for part in self._parts)
        if known and all(isinstance(operation, _OnFrames) for operation in self._operations):
            return made._but(flattened=True)
        return made._but([_flattened(ds) for ds in self._elements()], flattened=True, operations=())

    def _done(self, ds: MapDataset[Any]) -> MapDataset[Any]:
        for operation in self._operations:
            ds = operation.after(ds, self.is_flattened)
        return ds

    def unbatch(self) -> TrajectoryDataset:
        """Frames in place of trajectories: `flatten` under the name that training scripts use."""
        return self.flatten()

    def repeat(self, count: int | None = None) -> TrajectoryDataset:
        """`count` epochs, or endlessly many."""
        if self._epochs is None or count is None or count == -1:
            return self._but(epochs=None)
        return self._but(epochs=self._epochs * checks.positive(count, "count"))

    def shuffle(self, buffer_size: int | None = None, seed: int = 0) -> TrajectoryDataset:
        """All elements in an order of its own for every epoch. There is no buffer: `buffer_size` changes nothing."""
        if any(isinstance(part, _Made) and is_endless(part.ds) for part in self._parts):
            raise ValueError(
                "Batches or a mixture without end have no order to shuffle. Call shuffle() before batch(), and on a "
                "mixture before it is mixed with others."
            )
        return self._but(seed=checks.seed(seed))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> TrajectoryDataset:
        """Batches of consecutive frames, their leaves stacked."""
        if not self.is_flattened:
            raise ValueError("Trajectories differ in length and cannot be stacked: call flatten() before batch().")
        known = all(isinstance(part, _Known) for part in self._parts) and not self._operations
        frames = self.dataset if known else self.dataset.map(_texts_as_objects)
        batches = frames.batch(batch_size, drop_remainder=drop_remainder)
        return self._but([_Made(batches)], epochs=1, seed=None, operations=())

    def take(self, count: int) -> TrajectoryDataset:
        """The first `count` elements; -1 stands for all, as in TensorFlow."""
        return self if count == -1 else self._piece(slice(checks.not_negative(count, "count")))

    def skip(self, count: int) -> TrajectoryDataset:
        """All elements but the first `count`."""
        return self._piece(slice(checks.not_negative(count, "count"), None))

    def _piece(self, piece: slice) -> TrajectoryDataset:
        samples = self.samples
        if samples is not None and not self.is_flattened and self._seed is None and self._epochs == 1:
            return self.with_samples(dataclasses.replace(samples, chosen=samples.chosen[piece]))
        return self._but([_Made(self.dataset[piece])], weights=None, epochs=1, seed=None, operations=())

    def ignore_errors(self, log_warning: bool = False, *, skip_limit: int | None = None) -> TrajectoryDataset:
        """Iterators leave out elements that fail, an image that cannot be decoded for example, and count them.

        The count is `iterator.skipped`, and the log tells of the first, the tenth ... of them, whatever `log_warning`
        says. A batch with such a frame is left out whole; a loader leaves out the frame alone
        (`get_dataloader(..., on_error="skip")`).

        Args:
          log_warning: accepted as TensorFlow has it.
          skip_limit: how many may be left out before the next one raises; None for any number.
        """
        return self._but(options=DatasetOptions(on_error="skip", skip_limit=skip_limit))

    def prefetch(self, count: int | None = None) -> TrajectoryDataset:
        """The same dataset: `iterator(prefetch=...)` and workers make elements ahead."""
        return self

    def with_ram_budget(self, gigabytes: float) -> TrajectoryDataset:
        """The same dataset: nothing is buffered but what threads and workers have in hand."""
        return self

    def refuse_frames(self, method: str) -> None:
        """Refuses frames where `method` needs trajectories."""
        if self.is_flattened:
            raise ValueError(
                f"{method} works on trajectories, but this dataset is flattened. Call it before flatten()."
            )

    # What comes out.

    @property
    def samples(self) -> Samples | None:
        """What the trajectories are made of, where that is still known."""
        part, *others = self._parts
        return part.samples if isinstance(part, _Known) and not others and not self._operations else None

    @property
    def image_names(self) -> list[str] | None:
        """The images of observations, without `image_`, where they are still known."""
        known = [part for part in self._parts if isinstance(part, _Known)]
        if len(known) < len(self._parts) or self._operations or any(part.samples.row_functions for part in known):
            return None
        names = {name for part in known for name in part.samples.episodes.columns.get("observation", {})}
        return sorted(name.removeprefix("image_") for name in names if name.startswith("image_"))

    @property
    def sample_weights(self) -> np.ndarray | None:
        """Shares of the data sets of a mixture."""
        return None if self._weights is None else np.array(self._weights) / sum(self._weights)

    @functools.cached_property
    def dataset(self) -> MapDataset[Any]:
        """The same as a `MapDataset`: to index, to `explain`, to go on with everything that it can."""
        known = [part for part in self._parts if isinstance(part, _Known)]
        together = None
        if self.is_flattened and len(known) == len(self._parts):
            together = joined([part.samples for part in known])
        if together is None:
            plain = [part.frames() if self.is_flattened else part.trajectories() for part in self._parts]
            return self._done(self._ordered(plain))
        firsts = np.cumsum([0, *(len(part.samples) for part in known)]).tolist()
        drawn = [part.tickets(first, len(together)) for part, first in zip(known, firsts)]
        return self._done(self._ordered(drawn).map(together, vectorized=True))

    def _ordered(self, parts: list[MapDataset[Any]]) -> MapDataset[Any]:
        """Shuffled, mixed, repeated, as was asked for."""
        if self._seed is not None:
            parts = [ds.shuffle(seed=(self._seed + number) % (1 << 32)) for number, ds in enumerate(parts)]
        times = self._epochs
        counts = [None if part.epochs is None or times is None else part.epochs * times for part in self._parts]
        if len(parts) > 1 and not any(counts):
            return MapDataset.mix(parts, self._weights, when_exhausted="restart")
        repeated = [ds if count == 1 else ds.repeat(count) for ds, count in zip(parts, counts)]
        return repeated[0] if len(parts) == 1 else MapDataset.mix(repeated, self._weights, when_exhausted="continue")

    @property
    def read_options(self) -> ReadOptions:
        """The hints for threads as an option of the engine: at most one per core, as many elements ahead."""
        threads = min(self._threads, os.cpu_count() or 1)
        return ReadOptions(threads, threads)

    def __len__(self) -> int:
        return len(self.dataset)

    def cardinality(self) -> int:
        """How many elements there are, with TensorFlow's -1 for no end."""
        return -1 if is_endless(self.dataset) else len(self)

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Pairs (number, element)."""
        return enumerate(self.iterator(), start)

    def as_numpy_iterator(self) -> DatasetIterator[Any]:
        """`iterator()`: elements are NumPy's in any case."""
        return self.iterator()

    def __getitem__(self, index: int) -> Any:
        return read_images(self.dataset[index])

    def __iter__(self) -> DatasetIterator[Any]:
        return self.iterator()

    def iterator(
        self, prefetch: int = 0, *, workers: int | None = 0, options: MultiprocessingOptions | None = None
    ) -> DatasetIterator[Any]:
        """An iterator with `get_state` and `set_state`.

        Args:
          prefetch: so many elements are made ahead by a thread; accepted as dlimp has it.
          workers: processes that make them; None leaves the number to the library. Output is the same for any number.
          options: of these processes, in place of `workers`.
        """
        ds = self.dataset if self.is_flattened else self.dataset.map(read_images)
        threads = max(self.read_options.num_threads, 1 if prefetch else 0)
        stream = ds.to_iter_dataset(ReadOptions(threads, max(prefetch, threads)))
        stream = stream if self._options is None else WithOptionsIterDataset(stream, self._options)
        chosen = MultiprocessingOptions(workers) if options is None else options
        return iter(stream if chosen.num_workers == 0 else stream.mp_prefetch(chosen))

    def __repr__(self) -> str:
        return repr(self.dataset)

    def _repr_html_(self) -> str:
        return self.dataset._repr_html_()


def _texts_as_objects(frame: Any) -> Any:
    """A frame whose texts stack to arrays of objects: of bytes, their type would depend on the longest of a batch."""

    def as_object(leaf: Any) -> Any:
        leaf = to_numpy(leaf)
        return np.array(leaf, dtype=object) if isinstance(leaf, bytes) else leaf

    return trees.map_leaves(as_object, frame)


def _with_key(frame: Any, rng: np.random.Generator) -> Any:
    return {**frame, "key": rng.integers(1 << 32, size=2, dtype=np.uint32)}


def _frames_of(trajectory: Any) -> Iterator[Any]:
    for time in range(length_of(trajectory)):
        yield trees.map_leaves(lambda leaf, time=time: leaf[time], trajectory)


def _each_frame(function: Callable[[Any], Any], trajectory: Any) -> Any:
    return _stacked([function(frame) for frame in _frames_of(trajectory)])


def _each_frame_randomly(
    function: Callable[[Any, np.random.Generator], Any], trajectory: Any, rng: np.random.Generator
) -> Any:
    return _stacked([function(frame, rng) for frame in _frames_of(trajectory)])


def _stacked(frames: list[Any]) -> Any:
    def stack(*found: Any) -> np.ndarray:
        leaves = list(map(to_numpy, found))
        if isinstance(leaves[0], (bytes, str)) or not hasattr(leaves[0], "dtype"):
            array = np.empty(len(leaves), dtype=object)
            array[:] = leaves
            return array
        return np.stack(leaves)

    return trees.map_leaves(stack, *frames)
