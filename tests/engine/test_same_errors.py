"""The type and the text of an error do not depend on the executor: the consumer, threads, worker processes."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np
import pytest
from helpers.case_counts import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset, ReadOptions
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel.testing import same

LEAVES = st.sampled_from(
    [
        *[0, 3, -5, 2**63, -(2**63), 2**70, 1.5, True, "ab", "c", "", b"ab", 1 + 2j, None],
        *[np.int64(3), np.int32(3), np.uint64(7), np.float32(1), np.float64(2), np.bool_(True), np.str_("xy")],
        *[np.array(3), np.array(3, np.int32), np.array(1.5), np.array("q"), np.datetime64("2020-01-01")],
        *[np.zeros(2), np.zeros(3), np.zeros(2, np.int32), np.zeros((2, 2)), np.zeros(0), np.array(["a", "bc"])],
        *[np.array([1, 2], ">i4"), np.array([1, "x"], object)],
    ]
)


def trees_of(leaves: Any) -> Any:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2),
            st.lists(inner, max_size=2),
            st.lists(inner, max_size=2).map(tuple),
        ),
        max_leaves=4,
    )


@st.composite
def records(draw: Any) -> list[Any]:
    """Records of one structure, but for a few leaves and branches."""

    def vary(tree: Any) -> Any:
        if draw(st.integers(0, 9)) == 0:
            return draw(trees_of(LEAVES))
        if isinstance(tree, dict):
            return {key: vary(part) for key, part in tree.items()}
        return type(tree)(map(vary, tree)) if isinstance(tree, (list, tuple)) else tree

    first = draw(trees_of(LEAVES))
    return [vary(first) for _ in range(draw(st.integers(1, 9)))]


def keep(_: Any) -> bool:
    return True


def identity(x: Any) -> Any:
    return x


BATCHES: dict[str, Any] = {
    "batch": lambda ds, size: ds.batch(size).to_iter_dataset(),
    "batch of a stream": lambda ds, size: ds.to_iter_dataset().batch(size),
    "batch after a filter": lambda ds, size: ds.to_iter_dataset().filter(keep).batch(size),
    "batch after a filter by index": lambda ds, size: ds.filter(keep).to_iter_dataset().batch(size),
    "batch of batches": lambda ds, size: ds.to_iter_dataset().filter(keep).batch(size).batch(2),
    "whole batches": lambda ds, size: ds.to_iter_dataset().filter(keep).batch(size, drop_remainder=True),
    "padded": lambda ds, size: (
        ds.to_iter_dataset()
        .filter(keep)
        .batch(size, batch_fn=functools.partial(bushel.experimental.batch_and_pad, batch_size=size))
    ),
    "after a window": lambda ds, size: bushel.experimental.WindowShuffleIterDataset(
        ds.to_iter_dataset(), window_size=3, seed=1
    ).batch(size),
    "a map after batches": lambda ds, size: ds.to_iter_dataset().filter(keep).batch(size).map(identity),
    "zip": lambda ds, size: bushel.experimental.ZipIterDataset(
        [ds.to_iter_dataset().filter(keep), ds.to_iter_dataset()]
    ).batch(size),
}


def outcome(ds: Any, options: ReadOptions, executor: Processes | None = None) -> tuple[list[Any], Any]:
    """The elements, and the error that ends them: its type, its text and its notes; None at the end."""
    found: list[Any] = []
    with PipelineIterator(ds._node, options, executor) as it:
        try:
            found.extend(it)
        except Exception as error:
            notes = [note for note in getattr(error, "__notes__", ()) if "in worker process" not in note]
            return found, (type(error), str(error), notes)
    return found, None


@pytest.fixture(scope="module")
def workers() -> Any:
    with contextlib.closing(Processes(2)) as executor:
        yield executor


@settings(deadline=None, max_examples=cases(60, 1000))
@given(elements=records(), batches=st.sampled_from(sorted(BATCHES)), size=st.integers(1, 5))
def test_batches_and_their_errors_do_not_depend_on_the_executor(workers, elements, batches, size):
    ds = BATCHES[batches](MapDataset.source(elements).map(identity), size)
    rows, error = outcome(ds, ReadOptions(0, 0))
    for options, executor in ((ReadOptions(3, 7), None), (ReadOptions(0, 0), workers)):
        others, other_error = outcome(ds, options, executor)
        assert error == other_error
        assert len(rows) == len(others) and all(map(same, rows, others))


@pytest.mark.parametrize(
    ("elements", "told"),
    [
        ([1, 2, {"a": 3}], "2 x int\n  1 x {'a': int}"),
        ([{"a": 1}, {"a": 2}, {"b": 1.5}], "2 x {'a': int}\n  1 x {'b': float}"),
        ([{"a": True}, 7, 7.5], "1 x {'a': bool}\n  1 x int\n  1 x float"),
        ([(), (), {"a": 1.5}], "(a tuple of 0 against {'a': float})"),
        ([np.array([1, 2], ">i4"), np.zeros(3)], "1 x int32[2]\n  1 x float64[3]"),
    ],
)
def test_a_number_of_python_is_named_as_such_whoever_sends_it(elements, told, workers):
    for batches in ("batch", "batch after a filter", "padded"):
        ds = BATCHES[batches](MapDataset.source(elements).map(identity), 3)
        for options, executor in ((ReadOptions(0, 0), None), (ReadOptions(3, 7), None), (ReadOptions(0, 0), workers)):
            kind, text, _ = outcome(ds, options, executor)[1]
            assert kind is ValueError and "to have the same structure but got" in text and told in text
