"""Iterators of pipelines: one lock, one cursor, and a state that belongs to the last delivered element."""

from __future__ import annotations

import abc
import copy
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from bushel._src.base import blocks, checks, hints, shown_text
from bushel._src.base.errors import RowFailed, StateMismatch, remove_library_frames
from bushel._src.base.grain_names import IteratorContext, Stats
from bushel._src.base.options import ReadOptions
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states, overridable
from bushel._src.engine.opener import open_stream
from bushel._src.engine.report import Report
from bushel._src.engine.tasks import Executor
from bushel._src.engine.threaded_cursor import ThreadedCursor
from bushel._src.engine.timing_wrappers import Observer
from bushel._src.engine.where_to_run import MEASURED, WhereToRun
from bushel._src.graph import graph_text
from bushel._src.graph.cursors import Cursor, State
from bushel._src.graph.origins import ElementOrigin, drops_elements, find_epoch, find_next_origins
from bushel._src.graph.streams import StreamNode, reads_global_batches
from bushel._src.graph.usage_warnings import Passes
from bushel._src.graph.user_datasets import IteratorCursor
from bushel._src.state import checkpoint_files, identity, state_forms

T_co = TypeVar("T_co", covariant=True)

on_open: list[Callable[[DatasetIterator[Any]], None]] = []
"""Called with each new iterator of a pipeline. `prometheus.py`, a higher layer, registers itself here."""

opened: weakref.WeakValueDictionary[int, PipelineIterator[Any]] = weakref.WeakValueDictionary()
"""The iterators of pipelines in this process that are not collected yet, in the order in which they were opened. The
viewer, a higher layer, looks for running ones here."""
_numbers = itertools.count()

_BETWEEN: Any = object()
_FRESH: Any = object()
_END: Any = object()


if TYPE_CHECKING:

    class _OfAnyClass(Protocol):
        """The type `DatasetIterator` itself, and no subclass of it.

        `_accepts` takes an object of the class that it is called on. That of DatasetIterator takes any iterator, that
        of a subclass only its own. So a checker leaves out an overload of `self: _OfAnyClass` where it compares a
        subclass with its base: an iterator of a user's need not take `check`.
        """

        def _accepts(self, other: DatasetIterator[Any], /) -> None: ...


@public("bushel")
class DatasetIterator(abc.ABC, Iterator[T_co], Generic[T_co]):
    """A position in a dataset that can be saved and restored.

    Iterators of Bushel's own datasets may be used from several threads, and as context managers. Subclass this for
    an iterator of your own: implement `__next__`, `get_state` and `set_state`.

    >>> import bushel
    >>> with iter(bushel.MapDataset.range(5)) as it:
    ...     first = next(it)
    ...     state = it.get_state()
    ...     rest = list(it)
    >>> it = iter(bushel.MapDataset.range(5))
    >>> it.set_state(state)
    >>> list(it) == rest
    True
    """

    _is_no_data = True  # it stays as it is where it is an element: see base/private_elements.py

    _stats = Stats()
    _ctx = IteratorContext()
    _closed = False
    _same_on_all_processes = False
    """Whether all processes have the same state, so that any of them may restore that of any other."""
    _has_shard_states = False
    """Whether `get_shard_states` gives a state for each dataset of an interleave, which any host may restore."""

    def __init__(self, parents: DatasetIterator[Any] | Sequence[DatasetIterator[Any]] = ()):
        self._parents = (parents,) if isinstance(parents, DatasetIterator) else tuple(parents)

    @property
    def _parent(self) -> DatasetIterator[Any]:
        (parent,) = self._parents
        return parent

    def __iter__(self) -> Self:
        return self

    @abc.abstractmethod
    def __next__(self) -> T_co:
        """Return the next element, or raise StopIteration."""

    @abc.abstractmethod
    def get_state(self) -> State:
        """Return the position as plain JSON data.

        >>> import json
        >>> from bushel import MapDataset
        >>> it = iter(MapDataset.range(10))
        >>> next(it), next(it)
        (0, 1)
        >>> saved = json.dumps(it.get_state())
        """

    if TYPE_CHECKING:

        def _accepts(self, other: Self, /) -> None: ...

    @overload
    def set_state(self, state: State) -> None: ...

    @overload
    def set_state(self: _OfAnyClass, state: State, *, check: bool = True) -> None: ...

    @abc.abstractmethod
    def set_state(self, state: State, *, check: bool = True) -> None:
        """Go to a position that `get_state` returned.

        An iterator of your own may leave `check` out, if its states do not say which pipeline has written them.

        Args:
          state: what `get_state` returned, perhaps after a round trip through JSON.
          check: False also restores the state of another pipeline, if it has the same entries.

        >>> from bushel import MapDataset
        >>> ds = MapDataset.range(10)
        >>> it = iter(ds)
        >>> _ = next(it)
        >>> later = iter(ds)
        >>> later.set_state(it.get_state())
        >>> next(later)
        1
        """

    @overridable
    def origins(self, steps: int = 1) -> list[ElementOrigin]:
        """Return the source records that the next elements are made of. Nothing is read; see `MapDataset.origin`.

        >>> from bushel import MapDataset
        >>> it = iter(MapDataset.range(10).shuffle(seed=1).batch(2))
        >>> print(it.origins()[0])
        element 0 is made of
          record 5 of range(10), epoch 0
          record 7 of range(10), epoch 0
        """
        raise NotImplementedError(f"{type(self).__name__} cannot say what comes next without reading.")

    @property
    @overridable
    def epoch(self) -> int:
        """How many epochs are over: 0 until the first element of the second epoch is the next one.

        It is the number of the last `repeat` of the pipeline.

        >>> from bushel import MapDataset
        >>> it = iter(MapDataset.range(6).shuffle(seed=1).batch(2).repeat())
        >>> while it.epoch < 2:
        ...     batch = next(it)
        >>> it.origins()[0].index
        6
        """
        raise NotImplementedError(f"{type(self).__name__} does not know the number of its epoch.")

    def seek(self, step: int) -> None:
        """Go to an element by its number, at once and without reading. The next element is then number `step`.

        It needs a pipeline whose elements are known by their number: not after a `filter` or a `repeat` of a stream.

        >>> from bushel import MapDataset
        >>> it = iter(MapDataset.range(10).shuffle(seed=1).batch(2).repeat())
        >>> it.seek(1_000_000)
        >>> it.epoch
        200000
        """
        number = checks.not_negative(step, "step")
        try:
            self._check_seekable()
            self._set_next_index(number)
        except NotImplementedError:
            raise NotImplementedError(
                "`seek` needs a pipeline that knows its elements by their number. After a `filter`, or after "
                "`window_shuffle`, packing, `flat_map` or `repeat` of a stream, it is not known without reading which "
                "element has this number. Use `where`, `pack` and `repeat` of the MapDataset, or save the position: "
                "`it.get_state()`."
            ) from None
        except IndexError:
            raise IndexError(f"There is no element {number}: the elements end before it.") from None

    @overridable
    def _check_seekable(self) -> None:
        """Raise NotImplementedError if numbers of elements are not known, although indices are."""

    @overridable
    def report(self) -> Report:
        """Return where the time goes: the time of each stage, which stage waits for which, and what to try. Print it.

        >>> from bushel import MapDataset
        >>> ds = MapDataset.range(100).map(str).to_iter_dataset()
        >>> it = iter(ds.with_options(execution_tracking_mode="stage_timing"))
        >>> _ = [next(it) for _ in range(50)]
        >>> [stage.call for stage in it.report().stages]
        ['range(100)', 'map(str)', 'to_iter_dataset()']
        """
        raise NotImplementedError(f"{type(self).__name__} is not measured: only iterators of Bushel's datasets are.")

    @property
    @overridable
    def skipped(self) -> int:
        """How many elements failed and were left out so far, with `DatasetOptions(on_error="skip")`."""
        return 0

    @overridable
    def start_prefetch(self) -> None:
        """Start to prefetch before the first `next`, in a pipeline that prefetches."""
        for parent in self._parents:
            parent.start_prefetch()

    @overridable
    def close(self) -> None:
        """Free threads and other resources. `next` raises ValueError afterwards; closing again does nothing.

        >>> from bushel import MapDataset
        >>> with iter(MapDataset.range(10)) as it:  # the end of the block closes it
        ...     first = next(it)
        """
        if not self._closed:
            self._closed = True
            for parent in getattr(self, "_parents", ()):
                parent.close()

    async def save(self, directory: checkpoint_files.AwaitingCreation) -> checkpoint_files.Later:
        """Write the present state into a folder that Orbax creates."""
        return checkpoint_files.write_later(directory, checkpoint_files.texts_of(self))

    async def load(self, directory: checkpoint_files.Folder) -> checkpoint_files.Later:
        """Restore a state that `save` wrote, here or in Grain."""
        return checkpoint_files.restore_later(directory, self)

    @overridable
    def _get_next_index(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no index of its next element.")

    @overridable
    def _set_next_index(self, index: int) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot seek to an index.")

    def _assert_not_closed(self) -> None:
        if self._closed:
            raise ValueError(
                f"Trying to advance a closed iterator: {type(self).__name__}. Write `it = iter(ds)` for a new one."
            )

    if not TYPE_CHECKING:  # so that a type checker still reports missing names
        __getitem__ = hints.Unsupported(
            "An iterator has no `it[i]`. Write `ds[i]` on the MapDataset, or `next(it)` for the next element."
        )

        def __dir__(self) -> list[str]:
            return hints.list_names(self)

        def __getattr__(self, name: str) -> Any:
            """Explain a name that is missing. Python calls this only for missing names."""
            hints.raise_missing(self, type(self).__name__, name, hints.ITERATOR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # When Python exits, its threads have stopped, perhaps while they held a lock. Closing could then wait for ever.
        if not at_exit():
            self.close()


@hints.show_as("DatasetIterator", is_pickled=False)
class _CursorIterator(DatasetIterator[T_co]):
    """An iterator over the elements of a cursor. After an error it is where it was before, so `next` tries again."""

    def __init__(self, cursor: Cursor, parents: Sequence[DatasetIterator[Any]] = ()):
        super().__init__(parents)
        self._lock = threading.RLock()
        self._cursor = cursor
        self._before: Any = _FRESH
        """The mark before the element that is being computed. Between two elements it is `_BETWEEN`, and `_FRESH` as
        long as nothing was computed: what is needed before the first element is done then, and not for each one."""
        self._passes: Passes | None = None
        self._astray = False
        """Whether an element has failed, and the cursor still stands where the failure left it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"A {type(self).__name__} cannot be pickled or copied. Save its position: `state = it.get_state()`, "
            "later `it = iter(ds)` and `it.set_state(state)`."
        )

    @overridable
    def _begin(self) -> Passes | None:
        """Prepare the first element. Return the passes over the dataset, for iterators that count them."""
        return None

    def __next__(self) -> T_co:
        with self._lock:
            if self._closed:
                self._assert_not_closed()
            if self._before is not _BETWEEN:
                fresh = self._before is _FRESH
                self._come_back()
                if fresh and self._passes is not None and self._passes.repeat_the_order:
                    self._passes.warn_of_same_order()
            cursor = self._cursor
            for row in cursor.at_hand:
                return row
            self._before = cursor.mark()
            try:
                block = cursor.pull(1)
                rows = block if type(block) is list else blocks.rows_of(block)
                element = rows[0] if rows else _END
            except RowFailed as failed:
                error = failed.error
            except BaseException as failure:
                error = failure
            else:
                self._before = _BETWEEN
                if element is _END:
                    if self._passes is not None:
                        self._passes.finish()
                    raise StopIteration
                return element
            self._astray = True
            try:
                # Going back may read files. After Ctrl-C the next call does it, so that the program stops at once.
                if isinstance(error, Exception):
                    self._assert_not_closed()  # another thread may have closed it meanwhile
                    self._come_back()
                    error = remove_library_frames(error)
                raise error
            finally:
                del error  # its traceback holds this frame, and this frame holds the error

    def _come_back(self) -> None:
        """Go back to where the cursor stood before an element failed; or prepares the first element."""
        if self._before is _FRESH:
            self._passes = self._begin()
            self._before = _BETWEEN
        if self._before is _BETWEEN:
            return
        if not self._astray:
            raise RuntimeError(
                "This iterator is computing an element. A function of the pipeline cannot move it meanwhile: call it "
                "after `next` has returned."
            )
        self._cursor.rewind(self._before)
        self._before, self._astray = _BETWEEN, False

    def _position(self) -> State:
        """Return the state after the last delivered element, also while the next element is being computed."""
        before = self._before
        return self._cursor.get_state() if before is _BETWEEN or before is _FRESH else self._cursor.state_of(before)

    def _move_to(self, state: State) -> None:
        self._come_back()
        self._before = self._cursor.mark()
        try:
            self._cursor.set_state(state)
            try:
                self._cursor.catch_up()
            except StateMismatch:
                raise
            except Exception:  # a user's function failed, or a file cannot be read: `next` tries again, and raises it
                self._cursor.set_state(state)
        except BaseException:
            self._astray = True
            self._come_back()
            raise
        self._before = _BETWEEN

    def start_prefetch(self) -> None:
        with self._lock:
            self._assert_not_closed()
            self._come_back()
            self._cursor.start_prefetch()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            cursor = self.__dict__.get("_cursor")
            if cursor is not None:
                cursor.close()

    def _get_next_index(self) -> int:
        with self._lock:
            self._come_back()
            return self._cursor.get_next_index()

    def _set_next_index(self, index: int) -> None:
        with self._lock:
            self._come_back()
            self._cursor.set_next_index(index)


@in_states("PipelineIterator")
@hints.show_as("DatasetIterator", is_pickled=False)
class PipelineIterator(_CursorIterator[T_co]):
    """The iterator of a stream node."""

    def __init__(
        self,
        node: StreamNode,
        read_options: ReadOptions | None = None,
        executor: Executor | None = None,
        where: WhereToRun = MEASURED,
    ):
        self._node = node
        self._observer = Observer()
        super().__init__(open_stream(node, read_options, executor, self._observer, where))
        opened[next(_numbers)] = self
        for notify in on_open:
            notify(self)

    @functools.cached_property
    def _same_on_all_processes(self) -> bool:
        return reads_global_batches(self._node)

    @functools.cached_property
    def identity(self) -> list[Any]:
        """What the pipeline is: see `bushel._src.state.identity`. It is computed once, when it is first needed."""
        return identity.identify(self._node)

    def _begin(self) -> Passes:
        try:
            identity.prepare(self._node)  # before any function runs: a function may change what it closes over
        except OSError:
            # A file is gone. Reading it will raise, or skip it; only a state needs the file's fingerprint.
            identity.freeze(self._node)
        return Passes(self._node)

    def get_state(self) -> State:
        """Return the position as plain JSON data, with the identity of the pipeline under the key "bushel".

        A signal handler may call it while `next` computes an element. It then gets the position before that element.
        """
        with self._lock:
            return state_forms.seal(self._position(), self.identity)

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Go to a position of this pipeline, or of the same one built elsewhere, or of Grain's.

        Args:
          state: what `get_state` returned, perhaps after a round trip through JSON.
          check: False also restores the state of another pipeline, if it has the same entries.
        """
        with self._lock:
            self._move_to(state_forms.unseal(state, self.identity, check=check))

    @property
    def epoch(self) -> int:
        with self._lock:
            self._come_back()
            return find_epoch(self._node, self._cursor.get_state())

    def _check_seekable(self) -> None:
        if drops_elements(self._node):
            raise NotImplementedError

    @property
    def skipped(self) -> int:
        """How many elements failed and were left out so far, with `DatasetOptions(on_error="skip")`."""
        return 0 if self._observer.skips is None else self._observer.skips.count

    def report(self) -> Report:
        """Return where the time goes: the time of each stage, which stage waits for which, and what to try. Print it.

        Stages are timed if the options of the pipeline ask for it. Otherwise the report only has figures of workers.

        >>> import bushel
        >>> ds = bushel.MapDataset.range(100).map(str).to_iter_dataset().batch(10)
        >>> it = iter(ds.with_options(execution_tracking_mode="stage_timing"))
        >>> _ = list(it)
        >>> [(stage.call, stage.elements) for stage in it.report().stages]
        [('range(100)', 100), ('map(str)', 100), ('to_iter_dataset()', 100), ('batch(10)', 10)]
        """
        return self._observer.report()

    def origins(self, steps: int = 1) -> list[ElementOrigin]:
        with self._lock:
            self._come_back()
            return find_next_origins(self._node, self._cursor.get_next_index, checks.positive(steps, "steps"))

    def __repr__(self) -> str:
        return f"<iterator of {self._node.call()} at {self._position()}>"

    def _repr_html_(self) -> str:
        return shown_text.paragraph(repr(self)) + graph_text.describe(self._node)._repr_html_()


@public("bushel.experimental")
class ThreadPrefetchDatasetIterator(_CursorIterator[T_co]):
    """Pulls another iterator ahead in a thread; any iterator with `get_state` and `set_state` will do.

    >>> import bushel
    >>> parent = iter(bushel.MapDataset.range(4))
    >>> list(ThreadPrefetchDatasetIterator(parent, prefetch_buffer_size=2))
    [0, 1, 2, 3]
    """

    def __init__(self, parent: Iterator[T_co], prefetch_buffer_size: int):
        size = checks.not_negative(prefetch_buffer_size, "prefetch_buffer_size")
        cursor = IteratorCursor(parent)
        parents = [parent] if isinstance(parent, DatasetIterator) else []
        super().__init__(ThreadedCursor(cursor, size) if size else cursor, parents)
        self._pulled: Any = parent

    def get_state(self) -> State:
        with self._lock:
            return copy.deepcopy(self._position())

    def set_state(self, state: State, *, check: bool = True) -> None:
        with self._lock:
            if not check:
                self._move_to(self._position())  # ends the thread, which would read the other iterator meanwhile
                checkpoint_files.set_unchecked_state(self._pulled, state)
                state = copy.deepcopy(self._pulled.get_state())  # with the identity of the other iterator
            self._move_to(state)


@public("bushel.experimental")
def get_next_index(ds_iter: DatasetIterator[Any]) -> int:
    """Return the index of the element that `next` will give, for pipelines that know it without reading.

    >>> import bushel
    >>> it = iter(bushel.MapDataset.range(5))
    >>> _ = next(it)
    >>> get_next_index(it)
    1
    """
    return ds_iter._get_next_index()


@public("bushel.experimental")
def set_next_index(ds_iter: DatasetIterator[Any], index: int) -> None:
    """Go to an element by its index, at once and without reading, where the pipeline allows it.

    >>> import bushel
    >>> it = iter(bushel.MapDataset.range(10).to_iter_dataset())
    >>> bushel.experimental.set_next_index(it, 7)
    >>> next(it)
    7
    """
    ds_iter._set_next_index(checks.integer(index, "index"))
