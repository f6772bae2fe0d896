"""Packers of streams: Grain's rows and states on random sequences, and what a packer must keep whatever comes."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import grain
import numpy as np
import pytest
from helpers.beside_grain import check_equal, restored, run, stream
from helpers.case_counts import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base import trees
from bushel._src.base.blocks import rows_of
from bushel._src.engine.opener import open_stream
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor, same

PACKERS = ["FirstFitPackIterDataset", "BestFitPackIterDataset"]
quick = settings(deadline=None, max_examples=cases(50, 120))


def tokens(lengths, dtype=np.int32, inner=()):
    """One sequence for each length, no two tokens alike."""
    ends = np.cumsum(lengths)
    return [
        (np.arange(end - n, end).reshape(-1, *(1 for _ in inner)) + np.zeros(inner)).astype(dtype) + 1
        for n, end in zip(lengths, ends, strict=True)
    ]


@st.composite
def problems(draw, fewest=1, above=0, empty=True):
    """Records with one to three features, how long rows are, and some that are no sequences."""
    names = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True))
    capacities = {name: draw(st.integers(2, 10)) for name in names}
    count = draw(st.integers(fewest, 30))
    records: list[dict] = [{} for _ in range(count)]
    for name in names:
        kind = draw(st.sampled_from(["tokens", "tokens", "vectors", "floats", "scalars"]))
        least = 0 if empty else 1
        sizes = draw(st.lists(st.integers(least, capacities[name] + above), min_size=count, max_size=count))
        if kind == "scalars":
            values = [int(size) for size in sizes]
        elif kind == "vectors":
            values = tokens(sizes, np.int64, (2,))
        else:
            values = tokens(sizes, np.float32 if kind == "floats" else np.int32)
        for record, value in zip(records, values, strict=True):
            record[name] = value
    return records, capacities


@st.composite
def packings(draw):
    """Arguments of a packer, with the records that it gets."""
    records, capacities = draw(problems(empty=False))
    names = sorted(capacities)
    arguments = {
        "length_struct": capacities,
        "num_packing_bins": draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 100)),
        "shuffle_bins": draw(st.booleans()),
    }
    if draw(st.integers(0, 3)) == 0:
        arguments["pack_alignment_struct"] = {name: draw(st.integers(1, 4)) for name in names}
    if draw(st.integers(0, 3)) == 0:
        arguments["padding_struct"] = {name: draw(st.sampled_from([None, 0, -1, 7])) for name in names}
    if draw(st.integers(0, 3)) == 0:
        arguments["max_sequences_per_bin"] = draw(st.integers(1, 3))
    if draw(st.integers(0, 3)) == 0:
        arguments["meta_features"] = draw(st.lists(st.sampled_from([*names, "note", "other"]), unique=True, max_size=3))
    flat = [name for name in names if np.ndim(records[0][name]) < 2]
    if flat and draw(st.integers(0, 3)) == 0:
        arguments["shuffle_bins_group_by_feature"] = draw(st.sampled_from(flat))
    for number, record in enumerate(records):
        record["note"], record["other"] = f"record {number}", number  # dropped where they are no meta features
    return records, arguments


@quick
@given(packing=packings(), name=st.sampled_from(PACKERS), cut=st.integers(0, 50))
def test_packed_rows_are_grains(packing, name, cut):
    records, arguments = packing
    check_equal(lambda lib: getattr(lib.experimental, name)(stream(lib, records), **arguments), cut)


@quick
@given(packing=packings(), name=st.sampled_from(PACKERS), size=st.integers(1, 5), cut=st.integers(0, 50))
def test_batches_of_packed_rows_are_grains(packing, name, size, cut):
    records, arguments = packing
    arguments.pop("meta_features", None)
    check_equal(lambda lib: getattr(lib.experimental, name)(stream(lib, records), **arguments).batch(size), cut)


@settings(deadline=None, max_examples=cases(12, 30))
@given(packing=packings(), name=st.sampled_from(PACKERS))
def test_packers_resume_anywhere_and_run_on_any_executor(packing, name):
    records, arguments = packing
    ds = getattr(bushel.experimental, name)(bushel.MapDataset.source(records), **arguments)
    check_resumes_anywhere(ds)
    check_same_for_any_executor(ds)


@quick
@given(problem=problems(), bins=st.integers(1, 5), name=st.sampled_from(PACKERS))
def test_no_token_is_lost_or_doubled(problem, bins, name):
    records, capacities = problem
    ds = getattr(bushel.experimental, name)(
        bushel.MapDataset.source(records), length_struct=capacities, num_packing_bins=bins
    )
    rows = list(ds)
    for feature in capacities:
        held = [
            (row[feature][row[f"{feature}_segment_ids"] == segment], row[f"{feature}_positions"])
            for row in rows
            for segment in range(1, int(row[f"{feature}_segment_ids"].max()) + 1)
        ]
        given_ = sorted(np.atleast_1d(record[feature]).tolist() for record in records)
        found = sorted([sequence.tolist() for sequence, _ in held] + [[]] * (len(given_) - len(held)))
        assert [sequence for sequence in found if sequence] == [sequence for sequence in given_ if sequence]


def nested(lib, **more):
    records = [{"a": np.arange(n), "m": {"x": np.arange(n) * 2, "y": (n, np.arange(2))}} for n in (3, 1, 2, 4)]
    lengths = {"a": 5, "m": {"x": 5, "y": (3, 6)}}
    return lib.experimental.FirstFitPackIterDataset(
        stream(lib, records), length_struct=lengths, num_packing_bins=2, **more
    )


def test_a_tree_of_meta_features_is_grains():
    check_equal(lambda lib: nested(lib, meta_features=["m"]))


class Pair(NamedTuple):
    left: Any
    right: Any


def leaf_trees():
    """Trees whose leaves are (row length, kind of sequence): containers of one part are the most likely."""
    leaf = st.tuples(st.integers(2, 10), st.sampled_from(["tokens", "vectors", "floats", "scalars"])).map(Leaf)

    def grow(inner):
        return st.one_of(
            st.dictionaries(st.sampled_from(["inner", "z", "a"]), inner, min_size=1, max_size=3),
            inner.map(lambda part: {"inner": part}),
            st.lists(inner, min_size=1, max_size=2),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
            st.tuples(inner, inner).map(lambda parts: Pair(*parts)),
        )

    return grow(st.recursive(leaf, grow, max_leaves=4))


class Leaf:
    """A leaf of such a tree: not a tuple, which would be a part of the tree."""

    def __init__(self, facts):
        self.capacity, self.kind = facts


@st.composite
def nested_packings(draw):
    """Arguments of a packer whose meta features are trees, with the records that it gets."""
    struct: dict[str, Any] = {"row": Leaf((draw(st.integers(2, 10)), "tokens"))}
    for name in draw(st.lists(st.sampled_from(["nested", "also", "zz"]), min_size=1, max_size=2, unique=True)):
        struct[name] = draw(leaf_trees())
    struct = dict(draw(st.permutations(list(struct.items()))))

    def sequence(leaf):
        inner = (2,) if leaf.kind == "vectors" else ()
        (value,) = tokens([draw(st.integers(1, leaf.capacity))], KINDS[leaf.kind], inner)
        return int(value[0]) if leaf.kind == "scalars" else value + draw(st.integers(0, 1000))

    count = draw(st.integers(1, 12))
    records = [{**trees.map_leaves(sequence, struct), "note": number} for number in range(count)]
    meta = [name for name in struct if name != "row"] + draw(st.sampled_from([[], ["row"], ["note"]]))
    arguments: dict[str, Any] = {
        "length_struct": trees.map_leaves(lambda leaf: leaf.capacity, struct),
        "num_packing_bins": draw(st.integers(1, 4)),
        "shuffle_bins": draw(st.booleans()),
        "meta_features": meta,
    }
    if draw(st.booleans()):
        arguments["pack_alignment_struct"] = trees.map_leaves(lambda _: draw(st.integers(1, 4)), struct)
    if draw(st.booleans()):
        arguments["padding_struct"] = trees.map_leaves(lambda _: draw(st.sampled_from([0, -1, 7])), struct)
    if draw(st.booleans()):
        arguments["max_sequences_per_bin"] = draw(st.integers(1, 3))
    return records, arguments


KINDS = {"tokens": np.int32, "vectors": np.int64, "floats": np.float32, "scalars": np.int64}


@quick
@given(packing=nested_packings(), name=st.sampled_from(PACKERS), cut=st.integers(0, 20))
def test_trees_of_meta_features_are_grains(packing, name, cut):
    records, arguments = packing
    check_equal(lambda lib: getattr(lib.experimental, name)(stream(lib, records), **arguments), cut)


@settings(deadline=None, max_examples=15)
@given(packing=nested_packings())
def test_concatenation_refuses_trees_by_name_where_grain_fails(packing):
    records, arguments = packing
    arguments = {key: arguments[key] for key in ("length_struct", "meta_features")}
    with pytest.raises(ValueError, match="length_struct of concat-then-split is flat; at '"):
        bushel.experimental.ConcatThenSplitIterDataset(stream(bushel, records), **arguments)
    with pytest.raises((TypeError, AttributeError, ValueError, KeyError)):
        list(grain.experimental.ConcatThenSplitIterDataset(stream(grain, records), **arguments))


@pytest.mark.parametrize("name", PACKERS)
def test_a_tree_with_one_leaf_is_packed(name):
    records = [{"row": np.arange(n), "nested": {"inner": np.arange(n) * 10}} for n in (5, 7, 8, 12, 3)]
    lengths = {"row": 20, "nested": {"inner": 20}}

    def build(lib, **more):
        return getattr(lib.experimental, name)(stream(lib, records), length_struct=lengths, num_packing_bins=2, **more)

    with pytest.raises(ValueError, match="name 'nested' in meta_features, or flatten it"):
        build(bushel)
    check_equal(lambda lib: build(lib, meta_features=("nested",)))  # the way out that the error names


def test_a_tree_that_is_no_meta_feature_is_refused_at_once():
    with pytest.raises(ValueError, match=r"length_struct has a tree at 'm'.*meta_features"):
        nested(bushel)
    with pytest.raises(ValueError):
        list(nested(grain))


def test_dtypes_follow_the_first_sequence_of_a_group_as_in_grain():
    records = [{"a": np.arange(3, dtype=dtype)} for dtype in (np.int16, np.float64, np.uint8, np.int64, np.float32)]
    check_equal(
        lambda lib: lib.experimental.FirstFitPackIterDataset(
            stream(lib, records), length_struct={"a": 6}, num_packing_bins=1
        )
    )


def test_we_differ_best_fit_keeps_to_the_most_sequences_per_row():
    records = [{"a": np.arange(0)}] * 4

    def rows(lib):
        packer = lib.experimental.BestFitPackIterDataset
        arguments = {"length_struct": {"a": 4}, "num_packing_bins": 8, "max_sequences_per_bin": 2}
        return len(list(packer(stream(lib, records), **arguments)))

    assert rows(grain) == 1
    assert rows(bushel) == 2


@pytest.mark.parametrize(
    "sequences",
    [
        [[1, 2], [3, 4, 5], [6]],
        [(1, 2), (3,)],
        [[1.5, 2], np.arange(3)],
        [[[1, 2], [3, 4]], [[5, 6]]],
        [["a"], ["b", "c"]],
    ],
)
def test_lists_and_tuples_are_sequences(sequences):
    def cut(lib):
        ds = stream(lib, [{"a": sequence} for sequence in sequences])
        return lib.experimental.ConcatThenSplitIterDataset(ds, length_struct={"a": 4})

    assert same(list(cut(bushel)), list(cut(grain)))  # Grain's own states of lists restore other rows: not compared
    check_resumes_anywhere(cut(bushel))
    arrays = [{"a": np.asarray(sequence)} for sequence in sequences]
    rows = list(packed([{"a": sequence} for sequence in sequences]))  # Grain refuses lists here
    assert same(rows, list(packed(arrays)))


def packed(records, **more):
    arguments = {"length_struct": {"a": 4}, "num_packing_bins": 2, **more}
    return bushel.experimental.FirstFitPackIterDataset(bushel.MapDataset.source(records), **arguments)


def test_a_sequence_that_is_too_long_is_named():
    it = iter(packed([{"a": np.arange(2)}, {"a": np.arange(7)}]))
    for _ in range(2):  # it stays where it is
        with pytest.raises(ValueError, match=r"longer than its row: lengths \{'a': 7\}, rows of \{'a': 4\}\. Truncate"):
            next(it)


def test_what_is_no_sequence_is_named():
    with pytest.raises(TypeError, match=r"must be an array, a list, a tuple or a number, got \{1, 2\} of type set"):
        next(iter(packed([{"a": {1, 2}}])))
    with pytest.raises(TypeError, match=r"must have entries of one shape, got \[1, \[2\]\]"):
        next(iter(packed([{"a": [1, [2]]}])))
    with pytest.raises(KeyError) as caught:
        next(iter(packed([{"b": np.arange(2)}])))
    assert "FirstFitPackIterDataset" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="must match exactly") as caught:
        next(iter(packed([{"a": np.ones((1, 2))}, {"a": np.ones((1, 3))}])))
    assert "inner shapes of sequences are {'a': [(2,), (3,)]}" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_packing_bins": 0}, "num_packing_bins must be positive"),
        ({"max_sequences_per_bin": 0}, "max_sequences_per_bin must be positive"),
        ({"seed": -1}, "Seed must be"),
        ({"length_struct": {}}, "length_struct must map the features"),
        ({"length_struct": 7}, "length_struct must map the features"),
        ({"length_struct": {"a": 0}}, "length_struct at 'a' must be positive"),
        ({"pack_alignment_struct": {"b": 1}}, "pack_alignment_struct must have the structure of length_struct"),
        ({"pack_alignment_struct": {"a": 0}}, "An alignment must be positive"),
        ({"padding_struct": {}}, "padding_struct must have the structure of length_struct"),
        ({"shuffle_bins_group_by_feature": "z"}, "names 'z'; the packed features are"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        packed([{"a": np.arange(2)}], **arguments)


def test_a_state_of_other_sequences_is_refused():
    it = iter(packed([{"a": np.arange(3)}] * 8))
    next(it)
    state = it.get_state()
    assert state["next_row"] == 1
    other = iter(packed([{"a": np.arange(1)}] * 4))
    with pytest.raises(bushel.StateMismatch, match="after row 1 of a group of packed rows, which has 1"):
        other.set_state(state, check=False)
    assert other.get_state()["next_row"] == 0
    with pytest.raises(bushel.StateMismatch, match="given 0 rows in all, and 1 of those"):
        it.set_state({**state, "counter": 0})


def test_rows_belong_to_whom_they_were_given():
    rows = list(packed([{"a": np.arange(3)}] * 4))
    before = [row["a"].copy() for row in rows]
    rows[0]["a"][:] = 99
    assert same(before[1:], [row["a"] for row in rows[1:]])


class FailsOnce:
    """Gives its record, but fails the first time it is asked for some of them."""

    def __init__(self, records, at):
        self.records, self.left = records, set(at)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        if index in self.left:
            self.left.discard(index)
            raise OSError(f"cannot read {index} now")
        return self.records[index]


@pytest.mark.parametrize("name", [*PACKERS, "ConcatThenSplitIterDataset"])
def test_after_an_error_nothing_is_lost(name):
    records = [{"a": values} for values in tokens([3, 1, 4, 2, 2, 3, 1, 1, 4, 2])]
    more = {} if name == "ConcatThenSplitIterDataset" else {"num_packing_bins": 2}

    def build(at):
        return getattr(bushel.experimental, name)(
            stream(bushel, FailsOnce(records, at)), length_struct={"a": 4}, **more
        )

    it, found, errors = iter(build([0, 4, 5, 9])), [], 0
    while True:
        try:
            found.append(next(it))
        except OSError:
            errors += 1
        except StopIteration:
            break
    assert errors == 4
    assert same(found, list(build([])))


# ---------------------------------------------------------------------------------------------------------------------
# Concatenate, then split


@st.composite
def concatenations(draw):
    """Arguments of ConcatThenSplit with records that Grain cuts rightly, several features at most once."""
    records, capacities = draw(problems(empty=False))
    names = sorted(capacities)
    arguments: dict = {"length_struct": capacities}
    for name in names:
        if len(names) > 1 and np.ndim(records[0][name]) == 0:
            capacities[name] = 60  # Grain raises an internal error where a number has no room
    if len(names) == 1 and np.ndim(records[0][names[0]]):
        factor = draw(st.integers(1, 4))
        records = [{names[0]: np.concatenate([record[names[0]]] * factor)} for record in records]
    if len(names) > 1 and draw(st.integers(0, 2)) == 0:
        arguments["meta_features"] = [draw(st.sampled_from(names))]
    if draw(st.integers(0, 2)) == 0:
        arguments["split_full_length_features"] = False
    if len(names) == 1 and np.ndim(records[0][names[0]]) < 2 and draw(st.booleans()):
        arguments["bos_features"], arguments["bos_token_id"] = names, 77
    return records, arguments


def as_tuples(state):
    """Grain compares slices with tuples, which JSON does not know."""
    return {**state, "remainder_slices": {key: tuple(pair) for key, pair in state["remainder_slices"].items()}}


def concatenated(lib, records, arguments):
    handling = lib.experimental.BOSHandling
    more = {"bos_handling": handling.REPLACE_FIRST_TOKEN_WITH_BOS} if "bos_features" in arguments else {}
    return lib.experimental.ConcatThenSplitIterDataset(stream(lib, records), **arguments, **more)


@quick
@given(problem=concatenations(), cut=st.integers(0, 50))
def test_concatenated_rows_are_grains(problem, cut):
    records, arguments = problem
    check_equal(lambda lib: concatenated(lib, records, arguments), cut, for_grain=as_tuples)


@settings(deadline=None, max_examples=cases(12, 30))
@given(problem=concatenations())
def test_concatenation_resumes_anywhere_and_runs_on_any_executor(problem):
    ds = concatenated(bushel, *problem)
    check_resumes_anywhere(ds)
    check_same_for_any_executor(ds)


@quick
@given(problem=problems(above=25), cut=st.integers(0, 50))
def test_concatenation_loses_and_doubles_nothing(problem, cut):
    records, capacities = problem
    ds = concatenated(bushel, records, {"length_struct": capacities})
    whole = run(iter(ds), most=1000)
    assert whole.stopped is StopIteration
    for feature in capacities:
        if np.ndim(records[0][feature]) == 0 and len(capacities) > 1:
            continue  # a number comes with each part of its element
        inside = [row[feature][row[f"{feature}_segment_ids"] > 0] for row in whole.elements]
        expected = np.concatenate([np.atleast_1d(record[feature]) for record in records])
        assert np.concatenate(inside).tolist() == expected.tolist()
    cut %= len(whole.elements) + 1
    assert same(run(restored(ds, whole.states[cut]), 1000).elements, whole.elements[cut:])


def twice_cut(lib):
    """The first feature is cut twice; the second one has all its place in the first row."""
    records = [{"a": np.arange(1, 13), "b": np.arange(1, 10)}]
    return lib.experimental.ConcatThenSplitIterDataset(stream(lib, records), length_struct={"a": 4, "b": 100})


def test_we_differ_an_element_cut_twice_keeps_its_other_features_once():
    def found(lib):
        return [np.count_nonzero(row["b"]) for row in twice_cut(lib)]

    assert found(grain) == [9, 0, 9]
    assert found(bushel) == [9, 0, 0]


def test_we_differ_a_number_without_room_begins_a_new_row():
    records = [{"a": np.arange(1, 2), "n": n} for n in (7, 8, 9)]

    def found(lib):
        return [row["n"].tolist() for row in concatenated(lib, records, {"length_struct": {"a": 3, "n": 2}})]

    with pytest.raises(Exception, match="This is a bug in ConcatThenSplit"):
        found(grain)
    assert found(bushel) == [[7, 8], [9, 0]]


def test_we_differ_a_bos_token_is_never_put_into_padding():
    records = [{"a": np.arange(1, 3), "b": np.arange(1, 6)}]  # the second row has nothing of the first feature
    arguments = {"length_struct": {"a": 4, "b": 4}, "bos_features": ["a"], "bos_token_id": 77}

    def found(lib):
        return [row["a"].tolist() for row in concatenated(lib, records, arguments)]

    assert found(grain) == [[77, 2, 0, 0], [77, 0, 0, 0]]
    assert found(bushel) == [[77, 2, 0, 0], [0, 0, 0, 0]]


def test_a_meta_feature_that_fits_no_row_is_refused():
    records = [{"a": np.arange(3), "m": np.arange(9)}]
    ds = concatenated(bushel, records, {"length_struct": {"a": 4, "m": 5}, "meta_features": ["m"]})
    with pytest.raises(ValueError, match="Meta feature 'm' has 9 entries, its rows 5"):
        next(iter(ds))


def test_elements_with_other_keys_are_refused():
    with pytest.raises(ValueError, match=r"dicts with the keys of length_struct \['a'\], got"):
        next(iter(concatenated(bushel, [{"a": np.arange(3), "b": 1}], {"length_struct": {"a": 4}})))


@pytest.mark.parametrize(
    "arguments",
    [
        {"bos_features": ["a"]},
        {"bos_token_id": 1},
        {"handling": True},
        {"handling": True, "bos_features": ["a"], "bos_token_id": 1, "meta_features": ["a"]},
    ],
)
def test_contradictions_about_bos_are_refused_as_in_grain(arguments):
    for lib in (bushel, grain):
        more = dict(arguments)
        if more.pop("handling", False):
            more["bos_handling"] = lib.experimental.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS
        with pytest.raises(ValueError):
            lib.experimental.ConcatThenSplitIterDataset(
                stream(lib, [{"a": np.arange(3)}]), length_struct={"a": 4}, **more
            )


# ---------------------------------------------------------------------------------------------------------------------
# The operation of a DataLoader


@quick
@given(
    problem=problems(empty=False), size=st.integers(1, 4), most=st.none() | st.integers(1, 3), as_tuple=st.booleans()
)
def test_packed_batches_of_records_are_grains(problem, size, most, as_tuple):
    records, capacities = problem
    records = [{name: np.atleast_1d(value) for name, value in record.items()} for record in records]
    names = sorted(capacities)
    lengths = tuple(capacities[name] for name in names) if as_tuple else capacities

    def found(lib):
        data = [tuple(record[name] for name in names) if as_tuple else record for record in records]
        read = (grain.Record(grain.RecordMetadata(n, record_key=n), one) for n, one in enumerate(data))
        operation = lib.experimental.PackAndBatchOperation(lengths, size, most)
        return [(batch.metadata.index, batch.metadata.record_key, batch.data) for batch in operation(read)]

    with pytest.warns(DeprecationWarning):
        ours = found(bushel)
    assert same(ours, found(grain))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_packed_batches_of_no_records_are_none():
    assert list(bushel.experimental.PackAndBatchOperation({"a": 3}, 2)(iter([]))) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_record_that_is_too_long_is_named():
    read = iter([grain.Record(grain.RecordMetadata(0), {"a": np.arange(9)})])
    with pytest.raises(ValueError, match=r"lengths \[9\], rows of \{'a': 3\}"):
        list(bushel.experimental.PackAndBatchOperation({"a": 3}, 2)(read))


# Several rows of concat-then-split at once: the model makes them one after the other.


def open_concat(lengths: list[int], row: int, by_arithmetic: bool, bos: bool, keep: int) -> Any:
    starts = np.cumsum([0, *lengths])
    source = [{"t": np.arange(low, high, dtype=np.int32)} for low, high in itertools.pairwise(starts.tolist())]
    more = {
        "bos_handling": bushel.experimental.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
        "bos_features": ("t",),
        "bos_token_id": -7,
    }
    ds = bushel.MapDataset.source(source).to_iter_dataset().filter(lambda x: len(x["t"]) % 5 != keep)
    packed = bushel.experimental.ConcatThenSplitIterDataset(ds, length_struct={"t": row}, **(more if bos else {}))
    cursor = open_stream(packed._node)
    cursor.by_arithmetic = cursor.by_arithmetic and by_arithmetic
    return cursor


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12) | st.sampled_from([30, 31]), max_size=30),
    row=st.integers(1, 9),
    bos=st.booleans(),
    keep=st.integers(0, 5),
    data=st.data(),
)
def test_several_rows_at_once_are_those_made_one_by_one(lengths, row, bos, keep, data):
    model = open_concat(lengths, row, False, bos, keep)
    expected, states = [], [model.get_state()]
    while len(block := model.pull(1)):
        expected += rows_of(block)
        states.append(model.get_state())
    cursor, at = open_concat(lengths, row, True, bos, keep), 0
    for _ in range(12):
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(expected)))
            cursor.set_state(states[at])
        got = rows_of(cursor.pull(data.draw(st.integers(1, 7))))
        assert len(got) or at == len(expected)
        assert same(got, expected[at : at + len(got)])
        at += len(got)
        if len(got):
            assert cursor.get_state() == states[at]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    row=st.integers(1, 9),
    data=st.data(),
)
def test_a_read_that_fails_ahead_of_several_rows_takes_none_away(lengths, row, data):
    records = [{"t": values} for values in tokens(lengths)]
    failing = data.draw(st.sets(st.integers(0, len(records) - 1), max_size=4))

    def open_rows(at):
        packer = bushel.experimental.ConcatThenSplitIterDataset
        return open_stream(packer(stream(bushel, FailsOnce(records, at)), length_struct={"t": row})._node)

    expected, found, errors = [], [], 0
    model, cursor = open_rows([]), open_rows(failing)
    while len(block := model.pull(1)):
        expected += rows_of(block)
    while True:
        wanted = data.draw(st.integers(1, 6))
        try:
            block = cursor.pull(wanted)
        except OSError:
            errors += 1
            continue
        assert len(block) <= wanted
        if not len(block):
            break
        found += rows_of(block)
    assert errors <= len(failing)
    assert same(found, expected)


def test_after_many_empty_sequences_not_all_others_are_read_at_once():
    lengths, read = [1, *[0] * 2000, *[1] * 50_000], []
    ds = bushel.MapDataset.range(len(lengths)).map(lambda i: read.append(i) or {"t": np.ones(lengths[i], np.int32)})
    packed = bushel.experimental.ConcatThenSplitIterDataset(ds.to_iter_dataset(), length_struct={"t": 64})
    with iter(packed.batch(16)) as it:
        assert next(it)["t"].shape == (16, 64)
    assert 3024 < len(read) < 6000
