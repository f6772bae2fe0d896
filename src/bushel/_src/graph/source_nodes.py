"""Sources as nodes: records at any index, ranges, and records that can only be read in order.

Indices wrap around, so that every epoch reads the same records. Warns of sources whose records do not follow from the
index alone.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.base.blocks import Block, Columns, make_answer_private
from bushel._src.base.errors import DamagedFile, RowFailed, describe_error, locate_error
from bushel._src.base.private_elements import copy_value, make_private
from bushel._src.base.state_names import find_name, in_states
from bushel._src.base.transforms import show_value
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.graph.cursors import CLOSED, Cursor, InUse, Mark, Skips, State, read_count, read_field
from bushel._src.graph.hidden_randomness import Watch, tell
from bushel._src.graph.node import InPlace, Leaf, Node, Origin, Plan, PlanMany, raise_for_row
from bushel._src.graph.streams import Opener, Ordered, StreamNode
from bushel._src.index import epochs
from bushel._src.sources.memory_sources import JoinedArrays, RaggedDataSource, join_arrays, pack_array, unpack_array
from bushel._src.sources.user_sources import SequentialReader, SequentialSource, get_batch_reader, gives_new_records

READS = 16
"""How many records of each source are kept as digests, and how many reads of their indices are compared."""

_LAST_READ = 4096
"""After so many reads a source is watched no longer: a look at each record costs as much as reading a small one."""

_MOST_BYTES = 1 << 20  # of each array


class SourceWatch:
    """Watches the first reads of a source.

    Args:
      source: the user's source.
      name: how it reads in a message.
    """

    def __init__(self, source: Any, name: Callable[[], str]):
        self._name = name
        self._digests: dict[int, bytes] = {}
        self._reads = self._compared = 0
        self._told = False
        self._ignores_index = get_batch_reader(source) is None and _ignores_index(type(source))
        self._reading = Watch(source, name)

    @property
    def ended(self) -> bool:
        """Whether no more reads are watched."""
        return self._told or self._reading.told or self._compared >= READS or self._reads >= _LAST_READ

    def read(self, read: Callable[[Any], Any], argument: Any) -> Any:
        """Return the result of `read(argument)`. Warn if it draws from a random generator."""
        return self._reading.call(read, argument, way_out=_WAY_OUT)

    def compare(self, positions: Sequence[int], records: Sequence[Any]) -> None:
        """Compare records with those that were read before."""
        self._reads += len(positions)
        for position, record in zip(positions, records):
            if self.ended:
                return
            known = self._digests.get(position)
            if known is None and len(self._digests) >= READS:
                continue
            found = _digest(record)
            if known is None:
                self._digests[position] = found
                if self._ignores_index and len(set(self._digests.values())) > 1:
                    self._tell(f"{self._name()} does not use the index that it is given, and its records differ.")
            else:
                self._compared += 1
                if found != known:
                    self._tell(f"{self._name()} gave two different records for index {position}.")

    def _tell(self, sentence: str) -> None:
        self._told = True
        tell(f"{sentence} {_WAY_OUT}")


_WAY_OUT = (
    "Its records depend on what was read before and on the worker that reads them, so they differ from run to run. "
    "Let a record follow from its index alone, such as with np.random.default_rng((seed, index)), or make random "
    "changes after the source, with random_map."
)


def watch_source(source: Any, name: Callable[[], str]) -> SourceWatch | None:
    """Return a watch for a source of a class that is written in Python and not in Bushel; None for all others."""
    read = getattr(type(source), "__getitem__", None)
    if not isinstance(read, types.FunctionType) or read.__module__.partition(".")[0] in ("bushel", "collections"):
        return None
    return SourceWatch(source, name)


def _ignores_index(kind: type) -> bool:
    """Return whether the code of `__getitem__` never uses its index."""
    read = getattr(kind, "__getitem__", None)
    if not isinstance(read, types.FunctionType) or read.__code__.co_argcount != 2 or hasattr(read, "__wrapped__"):
        return False
    index = read.__code__.co_varnames[1]
    return not any(
        index == one.argval or (isinstance(one.argval, tuple) and index in one.argval)
        for one in dis.get_instructions(read)
        if not one.opname.startswith(("STORE", "DELETE"))
    )


def _digest(record: Any) -> bytes:
    """Return a digest of the arrays, numbers and texts in a record. Other objects do not count."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in trees.leaves(record):
        if isinstance(leaf, (np.ndarray, np.generic)):
            array = np.asarray(leaf)
            if array.dtype.kind in "biufcmMSU" and array.dtype.char not in "gG":  # these have padding
                digest.update(f"{array.dtype}{array.shape}".encode())
                flat = np.ascontiguousarray(array).reshape(-1)
                digest.update(flat[: _MOST_BYTES // max(array.itemsize, 1)].tobytes())
        elif isinstance(leaf, (bool, int, float, complex, str, bytes)):
            digest.update(repr(leaf).encode(errors="replace"))
    return digest.digest()


def name_source(source: Any) -> str:
    """Return how a source reads in a pipeline: its own repr if it has one, a sequence by type and length."""
    kind = type(source)
    if isinstance(source, np.ndarray):
        return trees.describe(source)
    if isinstance(source, (list, tuple, str, bytes, dict)):
        return f"{kind.__name__} of {len(source)}"
    text = show_value(source)
    return text if len(text) <= 120 and "\n" not in text else kind.__name__


@in_states("source")
@dataclasses.dataclass(frozen=True, eq=False)
class SourceNode(Leaf):
    """Records of anything with a length and `source[i]`, read many at a time where the source can."""

    source: Any

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_watch"}
        return {**state, "source": pack_array(self.source) if isinstance(self.source, np.ndarray) else self.source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, source=unpack_array(state["source"]))

    def find_length(self) -> int:
        return len(self.source)

    @functools.cached_property
    def gives_new(self) -> bool:
        """Whether the source makes a new object for each read."""
        return gives_new_records(self.source)

    @functools.cached_property
    def _watch(self) -> SourceWatch | None:
        return watch_source(self.source, lambda: name_source(self.source))

    @property
    def watch(self) -> SourceWatch | None:
        """What watches the first reads of the source; None if nothing does."""
        return None if self._watch is None or self._watch.ended else self._watch

    def read_single(self, positions: Iterable[int], private: bool) -> list[Any]:
        """Read records one by one. If they are not `private`, they may belong to a source that never changes them."""
        source = self.source
        if type(source) is list and not private:
            return list(map(source.__getitem__, positions))
        rows: list[Any] = []
        if (watch := self.watch) is not None:
            for position in positions:
                read = [watch.read(source.__getitem__, position)]
                rows += read if self.gives_new else make_private(read)
                watch.compare((position,), rows[-1:])
            return rows
        if self.gives_new:
            return [source[position] for position in positions]
        if type(source) is list:  # it holds its records, so there is no need to count who does
            return [copy_value(source[position]) for position in positions]
        for position in positions:  # a source may use one buffer for all records
            rows += make_private([source[position]])
        return rows

    def plan(self, indices: np.ndarray) -> Plan:
        positions = epochs.narrowed(indices % self.length)
        many = get_batch_reader(self.source)
        if many is not None:
            return _ManyReads(self, positions, many)
        return _SingleReads(self, positions.tolist())

    @classmethod
    def join_plans(cls, nodes: Sequence[SourceNode]) -> PlanMany | None:
        arrays = join_arrays([node.source for node in nodes])
        lengths = np.array([node.length for node in nodes])
        if arrays is not None:
            return lambda which, indices: _ArraysRead(arrays, which, indices % lengths[which])
        if any(get_batch_reader(node.source) is not None for node in nodes):
            return None

        def plan(which: np.ndarray, indices: np.ndarray) -> Plan:
            return _SingleReadsOfMany(nodes, which.tolist(), (indices % lengths[which]).tolist())

        return plan

    def origin(self, index: int) -> Origin:
        return Origin(name_source(self.source), (index % self.length,))

    @property
    def in_place(self) -> InPlace:
        # Asked of the class itself: a subclass may do other things with its arrays.
        return InPlace.AS_COLUMNS if vars(type(self.source)).get("reads_in_place", False) else InPlace.NEVER

    def element_spec(self) -> Any:
        spec = getattr(self.source, "element_spec", None)
        if spec is None:
            raise NotImplementedError(
                f"The shapes of {name_source(self.source)} are not known without reading it. "
                "Give the source an `element_spec()` method that returns a tree of ShapeDtypeStruct."
            )
        return spec()

    def call(self) -> str:
        return f"source({name_source(self.source)})"

    def describe_read_failure(self, positions: list[int]) -> str:
        """Return the note on an error of the source."""
        return f"bushel: reading {Origin(name_source(self.source), tuple(positions))} failed."


@dataclasses.dataclass(slots=True)
class _SingleReads(Plan):
    node: SourceNode
    positions: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        positions = self.positions[low:high]
        left = iter(positions)
        try:
            return self.node.read_single(left, private)
        except Exception as error:
            raise_for_row(error, len(positions), left, lambda row: self.node.describe_read_failure([positions[row]]))


@dataclasses.dataclass(slots=True)
class _SingleReadsOfMany(Plan):
    """Records of many sources that are read one by one."""

    nodes: Sequence[SourceNode]
    which: list[int]
    positions: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        nodes = [self.nodes[number] for number in self.which[low:high]]
        records = list(zip(nodes, self.positions[low:high], strict=True))
        left = iter(records)

        def where(row: int) -> str:
            return self.nodes[self.which[low + row]].describe_read_failure([self.positions[low + row]])

        rows: list[Any] = []
        try:
            for node, position in left:
                rows += node.read_single((position,), private)
        except Exception as error:
            raise_for_row(error, len(records), left, where)
        return rows


@dataclasses.dataclass(slots=True)
class _ManyReads(Plan):
    node: SourceNode
    positions: np.ndarray
    read_many: Any

    def entries(self, low: int, high: int, names: tuple[str | None, ...]) -> list[list[Any]]:
        source = self.node.source
        if not isinstance(source, RaggedDataSource) or not source._has(names):
            return Plan.entries(self, low, high, names)
        return list(source._entries(self.positions[low:high], names))

    def read(self, low: int, high: int, private: bool) -> Block:
        positions = self.positions[low:high]
        if not private and type(self.node.source) is RaggedDataSource:
            return self.node.source._look(positions)
        try:
            watch = self.node.watch
            answer = [self.read_many(positions) if watch is None else watch.read(self.read_many, positions)]
            if not self.node.gives_new:
                # Inside `memory.allocating`, its own arrays look into memory that only they use.
                answer = [make_answer_private(answer, received=self.node.in_place is not InPlace.NEVER)]
            block = answer.pop()
            block = block if isinstance(block, Columns) else list(block)
            if watch is not None and isinstance(block, list):
                watch.compare(positions.tolist(), block)
        except RowFailed:
            raise
        except Exception as error:
            self._raise_for_single_record(positions.tolist())
            raise RowFailed(0, locate_error(error, self.node.describe_read_failure(positions.tolist()))) from error
        if len(block) != len(positions):
            wrong = ValueError(
                f"{name_source(self.node.source)} was asked for {len(positions)} records and gave {len(block)}: "
                "`__getitems__` must return one record per index."
            )
            raise RowFailed(0, wrong)
        return block

    def _raise_for_single_record(self, positions: list[int]) -> None:
        """Raise for the first record that cannot be read alone either, after a failure of several."""
        left = iter(positions if len(positions) > 1 else [])
        try:
            for position in left:
                self.read_many(np.array([position]))
        except Exception as error:
            raise_for_row(error, len(positions), left, lambda row: self.node.describe_read_failure([positions[row]]))


@dataclasses.dataclass(slots=True)
class _ArraysRead(Plan):
    arrays: JoinedArrays
    which: np.ndarray
    positions: np.ndarray

    def read(self, low: int, high: int, private: bool) -> Block:
        return self.arrays.gather(self.which[low:high], self.positions[low:high])


@in_states("range")
@dataclasses.dataclass(frozen=True, eq=False)
class Range(Leaf):
    """The integers of a `range`."""

    start: int
    stop: int
    step: int

    def find_length(self) -> int:
        return len(range(self.start, self.stop, self.step))

    def plan(self, indices: np.ndarray) -> Plan:
        values = epochs.narrowed(indices % self.length)
        if self.start or self.step != 1:
            values = self.start + values * self.step
        return _Integers(values.tolist())

    def element_spec(self) -> Any:
        return ShapeDtypeStruct(shape=(), dtype=np.int64)

    def call(self) -> str:
        if self.step != 1:
            return f"range({self.start}, {self.stop}, {self.step})"
        return f"range({self.start}, {self.stop})" if self.start else f"range({self.stop})"


@dataclasses.dataclass(slots=True)
class _Integers(Plan):
    values: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        return self.values[low:high]


@in_states("records")
@dataclasses.dataclass(frozen=True, eq=False)
class RecordStream(StreamNode, Ordered):
    """The records of one source that is read in order."""

    source: SequentialSource
    name: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    def open(self, opener: Opener) -> Cursor:
        return _ReaderCursor(self, opener.skips)

    def parameters(self) -> dict[str, Any]:
        return {"kind": find_name(type(self.source)) or type(self.source).__name__, "source": self.source.fingerprint()}

    def element_spec(self) -> Any:
        raise NotImplementedError(f"The shapes of {self.name} are not known without reading it.")

    def call(self) -> str:
        return self.name


class _ReaderCursor(Cursor):
    """Opens its reader when the first record is asked for."""

    def __init__(self, node: RecordStream, skips: Skips | None):
        self._node = node
        self._skips = skips
        self._opened: SequentialReader | None = None
        self._in_use = InUse()

    @property
    def _reader(self) -> SequentialReader:
        if self._opened is None:
            try:
                self._begin(self._node.source.open())
            except _UNREADABLE as error:
                if self._skips is None:
                    raise
                self._begin(_Unopened(error))
        assert self._opened is not None
        return self._opened

    def _begin(self, reader: SequentialReader | None) -> None:
        self._opened = reader
        self._in_use.hold(reader)

    def pull(self, count: int) -> Block:
        in_use = self._in_use
        in_use.users += 1  # as `with` does, in a fifth of the time: this is done for every element
        try:
            if in_use.is_closed:
                raise ValueError(CLOSED)
            while True:
                try:
                    reader = self._opened or self._reader
                    block = reader.read(count)
                    self.at_hand = reader.at_hand
                    return block
                except Exception as error:
                    self._leave_out(locate_error(error, f"bushel: reading {self._node.name} failed."))
        finally:
            in_use.users -= 1
            if in_use.is_closed:
                in_use.close()

    def _leave_out(self, error: Exception) -> None:
        """Skip records that cannot be read. Raise if skipping was not asked for, or is not possible."""
        lost = self._reader.skip() if self._skips is not None and isinstance(error, _UNREADABLE) else 0
        if self._skips is None or not lost:
            raise RowFailed(0, error) from error
        which = f"{'a record' if lost == 1 else f'{lost} records'} of {self._node.name}"
        self._skips.add(which, describe_error(error), lost)

    def mark(self) -> Mark:
        return (self._opened or self._reader).get_state()

    def rewind(self, mark: Mark) -> None:
        with self._in_use:
            if _Unopened.KEY in mark:
                self._begin(_Unopened(None) if mark[_Unopened.KEY] else None)
                self.at_hand = iter(())
                return
            if self._opened is None or isinstance(self._opened, _Unopened):
                self._begin(self._node.source.open())  # there is no position in a file that cannot be opened
            reader = self._reader
            reader.set_state(mark)
            self.at_hand = reader.at_hand

    def state_of(self, mark: Mark) -> State:
        return mark

    def mark_of(self, state: State) -> Mark:
        if self._skips is not None and isinstance(state, dict) and _Unopened.KEY in state:
            return {_Unopened.KEY: read_count(state, _Unopened.KEY)}
        with self._in_use:
            if self._opened is None or isinstance(self._opened, _Unopened):
                self._begin(self._node.source.open())
            for name, value in self._reader.get_state().items():
                read_field(state, name, type(value))
        return state

    def close(self) -> None:
        self._in_use.close()
        self.at_hand = iter(())


_UNREADABLE = (DamagedFile, OSError)
"""Errors of a file itself, which are skipped on request. Any other error is a mistake in the program."""


class _Unopened(SequentialReader):
    """Stands for the reader of a file that could not be opened: it fails once, as if the file were one record."""

    KEY = "unopened_left_out"

    def __init__(self, error: Exception | None):
        self._error = error  # None once it was skipped

    def read(self, count: int) -> Block:
        if self._error is not None:
            raise self._error
        return []

    def skip(self) -> int:
        self._error = None
        return 1

    def get_state(self) -> State:
        return {self.KEY: int(self._error is None)}

    def set_state(self, state: State) -> None:
        """Do nothing: the cursor makes a new object of this class for each position, before or after the failure."""

    def close(self) -> None:
        """Nothing is open."""
