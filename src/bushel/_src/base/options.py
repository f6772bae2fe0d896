"""Options of how a pipeline runs: threads, workers, errors, and which shard of the data a process reads.

Threads and workers never change the output.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import enum
import logging
import numbers
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypedDict

from bushel._src.base import checks, hints
from bushel._src.base.errors import BushelWarning
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states

logger = logging.getLogger("bushel")

TELEMETRY = os.environ.get("ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY", "").lower() in ("1", "true", "yes")
"""Grain's switch, read when Bushel is imported: every pipeline is timed and served, see `bushel.prometheus`."""


@public("bushel")
@hints.explains_creation(
    "Write `ReadOptions(num_threads=4, prefetch_buffer_size=64)`.",
    num_workers="It is about threads: write `num_threads={0}`, or `MultiprocessingOptions(num_workers={0})`.",
    buffer_size="Write `prefetch_buffer_size={0}`.",
    threads="Write `num_threads={0}`.",
)
@dataclasses.dataclass(slots=True)
class ReadOptions:
    """How many threads read ahead, and how many elements they may hold ready.

    If either is zero there are no threads, and `next` computes each element. That is the fastest choice for data in
    memory and for transformations written in plain Python. Threads help where the work releases the GIL: files, object
    stores, decoders.

    >>> ReadOptions(num_threads=4, prefetch_buffer_size=64)
    ReadOptions(num_threads=4, prefetch_buffer_size=64)
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500

    def __post_init__(self) -> None:
        for name in ("num_threads", "prefetch_buffer_size"):
            value = checks.integer(getattr(self, name), name)
            if value < 0:
                raise ValueError(f"{name} must be non-negative, got {value}")
        if 0 < self.prefetch_buffer_size < self.num_threads:
            logger.warning(
                "prefetch_buffer_size=%d is smaller than num_threads=%d: at most %d threads can work at a time.",
                self.prefetch_buffer_size,
                self.num_threads,
                self.prefetch_buffer_size,
            )

    @property
    def threaded(self) -> bool:
        return self.num_threads > 0 and self.prefetch_buffer_size > 0


@public("bushel")
@hints.explains_creation(
    "Write `MultiprocessingOptions(num_workers=4)`.",
    workers="Write `num_workers={0}`.",
    num_proc="Write `num_workers={0}`.",
    num_processes="Write `num_workers={0}`.",
    worker_count="Write `num_workers={0}`.",
    buffer_size="Write `per_worker_buffer_size={0}`.",
    prefetch_factor="Write `per_worker_buffer_size={0}`.",
    timeout="Write `timeout_s={0}`.",
)
@dataclasses.dataclass(slots=True)
class MultiprocessingOptions:
    """How many worker processes prefetch, and within which limits. The output is the same for all choices.

    Args:
      num_workers: worker processes. 0 computes in the consumer. None lets Bushel choose: it starts with one worker,
        measures how much each further one helps, up to one per core, and chooses how far they prefetch.
      per_worker_buffer_size: how many blocks each worker may hold, beyond two.
      enable_profiling: ignored: it exists because Grain has it.
      budget_bytes: the most shared memory for results, 1 GiB by default. If the arrays that you keep fill it, further
        results are copied.
      timeout_s: seconds after which an element fails with a WorkerTimeout that names it; by default there is no limit.
        Only workers can be stopped, so it needs them.

    >>> import bushel
    >>> ds = bushel.MapDataset.range(4).map(lambda x: x * x).batch(2).to_iter_dataset()
    >>> with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) as batches:
    ...     next(batches)
    array([0, 1])
    """

    num_workers: int | None = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False
    budget_bytes: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.num_workers is not None and checks.integer(self.num_workers, "num_workers") < 0:
            raise ValueError(f"num_workers must be non-negative, got {self.num_workers}")
        checks.positive(self.per_worker_buffer_size, "per_worker_buffer_size")
        if self.budget_bytes is not None:
            checks.positive(self.budget_bytes, "budget_bytes")
        if self.timeout_s is not None and not checks.number(self.timeout_s, "timeout_s") > 0:
            raise ValueError(f"timeout_s must be positive, got {self.timeout_s}")
        if self.num_workers != 0:
            return
        for name, why in (
            ("timeout_s", "Only a worker can be stopped."),
            ("budget_bytes", "Only workers share memory."),
        ):
            value = getattr(self, name)
            if value is not None:
                warnings.warn(
                    f"{name}={value} has no effect: it needs workers. {why} Write "
                    f"MultiprocessingOptions(num_workers=4, {name}={value}).",
                    BushelWarning,
                    stacklevel=4,
                )


@public("bushel")
@hints.explains_creation(
    "Write `RayOptions(num_workers=4)`.",
    workers="Write `num_workers={0}`.",
    num_proc="Write `num_workers={0}`.",
    num_processes="Write `num_workers={0}`.",
    worker_count="Write `num_workers={0}`.",
    buffer_size="Write `per_worker_buffer_size={0}`.",
    prefetch_factor="Write `per_worker_buffer_size={0}`.",
    timeout="Write `timeout_s={0}`.",
)
@dataclasses.dataclass(slots=True)
class RayOptions:
    """How many actors of a Ray cluster prefetch, and within which limits. The output is the same for all choices.

    Args:
      num_workers: actors, each with one process. None lets Bushel choose between `min_workers` and `max_workers`: it
        measures how much each further actor helps.
      resources_per_worker: what Ray reserves for each actor, such as {"CPU": 1, "memory": 2e9}; one CPU by default.
      min_workers: how many actors run at least, if Bushel chooses; 1 by default.
      max_workers: how many run at most, if Bushel chooses; by default as many as the cluster has room for when the
        iterator is opened. With an autoscaling cluster, set it to what the cluster may grow to.
      per_worker_buffer_size: how many blocks each actor may hold, beyond two.
      budget_bytes: the most memory for results that wait in this process. 1 GiB by default, or a third of the smallest
        object store of the cluster, if that is less.
      timeout_s: seconds after which an element fails with an error that names it; by default there is no limit.

    >>> RayOptions(num_workers=4).resources_per_worker
    {'CPU': 1}
    """

    num_workers: int | None = None
    resources_per_worker: Mapping[str, float] | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    per_worker_buffer_size: int = 1
    budget_bytes: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_workers", "min_workers", "max_workers", "budget_bytes"):
            if getattr(self, name) is not None:
                checks.positive(getattr(self, name), name)
        if self.num_workers is not None and (self.min_workers, self.max_workers) != (None, None):
            raise ValueError("Give either num_workers, or min_workers and max_workers, between which Bushel chooses.")
        if self.min_workers is not None and self.max_workers is not None and self.min_workers > self.max_workers:
            raise ValueError(f"min_workers={self.min_workers} is above max_workers={self.max_workers}.")
        checks.positive(self.per_worker_buffer_size, "per_worker_buffer_size")
        if self.timeout_s is not None and not checks.number(self.timeout_s, "timeout_s") > 0:
            raise ValueError(f"timeout_s must be positive, got {self.timeout_s}")
        resources = {"CPU": 1} if self.resources_per_worker is None else dict(self.resources_per_worker)
        for name, amount in resources.items():
            if not checks.number(amount, f"resources_per_worker[{name!r}]") >= 0:
                raise ValueError(f"resources_per_worker[{name!r}] must be non-negative, got {amount}")
        self.resources_per_worker = resources


WorkerOptions = MultiprocessingOptions | RayOptions
"""Who computes ahead of the consumer: worker processes of this machine, or actors of a Ray cluster."""


def read_workers(workers: int | WorkerOptions | None) -> WorkerOptions | None:
    """Return the options that an argument `workers` stands for: a number of worker processes, options, or None.

    >>> read_workers(2) == MultiprocessingOptions(num_workers=2)
    True
    """
    if workers is None or isinstance(workers, WorkerOptions):
        return workers
    if isinstance(workers, bool) or not isinstance(workers, numbers.Integral):
        raise TypeError(
            "workers must be a number of worker processes, bushel.MultiprocessingOptions or bushel.RayOptions, "
            f"got {workers!r}."
        )
    return MultiprocessingOptions(num_workers=int(workers))


_for_jobs: contextvars.ContextVar[WorkerOptions | None] = contextvars.ContextVar("for_jobs", default=None)


def find_job_options() -> WorkerOptions | None:
    """Who computes one-off jobs (columns, tables, statistics, files), if a block of `using_for_jobs` says so."""
    return _for_jobs.get()


@contextlib.contextmanager
def using_for_jobs(options: WorkerOptions) -> Iterator[None]:
    """Inside this block, one-off jobs that have no options of their own have these."""
    before = _for_jobs.set(options)
    try:
        yield
    finally:
        _for_jobs.reset(before)


@public("bushel.experimental")
class ExecutionTrackingMode(enum.Enum):
    """Whether stages are timed: see `bushel.experimental.WithOptionsIterDataset` and `iterator.report()`."""

    DISABLED = enum.auto()
    STAGE_TIMING = enum.auto()


def _tracking_mode(mode: Any) -> ExecutionTrackingMode:
    if isinstance(mode, str):
        names = [name.lower() for name in ExecutionTrackingMode.__members__]
        return ExecutionTrackingMode[checks.choice(mode.lower(), names, "execution_tracking_mode").upper()]
    if not isinstance(mode, ExecutionTrackingMode):
        names = " or ".join(repr(name.lower()) for name in ExecutionTrackingMode.__members__)
        raise TypeError(
            f"execution_tracking_mode must be {names}, or one of bushel.experimental.ExecutionTrackingMode, "
            f"got {mode!r}."
        )
    return mode


@dataclasses.dataclass(frozen=True)
class _Default:
    """A default value. A value that the user chose replaces it when options are merged."""

    value: Any


class OptionValues(TypedDict, total=False):
    """The arguments of `with_options`, for type checkers: the fields of DatasetOptions."""

    filter_warn_threshold_ratio: float | None
    filter_raise_threshold_ratio: float | None
    execution_tracking_mode: ExecutionTrackingMode | Literal["disabled", "stage_timing"]
    min_shm_size: int
    on_error: Literal["raise", "skip"]
    skip_limit: int | None


@public("bushel")
@hints.explains_creation('Write `with_options(on_error="skip")`.', ignore_errors='Write `on_error="skip"`.')
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DatasetOptions:
    """Options of a whole pipeline, given to it by `WithOptionsIterDataset`.

    Args:
      filter_warn_threshold_ratio: a filter that drops this share of 1,000 elements, or more, logs a warning. None or
        0: never.
      filter_raise_threshold_ratio: the same, with a ValueError instead of a warning.
      execution_tracking_mode: "stage_timing" times every stage, for `iterator.report()`; a member of
        ExecutionTrackingMode, or its name.
      on_error: "raise" raises the error, and the following `next` tries the element again. "skip" leaves out elements
        that fail, and counts them in `iterator.skipped` and in the state. It leaves out the whole of a batch that was
        made in a MapDataset, and the rest of a file that is read in order and cannot be read on.
      skip_limit: how many may be skipped before the next one raises; None for any number.
      min_shm_size: ignored: it exists because Grain has it. Arrays below 4 KiB never need shared memory.

    >>> DatasetOptions(filter_raise_threshold_ratio=0.99)
    DatasetOptions(filter_raise_threshold_ratio=0.99)
    """

    filter_warn_threshold_ratio: float | None = _Default(0.9)  # type: ignore[assignment]
    filter_raise_threshold_ratio: float | None = _Default(None)  # type: ignore[assignment]
    execution_tracking_mode: ExecutionTrackingMode | Literal["disabled", "stage_timing"] = _Default(
        ExecutionTrackingMode.STAGE_TIMING if TELEMETRY else ExecutionTrackingMode.DISABLED
    )  # type: ignore[assignment]
    min_shm_size: int = _Default(0)  # type: ignore[assignment]
    on_error: Literal["raise", "skip"] = _Default("raise")  # type: ignore[assignment]
    skip_limit: int | None = _Default(None)  # type: ignore[assignment]
    _chosen: frozenset[str] = dataclasses.field(default=frozenset(), init=False)
    """Names of the options that were given."""

    def __post_init__(self) -> None:
        chosen = []
        for name in _OPTION_NAMES:
            value = getattr(self, name)
            if type(value) is _Default:
                object.__setattr__(self, name, value.value)
            else:
                chosen.append(name)
        if chosen:
            object.__setattr__(self, "_chosen", frozenset(chosen))
            self._check()

    def _check(self) -> None:
        for name in ("filter_warn_threshold_ratio", "filter_raise_threshold_ratio"):
            ratio = getattr(self, name)
            if ratio is not None and not (isinstance(ratio, numbers.Real) and 0 <= float(ratio) <= 1):
                raise ValueError(f"{name} is a share of elements, from 0 to 1, or None for no check; got {ratio!r}.")
        object.__setattr__(self, "execution_tracking_mode", _tracking_mode(self.execution_tracking_mode))
        checks.choice(self.on_error, ("raise", "skip"), "on_error")
        if self.skip_limit is not None:
            checks.not_negative(self.skip_limit, "skip_limit")
        if checks.integer(self.min_shm_size, "min_shm_size") < 0:
            raise ValueError(f"min_shm_size must be non-negative, got {self.min_shm_size}.")

    def merge(self, other: DatasetOptions | None) -> DatasetOptions:
        """Return these options, with those of `other` for the options that were not chosen here.

        >>> DatasetOptions(min_shm_size=1).merge(DatasetOptions(min_shm_size=2, filter_warn_threshold_ratio=None))
        DatasetOptions(filter_warn_threshold_ratio=None, min_shm_size=1)
        """
        if other is None or not other._chosen:
            return self
        return DatasetOptions(**(other._given() | self._given())) if self._chosen else other

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OPTION_NAMES if name in self._chosen}

    def __repr__(self) -> str:
        return f"DatasetOptions({', '.join(f'{name}={value}' for name, value in self._given().items())})"


_OPTION_NAMES = tuple(field.name for field in dataclasses.fields(DatasetOptions) if field.init)


@public("bushel")
@in_states("ShardOptions")
@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """One of `shard_count` parts of the data.

    Args:
      shard_index: which part, from 0 to shard_count - 1.
      shard_count: how many parts there are.
      drop_remainder: True gives all parts the same length, and a few records are in no part. Otherwise the first parts
        have one record more.

    >>> ShardOptions(shard_index=0, shard_count=4)
    ShardOptions(shard_index=0, shard_count=4, drop_remainder=False)
    """

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        checks.positive(self.shard_count, "shard_count")
        if not 0 <= checks.integer(self.shard_index, "shard_index") < self.shard_count:
            raise ValueError(
                f"shard_index must be in [0, shard_count - 1], got shard_index {self.shard_index} with "
                f"shard_count {self.shard_count}."
            )


@public("bushel")
@in_states("NoSharding")
class NoSharding(ShardOptions):
    """All of the data in every process.

    >>> NoSharding()
    NoSharding(shard_index=0, shard_count=1, drop_remainder=False)
    """

    def __init__(self) -> None:
        super().__init__(shard_index=0, shard_count=1, drop_remainder=False)


@public("bushel")
@in_states("ShardByJaxProcess")
class ShardByJaxProcess(ShardOptions):
    """One part for each JAX process; all of the data where JAX is not installed.

    >>> ShardByJaxProcess(drop_remainder=True).shard_count
    1
    """

    def __init__(self, drop_remainder: bool = False):
        index, count = jax_process()
        super().__init__(shard_index=index, shard_count=count, drop_remainder=drop_remainder)


def jax_process() -> tuple[int, int]:
    """Return which JAX process this is, and of how many; (0, 1) without JAX."""
    try:
        import jax
    except ImportError:
        return 0, 1
    return jax.process_index(), jax.process_count()


def even_split(count: int, options: ShardOptions) -> tuple[int, int]:
    """Return the records of one shard as a range [start, end).

    Shards are consecutive; the first ones take the remainder.

    >>> [even_split(10, ShardOptions(index, 3)) for index in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    """
    size, over = divmod(count, options.shard_count)
    index = options.shard_index
    if not options.drop_remainder:
        return index * size + min(index, over), (index + 1) * size + min(index + 1, over)
    if over:
        logger.warning(
            "drop_remainder=True leaves out %d of %d records: they are in none of the %d shards.",
            over,
            count,
            options.shard_count,
        )
    return index * size, (index + 1) * size
