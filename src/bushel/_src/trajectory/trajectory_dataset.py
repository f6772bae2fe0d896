"""`TrajectoryDataset`: trajectories as a dataset, with the methods of dlimp's `DLataset`, over `MapDataset`."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bushel._src.base import checks, hints, trees
from bushel._src.base.hints import explains_arguments
from bushel._src.base.options import DatasetOptions, MultiprocessingOptions, ReadOptions, WorkerOptions, read_workers
from bushel._src.base.public import public
from bushel._src.base.shown_text import Written
from bushel._src.base.state_names import in_states
from bushel._src.datasets.base_dataset import Dataset
from bushel._src.datasets.iter_dataset import IterDataset, WithOptionsIterDataset
from bushel._src.datasets.iterator import DatasetIterator
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.trajectory import single_pass
from bushel._src.trajectory.data_utils import Compat, to_numpy
from bushel._src.trajectory.dataset_parts import (
    OnFrames,
    OnTrajectories,
    OpaquePart,
    Part,
    TablePart,
    flatten_opaque,
    join_samples,
)
from bushel._src.trajectory.episode_builder import EpisodeBuilder
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.samples import Samples, read_images
from bushel._src.trajectory.single_pass import evaluate_once, is_endless, iterate_once

if TYPE_CHECKING:
    from bushel._src.datasets import saving
    from bushel._src.display.show_element import ShownElement
    from bushel._src.graph.graph_text import Description


@public("bushel.trajectory")
class TrajectoryDataset:
    """Trajectories of one data set; after `flatten`, frames of one or a mixture of several.

    An element is a tree of arrays. The arrays of a trajectory have a leading axis of time, those of a frame do not.
    Methods return new datasets. `shuffle` shuffles all elements, without a buffer; it may come before or after
    `repeat`. Every epoch has an order and draws of its own.

    >>> episodes = [{"observation": {"x": np.arange(n)}, "action": np.zeros((n, 2))} for n in (3, 5)]
    >>> ds = TrajectoryDataset.from_trajectories(episodes)
    >>> len(ds), len(ds.flatten())
    (2, 8)
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        weights: Sequence[float] | None = None,
        flattened: bool = False,
        epochs: int | None = 1,
        seed: int | None = None,
        threads: int = 0,
        operations: Sequence[OnFrames | OnTrajectories] = (),
        statistics: Any = None,
        compat: Compat | None = None,
        options: DatasetOptions | None = None,
    ):
        self._parts: tuple[Part, ...] = tuple(parts)
        self._weights = None if weights is None else tuple(float(weight) for weight in weights)
        self._epochs, self._seed, self._threads = epochs, seed, threads
        self._operations, self._options = tuple(operations), options
        self.is_flattened = flattened
        self.dataset_statistics: Any = statistics
        """The statistics of actions and proprioception. A mixture has them by the names of its data sets."""
        known: set[Compat | None] = {
            part.samples.compat if isinstance(part, TablePart) else compat for part in self._parts
        }
        self.compat: Compat | None = known.pop() if len(known) == 1 else None
        """The `compat` argument that all parts were built with; None if they differ."""

    def _replace(self, parts: Sequence[Part] | None = None, **changes: Any) -> TrajectoryDataset:
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

    # Sources of trajectories.

    @staticmethod
    def from_episodes(episodes: Episodes, *, seed: int = 0) -> TrajectoryDataset:
        """Return the episodes of a table. `seed` is the seed of all draws of transforms."""
        return TrajectoryDataset._from_samples(Samples(episodes, np.arange(len(episodes)), seed=seed))

    @staticmethod
    def _from_samples(samples: Samples, statistics: Any = None) -> TrajectoryDataset:
        """Return the trajectories that `samples` describes."""
        return TrajectoryDataset([TablePart(samples)], statistics=statistics)

    @staticmethod
    def from_trajectories(trajectories: Any, *, seed: int = 0) -> TrajectoryDataset:
        """Return the trajectories of a list, or of any source: trees of arrays with a leading axis of time.

        `observation/timestep` counts from 0 in each trajectory, and replaces an entry of that name. Elements that are
        None are left out, as elements that `MapDataset.filter` has removed.
        """
        ds = trajectories if isinstance(trajectories, MapDataset) else MapDataset.source(trajectories)
        return TrajectoryDataset.from_episodes(Episodes.of(iterate_once(ds, "episodes")), seed=seed)

    @staticmethod
    def from_rlds(
        builder: EpisodeBuilder, split: str = "train", *, shuffle: bool = True, seed: int = 0
    ) -> TrajectoryDataset:
        """Return the raw trajectories of a TFDS folder, or of another format, as they are stored.

        An image is read when it is used.
        """
        dataset = TrajectoryDataset([OpaquePart(MapDataset.source(builder.episodes(split)))])
        return dataset.shuffle(seed=seed) if shuffle else dataset

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[TrajectoryDataset], weights: Sequence[float] | None = None
    ) -> TrajectoryDataset:
        """Return a mixture of flattened datasets.

        In every prefix each has the share of its weight, to within one frame.

        An endless mixture repeats each dataset, in a new order each time. When a finite dataset has no frame left, the
        others continue in their proportions until no frame is left.
        """
        if not datasets:
            raise ValueError("sample_from_datasets needs at least one dataset.")
        if not all(ds.is_flattened for ds in datasets):
            raise ValueError("sample_from_datasets mixes frames: call flatten() on each dataset first.")
        all_weights = [1.0] * len(datasets) if weights is None else list(weights)
        if len(all_weights) != len(datasets):
            raise ValueError(f"{len(datasets)} datasets need as many weights, got {len(all_weights)}.")
        checks.weights(all_weights, len(datasets), zero_allowed=True)
        return TrajectoryDataset(
            [ds._as_part() for ds in datasets],
            weights=all_weights,
            flattened=True,
            threads=max(ds._threads for ds in datasets),
            compat=datasets[0].compat if len({ds.compat for ds in datasets}) == 1 else None,
            options=next((ds._options for ds in datasets if ds._options is not None), None),
        )

    def _with_samples(self, samples: Samples) -> TrajectoryDataset:
        """Return the same dataset with the trajectories that `samples` describes."""
        return self._replace([TablePart(samples)])

    def as_table(self) -> TrajectoryDataset:
        """Return the same trajectories, computed once and put into a table.

        The functions before it are not called again.

        Where a trajectory draws one of several instructions, the one of the first epoch is kept for all epochs.
        """
        self._refuse_frames("as_table")
        (part,), (elements,) = self._parts, self._build_elements()
        table = Episodes.of(iterate_once(elements, "trajectories"))
        samples = Samples(table, np.arange(len(table)))
        if isinstance(part, TablePart):
            old = part.samples
            samples = Samples(table._padded_like(old.episodes), samples.chosen, seed=old.seed, compat=old.compat)
        return self._replace([TablePart(samples)], operations=())

    def _with_threads(self, threads: int | None) -> TrajectoryDataset:
        """Return the same dataset, whose iterators prefetch with at least this many threads."""
        return self._replace(threads=max(self._threads, threads or 0))

    # Transforms.

    def traj_map(self, function: Callable[[Any], Any], num_parallel_calls: int | None = None) -> TrajectoryDataset:
        """Apply `function` to each trajectory. Encoded images in it are handles; `bytes(handle)` reads one.

        A function with the attribute `rowwise = True` looks at each step by itself. It is then called with any samples,
        and not with whole trajectories.
        """
        self._refuse_frames("traj_map")
        samples = self._samples
        if samples is not None and getattr(function, "rowwise", False):
            return self._with_samples(dataclasses.replace(samples, row_functions=(*samples.row_functions, function)))
        return self._append(OnTrajectories(function))

    def frame_map(self, function: Callable[[Any], Any], num_parallel_calls: int | None = None) -> TrajectoryDataset:
        """Apply `function` to each frame. The results for the frames of a trajectory are stacked."""
        return self._with_threads(num_parallel_calls)._append(OnFrames(function))

    def random_frame_map(
        self, function: Callable[[Any, np.random.Generator], Any], *, seed: int = 0
    ) -> TrajectoryDataset:
        """Apply `function(frame, rng)`. The generator is a function of the frame's position in the whole stream."""
        return self._append(OnFrames(function, checks.seed(seed)))

    def with_keys(self, seed: int = 0) -> TrajectoryDataset:
        """Add a "key" for `jax.random` to each frame, uint32[2]: a function of the frame's position in the stream.

        A function on the device can take it: `augment_images(images, batch["key"], ...)`. Its output is then the same
        for any number of workers.
        """
        return self.random_frame_map(_with_key, seed=seed)

    def _as_part(self) -> Part:
        """This whole dataset as one part of a mixture."""
        part: Part
        part, *others = self._parts
        if others:
            return OpaquePart(self.dataset)
        if self._operations:
            part = OpaquePart(self._build_elements()[0], part.epochs)
        seed = self._seed
        part = part if seed is None else part.move(lambda ds: ds.shuffle(seed=seed))
        epochs, times = part.epochs, self._epochs
        return dataclasses.replace(part, epochs=None if epochs is None or times is None else epochs * times)

    def _build_elements(self) -> list[MapDataset[Any]]:
        """Return one epoch of each part, after all functions of trajectories or frames."""
        return [
            self._apply_operations(part.frames() if self.is_flattened else part.trajectories()) for part in self._parts
        ]

    def _append(self, operation: OnFrames | OnTrajectories) -> TrajectoryDataset:
        return self._replace(operations=(*self._operations, operation))

    def filter(self, predicate: Callable[[Any], Any]) -> TrajectoryDataset:
        """Only the elements for which `predicate` is true. It is called now, once for each element."""
        parts = []
        for part, elements in zip(self._parts, self._build_elements()):
            # First the evaluation, which refuses an endless dataset: an array of its length does not fit into memory.
            passing = [number for number, verdict in evaluate_once(elements, predicate, "filter") if bool(verdict)]
            kept = np.zeros(len(elements), dtype=bool)
            kept[passing] = True
            if isinstance(part, TablePart) and not self.is_flattened:
                parts.append(TablePart(dataclasses.replace(part.samples, chosen=part.samples.chosen[kept])))
            else:
                parts.append(part.move(lambda ds, kept=kept: ds.where(kept)))
        return self._replace(parts)

    def flatten(self, num_parallel_calls: int | None = None) -> TrajectoryDataset:
        """Return the frames of the trajectories."""
        self._refuse_frames("flatten")
        dataset = self._with_threads(num_parallel_calls)
        if self._has_tables and all(isinstance(operation, OnFrames) for operation in self._operations):
            return dataset._replace(flattened=True)
        return dataset._replace([flatten_opaque(ds) for ds in self._build_elements()], flattened=True, operations=())

    def _apply_operations(self, ds: MapDataset[Any]) -> MapDataset[Any]:
        for operation in self._operations:
            ds = operation.apply(ds, self.is_flattened)
        return ds

    def unbatch(self) -> TrajectoryDataset:
        """Return the frames of the trajectories: `flatten` under the name that training scripts use."""
        return self.flatten()

    def repeat(self, count: int | None = None) -> TrajectoryDataset:
        """Return `count` epochs, or an endless number of them."""
        if self._epochs is None or count is None or count == -1:
            return self._replace(epochs=None)
        return self._replace(epochs=self._epochs * checks.positive(count, "count"))

    def shuffle(self, buffer_size: int | None = None, seed: int = 0) -> TrajectoryDataset:
        """Return all elements in a random order, another one in every epoch.

        `buffer_size` is ignored: there is no buffer.
        """
        if any(isinstance(part, OpaquePart) and is_endless(part.ds) for part in self._parts):
            raise ValueError(
                "Endless batches and endless mixtures cannot be shuffled. Call shuffle() before batch(), and before a "
                "mixture is mixed with others."
            )
        return self._replace(seed=checks.seed(seed))

    @explains_arguments("Write `ds.batch(256)`.")
    def batch(self, batch_size: int, drop_remainder: bool = False) -> TrajectoryDataset:
        """Return batches of consecutive frames, with stacked leaves."""
        if not self.is_flattened:
            raise ValueError("Trajectories differ in length and cannot be stacked: call flatten() before batch().")
        plain = self._has_tables and not self._operations
        frames = self.dataset if plain else self.dataset.map(_texts_as_objects)
        batches = frames.batch(batch_size, drop_remainder=drop_remainder)
        return self._replace([OpaquePart(batches)], epochs=1, seed=None, operations=())

    def take(self, count: int) -> TrajectoryDataset:
        """Return the first `count` elements; -1 means all, as in TensorFlow."""
        return self if count == -1 else self._slice(slice(checks.not_negative(count, "count")))

    def skip(self, count: int) -> TrajectoryDataset:
        """Return all elements except the first `count`."""
        return self._slice(slice(checks.not_negative(count, "count"), None))

    def _slice(self, chosen: slice) -> TrajectoryDataset:
        samples = self._samples
        if samples is not None and not self.is_flattened and self._seed is None and self._epochs == 1:
            return self._with_samples(dataclasses.replace(samples, chosen=samples.chosen[chosen]))
        return self._replace([OpaquePart(self.dataset[chosen])], weights=None, epochs=1, seed=None, operations=())

    def ignore_errors(self, log_warning: bool = False, *, skip_limit: int | None = None) -> TrajectoryDataset:
        """Iterators skip elements that raise an error, for example an image that cannot be decoded, and count them.

        `iterator.skipped` is the count. The first skipped element, the tenth, the hundredth and so on are logged,
        whatever `log_warning` is. A batch with a frame that fails is skipped as a whole; a loader skips only the frame
        (`get_dataloader(..., on_error="skip")`).

        Args:
          log_warning: has no effect; TensorFlow has this argument.
          skip_limit: how many elements may be skipped before the next failure raises; None for any number.
        """
        return self._replace(options=DatasetOptions(on_error="skip", skip_limit=skip_limit))

    def prefetch(self, count: int | None = None) -> TrajectoryDataset:
        """Return the same dataset. `iterator(prefetch=...)` and workers do the prefetching."""
        return self

    def with_ram_budget(self, gigabytes: float) -> TrajectoryDataset:
        """Return the same dataset: only the elements that threads and workers are computing are in memory."""
        return self

    def _refuse_frames(self, method: str) -> None:
        """Raise ValueError if this dataset is flattened, for a `method` that needs trajectories."""
        if self.is_flattened:
            raise ValueError(
                f"{method} works on trajectories, but this dataset is flattened. Call it before flatten()."
            )

    # Output.

    @property
    def _tables(self) -> list[TablePart]:
        return [part for part in self._parts if isinstance(part, TablePart)]

    @property
    def _has_tables(self) -> bool:
        """Whether all parts are tables."""
        return len(self._tables) == len(self._parts)

    @property
    def _samples(self) -> Samples | None:
        """The description of the samples; None for several parts, or after a function of whole trajectories."""
        part, *others = self._parts
        return part.samples if isinstance(part, TablePart) and not others and not self._operations else None

    @property
    def image_names(self) -> list[str] | None:
        """The names of the images of observations, without `image_`; None if they are not known."""
        tables = self._tables
        if not self._has_tables or self._operations or any(part.samples.row_functions for part in tables):
            return None
        names = {name for part in tables for name in part.samples.episodes.columns.get("observation", {})}
        return sorted(name.removeprefix("image_") for name in names if name.startswith("image_"))

    @property
    def sample_weights(self) -> np.ndarray | None:
        """The share of each data set of a mixture; None if this is not a mixture."""
        return None if self._weights is None else np.array(self._weights) / sum(self._weights)

    @functools.cached_property
    def dataset(self) -> MapDataset[Any]:
        """The same elements as a `MapDataset`, with all of its methods."""
        tables, joined = self._tables, None
        if self.is_flattened and self._has_tables:
            joined = join_samples([part.samples for part in tables])
        if joined is None:
            parts = [part.frames() if self.is_flattened else part.trajectories() for part in self._parts]
            return self._apply_operations(self._order(parts))
        # The numbers of samples are shuffled and mixed first. Then one function gathers the samples of all tables.
        firsts = np.cumsum([0, *(len(part.samples) for part in tables)]).tolist()
        numbers = [part.indices(first, len(joined), joined) for part, first in zip(tables, firsts)]
        return self._apply_operations(self._order(numbers).map(joined, vectorized=True))

    def _order(self, parts: list[MapDataset[Any]]) -> MapDataset[Any]:
        """Return the parts after `shuffle` and `repeat`, mixed."""
        if self._seed is not None:
            parts = [ds.shuffle(seed=(self._seed + number) % (1 << 32)) for number, ds in enumerate(parts)]
        times = self._epochs
        counts = [None if part.epochs is None or times is None else part.epochs * times for part in self._parts]
        if len(parts) > 1 and not any(counts):
            return MapDataset.mix(parts, self._weights, exact=True, when_exhausted="restart")
        repeated = [ds if count == 1 else ds.repeat(count) for ds, count in zip(parts, counts)]
        if len(parts) == 1:
            return repeated[0]
        return MapDataset.mix(repeated, self._weights, exact=True, when_exhausted="continue")

    @property
    def _read_options(self) -> ReadOptions:
        """The number of threads that prefetch, at most one per core, and as many elements ahead."""
        threads = min(self._threads, os.cpu_count() or 1)
        return ReadOptions(threads, threads)

    def __len__(self) -> int:
        return len(self.dataset)

    def cardinality(self) -> int:
        """Return the number of elements, or -1 for an endless dataset, as in TensorFlow."""
        return -1 if is_endless(self.dataset) else len(self)

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Return pairs (number, element)."""
        return enumerate(self.iterator(), start)

    def as_numpy_iterator(self) -> DatasetIterator[Any]:
        """Return the same as `iterator()`: elements are always NumPy arrays."""
        return self.iterator()

    def __getitem__(self, index: int) -> Any:
        return read_images(self.dataset[index])

    def __iter__(self) -> DatasetIterator[Any]:
        return self.iterator()

    @explains_arguments("Write `ds.iterator(workers=4)`.", num_workers="Write `workers={0}`.")
    def iterator(self, prefetch: int = 0, *, workers: int | WorkerOptions | None = None) -> DatasetIterator[Any]:
        """Return an iterator with `get_state` and `set_state`.

        Args:
          prefetch: how many elements a thread computes ahead, as in dlimp.
          workers: number of worker processes; or their options, also those of actors of a Ray cluster. By default this
            process computes the elements. With `MultiprocessingOptions(num_workers=None)` Bushel measures how many
            workers help. The output is the same for any number.
        """
        stream = self._as_stream(prefetch)
        chosen = read_workers(workers) or MultiprocessingOptions()
        return iter(stream if chosen.num_workers == 0 else single_pass.prefetch(stream, chosen))

    def _as_stream(self, prefetch: int = 0) -> IterDataset[Any]:
        """Return the elements in order, with their images read."""
        ds = self.dataset if self.is_flattened else self.dataset.map(read_images)
        threads = max(self._read_options.num_threads, 1 if prefetch else 0)
        stream = ds.to_iter_dataset(ReadOptions(threads, max(prefetch, threads)))
        return stream if self._options is None else WithOptionsIterDataset(stream, self._options)

    def describe(self) -> Description:
        """Return the steps with lengths and shapes: see `MapDataset.describe`. It reads one element."""
        return self.dataset.describe()

    def show(self, index: int = 0, *, tokenizer: Any = None) -> ShownElement:
        """Return one element to look at: a notebook draws it, a terminal lists its parts. See `MapDataset.show`."""
        return self.dataset.show(index, tokenizer=tokenizer)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        format: saving.Format = "bag",
        shards: int | None = None,
        workers: int | WorkerOptions | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        trust_source: bool = False,
    ) -> Written:
        """Write all elements, with their images read, into files in a folder: see `MapDataset.save`."""
        return self._as_stream().save(
            path,
            format=format,
            shards=shards,
            workers=workers,
            overwrite=overwrite,
            storage_options=storage_options,
            trust_source=trust_source,
        )

    def to_device(
        self,
        device: Any = None,
        *,
        buffer_size: int = 2,
        unsupported: Literal["keep", "raise"] = "keep",
        remainder: Literal["drop", "pad"] | None = None,
    ) -> IterDataset[Any]:
        """Return the elements in order, as arrays on accelerators: see `IterDataset.to_device`."""
        return self._as_stream().to_device(
            device, buffer_size=buffer_size, unsupported=unsupported, remainder=remainder
        )

    if not TYPE_CHECKING:  # so that a type checker still reports missing names
        __next__ = hints.Unsupported(
            "A dataset is not an iterator. Write `it = ds.iterator()` once, then `next(it)` for each element."
        )

        def __dir__(self) -> list[str]:
            return hints.list_names(self)

        def __getattr__(self, name: str) -> Any:
            """Explain a name that is missing. Python calls this only for missing names."""
            hints.raise_missing(self, "TrajectoryDataset", name, hints.TRAJECTORIES, _methods_of_map_datasets())

    def __repr__(self) -> str:
        return repr(self.dataset)

    def _repr_html_(self) -> str:
        return self.dataset._repr_html_()


@functools.cache
def _methods_of_map_datasets() -> dict[str, str]:
    """Return what to write for the methods of a MapDataset that a TrajectoryDataset has not."""
    names = [name for kind in (MapDataset, Dataset) for name in vars(kind) if name[0] != "_"]
    return {name: f"Write `ds.dataset.{name}(...)`: that is a MapDataset." for name in names}


# The identity in saved states holds the code of the next two functions: after a change of it the states of older runs
# are refused.


@in_states("texts_as_objects")
def _texts_as_objects(frame: Any) -> Any:
    """Return a frame with texts as objects.

    Stacked bytes would get a dtype that depends on the longest text of the batch.
    """

    def as_object(leaf: Any) -> Any:
        leaf = to_numpy(leaf)
        return np.array(leaf, dtype=object) if isinstance(leaf, bytes) else leaf

    return trees.map_leaves(as_object, frame)


@in_states("with_key")
def _with_key(frame: Any, rng: np.random.Generator) -> Any:
    return {**frame, "key": rng.integers(1 << 32, size=2, dtype=np.uint32)}
