"""Sources over arrays: which records, in which dtype, mixtures, weights, filters and windows, and wrong arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.jit_loaders import collected, loader_of
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel.jit import ArraySource, BatchTransform, DataLoader, Source, WindowSource, mix
from bushel.jit.cereal import dataset_to_jax
from bushel.sources import ArrayDataSource
from bushel.testing import same


def taken(source, size, count, seed=0):
    """The first `count` batches of a source."""
    loader = DataLoader([source, BatchTransform(size, remainder="wrap")])
    return np.concatenate([np.asarray(batch) for batch, _ in loader.iterate(loader.init_state(seed), steps=count)])


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((dtype, (8, 8)) for dtype in ("uint8", "int8", "uint16", "float16", "bfloat16", "bool", "float32")),
        ("uint8", (3,)),
        ("uint8", (34,)),
        ("int32", ()),
        ("complex64", (0,)),
    ],
)
def test_rows_come_out_as_they_went_in(dtype, shape):
    values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (20, *shape))
    array = np.asarray(jnp.asarray(values).astype(dtype))
    for given_array in (array, jnp.asarray(array)):
        source = ArraySource(given_array, "sequential")
        assert source.element_spec() == jax.ShapeDtypeStruct(shape, array.dtype)
        rows, _ = jax.jit(lambda source: source._read_elements(source._locate(*POSITIONS(source))))(source)
        assert rows.dtype == array.dtype and (np.asarray(rows) == array[[3, 19, 0]]).all()


def POSITIONS(source):
    """What `locate` takes for three positions of the first epoch."""
    position = jnp.array([3, 19, 0], jnp.uint32)
    return (
        jnp.uint32(0),
        source._make_state(0, 0, 0).tables or (jnp.uint32(0), None),
        jnp.zeros(3, jnp.uint32),
        position,
    )


def test_a_source_of_ones_own_runs_in_a_loader():
    class Countdown:
        steps_per_epoch = 3

        def init_state(self, key=None):
            return jnp.int32(3)

        def next(self, state):
            return state, jnp.bool_(True), jnp.where(state == 1, 3, state - 1)

        def element_spec(self):
            return jax.ShapeDtypeStruct((), jnp.int32)

    assert isinstance(Countdown(), Source)
    for arguments, expected in (
        ({"remainder": "wrap"}, [[3, 2], [1, 3], [2, 1]]),
        ({"remainder": "drop"}, [[3, 2], [3, 2], [3, 2]]),
        ({}, [[3, 2], [1, 0], [3, 2]]),
    ):
        loader = DataLoader([Countdown(), BatchTransform(2, **arguments)])
        out = list(loader.iterate(loader.init_state(0), steps=3))
        assert [batch.tolist() for batch, _ in out] == expected
        assert out[1][1].all() == (arguments != {})
    _, total, _ = loader.scan_epoch(loader.init_state(0), 0, lambda total, batch, mask: (total + batch.sum(), None))
    assert int(total) == 6
    with pytest.raises(TypeError, match=r"batch_at needs .*\. BatchedStream can only be read in order"):
        loader.batch_at(3)


def test_batches_of_batches_are_batches():
    loader = DataLoader(
        [ArraySource(np.arange(1, 12), "sequential"), BatchTransform(3), BatchTransform(3, remainder="wrap")]
    )
    out = list(loader.iterate(loader.init_state(0), steps=3))
    rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 0]]
    assert [batch.tolist() for batch, _ in out] == [
        [rows[0], rows[1], rows[2]],
        [rows[3], rows[0], rows[1]],
        [rows[2], rows[3], rows[0]],
    ]
    assert [mask.tolist() for _, mask in out] == [
        [[each > 0 for each in row] for row in batch.tolist()] for batch, _ in out
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Filters, weights, mixtures: arithmetic on indices


@pytest.mark.parametrize("length", [50, 70_000])
def test_a_filter_is_a_slice_of_the_host(length):
    keep = np.arange(length) % 3 != 0
    source = ArraySource(np.arange(length), where=keep)
    host = bushel.MapDataset.range(length).slice(np.flatnonzero(keep)).seed(4).shuffle().repeat().batch(20)
    assert source.steps_per_epoch == keep.sum()
    assert taken(source, 20, 3, seed=4).tolist() == np.concatenate([host[n] for n in range(3)]).tolist()


def test_weights_are_shares():
    weights = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])
    source = ArraySource(np.arange(6), weights=weights)
    assert source.steps_per_epoch == 6
    drawn = taken(source, 2000, 10, seed=1)
    np.testing.assert_allclose(np.bincount(drawn, minlength=6) / 20_000, weights / weights.sum(), atol=0.012)
    assert set(drawn.tolist()) == {1, 2, 4}


@settings(max_examples=3, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([3, 40, 33_000]), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([1.0, 0.3, 2.5]), min_size=3, max_size=3),
    step=st.integers(0, 500),
)
def test_a_mixture_is_that_of_the_host(lengths, weights, step):
    parts = [np.arange(length) + 100_000 * number for number, length in enumerate(lengths)]
    chosen = weights[: len(parts)]
    loader = DataLoader([mix([ArraySource(part) for part in parts], chosen), BatchTransform(7, remainder="wrap")])
    host = bushel.MapDataset.mix(
        [bushel.MapDataset.source(ArrayDataSource(part)).seed(2).shuffle() for part in parts], chosen
    )
    assert loader.source.inner.length == len(host)
    batches = host.repeat().batch(7)
    state = loader.state_at(step, 2)
    for number in range(step, step + 3):
        batch, state, _ = loader.next_batch(state)
        assert batch.tolist() == batches[number].tolist()


def test_a_mixture_without_weights_is_that_of_the_host():
    sources = [ArraySource(np.arange(5), "sequential"), ArraySource(np.arange(10, 13), "sequential")]
    host = bushel.MapDataset.mix([bushel.MapDataset.range(5), bushel.MapDataset.range(10, 13)])
    assert taken(mix(sources), 2, 3).tolist() == list(host)


# ---------------------------------------------------------------------------------------------------------------------
# Windows


@settings(max_examples=4, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(sum),
    length=st.integers(1, 4),
    stride=st.integers(1, 3),
    partial=st.booleans(),
)
def test_windows_are_those_of_a_loop_and_never_cross_an_episode(lengths, length, stride, partial):
    rows = np.arange(sum(lengths))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    expected = []
    for episode, count in enumerate(lengths):
        for t in range(0, count, stride):
            if partial or t + length <= count:
                steps = [min(t + k, count - 1) + starts[episode] for k in range(length)]
                expected.append((steps, [t + k < count for k in range(length)], episode))
    arguments = {"stride": stride, "episode_lengths": lengths, "partial": partial, "ordering": "sequential"}
    if not expected:
        with pytest.raises(ValueError, match="No episode has a window"):
            WindowSource(rows, length, **arguments)
        return
    source = WindowSource(rows, length, **arguments)
    assert source.steps_per_epoch == len(expected)
    loader = DataLoader([source, BatchTransform(len(expected))])
    windows, _, _ = loader.next_batch(loader.init_state(0))
    found = list(zip(windows.steps.tolist(), windows.mask.tolist(), windows.episode.tolist(), strict=True))
    assert found == expected


def test_shuffled_windows_cover_all_of_them_once():
    source = WindowSource({"x": np.arange(100)}, 5, episode_lengths=[30, 70])
    loader = DataLoader([source, BatchTransform(16)])
    _, _, (windows, masks) = loader.scan_epoch(loader.init_state(1), None, collected)
    first = np.asarray(windows.steps["x"])[np.asarray(masks)][:, 0]
    assert sorted(first.tolist()) == [*range(26), *range(30, 96)]


# ---------------------------------------------------------------------------------------------------------------------
# Wrong arguments


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ArraySource({}), "A source needs at least one array, got {}."),
        (lambda: ArraySource([1, 2]), "A source takes a tree of arrays, got [int, int]."),
        (lambda: ArraySource(np.array(["a"])), "A source takes arrays of numbers"),
        (
            lambda: ArraySource((np.zeros(3), np.zeros(4))),
            "All arrays of a source must have one row per record, got (float64[3], float64[4]).",
        ),
        (lambda: ArraySource(np.array([0, 2**40])), "numbers from 0 to 1099511627776 do not fit int32."),
        (lambda: ArraySource(np.zeros(0)), "A source needs at least one element, got none."),
        (lambda: ArraySource(np.zeros(3), "sorted"), 'ordering must be "sequential" or "shuffle", got \'sorted\'.'),
        (lambda: ArraySource(np.zeros(3), where=[True]), "one boolean for each of 3 records, got bool[1]."),
        (lambda: ArraySource(np.zeros(2), where=[False] * 2), "where= keeps none of the 2 records."),
        (lambda: ArraySource(np.zeros(3), weights=[1.0]), "one number for each of 3 records, got shape [1]."),
        (lambda: ArraySource(np.zeros(2), weights=[-1.0, 1]), "finite numbers that are not negative"),
        (lambda: ArraySource(np.zeros(2), weights=[0.0, 0]), "at least one above zero"),
        (lambda: ArraySource(np.zeros(1), weights=[1], where=[True]), "Give where= or weights=, not both"),
        (lambda: mix([ArraySource(np.zeros(3)), ArraySource(np.zeros((3, 2)))]), "source 1 has float32[2]"),
        (lambda: mix([]), "mix takes array sources, got []."),
        (lambda: mix([ArraySource(np.zeros(3))] * 2, [1, 1000]), "may sum to at most 2**15"),
        (lambda: mix([ArraySource(np.zeros(3))], [-1]), "Weights for mixing must be positive"),
        (lambda: WindowSource(np.zeros(3), 0), "length must be positive, but got 0."),
        (lambda: WindowSource(np.zeros(3), 2, episode_lengths=[2]), "add up to the 3 rows of the data, got [2]."),
        (lambda: WindowSource(np.zeros(3), 4), "No episode has a window of 4 steps: the longest episode has 3."),
        (lambda: DataLoader([]), "A pipeline needs a source, got an empty list."),
        (lambda: DataLoader(3), "A pipeline must be a source, or a list"),
        (lambda: DataLoader([BatchTransform(3)]), "such as `ArraySource(arrays)`, got BatchTransform"),
        (lambda: DataLoader([ArraySource(np.zeros(3)), 5]), "Stage 1 of the pipeline must be a transform, got 5."),
        (lambda: DataLoader([ArraySource(np.zeros(3)), lambda s: 1]), "Stage 1 of the pipeline must return a source"),
        (lambda: dataset_to_jax([]), "dataset_to_jax needs at least one element"),
        (lambda: dataset_to_jax(iter([1])), "a data set with __len__ and __getitem__"),
        (lambda: dataset_to_jax([np.zeros(2), np.zeros(3)]), "element 0 is float64[2] and element 1 is float64[3]."),
        (lambda: dataset_to_jax([1, None]), "element 0 is int and element 1 is None."),
        (
            lambda: loader_of(37, 10, "pad").next_batch(3),
            "A loader takes the state that its init_state returned, got int.",
        ),
        (lambda: loader_of(37, 10, "pad").scan_epoch(3, 4, collected), "pass that carry first and None second"),
    ],
)
def test_wrong_arguments_get_a_sentence(make, sentence):
    with pytest.raises((TypeError, ValueError)) as raised:
        make()
    assert sentence in str(raised.value)


def test_data_sets_of_the_host_become_arrays():
    rows = bushel.MapDataset.source(ArrayDataSource({"x": np.arange(4), "y": np.ones((4, 2))}))
    for dataset in (rows, rows.map(lambda row: row), list(rows)):
        stacked = dataset_to_jax(dataset)
        assert same(jax.tree.map(np.asarray, stacked), {"x": np.arange(4, dtype=np.int32), "y": np.ones((4, 2), "f4")})


class OneBuffer:
    """A source that reads all records into the same memory."""

    def __init__(self) -> None:
        self.buffer = np.zeros(2, np.float32)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        self.buffer[:] = index
        return {"x": self.buffer}


def test_a_source_with_one_buffer_becomes_arrays():
    assert dataset_to_jax(OneBuffer())["x"][:, 0].tolist() == [0, 1, 2, 3]
