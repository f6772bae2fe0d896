"""Maps and filters that run in one loop: the elements and the errors of one loop for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel import MapDataset
from bushel._src.graph import map_ops


class Failure(Exception):
    pass


class Step:
    """A function that fails at one value, and returns None at another."""

    def __init__(self, number: int, drops: bool, fails_at: int, none_at: int):
        self.number, self.drops, self.fails_at, self.none_at = number, drops, fails_at, none_at

    def make_function(self) -> Any:
        def call(x: int) -> Any:
            if x == self.fails_at:
                raise Failure(self.number)
            if self.drops:
                return x % 3 != self.number % 3
            return None if x == self.none_at else x + 1

        call.__name__ = call.__qualname__ = f"step_{self.number}"
        return call


def run_one_by_one(steps: list[Step], values: list[int]) -> tuple[list[Any], int | None, int | None]:
    """What the steps make of each value, the row at which one fails, and which."""
    made: list[Any] = []
    functions = [step.make_function() for step in steps]
    for row, value in enumerate(values):
        x: Any = value
        for step, function in zip(steps, functions, strict=True):
            if x is None:
                break
            try:
                result = function(x)
            except Failure:
                return made, row, step.number
            x = (x if result else None) if step.drops else result
        made.append(x)
    return made, None, None


kinds = st.tuples(st.booleans(), st.integers(-1, 12), st.integers(-1, 12))


@settings(max_examples=80, deadline=None)
@given(kinds=st.lists(kinds, min_size=1, max_size=6), count=st.integers(1, 12))
def test_a_chain_gives_the_elements_and_the_first_error_of_its_steps(kinds, count):
    steps = [Step(number, *kind) for number, kind in enumerate(kinds)]
    ds = MapDataset.source(list(range(count)))
    for step in steps:
        function = step.make_function()
        ds = ds.filter(function) if step.drops else ds.map(function)
    chains = ds._node._chains
    assert sum(map(len, chains)) == len(steps) and len(chains) <= 1 + sum(step.drops for step in steps)
    made, row, failed = run_one_by_one(steps, list(range(count)))
    if row is None:
        assert ds.get(np.arange(count)) == made
        return
    with pytest.raises(Failure) as caught:
        ds.get(np.arange(count))
    assert caught.value.args == (failed,)
    (note,) = [note for note in caught.value.__notes__ if "failed at" in note]
    assert f"step_{failed} @" in note and f"failed at its element {row}, made of record {row} of" in note


def test_a_function_that_runs_a_chain_of_its_own_is_named_itself():
    def fail(x: int) -> int:
        raise Failure(x)

    inner = MapDataset.source([5]).map(lambda x: x + 1).map(lambda x: x + 1).map(fail)

    def ask(x: int) -> int:
        return inner[0]

    outer = MapDataset.source([1]).map(ask).map(lambda x: x + 1).map(lambda x: x + 1)
    with pytest.raises(Failure) as caught:
        outer.get(np.arange(1))
    notes = [note for note in caught.value.__notes__ if "failed at" in note]
    assert "map(fail @" in notes[0] and "ask @" in notes[-1]


def test_each_sequence_of_kinds_is_compiled_once():
    assert map_ops.compile_steps((False, True)) is map_ops.compile_steps((False, True))
    run = map_ops.compile_steps((False, False, True))
    assert run(iter([1, None, 5]), [lambda x: x * 2, lambda x: None if x == 2 else x, bool]) == [None, None, 10]
