"""Options of a pipeline: merged as Grain merges them, for the whole of it, and no part of what it is."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import grain
import numpy as np
import pytest
from helpers.case_counts import cases
from helpers.stepped_executor import Stepped
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Executor, Threads
from bushel._src.graph.streams import options_of
from bushel.experimental import DatasetOptions, ExecutionTrackingMode, WithOptionsIterDataset
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

laws = settings(max_examples=60, deadline=None)

GRAINS = [field.name for field in dataclasses.fields(grain.experimental.DatasetOptions) if field.init]


def options(library: Any, choice: dict[str, Any]) -> Any:
    modes = library.experimental.ExecutionTrackingMode
    mode = {"execution_tracking_mode": modes[choice["mode"]]} if "mode" in choice else {}
    return library.experimental.DatasetOptions(**{n: v for n, v in choice.items() if n != "mode"}, **mode)


def told(given: Any) -> dict[str, Any]:
    """Values by name, and which of them were chosen."""
    chosen = given._chosen if isinstance(given, DatasetOptions) else given._user_set_fields
    values = {name: getattr(given, name) for name in GRAINS}
    values["execution_tracking_mode"] = values["execution_tracking_mode"].name
    return values | {"chosen": sorted(chosen)}


ratios = st.none() | st.sampled_from([0, 0.0, 0.5, 0.9, 1.0])
choices = st.fixed_dictionaries(
    {},
    optional={
        "filter_warn_threshold_ratio": ratios,
        "filter_raise_threshold_ratio": ratios,
        "mode": st.sampled_from(["DISABLED", "STAGE_TIMING"]),
        "min_shm_size": st.integers(0, 3),
    },
)


def test_names_and_defaults_are_grains():
    assert told(DatasetOptions()) == told(grain.experimental.DatasetOptions())
    ours, theirs = ExecutionTrackingMode, grain.experimental.ExecutionTrackingMode
    assert {mode.name: mode.value for mode in ours} == {mode.name: mode.value for mode in theirs}
    with pytest.raises(TypeError):
        DatasetOptions(0.5)


@laws
@given(st.lists(choices, min_size=1, max_size=4))
def test_options_are_merged_as_grain_merges_them(several):
    ours, theirs = (options(library, several[0]) for library in (bushel, grain))
    for choice in several[1:]:
        ours, theirs = ours.merge(options(bushel, choice)), theirs.merge(options(grain, choice))
        assert told(ours) == told(theirs)
    assert ours.merge(None) is ours
    assert eval(repr(ours)) == ours


def trees() -> Any:
    """Pipelines: ("leaf", a), ("options", choice, below), ("map", below), ("mix", parts)."""
    leaf = st.tuples(st.just("leaf"))
    return st.recursive(
        leaf,
        lambda below: (
            st.tuples(st.just("options"), choices, below)
            | st.tuples(st.just("map"), below)
            | st.tuples(st.just("random"), below)
            | st.tuples(st.just("mix"), st.lists(below, min_size=1, max_size=3))
        ),
        max_leaves=5,
    )


def built(library: Any, tree: Any) -> Any:
    match tree:
        case ("leaf",):
            return library.MapDataset.range(6).seed(3).to_iter_dataset()
        case ("options", choice, below):
            return library.experimental.WithOptionsIterDataset(built(library, below), options(library, choice))
        case ("map", below):
            return built(library, below).map(lambda x: x + 1)
        case ("random", below):
            return built(library, below).random_map(lambda x, rng: x + int(rng.integers(1000)))
        case ("mix", parts):
            return library.IterDataset.mix([built(library, part) for part in parts])
    raise AssertionError(tree)


@laws
@given(trees())
def test_the_options_of_a_pipeline_and_its_elements_are_grains(tree):
    ours, theirs = built(bushel, tree), built(grain, tree)
    its = iter(theirs)
    assert told(options_of(ours._node)) == told(its._ctx.dataset_options)
    assert list(ours) == list(its)


@laws
@given(trees())
def test_options_are_no_part_of_state_and_identity(tree):
    ds = built(bushel, tree)
    held = WithOptionsIterDataset(ds, DatasetOptions(filter_warn_threshold_ratio=None, min_shm_size=7))
    plain, wrapped = iter(ds), iter(held)
    head = [next(plain) for _ in range(2)]
    assert [next(wrapped) for _ in range(2)] == head
    assert wrapped.get_state() == plain.get_state()
    wrapped.set_state(json.loads(json.dumps(plain.get_state())))
    assert list(wrapped) == list(plain)


def own(library: Any) -> type:
    """A dataset of one's own that hands its parent's elements on."""

    class Handed(library.DatasetIterator):
        def __next__(self):
            return next(self._parent)

        def get_state(self):
            return self._parent.get_state()

        def set_state(self, state):
            self._parent.set_state(state)

    class Hands(library.IterDataset):
        def __iter__(self):
            return Handed(iter(self._parent))

    return Hands


@pytest.mark.parametrize("ratios", [(0.5, None), (None, 0.5), (0.9, 0.5), (0.5, 0.9), (0.9, None)])
def test_options_reach_through_a_dataset_of_ones_own(ratios):
    def pipeline(library: Any) -> Any:
        with_options = library.experimental.WithOptionsIterDataset
        inner, outer = (library.experimental.DatasetOptions(filter_raise_threshold_ratio=ratio) for ratio in ratios)
        ds = library.MapDataset.range(3000).to_iter_dataset().filter(lambda x: x % 10 < 4)
        return with_options(own(library)(with_options(ds, inner)), outer)

    expected = run(iter(pipeline(grain)))
    assert run(iter(pipeline(bushel))) == expected
    assert (expected[1] is ValueError) == (ratios[1] == 0.5)
    assert run(iter(bushel.MapDataset.range(3).to_iter_dataset())) == ([0, 1, 2], None)  # and they stay there


# Filters that drop too much.


@pytest.fixture(scope="module")
def warm() -> Iterator[dict[str, Executor | None]]:
    executors = {"stepped": Stepped(1), "threads": Threads(2), "processes": Processes(2)}
    yield {"inline": None, **executors}
    for executor in executors.values():
        executor.close()


PIPELINES = {
    "a map": lambda ds, keep: ds.filter(keep).to_iter_dataset(),
    "a map, Nones allowed": lambda ds, keep: ds.filter(keep).to_iter_dataset(allow_nones=True),
    "a stream": lambda ds, keep: ds.to_iter_dataset().filter(keep),
    "two of them": lambda ds, keep: ds.to_iter_dataset().filter(keep).map(lambda x: x + 1).filter(keep),
    "a map and a stream": lambda ds, keep: ds.filter(keep).to_iter_dataset().filter(lambda x: keep(x + 1)),
    "then batches": lambda ds, keep: ds.to_iter_dataset().filter(keep).batch(7),
    "after batches": lambda ds, keep: ds.to_iter_dataset().batch(2).filter(lambda b: keep(int(b[0]))),
}


def run(it: Any) -> tuple[list[Any], type | None]:
    elements = []
    try:
        for element in it:
            elements.append(element)
    except Exception as error:
        return elements, type(error)
    return elements, None


@settings(laws, max_examples=cases(10, 25))
@given(
    name=st.sampled_from(sorted(PIPELINES)),
    seed=st.integers(0, 99),
    ratio=st.sampled_from([None, 0, 0.3, 0.5, 0.9, 1]),
    shares=st.lists(st.sampled_from([0.0, 0.05, 0.5, 0.7, 1.0]), min_size=1, max_size=4),
)
@example(name="a map", seed=0, ratio=0.9, shares=[1.0, 0.0, 0.05, 0.0])  # drops nothing at first
@example(name="a map", seed=0, ratio=1, shares=[0.0, 0.0])  # drops exactly as many as are too many
def test_a_filter_that_drops_too_much_ends_where_grains_does(warm, name, seed, ratio, shares):
    rng = np.random.default_rng(seed)
    kept = np.concatenate([rng.random(700) < share for share in shares]).tolist()
    keep = lambda x: kept[x % len(kept)]  # noqa: E731

    def pipeline(library: Any) -> Any:
        ds = PIPELINES[name](library.MapDataset.range(len(kept)), keep)
        choice = library.experimental.DatasetOptions(filter_raise_threshold_ratio=ratio)
        return library.experimental.WithOptionsIterDataset(ds, choice)

    expected = run(iter(pipeline(grain)))
    for executor in warm.values():
        with PipelineIterator(pipeline(bushel)._node, bushel.ReadOptions(0, 0), executor) as it:
            found = run(it)
            assert same(found[0], expected[0])
            assert found[1] == expected[1]
            if found[1] is not None:  # nothing gets past it by asking again, and the state is that of what was given
                state = it.get_state()
                assert run(it) == ([], ValueError)
                assert it.get_state() == state


@pytest.mark.parametrize("executor", ["inline", "stepped"])
def test_the_error_of_a_filter_says_what_and_the_way_out(warm, executor):
    def even_odder(x):
        return x % 100 == 0

    ds = bushel.MapDataset.range(5000).to_iter_dataset().map(abs).filter(even_odder)
    ds = WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=0.95)).batch(3)
    with pytest.raises(ValueError) as raised:
        list(PipelineIterator(ds._node, None, warm[executor]))
    sentence = (
        "even_odder) dropped 99.00 % of the last 1000 elements. Please check the filter; if it is meant, filtering the "
        "data once before training is cheaper. This is said from 95 % on: see "
        "DatasetOptions(filter_raise_threshold_ratio=...), None for never."
    )
    assert sentence in str(raised.value)


@pytest.mark.parametrize("executor", ["inline", "stepped"])
@pytest.mark.parametrize(("ratio", "warnings"), [(0.5, 1), (0.6, 0), (None, 0), (0, 0)])
def test_the_threshold_of_the_warning(warm, caplog, executor, ratio, warnings):
    ds = bushel.MapDataset.range(3000).to_iter_dataset().filter(lambda x: x % 2 == 0)
    ds = WithOptionsIterDataset(ds, DatasetOptions(filter_warn_threshold_ratio=ratio))
    list(PipelineIterator(ds._node, None, warm[executor]))
    said = [record.message for record in caplog.records]
    assert len(said) == warnings
    assert all(line.startswith("filter(<lambda>) dropped 50.00 % of the last 1000 elements.") for line in said)


BAD = [
    (lambda: DatasetOptions(filter_warn_threshold_ratio=1.5), ValueError, "filter_warn_threshold_ratio is a share"),
    (lambda: DatasetOptions(filter_raise_threshold_ratio=-0.1), ValueError, "got -0.1"),
    (lambda: DatasetOptions(filter_raise_threshold_ratio=float("nan")), ValueError, "got nan"),
    (lambda: DatasetOptions(filter_raise_threshold_ratio="0.5"), ValueError, "got '0.5'"),
    (lambda: DatasetOptions(execution_tracking_mode=True), TypeError, "got True"),
    (lambda: DatasetOptions(min_shm_size=-1), ValueError, "min_shm_size must be non-negative, got -1"),
    (
        lambda: WithOptionsIterDataset(bushel.MapDataset.range(3), DatasetOptions()),
        TypeError,
        "takes an IterDataset, got a MapDataset",
    ),
    (
        lambda: WithOptionsIterDataset(bushel.MapDataset.range(3).to_iter_dataset(), {}),
        TypeError,
        "takes DatasetOptions, got {}",
    ),
]


@pytest.mark.parametrize(("make", "kind", "sentence"), BAD)
def test_bad_options_are_refused_in_a_sentence(make, kind, sentence):
    with pytest.raises(kind, match=None) as raised:
        make()
    assert sentence in str(raised.value)
