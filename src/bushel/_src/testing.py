"""Laws that every pipeline should keep: run these checks on your own pipelines.

A check raises AssertionError, which shows the first element that breaks the law.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.base.blocks import Columns
from bushel._src.base.exact_values import whole_text
from bushel._src.base.options import ReadOptions
from bushel._src.base.private_elements import IMMUTABLE, list_children
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.iter_dataset import IterDataset
from bushel._src.datasets.iterator import DatasetIterator, PipelineIterator
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.sources.user_sources import get_batch_reader

_EXECUTORS = {
    "inline": ReadOptions(0, 0),
    "one thread": ReadOptions(1, 1),
    "three threads": ReadOptions(3, 7),
    "sixteen threads": ReadOptions(16, 500),
}


@contextlib.contextmanager
def _ignore_warnings_of_draws() -> Iterator[None]:
    """In the block, nobody is warned of a function that draws random numbers by itself: a check finds it anyway."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* draws from ")
        yield


@public("bushel.testing")
@_ignore_warnings_of_draws()
def check_resumes_anywhere(ds: MapDataset[Any] | IterDataset[Any], *, max_elements: int = 100) -> None:
    """Check that a run can stop after any of its first elements: a new iterator then give the same elements.

    States are converted to JSON and back, as in a checkpoint file.

    >>> import bushel
    >>> check_resumes_anywhere(bushel.MapDataset.range(20).seed(1).shuffle().batch(3))
    """
    states: list[str] = []
    expected: list[Any] = []
    with iter(ds) as it:
        states.append(json.dumps(it.get_state()))
        for element in itertools.islice(it, max_elements):
            expected.append(element)
            states.append(json.dumps(it.get_state()))
        ended = _at_end(it) if len(expected) < max_elements else False
    for start, text in enumerate(states):
        with iter(ds) as it:
            _restore(it, json.loads(text))
            again = json.dumps(it.get_state())
            assert again == text, (
                f"set_state(get_state()) changed the state after {start} elements: {text} became {again}"
            )
            rest = list(itertools.islice(it, len(expected) - start))
            _assert_same(expected[start:], rest, f"resumed after {start} elements", start)
            assert not ended or _at_end(it), f"resumed after {start} elements, the run does not end where it did"


@public("bushel.testing")
@_ignore_warnings_of_draws()
def check_same_for_any_executor(ds: MapDataset[Any] | IterDataset[Any], *, max_elements: int = 100) -> None:
    """Check that elements, order and states are the same for every executor and number of threads.

    >>> import bushel
    >>> check_same_for_any_executor(bushel.MapDataset.range(20).filter(lambda x: x % 3 == 0))
    """
    stream = ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds
    expected: list[Any] | None = None
    states: list[Any] = []
    for name, options in _EXECUTORS.items():
        with PipelineIterator(stream._node, options) as it:
            it.start_prefetch()
            found, found_states = [], [it.get_state()]
            for element in itertools.islice(it, max_elements):
                found.append(element)
                found_states.append(it.get_state())
        if expected is None:
            expected, states = found, found_states
            continue
        _assert_same(expected, found, f"with {name}")
        assert states == found_states, f"with {name}, the states differ from those of inline execution"


@public("bushel.testing")
def check_gives_new_records(source: Any, *, max_records: int = 6) -> None:
    """Check that each read of a source returns new objects: see `gives_new_records` in `RandomAccessDataSource`.

    It reads the first and last records several times and in several orders, one by one and together, and keep all of
    them. Then it writes into each array, list and dict of each, and looks whether anything else has changed.

    >>> import bushel
    >>> check_gives_new_records(bushel.sources.ArrayDataSource({"x": np.zeros((4, 2))}))
    """
    half = max(1, max_records // 2)
    numbers = sorted({*range(min(half, len(source))), *range(max(0, len(source) - half), len(source))})
    order = [*numbers, *numbers[::-1], *numbers[:1] * 2]
    read_many = get_batch_reader(source)
    reads: list[tuple[str, Any]] = [(f"source[{number}]", source[number]) for number in order]
    for several in (numbers, numbers[::-1], numbers[:1] * 2):
        if read_many is None:
            break
        answer = read_many(np.array(several))
        which = f"source.__getitems__({several})"
        if isinstance(answer, Columns):
            reads.append((which, answer.tree))
        else:
            reads += [(f"{which}[{place}]", record) for place, record in enumerate(answer)]
    values = [_take_snapshot(record) for _, record in reads]
    first = {name: value for (name, _), value in zip(reversed(reads), reversed(values))}
    for (name, record), value in zip(reads, values):
        assert value == first[name], f"{name} gives another record the second time."
        assert _take_snapshot(record) == value, f"{name} has changed when other records were read: it is not new."
    parts = [(name, part) for name, record in reads for part in _list_mutable(record)]
    before = [_take_snapshot(part, deep=False) for _, part in parts]
    for place, (name, part) in enumerate(parts):
        assert not isinstance(part, np.ndarray) or part.flags.writeable, f"{name} has an array that cannot be written."
        undo = _write(part)
        for other, (other_name, other_part) in enumerate(parts):
            assert other == place or _take_snapshot(other_part, deep=False) == before[other], (
                f"{name} shares memory with {'another part of itself' if name == other_name else other_name}: "
                f"a {type(part).__name__} was written there, and the other one has changed."
            )
        for again in numbers:
            assert _take_snapshot(source[again]) == first[f"source[{again}]"], (
                f"source[{again}] gives another record after {name} was written: the source keeps its records."
            )
        undo()


def _list_mutable(record: Any) -> list[Any]:
    """Return all objects in a record that can be written, each as often as it is there."""
    if type(record) in IMMUTABLE:
        return []
    if isinstance(record, (np.ndarray, np.generic)):
        parts = record.reshape(-1).tolist() if record.dtype == object else []
    else:
        parts = list(record) if isinstance(record, (tuple, set)) else [part for part, _ in list_children(record)]
    here = [record] if isinstance(record, (np.ndarray, np.void, bytearray, list, dict, set)) else []
    return [*here, *(found for part in parts for found in _list_mutable(part))]


def _write(part: Any) -> Callable[[], object]:
    """Write into an object, and return the function that undoes it."""
    if isinstance(part, np.void):
        fields = {name: np.copy(part[name])[()] for name in part.dtype.names or ()}
        for name, old in fields.items():
            part[name] = _turn_bits(np.asarray(old))[()]
        return lambda: [part.__setitem__(name, old) for name, old in fields.items()]
    if isinstance(part, np.ndarray):
        array = np.asarray(part)
        copied = array.copy()
        array[...] = _turn_bits(copied)
        return lambda: array.__setitem__(..., copied)
    copied = part.copy()
    if isinstance(part, dict):
        part[_Written] = True
    elif isinstance(part, set):
        part.add(_Written)
    else:
        part.append(1)
        return lambda: part.__setitem__(slice(None), copied)
    return lambda: (part.clear(), part.update(copied))


def _turn_bits(array: np.ndarray) -> np.ndarray:
    """Return an array with other values of the same dtype."""
    if array.dtype.hasobject:
        return np.zeros(array.shape, array.dtype)
    return (~np.frombuffer(array.tobytes(), np.uint8)).view(array.dtype).reshape(array.shape)


class _Written:
    """A key that no record has."""


def _take_snapshot(record: Any, deep: bool = True) -> Any:
    """Return the value of a record as plain data; without its parts if it is not `deep`."""
    if isinstance(record, np.ndarray) and record.dtype.hasobject:
        return record.shape, [_take_snapshot(part) if deep else id(part) for part in record.reshape(-1).tolist()]
    if isinstance(record, (np.ndarray, np.generic)):
        return str(record.dtype), record.shape, np.asarray(record).tobytes()
    if isinstance(record, Mapping):
        return [(key, _take_snapshot(part) if deep else id(part)) for key, part in record.items()]
    if isinstance(record, (list, tuple)):
        return [_take_snapshot(part) if deep else id(part) for part in record]
    if isinstance(record, (bytearray, set)):
        return sorted(record, key=id) if isinstance(record, set) else bytes(record)
    parts = [part for part, _ in list_children(record)]
    return [_take_snapshot(part) if deep else id(part) for part in parts] if parts else record


def _restore(it: DatasetIterator[Any], state: Any) -> None:
    # This law is about values. An impure function may change what it closes over, and so the identity.
    if isinstance(it, PipelineIterator):
        it.set_state(state, check=False)
    else:
        it.set_state(state)


def _at_end(it: DatasetIterator[Any]) -> bool:
    return next(it, _END) is _END


_END = object()


def _assert_same(expected: list[Any], found: list[Any], when: str, start: int = 0) -> None:
    for number, (want, have) in enumerate(zip(expected, found, strict=False)):
        assert same(want, have), f"{when}, element {start + number} is {have!r} and should be {want!r}"
    assert len(expected) == len(found), f"{when}, there are {len(found)} elements and there should be {len(expected)}"


@public("bushel.testing")
@in_states("same_values")
def same(a: Any, b: Any) -> bool:
    """Return whether two elements are equal: structure, types of containers, dtypes, shapes and values (NaN equals
    NaN).

    >>> import numpy as np
    >>> same({"x": np.array([1.0, np.nan])}, {"x": np.array([1.0, np.nan])})
    True
    >>> same({"x": np.int32(1)}, {"x": np.int64(1)})
    False
    """
    try:
        verdicts = trees.map_leaves(_same_leaf, a, b)
    except ValueError:
        return False
    return all(trees.leaves(verdicts))


def _same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, np.ma.MaskedArray) or isinstance(b, np.ma.MaskedArray):
        if type(a) is not type(b) or not np.array_equal(np.ma.getmaskarray(a), np.ma.getmaskarray(b)):
            return False
        a, b = np.ma.filled(a), np.ma.filled(b)
    if isinstance(a, (np.str_, np.bytes_)) or isinstance(b, (np.str_, np.bytes_)):
        return type(a) is type(b) and whole_text(a) == whole_text(b)
    if isinstance(a, (np.ndarray, np.generic)) and isinstance(b, (np.ndarray, np.generic)):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM"))
    return type(a) is type(b) and (a == b or (a != a and b != b))
