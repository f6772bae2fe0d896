"""Streams of both libraries side by side: elements, states, and states moved from one to the other."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import operator
from types import ModuleType
from typing import Any

import grain
import numpy as np

import bushel
from bushel._src.datasets.iterator import PipelineIterator
from bushel.testing import same


@dataclasses.dataclass
class Run:
    """What came out of an iterator: elements, the states around them (one more), and how it stopped."""

    elements: list[Any]
    states: list[Any]
    stopped: Any = None  # None where there is more to come
    state_at_the_end: Any = None


def plain(state: Any) -> Any:
    """A state without what only Bushel writes, as it comes back from a file."""
    ours = ("bushel", "ended")  # the identity; and that a zip has ended
    return json.loads(
        json.dumps(state), object_hook=lambda entries: {key: entries[key] for key in entries if key not in ours}
    )


def run(it: Any, most: int = 60) -> Run:
    """Reads an iterator to its end, its first error, or `most` elements."""
    found = Run([], [plain(it.get_state())])
    while len(found.elements) < most:
        try:
            found.elements.append(next(it))
        except StopIteration:
            found.stopped, found.state_at_the_end = StopIteration, plain(it.get_state())
            break
        except Exception as error:
            found.stopped = type(error)
            break
        found.states.append(plain(it.get_state()))
    return found


def restored(ds: Any, state: Any) -> Any:
    """A new iterator of `ds` at a state."""
    it = iter(ds)
    # Unchecked in Bushel, which would warn of a state that Grain wrote.
    unchecked = {"check": False} if isinstance(it, PipelineIterator) else {}
    it.set_state(copy.deepcopy(state), **unchecked)
    return it


def stream(lib: ModuleType, records: Any) -> Any:
    """Records as a stream that is read in the caller's thread."""
    return lib.MapDataset.source(records).to_iter_dataset(lib.ReadOptions(0, 0))


def assert_same(ours: list[Any], theirs: list[Any], what: str) -> None:
    """Elements are equal, one by one."""
    for number, (our, their) in enumerate(itertools.zip_longest(ours, theirs, fillvalue="no element")):
        assert same(our, their), f"{what}: element {number} is {our!r}, and {their!r} in Grain"


def check_equal(build: Any, cut: int = 3, *, most: int = 60, for_grain: Any = lambda state: state) -> Run:
    """Checks that `build(bushel)` and `build(grain)` are the same stream, and go on from each other's states.

    Args:
      build: makes the stream with either library.
      cut: after so many elements, modulo their number, the states change sides.
      most: elements that are read.
      for_grain: makes a state that went through JSON fit for Grain, where Grain's own does not survive that.
    """
    ours, theirs = build(bushel), build(grain)
    our, their = run(iter(ours), most), run(iter(theirs), most)
    assert_same(our.elements, their.elements, "iteration")
    assert our.stopped == their.stopped
    assert our.states == their.states
    assert our.state_at_the_end == their.state_at_the_end
    cut %= len(our.elements) + 1
    moved = run(restored(ours, their.states[cut]), len(our.elements) - cut)
    assert_same(moved.elements, their.elements[cut:], f"from Grain's state after {cut}")
    assert moved.states == their.states[cut:]
    back = run(restored(theirs, for_grain(our.states[cut])), len(our.elements) - cut)
    assert_same(our.elements[cut:], back.elements, f"from Bushel's state after {cut}")
    return our


def is_kept(found: Any, value: Any) -> bool:
    """Whether an entry of a batch is the value that it was made of, by Python's own comparison."""
    if isinstance(value, (str, bytes)):
        entry = np.asarray(found).item()
        return isinstance(entry, str) == isinstance(value, str) and entry == value and value[-1:] not in ("\0", b"\0")
    found, original = np.asarray(found), np.asarray(value)
    if original.dtype.kind in "SU":
        return found.dtype.kind == original.dtype.kind
    if found.dtype.kind in "SU":
        return False
    if original.dtype.kind == "M":
        return found.dtype.kind == "M" and bool((found.astype(original.dtype) == original).all())
    pairs = zip(found.reshape(-1).astype(object), original.reshape(-1).astype(object), strict=True)
    return all(operator.eq(a, b) or (a != a and b != b) for a, b in pairs)
