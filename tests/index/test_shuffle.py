"""A shuffle is a permutation, at every length, and Grain's wherever Grain's is one.

How fast it is belongs to the benchmarks, not here.
"""

from __future__ import annotations

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grain.experimental import index_shuffle as grain_index_shuffle
from helpers.strategies import grain_shuffles_rightly, near_powers_of_two, seeds
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bushel._src.index.shuffle import (
    ROUNDS,
    SMALL,
    ManyShuffles,
    epoch_table,
    forget_tables,
    index_shuffle,
    permute,
    round_keys,
    shuffle,
)


def is_permutation(order: np.ndarray, length: int) -> bool:
    return order.min() == 0 and order.max() == length - 1 and bool((np.bincount(order, minlength=length) == 1).all())


def some_indices(length: int, count: int, seed: int = 0) -> np.ndarray:
    """Distinct indices below `length`: the first, the last, and others from all over."""
    drawn = np.random.default_rng(seed).integers(0, length, count)
    return np.unique(np.concatenate([drawn, [0, length - 1, length // 2]]))


# ---------------------------------------------------------------------------------------------------------------------
# It is a permutation


@pytest.mark.parametrize("first", range(1, 2001, 400))
def test_the_shuffle_is_a_permutation_of_every_small_length(first):
    for length in range(first, first + 400):
        assert is_permutation(permute(np.arange(length), length=length, seed=length * 2654435761 % 2**32), length)


@pytest.mark.parametrize("k", range(11, 21))
def test_the_shuffle_is_a_permutation_around_powers_of_two(k):
    for length in (2**k - 1, 2**k, 2**k + 1):
        for seed in (0, 2**32 - 1):
            assert is_permutation(permute(np.arange(length), length=length, seed=seed), length)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(2**17, 2**63 - 1) | near_powers_of_two(33, 62), seed=seeds())
def test_the_shuffle_is_injective_and_in_range_at_any_length(length, seed):
    here = some_indices(length, 300)
    there = permute(here, length=length, seed=seed)
    assert there.dtype == np.int64
    assert ((there >= 0) & (there < length)).all()
    assert len(np.unique(there)) == len(here)


@settings(max_examples=30, deadline=None)
@given(length=st.integers(12, 5000), seed=seeds())
def test_another_seed_is_another_order(length, seed):
    here = np.arange(length)
    assert (permute(here, length=length, seed=seed) != permute(here, length=length, seed=(seed + 1) % 2**32)).any()


def test_the_check_of_permutations_can_fail():
    assert is_permutation(np.array([2, 0, 1]), 3)
    assert not is_permutation(np.array([2, 0, 0]), 3)
    assert not is_permutation(np.array([1, 0]), 3)
    assert not is_permutation(np.array([1, 2, 3]), 3)


# ---------------------------------------------------------------------------------------------------------------------
# It is Grain's


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 300) | st.integers(1, 2**20) | near_powers_of_two(0, 20), seed=seeds())
@example(length=1, seed=0)
@example(length=2**16 - 1, seed=2**32 - 1)
@example(length=2**16, seed=2**32 - 1)
def test_the_shuffle_is_grains_up_to_a_million(length, seed):
    assume(length and grain_shuffles_rightly(length))
    here = some_indices(length, 6, seed)
    theirs = [grain_index_shuffle(int(i), max_index=length - 1, seed=seed, rounds=ROUNDS) for i in here]
    assert permute(here, length=length, seed=seed).tolist() == theirs


@settings(max_examples=60, deadline=None)
@given(length=st.integers(2**20, 2**62) | near_powers_of_two(20, 62), seed=seeds())
@example(length=2**32, seed=1)
@example(length=2**32 + 2, seed=1)
@example(length=2**33, seed=1)
@example(length=2**50, seed=1)
@example(length=2**62, seed=1)
def test_the_shuffle_is_grains_past_32_bits(length, seed):
    assume(grain_shuffles_rightly(length))
    here = some_indices(length, 40, seed)
    theirs = [grain_index_shuffle(int(i), max_index=length - 1, seed=seed, rounds=ROUNDS) for i in here]
    assert permute(here, length=length, seed=seed).tolist() == theirs


@pytest.mark.parametrize("rounds", [4, 6, 8, 38, 40, 66, 68, 70, 622, 624, 1022, 1024])
@pytest.mark.parametrize("length", [50_000, 70_000, 2**33 + 5])
def test_the_shuffle_is_grains_for_any_number_of_rounds(rounds, length):
    for seed in (0, 1, 2**32 - 1):
        here = some_indices(length, 20, rounds)
        theirs = [grain_index_shuffle(int(i), max_index=length - 1, seed=seed, rounds=rounds) for i in here]
        assert [index_shuffle(int(i), length - 1, seed, rounds) for i in here] == theirs
        assert permute(here, length=length, seed=seed, rounds=rounds).tolist() == theirs


# ---------------------------------------------------------------------------------------------------------------------
# All ways to compute it agree: a table, an array at a time, one integer at a time

any_length = st.one_of(st.integers(1, 200), st.integers(1, 2**17), near_powers_of_two(1, 40), st.integers(2**17, 2**62))


@settings(max_examples=80, deadline=None)
@given(length=any_length, seed=seeds(), size=st.integers(1, 40))
def test_one_by_one_is_all_at_once(length, seed, size):
    here = np.random.default_rng(size).integers(0, length, size)
    at_once = permute(here, length=length, seed=seed)
    assert [index_shuffle(int(i), length - 1, seed, ROUNDS) for i in here] == at_once.tolist()
    assert [int(shuffle(here[k : k + 1], length=length, seed=seed)[0]) for k in range(size)] == at_once.tolist()
    assert shuffle(here, length=length, seed=seed).tolist() == at_once.tolist()


@settings(max_examples=20, deadline=None)
@given(length=st.integers(30_000, SMALL - 1), seed=seeds())
def test_the_table_is_the_walk(length, seed):
    table = epoch_table(length, seed)
    here = some_indices(length, 20, seed)
    theirs = [grain_index_shuffle(int(i), max_index=length - 1, seed=seed, rounds=ROUNDS) for i in here]
    assert table[here].tolist() == theirs
    assert is_permutation(table, length)


def test_what_comes_out_may_be_changed_and_the_table_stays():
    before = epoch_table(1000, 5).tolist()
    permute(np.arange(1000), length=1000, seed=5)[:] = 0
    shuffle(np.arange(1000), length=1000, seed=5)[:] = 0
    assert epoch_table(1000, 5).tolist() == before
    with pytest.raises(ValueError):
        epoch_table(1000, 5)[0] = 1


def test_what_goes_in_is_not_changed():
    for length in (1000, 70_000, 2**40):
        here = np.arange(900)
        permute(here, length=length, seed=1)
        shuffle(here, length=length, seed=1)
        assert (here == np.arange(900)).all()


# ---------------------------------------------------------------------------------------------------------------------
# Epochs


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 100) | st.sampled_from([65_535, 65_536, 65_538, 10**6]),
    seed=seeds(),
    epochs=st.lists(st.integers(-3, 5), min_size=1, max_size=4),
    size=st.integers(1, 30),
)
@example(length=7, seed=2**32 - 1, epochs=[0, 1, 2], size=20)
def test_epoch_n_is_shuffled_with_seed_plus_n(length, seed, epochs, size):
    rng = np.random.default_rng(size)
    here = rng.integers(0, length, size)
    epoch = rng.choice(epochs, size)
    expected = [
        index_shuffle(int(i), length - 1, (seed + int(e)) % 2**32, ROUNDS) + int(e) * length
        for i, e in zip(here, epoch, strict=True)
    ]
    assert shuffle(here + epoch * length, length=length, seed=seed).tolist() == expected


@settings(max_examples=20, deadline=None)
@given(length=st.integers(1, 60), seed=seeds(), epochs=st.integers(1, 5))
def test_every_epoch_has_every_record_once(length, seed, epochs):
    there = shuffle(np.arange(length * epochs), length=length, seed=seed).reshape(epochs, length)
    for number, order in enumerate(there):
        assert is_permutation(order - number * length, length)


# ---------------------------------------------------------------------------------------------------------------------
# Under JAX


def traced(length: int, rounds: int = ROUNDS):
    """The permutation as JAX compiles it: indices and seed are traced, the length is not."""
    return jax.jit(lambda i, seed: permute(i, length=length, seed=seed, rounds=rounds, xp=jnp))


LENGTHS_UNDER_JAX = [
    *(1, 2, 10, 255, 256, 1000, 65_535, 65_536, 65_537, 65_538, 100_003, 2**18, 2**18 + 1, 2**24 - 1),
    *(2**24 + 1, 3 * 10**8, 2**30, 2**30 + 1, 2**31 - 1, 2**31),
]


@pytest.mark.parametrize("length", LENGTHS_UNDER_JAX)
def test_under_jax_it_is_the_same(length):
    assert not jax.config.jax_enable_x64
    compiled = traced(length)
    here = some_indices(length, 200, length)
    for seed in (0, 1, 0x7FFFFFFF, 0x80000000, 2**32 - 1):
        there = compiled(jnp.asarray(here, dtype=jnp.uint32), jnp.uint32(seed))
        assert there.dtype == jnp.int32
        assert np.asarray(there).tolist() == permute(here, length=length, seed=seed).tolist()


def test_under_jax_rounds_are_the_same():
    here = some_indices(1000, 50)
    there = traced(1000, rounds=8)(here.astype(np.int32), jnp.uint32(9))
    assert np.asarray(there).tolist() == permute(here, length=1000, seed=9, rounds=8).tolist()


@pytest.mark.parametrize("length", [50, 60_000, 70_000])
def test_under_jax_each_index_may_have_a_seed_of_its_own(length):
    some_seeds = np.array([0, 1, 2, 2**32 - 1], dtype=np.uint32)
    here = np.array([0, length - 1, length // 2, 3], dtype=np.int32)
    expected = [index_shuffle(int(i), length - 1, int(s), ROUNDS) for i, s in zip(here, some_seeds, strict=True)]
    at_once = jax.jit(lambda i, seed: permute(i, length=length, seed=seed, xp=jnp))(here, some_seeds)
    assert np.asarray(at_once).tolist() == expected
    one_by_one = jax.vmap(lambda i, seed: permute(i, length=length, seed=seed, xp=jnp))(here, some_seeds)
    assert np.asarray(one_by_one).tolist() == expected


def test_under_jax_the_table_is_the_same():
    table = jax.jit(lambda seed: epoch_table(777, seed, jnp))(jnp.uint32(3))
    assert np.asarray(table).tolist() == epoch_table(777, 3).tolist()


def test_under_jax_a_length_past_31_bits_is_refused():
    with pytest.raises(ValueError, match=r"the length must be at most 2\*\*31, got 2147483649"):
        permute(jnp.arange(3), length=2**31 + 1, seed=0, xp=jnp)


# ---------------------------------------------------------------------------------------------------------------------
# Keys


@settings(max_examples=40, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5),
    rounds=st.sampled_from([4, 6, 8, 38, 40, 68, 622, 624]),
)
def test_keys_of_an_array_are_the_keys_of_its_numbers(numbers, rounds):
    of_ints = [round_keys(number, rounds) for number in numbers]
    of_array = round_keys(np.array(numbers, dtype=np.uint32), rounds, np)
    assert len(of_array) == rounds
    assert [[int(key[k]) for key in of_array] for k in range(len(numbers))] == [list(keys) for keys in of_ints]
    assert all(0 <= key < 2**32 for keys in of_ints for key in keys)


@pytest.mark.parametrize("rounds", [4, 8])
def test_keys_under_jax_are_the_same(rounds):
    numbers = [0, 1, 42, 2**31, 2**32 - 1]
    of_array = jax.jit(lambda seed: round_keys(seed, rounds, jnp))(np.array(numbers, dtype=np.uint32))
    assert all(key.dtype == jnp.uint32 for key in of_array)
    assert np.stack(of_array, axis=1).tolist() == [list(round_keys(number, rounds)) for number in numbers]


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (0, (2963817213, 69796629, 1973464570, 532167439)),
        (1, (1304574429, 1385991880, 1625791478, 1649374289)),
        (42, (735521182, 3707395978, 3290902861, 980519533)),
        (42, (2003468966, 425412085, 2949471254, 4288014047, 1150740311, 2696429017, 3775804040, 588545016)),
        (2**32 - 1, (3258260622, 2976084991, 227751652, 537413182)),
    ],
)
def test_keys_are_those_of_std_seed_seq(seed, words):
    # As g++ generates them.
    assert round_keys(seed, len(words)) == words


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((-1, 9, 0, 4), "index must be in .0, max_index., but got index = -1 and max_index = 9"),
        ((10, 9, 0, 4), "index must be in .0, max_index., but got index = 10 and max_index = 9"),
        ((0, -1, 0, 4), "but got index = 0 and max_index = -1"),
        ((0, 9, 0, 5), "rounds must be an even integer between 4 and 1024, but got rounds = 5"),
        ((0, 9, 0, 2), "but got rounds = 2"),
        ((0, 9, 0, 1026), "but got rounds = 1026"),
        ((0, 9, -1, 4), r"seed must be between 0 and 2\*\*32-1, but got seed = -1"),
        ((0, 9, 2**32, 4), "but got seed = 4294967296"),
    ],
)
def test_wrong_arguments_of_index_shuffle(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        index_shuffle(*arguments)


def test_a_table_has_fewer_than_65536_entries():
    with pytest.raises(ValueError, match="epoch_table serves lengths below 65536, got 65536; use permute"):
        epoch_table(SMALL, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Many shuffles at once

lengths = st.one_of(st.integers(1, 100), st.integers(1000, 2**16 + 10), near_powers_of_two(16, 62))


@settings(max_examples=60, deadline=None)
@given(shuffles=st.lists(st.tuples(lengths, seeds()), min_size=1, max_size=60), data=st.data())
def test_many_shuffles_at_once_are_each_of_them(shuffles, data):
    count = data.draw(st.integers(1, 200))
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    which = generator.integers(0, len(shuffles), count)
    epochs = data.draw(st.integers(1, 3))
    i = np.array([generator.integers(-min(shuffles[k][0], 5), min(epochs * shuffles[k][0], 2**62)) for k in which])
    together = ManyShuffles(*zip(*shuffles, strict=True)).shuffle(which, i)
    alone = [int(shuffle(np.array([n]), length=shuffles[k][0], seed=shuffles[k][1])[0]) for k, n in zip(which, i)]
    assert together.tolist() == alone


def test_walks_of_many_short_shuffles_end_where_their_tables_say():
    forget_tables()
    which = np.arange(800)
    lengths = 40 + which % 30  # few enough for long walks, and too many for a table at the first access
    positions = which % lengths
    together = ManyShuffles(lengths.tolist(), which.tolist()).shuffle(which, positions)
    tables = [epoch_table(length, seed) for seed, length in enumerate(lengths.tolist())]
    assert together.tolist() == [int(table[at]) for table, at in zip(tables, positions.tolist())]


def test_tables_of_many_epochs_do_not_fill_the_memory():
    forget_tables()
    tracemalloc.start()
    try:
        for seed in range(400):
            epoch_table(SMALL - 1, seed)
        assert tracemalloc.get_traced_memory()[0] < 40 << 20
    finally:
        tracemalloc.stop()
        forget_tables()
