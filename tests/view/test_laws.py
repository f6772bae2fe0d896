"""Laws of the viewer, for random pipelines: it shows what the pipeline gives, after each step and at any position."""

import itertools
import json

import numpy as np
from helpers.recipes import build
from helpers.reordering_pipelines import moved
from helpers.strategies import map_recipes, stream_recipes
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base import trees
from bushel._src.display.describe import describe_element
from bushel._src.view.panels import load
from bushel._src.view.panels.origin import trace
from bushel._src.view.server import answer, to_json
from bushel._src.view.session import Query, Session
from bushel._src.view.targets import open_session

FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


def same(a, b):
    left, right = trees.leaves(a), trees.leaves(b)
    return len(left) == len(right) and all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in zip(left, right))


@FEW
@given(recipe=map_recipes(), index=st.integers(0, 200))
def test_elements_after_every_step_of_a_map_dataset(recipe, index):
    ds = build(recipe, bushel)
    session = Session(ds)
    for step in session.steps:
        reading = session.read(step.number, index)
        if step.length == 0:
            assert reading.ended == 0
            continue
        try:
            expected = step.dataset[index]
        except OverflowError as error:  # a function of the recipe
            assert type(error).__name__ in reading.error
        else:
            assert reading.error == "" and same(reading.element, expected)
            to_json(describe_element(reading.element))
    to_json(session.describe())


def take(it, count):
    """Up to `count` elements of an iterator, and whether it failed after them."""
    elements = []
    try:
        for element in itertools.islice(it, count):
            elements.append(element)
    except ValueError:  # streams of different lengths, zipped strictly
        return elements, True
    return elements, False


def check(reading, elements, failed, place):
    """The reading of an element at `place` is that of these elements, which end there or fail there."""
    if place < len(elements):
        assert reading.error == "" and same(reading.element, elements[place])
    elif failed:
        assert "zip" in reading.error
    else:
        assert reading.ended is not None and reading.error == ""


def has_nones(session):
    """Whether a function may return None, so that indices of a stream that can seek have gaps."""
    return any("none_for_thirds" in step.node.call() for step in session.steps)


@FEW
@given(recipe=stream_recipes(), positions=st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_elements_of_a_stream_at_any_position(recipe, positions):
    stream = build(recipe, bushel)
    elements, failed = take(iter(stream), 41)
    session = Session(stream)
    assume(not has_nones(session))
    for position in positions:
        check(session.read(-1, position), elements, failed, position)
    session.close()


@FEW
@given(recipe=stream_recipes(), taken=st.integers(0, 12), ahead=st.integers(0, 5))
def test_a_checkpoint_shows_what_comes_next(recipe, taken, ahead):
    it = iter(build(recipe, bushel))
    take(it, taken)
    session = open_session(build(recipe, bushel), checkpoint=json.loads(json.dumps(it.get_state())))
    assume(not has_nones(session))
    elements, failed = take(it, ahead + 1)
    check(session.read(-1, session.start + ahead), elements, failed, ahead)
    session.close()


@FEW
@given(ds=moved(depth=3), index=st.integers(0, 500))
def test_the_way_of_an_element_ends_at_the_records_of_origin(ds, index):
    leaves = [passage for passage in trace(ds._node, index) if not passage.node.parents]
    found = sorted(passage.node.origin(one).indices[0] for passage in leaves for one in passage.indices)
    assert found == sorted(record.record for record in ds.origin(index).records)


@FEW
@given(
    arguments=st.dictionaries(
        st.sampled_from(["step", "index", "row", "path", "skips", "seconds"]),
        st.one_of(
            st.integers(-3, 30).map(str),
            st.text(max_size=8),
            st.sampled_from(['["x"]', "[[]]", "{}", "null", '["0", "1"]']),
        ),
    )
)
def test_no_arguments_break_a_panel(arguments):
    """Each answer is JSON with status 200 or 400. Status 500 is for what a user's own code raises."""
    session = SESSION
    for panel in load():
        for name, function in panel.routes(session).items():
            if name != "measure":
                status, body = answer(function, Query(arguments))
                assert status in (200, 400) and to_json(body), (panel.name, name, arguments, body)


SESSION = Session(bushel.MapDataset.range(12).map(lambda n: {"x": np.full((8, 8, 3), n, np.uint8)}).batch(3))
