"""An ordered stage of one's own, in few lines: a node and its cursor. docs/design/engine.md shows the same code."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.stepped_executor import Stepped

import bushel
from bushel._src.base import blocks
from bushel._src.base.blocks import Block, rows_of
from bushel._src.base.errors import StateMismatch
from bushel._src.datasets.iter_dataset import IterPipeline
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Threads
from bushel._src.graph.cursors import END, Cursor, Mark, Over, Skips, State, make_rows, read_field
from bushel._src.graph.streams import OneParent, Opener, Ordered
from bushel.engine import Executor
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor, same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


# The stage.


@dataclasses.dataclass(frozen=True, eq=False)
class Dedupe(OneParent, Ordered):
    """Drops each element whose entry `key` equals that of the element before it."""

    key: str

    def open(self, opener: Opener) -> Cursor:
        return DedupeCursor(opener.open(self.parent), self, opener.skips)

    def call(self) -> str:
        return f"dedupe({self.key!r})"


class DedupeCursor(Over[Dedupe]):
    def __init__(self, parent: Cursor, node: Dedupe, skips: Skips | None):
        super().__init__(parent, node, skips)
        self.last: Any = None

    def pull(self, count: int) -> Block:
        return make_rows(self, count, self.next_row, self.skips)

    def next_row(self) -> Any:
        while len(block := self.parent.pull(1)):
            (row,) = blocks.rows_of(block)
            before, self.last = self.last, int(row[self.node.key])
            if self.last != before:
                return row
        return END

    def mark(self) -> Mark:
        return self.parent.mark(), self.last

    def rewind(self, mark: Mark) -> None:
        at, self.last = mark
        self.parent.rewind(at)

    def state_of(self, mark: Mark) -> State:
        return {"parent": self.parent.state_of(mark[0]), "last": mark[1]}

    def mark_of(self, state: State) -> Mark:
        return self.parent_mark_of(state), read_field(state, "last", object)


# Its laws.


def dedupe(ds: bushel.IterDataset[Any], key: str) -> bushel.IterDataset[Any]:
    return IterPipeline(Dedupe(ds._node, key))


def hash_text(element: dict[str, Any]) -> dict[str, Any]:
    """Work for workers before the ordered stage; it writes into its element, and so does the step after."""
    element["hash"] = sum(map(ord, element["text"]))
    return element


def with_noise(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    element["hash"] = -1  # the stage must not look at an element that it has given away
    return {**element, "noise": rng.integers(1000)}


TEXTS = [letter for letter, times in zip("abcabcdab", (1, 3, 2, 1, 1, 5, 2, 4, 3)) for _ in range(times)]


def pipeline() -> bushel.IterDataset[Any]:
    """Work that can be done ahead, the stage, and more of such work behind it."""
    texts = bushel.MapDataset.source([{"text": text, "number": n} for n, text in enumerate(TEXTS)])
    stream = texts.to_iter_dataset().map(hash_text)
    return dedupe(stream, "hash").seed(3).random_map(with_noise)


EXECUTORS = {"here": lambda: None, "stepped": lambda: Stepped(1), "threads": lambda: Threads(3)} | {
    "1 process": lambda: Processes(1),
    "2 processes": lambda: Processes(2),
}


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    made = EXECUTORS[request.param]()
    yield made
    if made is not None:
        made.close()


def run(ds: Any, executor: Executor | None, state: str | None = None) -> tuple[list[Any], list[str]]:
    """All elements from a state on, the states around them, and the state at the end."""
    with PipelineIterator(ds._node, executor=executor) as it:
        if state is not None:
            it.set_state(json.loads(state))
        elements, states = [], [json.dumps(it.get_state())]
        for element in it:
            elements.append(element)
            states.append(json.dumps(it.get_state()))
        return elements, [*states, json.dumps(it.get_state())]  # the last one after the end


def test_the_stage_drops_repeated_elements():
    found = [element["number"] for element in pipeline()]
    first_of_each = [number for number, text in enumerate(TEXTS) if number == 0 or text != TEXTS[number - 1]]
    assert found == first_of_each


def test_elements_states_and_resuming_are_the_same_on_every_executor(executor):
    expected, states = run(pipeline(), None)
    elements, found_states = run(pipeline(), executor)
    assert same(elements, expected)
    assert found_states == states
    for given, state in enumerate(states):
        rest, later = run(pipeline(), executor, state)
        assert same(rest, expected[given:])
        assert later[: len(states) - given] == states[given:]


def fail_at_six(element: dict[str, Any]) -> dict[str, Any]:
    if element["number"] == 6:
        raise ValueError("six")
    return element


@pytest.mark.parametrize("after", [False, True], ids=["before the stage", "after the stage"])
def test_an_element_that_fails_is_raised_in_its_place_or_skipped(executor, after):
    stream = bushel.MapDataset.source([{"number": n, "key": n // 2} for n in range(12)]).to_iter_dataset()
    ds = dedupe(stream, "key").map(fail_at_six) if after else dedupe(stream.map(fail_at_six), "key")
    kept = [0, 2, 4, 8, 10] if after else [0, 2, 4, 7, 8, 10]
    with PipelineIterator(ds._node, executor=executor) as it:
        assert [element["number"] for element in itertools.islice(it, 3)] == [0, 2, 4]
        state = it.get_state()
        with pytest.raises(ValueError, match="six"):
            next(it)
        assert it.get_state() == state
    with PipelineIterator(ds.with_options(on_error="skip")._node, executor=executor) as it:
        assert [element["number"] for element in it] == kept
        assert it.skipped == 1


def test_rows_before_a_failure_are_given_first(executor):
    stream = bushel.MapDataset.source([{"number": n, "key": n // 2} for n in range(12)]).to_iter_dataset()
    with PipelineIterator(dedupe(stream.map(fail_at_six), "key")._node, executor=executor) as it:
        cursor = it._cursor
        assert [row["number"] for row in rows_of(cursor.pull(12))] == [0, 2, 4]
        state = cursor.get_state()
        with pytest.raises(ValueError, match="six"):
            cursor.pull(12)
        cursor.set_state(state)
        assert cursor.get_state() == state


def test_the_stage_feeds_batches(executor):
    expected = run(pipeline().batch(3), None)
    found = run(pipeline().batch(3), executor)
    assert same(found[0], expected[0])
    assert found[1] == expected[1]


def test_the_laws_that_users_can_run():
    check_resumes_anywhere(pipeline())
    check_same_for_any_executor(pipeline())


@pytest.mark.parametrize("state", [None, {}, {"last": 1}, {"parent": {"next_index": 99}, "last": 1}, {"parent": 3}])
def test_a_state_that_is_none_is_refused(state):
    ds = dedupe(bushel.MapDataset.source([{"key": 1}]).to_iter_dataset(), "key")
    with PipelineIterator(ds._node) as it, pytest.raises(StateMismatch):
        it.set_state(state, check=False)


def test_another_key_is_another_pipeline():
    stream = bushel.MapDataset.source([{"a": 1, "b": 2}]).to_iter_dataset()
    with iter(dedupe(stream, "a")) as it:
        state = it.get_state()
    with iter(dedupe(stream, "b")) as it, pytest.raises(StateMismatch, match="dedupe"):
        it.set_state(state)


def test_the_stage_is_short_and_is_the_code_of_the_page():
    source = inspect.getsource(Dedupe) + "\n\n" + inspect.getsource(DedupeCursor)
    assert len([line for line in source.splitlines() if line.strip()]) < 40
    page = Path(__file__).parents[2] / "docs" / "design" / "engine.md"
    shown = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert any(source in block for block in shown)
