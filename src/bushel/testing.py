"""Laws that every pipeline should keep: run these checks on your own pipelines.

A check raises AssertionError, which shows the first element that breaks the law.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np

from bushel.base import trees
from bushel.base.options import ReadOptions
from bushel.base.pickling import whole_text
from bushel.dataset import IterDataset, MapDataset
from bushel.iterator import DatasetIterator, PipelineIterator

_EXECUTORS = {
    "inline": ReadOptions(0, 0),
    "one thread": ReadOptions(1, 1),
    "three threads": ReadOptions(3, 7),
    "sixteen threads": ReadOptions(16, 500),
}


def check_resumes_anywhere(ds: MapDataset[Any] | IterDataset[Any], *, max_elements: int = 100) -> None:
    """Checks that a run can stop after any of its first elements: a new iterator then gives the same elements.

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


def check_same_for_any_executor(ds: MapDataset[Any] | IterDataset[Any], *, max_elements: int = 100) -> None:
    """Checks that elements, order and states are the same for every executor and number of threads.

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


def same(a: Any, b: Any) -> bool:
    """Whether two elements are equal: structure, types of containers, dtypes, shapes and values (NaN equals NaN).

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
