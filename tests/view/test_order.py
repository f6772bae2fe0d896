"""Shares, packing and order, by arithmetic: compared with what the pipeline really delivers."""

import functools
import itertools

import numpy as np
import pytest
from helpers.recipes import build
from helpers.strategies import map_recipes, stream_recipes
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

import bushel
from bushel import IterDataset, MapDataset
from bushel._src.datasets.base_dataset import wrap
from bushel._src.inspection.statistics import EntryStatistics, measure_elements
from bushel._src.view.output_records import (
    NotTraceable,
    count_records,
    first_outputs,
    map_positions,
    measure_order,
    measure_shares,
    trace_outputs,
)
from bushel._src.view.padding import (
    PaddingCounter,
    describe_buckets,
    describe_packing,
    list_leaves,
    measure_packing,
    watch_padding,
)
from bushel._src.view.panels import order as panel
from bushel._src.view.server import to_json
from bushel._src.view.session import BadQuery, Query, Session
from bushel.experimental import FirstFitPackIterDataset, batch_and_pad
from bushel.transforms import DatasetSelectionMap


def part(number, length=40):
    """A dataset whose elements say from which dataset they are, and which record."""
    return MapDataset.source([1000 * number + n for n in range(length)])


PIPELINES = {
    "mix": lambda: MapDataset.mix([part(0), part(1), part(2)], [0.5, 0.3, 0.2]),
    "exact": lambda: MapDataset.mix([part(0), part(1)], [7, 3], exact=True),
    "schedule": lambda: MapDataset.mix([part(0), part(1)], [(0, [1, 0]), (10, [1, 3]), (30, [0, 1])]),
    "size": lambda: MapDataset.mix([part(0, 30), part(1, 7)], "size"),
    "continue": lambda: MapDataset.mix([part(0, 9), part(1, 30)], [1, 1], exact=True, when_exhausted="continue"),
    "restart": lambda: MapDataset.mix(
        [part(0, 9).shuffle(seed=1), part(1, 4).shuffle(seed=2)], [2, 1], exact=True, when_exhausted="restart"
    ),
    "concatenate": lambda: MapDataset.concatenate([part(0, 9), part(1, 11)]).shuffle(seed=4),
    "batches": lambda: MapDataset.mix([part(0), part(1)], [3, 1]).shuffle(seed=3).batch(7),
    "mixed batches": lambda: MapDataset.mix([part(0).batch(3), part(1).batch(2, drop_remainder=True)], [1, 2]),
    "nested": lambda: MapDataset.mix([MapDataset.mix([part(0), part(1)], [1, 3]), part(2)], [3, 1]).map(lambda x: x),
    "repeated": lambda: MapDataset.mix([part(0, 6).repeat(3), part(1, 9).repeat()], [1, 1])[2::3],
    "stream": lambda: MapDataset.mix([part(0), part(1)], [3, 1]).to_iter_dataset().map(lambda x: x).batch(4),
    "mixed streams": lambda: IterDataset.mix([part(0, 10).to_iter_dataset(), part(1, 30).to_iter_dataset()], [1, 2]),
    "batches of mixed streams": lambda: IterDataset.mix(
        [part(0, 10).shuffle(seed=1).to_iter_dataset(), part(1, 30).to_iter_dataset()], [1, 2]
    ).batch(4),
    "packed": lambda: MapDataset.concatenate(
        [MapDataset.source([np.array([1000 * k + n]) for n in range(10)]) for k in (0, 1)]
    ).pack([1] * 20, 4),
}


def deliver(ds, count):
    """The numbers that the first `count` outputs are made of, output by output."""
    outputs = []
    stream = iter(ds)
    for _ in range(count):
        try:
            output = next(stream)
        except StopIteration:
            break
        output = output["tokens"][output["tokens_segment_ids"] > 0] if isinstance(output, dict) else output
        outputs.append(np.atleast_1d(output).reshape(-1))
    return outputs


def read(records):
    """The numbers of traced records."""
    source, length = records.leaf.source, records.leaf.length
    return [int(np.atleast_1d(source[int(index) % length])[0]) for index in records.indices]


@pytest.mark.parametrize("count", [1, 5, 60])
@pytest.mark.parametrize("name", PIPELINES)
def test_traced_records_are_those_that_are_delivered(name, count):
    ds = PIPELINES[name]()
    expected = deliver(ds, count)
    found = trace_outputs(ds._node, first_outputs(count))
    assert found.outputs == len(expected)
    rows = np.concatenate([one.rows for one in found.records])
    numbers = np.concatenate([read(one) for one in found.records])
    for row, output in enumerate(expected):
        assert sorted(numbers[rows == row]) == sorted(output)
    for one in found.records:  # the records of one source are in the order of delivery
        got = read(one)
        assert got == [int(x) for output in expected for x in output if x // 1000 == got[0] // 1000]


@settings(max_examples=60, deadline=None)
@given(recipe=map_recipes(), count=st.integers(1, 12))
def test_traced_records_are_those_that_origin_names(recipe, count):
    ds = build(recipe, bushel)
    found = trace_outputs(ds._node, first_outputs(count))
    assert found.outputs == min(count, len(ds))
    for row in range(found.outputs):
        own = [
            (one.component, one.leaf.origin(int(index)).indices[0], int(index) // one.leaf.length)
            for one in found.records
            for index in one.indices[one.rows == row]
        ]
        assert sorted(own) == sorted((one.component, one.record, one.epoch) for one in ds.origin(row).records)


@settings(max_examples=60, deadline=None)
@given(recipe=stream_recipes())
def test_streams_that_are_known_ahead_have_so_many_outputs(recipe):
    assume("none_for_thirds" not in repr(recipe))  # that a function returns None is seen only when it is called
    ds = build(recipe, bushel)
    try:
        found = trace_outputs(ds._node, first_outputs(10))
    except NotTraceable:
        return
    try:
        with iter(ds) as stream:
            delivered = sum(1 for _ in itertools.islice(stream, 10))
    except ValueError:  # batches of different sizes cannot be batched
        reject()
    assert found.outputs == delivered


@pytest.mark.parametrize("name", [name for name in PIPELINES if name not in ("packed", "mixed batches")])
def test_shares_are_those_that_are_delivered(name):
    ds = PIPELINES[name]()
    count = 12
    outputs = deliver(ds, count)
    shares, *inner = measure_shares(trace_outputs(ds._node, first_outputs(count)))
    flat = np.concatenate(outputs) // 1000
    groups = [[0, 1], [2]] if name == "nested" else [[k] for k in range(len(shares.parts))]
    assert [one.elements for one in shares.parts] == [int(np.isin(flat, group).sum()) for group in groups]
    assert sum(one.actual for one in shares.parts) == pytest.approx(1)
    assert len(inner) == (name == "nested")
    # The last point of each curve is the share over all outputs, and each point that of its prefix.
    for end, points in zip(shares.outputs, zip(*(one.curve for one in shares.parts)), strict=True):
        prefix = np.concatenate(outputs[:end]) // 1000
        true = [np.isin(prefix, group).mean() for group in groups]
        assert points == pytest.approx(true, abs=1e-6)


def test_shares_that_are_asked_for():
    def asked(name, count=20):
        shares = measure_shares(trace_outputs(PIPELINES[name]()._node, first_outputs(count)))[0]
        return [one.target for one in shares.parts]

    assert asked("exact") == [0.7, 0.3]
    assert asked("schedule", 40) == pytest.approx([(10 + 20 / 4) / 40, (20 * 3 / 4 + 10) / 40])
    assert asked("concatenate") == pytest.approx([9 / 20, 11 / 20])
    assert asked("size") == pytest.approx([30 / 37, 7 / 37])
    assert asked("mixed streams") == pytest.approx([1 / 3, 2 / 3])


def test_exact_mixtures_are_within_one_element():
    for name in ("exact", "schedule", "size", "restart"):
        for count in range(1, 35):
            (shares,) = measure_shares(trace_outputs(PIPELINES[name]()._node, first_outputs(count)))
            assert shares.largest_gap < 1 + 1e-9


def test_parts_have_names_and_epochs():
    (shares,) = measure_shares(trace_outputs(PIPELINES["restart"]()._node, first_outputs(27)))
    assert [one.name for one in shares.parts] == ["list of 9", "list of 4"]
    assert [one.epochs for one in shares.parts] == [2.0, 9 / 4]
    keyed = IterDataset.mix({"web": part(0).to_iter_dataset(), "books": part(1).to_iter_dataset()})
    assert [one.name for one in measure_shares(trace_outputs(keyed._node, first_outputs(4)))[0].parts] == [
        "books",
        "web",
    ]


@pytest.mark.parametrize(
    "ds",
    [
        MapDataset.range(9).filter(lambda x: x % 2 == 0).to_iter_dataset(),
        MapDataset.range(9).to_iter_dataset().filter(lambda x: x % 2 == 0).batch(2),
        MapDataset.range(9).to_iter_dataset().window_shuffle(4, seed=1),
    ],
)
def test_streams_that_are_not_known_ahead_say_so(ds):
    with pytest.raises(NotTraceable):
        trace_outputs(ds._node, first_outputs(3))
    routes = panel.routes(Session(ds))
    assert routes["shares"](Query({}))["reason"] and routes["order"](Query({}))["reason"]


class Alternate(DatasetSelectionMap):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 7:
            raise ValueError("no such choice")
        return index % 2, index // 2


def test_a_users_selection_is_asked_and_its_error_shown():
    ds = MapDataset.select_from_datasets([part(0), part(1)], Alternate())
    (shares,) = measure_shares(trace_outputs(ds._node, first_outputs(5)))
    assert [(one.target, one.elements) for one in shares.parts] == [(None, 3), (None, 2)]
    with pytest.raises(ValueError, match="no such choice"):
        trace_outputs(ds._node, first_outputs(9))


def test_a_filter_of_a_map_dataset_is_named():
    found = trace_outputs(MapDataset.range(9).filter(lambda x: x > 3)._node, first_outputs(9))
    assert found.before_filter.startswith("filter(") and found.outputs == 9


class Unreadable:
    """A source of a billion records of which none may be read."""

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        raise AssertionError("A record was read.")


def test_nothing_is_read_of_a_billion_records():
    parts = [MapDataset.source(Unreadable()).shuffle(seed=seed) for seed in (1, 2)]
    ds = MapDataset.mix(parts, [3, 1], exact=True).map(lambda x: x).batch(64)
    routes = panel.routes(Session(ds))
    shares = routes["shares"](Query({"outputs": "50"}))
    assert [one["elements"] for one in shares["mixtures"][0]["parts"]] == [2400, 800]
    order = routes["order"](Query({"outputs": "50"}))
    assert [one["records"] for one in order["sources"]] == [2400, 800]
    assert all(max(one["map"]["positions"]) > 9 * 10**8 for one in order["sources"])
    assert routes["packing"](Query({})) == {
        "packings": [],
        "buckets": [],
        "padded": [],
        "readable": False,
        "read": panel.READ,
    }
    to_json([shares, order])


def test_many_outputs_are_limited():
    ds = MapDataset.range(10**12).batch(10**4)
    answer = panel.routes(Session(ds))["shares"](Query({"outputs": "1000000"}))
    assert answer["outputs"] == panel.RECORDS // count_records(ds._node) == 200


LENGTHS = np.random.default_rng(0).integers(1, 60, 300)


def sequences(keyed=False):
    rows = [np.arange(n) for n in LENGTHS]
    return MapDataset.source([{"text": row, "label": row[: len(row) // 2]} for row in rows] if keyed else rows)


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit", "concat_split"])
def test_packing_is_that_of_the_rows(strategy):
    packed = sequences().pack(LENGTHS, 64, strategy=strategy, seed=1)
    ((feature,),) = (one.features for one in describe_packing(packed.shuffle(seed=1).batch(4)._node))
    assert feature.efficiency == pytest.approx(packed.efficiency["tokens"])
    assert (feature.rows, feature.sequences, feature.tokens) == (len(packed), 300, LENGTHS.sum())
    rows = [packed[index]["tokens_segment_ids"] for index in range(len(packed))]
    filled = np.array([(row > 0).sum() for row in rows])
    pieces = np.array([row.max() for row in rows])
    for histogram, values in ((feature.lengths, LENGTHS), (feature.filled, filled), (feature.per_row, pieces)):
        assert histogram.counts == np.histogram(values, histogram.edges)[0].tolist()
        assert sum(histogram.counts) == len(values)
    assert feature.cut == (0 if strategy != "concat_split" else (pieces.sum() - 300))
    measured = measure_packing([packed[index] for index in range(len(packed))])
    assert measured.features[0].efficiency == pytest.approx(feature.efficiency)
    assert measured.features[0].per_row == feature.per_row and measured.features[0].filled == feature.filled


def test_several_features_and_batches_are_measured_alike():
    lengths = {"text": LENGTHS, "label": LENGTHS // 2}
    packed = sequences(keyed=True).pack(lengths, {"text": 64, "label": 40})
    (planned,) = describe_packing(packed._node)
    batches = packed.batch(5)
    measured = measure_packing([batches[index] for index in range(len(batches))])
    for one, other in zip(planned.features, measured.features, strict=True):
        assert (one.name, one.capacity, one.rows, one.tokens) == (other.name, other.capacity, other.rows, other.tokens)
        assert one.filled == other.filled
    assert measure_packing([{"x": np.zeros(3)}]) is None and measure_packing([3]) is None


def test_packers_of_streams_are_measured_by_reading():
    rows = sequences().map(lambda row: {"tokens": row}).to_iter_dataset()
    packed = FirstFitPackIterDataset(rows, length_struct={"tokens": 64}, num_packing_bins=8)
    routes = panel.routes(Session(packed))
    assert routes["packing"](Query({}))["readable"]
    found = routes["packing_read"](Query({"outputs": "10"}))
    assert found["outputs"] == 10
    (feature,) = found["packing"]["features"]
    stream = iter(packed)
    rows = [next(stream)["tokens_segment_ids"] for _ in range(10)]
    assert feature["tokens"] == sum(int((row > 0).sum()) for row in rows) and feature["rows"] == 10


def test_buckets_are_described_with_their_elements():
    ds = sequences().bucket(LENGTHS, [20, 40, 60], [4, 2, 1], seed=0)
    (buckets,) = describe_buckets(ds._node)
    assert buckets.elements == [
        int(((low < LENGTHS) & (high >= LENGTHS)).sum()) for low, high in ((0, 20), (20, 40), (40, 60))
    ]


FEW = [3, 5, 2, 6, 1]
"""With the boundaries 4 and 8, and two in a batch: 3 + 2 of 8 cells, 1 of 4, and 5 + 6 of 16."""


def padded(rows):
    """A batch of texts that are cut or padded to 5 tokens."""
    tokens = [np.pad(row["tokens"][:5], (0, max(0, 5 - row["n"]))) for row in rows]
    return {"tokens": np.stack(tokens), "n": np.array([row["n"] for row in rows]), "all": np.float32(0)}


def few():
    return MapDataset.source([{"tokens": np.arange(1, n + 1), "n": n} for n in FEW])


def test_the_share_of_real_cells_in_buckets():
    ds = few().bucket(FEW, [4, 8], 2, seed=0)
    (buckets,) = describe_buckets(ds._node)
    assert buckets.real == [6 / 12, 11 / 16] and buckets.efficiency == 17 / 28
    (dropped,) = describe_buckets(few().bucket(FEW, [4, 8], 2, seed=0, drop_remainder=True)._node)
    assert dropped.real == [5 / 8, 11 / 16] and dropped.efficiency == 16 / 24
    routes = panel.routes(Session(ds.map(lambda batch: batch["tokens"]).repeat(2)))
    ((step, call),) = (one.values() for one in routes["packing"](Query({}))["padded"])
    assert call == "bucket([4, 8], [2, 2], seed=0)"
    found = routes["padding_read"](Query({"step": str(step)}))
    assert found == {
        "outputs": 3,
        "leaves": [
            {"name": "tokens", "real": 17, "cells": 28, "share": 17 / 28},
            {"name": "n", "real": 5, "cells": 5, "share": 1.0},
        ],
    }
    with pytest.raises(BadQuery, match="makes no batches that are padded"):
        routes["padding_read"](Query({"step": "0"}))


@pytest.mark.parametrize(
    ("make", "expected"),
    {
        "bucket": (lambda: few().bucket(FEW, [4, 8], 2, seed=0).shuffle(seed=1), {"tokens": (17, 28), "n": (5, 5)}),
        # 3 + 5 of 10 cells, 2 + 5 of 10, 1 of 5
        "a function": (lambda: few().batch(2, batch_fn=padded), {"tokens": (16, 25), "n": (5, 5)}),
        "of a stream": (
            lambda: few().to_iter_dataset().map(lambda row: row).batch(2, batch_fn=padded),
            {"tokens": (16, 25), "n": (5, 5)},
        ),
        "rows": (
            lambda: MapDataset.range(5).batch(3, batch_fn=functools.partial(batch_and_pad, batch_size=3)),
            {"element": (5, 6)},
        ),
        "packed": (
            lambda: few().pack({"tokens": FEW}, {"tokens": 8}).batch(2, batch_fn=pad_to_two),
            {"tokens": (17, 32), "tokens_segment_ids": (24, 32), "tokens_positions": (24, 32)},
        ),
        "masks": (
            lambda: MapDataset.source([{"x": np.ones((4, 2)), "x_pad_mask": np.arange(4) < n} for n in (1, 4)]),
            {"x": (10, 16)},
        ),
        "plain": (lambda: few().map(lambda row: row["tokens"][:1]).batch(2), {}),
    }.values(),
    ids=["bucket", "a function", "of a stream", "rows", "packed", "masks", "plain"],
)
def test_the_share_of_real_cells_of_each_leaf(make, expected):
    ds = make()
    found = measure_elements(ds, progress=False)
    leaves = {name: (entry["cells"], entry["real"]) for name, entry in found["entries"].items() if "real" in entry}
    assert leaves == {name: (cells, real / cells) for name, (real, cells) in expected.items()}
    name = next(iter(expected), "element")
    plain = EntryStatistics()
    for element in ds:
        plain.add(dict(list_leaves(element))[name])
    assert found["entries"][name].items() >= plain.summary().items()  # the elements are those of the pipeline


def test_workers_count_padding_too():
    ds = few().bucket(FEW, [4, 8], 2, seed=0)
    found = measure_elements(ds, workers=1, progress=False)
    assert found == measure_elements(ds, progress=False) and found["entries"]["tokens"]["real"] == 17 / 28


def pad_to_two(rows):
    """A batch of two rows, padded with zeros."""
    return batch_and_pad(rows, batch_size=2)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    drop=st.booleans(),
    shuffled=st.booleans(),
)
def test_the_plan_of_buckets_counts_what_is_delivered(lengths, sizes, drop, shuffled):
    ds = MapDataset.source([np.arange(1, n + 1) for n in lengths])
    column = ds.column(len)
    ds = (ds.shuffle(seed=3) if shuffled else ds).bucket(column, [5, 12], sizes, seed=0, drop_remainder=drop)
    (buckets,) = describe_buckets(ds._node)
    batches = [ds[index] for index in range(len(ds))]
    real, cells = sum(int((batch > 0).sum()) for batch in batches), sum(batch.size for batch in batches)
    assert buckets.efficiency == real / max(1, cells)
    counter = PaddingCounter()
    watched = wrap(watch_padding(ds._node))
    for index in range(len(ds)):
        assert (counter.add(watched[index]) == batches[index]).all()
    assert {name: (leaf.real, leaf.total) for name, leaf in counter.leaves.items()} == (
        {"element": (real, cells)} if batches else {}
    )


def order_of(ds, outputs=1000):
    (one,) = measure_order(trace_outputs(ds._node, first_outputs(outputs)))
    return one


def test_order_of_the_source():
    plain = order_of(MapDataset.range(5000))
    assert (plain.adjacent, plain.distance, plain.reach, plain.together) == (1.0, 1.0, 0, None)
    assert plain.verdict.startswith("In the order of the source")
    assert order_of(MapDataset.range(5000)[100:].batch(10)).together == 1.0
    assert "7 places" in order_of(MapDataset.range(50_000)[::7]).verdict


def test_distances_of_a_shuffle_are_the_true_ones():
    ds = MapDataset.range(3000).shuffle(seed=5)
    values = [int(ds[index]) for index in range(1000)]
    one = order_of(ds)
    steps = np.abs(np.diff(values))
    assert one.distance == np.median(steps) and one.adjacent == (steps == 1).mean()
    lows, counts = one.histogram
    assert counts == np.histogram(steps, [*lows, 1 << len(lows)])[0].tolist() and sum(counts) == 999
    assert one.verdict.startswith("Shuffled over the whole source")
    (points,) = map_positions(ds._node, points=50)
    assert points.positions == [int(ds[index]) for index in points.outputs] and len(points.outputs) == 50


def test_a_shuffle_within_windows_is_told_apart():
    one = order_of(MapDataset.range(100_000).window_shuffle(50, seed=1), 10_000)
    assert one.reach < 50 and "within a part" in one.verdict


def test_neighbours_in_a_batch_are_counted():
    ds = MapDataset.range(40).shuffle(seed=1).batch(10)
    batches = [set(np.asarray(ds[index]).tolist()) for index in range(4)]
    alone = sum(x + 1 not in batch and x - 1 not in batch for batch in batches for x in batch)
    assert order_of(ds, 4).together == pytest.approx(1 - alone / 40)
    # Also for a dataset that has fewer records than there are batches.
    rare = MapDataset.mix([MapDataset.range(900), MapDataset.range(30)], [40, 1]).batch(20)
    assert [one.together for one in measure_order(trace_outputs(rare._node, first_outputs(20)))] == [1.0, 0.0]


def test_a_few_records_are_not_judged():
    assert "too few" in order_of(MapDataset.range(1000).shuffle(seed=1), 5).verdict
    assert "too few" in order_of(MapDataset.range(1000).shuffle(seed=1), 1).verdict


def test_epochs_are_not_compared_with_each_other():
    one = order_of(MapDataset.range(3).repeat(), 9)
    assert one.adjacent == 1.0 and sum(one.histogram[1]) == 6


def test_an_empty_and_a_tiny_pipeline():
    for ds in (MapDataset.source([]), MapDataset.range(1), MapDataset.range(2).batch(5)):
        routes = panel.routes(Session(ds))
        for name in ("shares", "order", "packing"):
            to_json(routes[name](Query({})))
