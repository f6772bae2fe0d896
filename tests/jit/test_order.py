"""The order of a loader: a permutation in every epoch, that of the host, wherever one begins and however one runs."""

from __future__ import annotations

import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.jit_loaders import REMAINDERS, arrays, collected, host_of, loader_of, real
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base import rng
from bushel._src.index import shuffle
from bushel._src.jit import uint32
from bushel.testing import same

FEW = settings(max_examples=8, deadline=None)


def steps(loader, state, count):
    """The next batches as NumPy, and the state after them."""
    out = []
    for _ in range(count):
        batch, state, mask = loader.next_batch(state)
        out.append((jax.tree.map(np.asarray, batch), np.asarray(mask)))
    return out, state


# ---------------------------------------------------------------------------------------------------------------------
# Permutations


@pytest.fixture(scope="module")
def traced_table():
    return jax.jit(lambda length, seed: shuffle.epoch_table(length, seed, jnp))


@pytest.fixture(scope="module")
def traced_walk():
    return jax.jit(lambda i, length, seed: shuffle.walk(i, length=length, seed=seed, xp=jnp))


@pytest.mark.parametrize("first", range(1, 601, 150))
def test_tables_of_traced_lengths_are_the_hosts_permutations(traced_table, first):
    for length in range(first, first + 150):
        table = np.asarray(traced_table(jnp.int32(length), jnp.uint32(length)))[:length]
        assert (table == shuffle.epoch_table(length, length)).all()
        assert (np.sort(table) == np.arange(length)).all()


@pytest.mark.parametrize("k", [16, pytest.param(20, marks=pytest.mark.slow)])
def test_walks_of_traced_lengths_are_permutations_around_powers_of_two(traced_walk, k):
    size = 2**20 + 1
    for length in (2**k - 1, 2**k, 2**k + 1):
        order = np.asarray(traced_walk(jnp.arange(size) % length, jnp.int32(length), jnp.uint32(k)))[:length]
        assert (np.sort(order) == np.arange(length)).all()
        assert (order == shuffle.permute(np.arange(length), length=length, seed=k)).all()


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 2**12, 20_000, 60_000, 2**16 - 1, 2**16, 2**16 + 1])
def test_walks_of_fixed_lengths_are_the_hosts_permutations(length):
    # Below 2**16 the walk computes in words of 16 bits, with a cipher of its own. They do not hold 2**16 itself.
    walk = jax.jit(lambda i, seed: shuffle.walk(i, length=length, seed=seed, xp=jnp))
    order = np.asarray(walk(jnp.arange(length), np.uint32(0xFFFF0007)))
    assert order.dtype == np.int32
    assert (order == shuffle.permute(np.arange(length), length=length, seed=0xFFFF0007)).all()


@pytest.mark.parametrize("length", [1, 100, 3000])
def test_tables_of_fixed_lengths_are_the_hosts_in_both_ways(length):
    # A CPU walks, and an accelerator doubles pointers.
    seed, host = jnp.uint32(0xFFFF0007), shuffle.epoch_table(length, 0xFFFF0007)
    assert (jax.jit(lambda seed: shuffle.epoch_table(length, seed, jnp))(seed) == host).all()
    assert (jax.jit(lambda seed: shuffle._double_pointers(length, seed, jnp))(seed) == host).all()


@pytest.mark.parametrize(
    ("length", "size", "remainder"),
    [
        (1, 1, "pad"),
        (5, 8, "wrap"),
        (37, 10, "drop"),
        pytest.param(70_000, 8192, "pad", marks=pytest.mark.slow),
        (70_000, 8192, "wrap"),
        *(pytest.param(2**12 - 1, 512, remainder, marks=pytest.mark.slow) for remainder in REMAINDERS),
        *((2**12, 600, remainder) for remainder in REMAINDERS),
        *(pytest.param(2**15, 4096, remainder, marks=pytest.mark.slow) for remainder in REMAINDERS),
        *(pytest.param(2**20 + 1, 4096, remainder, marks=pytest.mark.slow) for remainder in REMAINDERS),
    ],
)
def test_every_epoch_is_a_permutation_and_the_hosts(length, size, remainder):
    loader, host = loader_of(length, size, remainder), host_of(length, size, remainder, seed=11)
    state, seen = loader.init_state(11), []
    for epoch in range(2):
        state, _, out = loader.scan_epoch(state, None, collected)
        batches, masks = jax.tree.map(np.asarray, out)
        for step in range(loader.steps_per_epoch):
            batch = jax.tree.map(lambda leaf, step=step: leaf[step], batches)
            assert same(real(batch, masks[step]), host[epoch * loader.steps_per_epoch + step])
            seen.extend(real(batch, masks[step])["x"].tolist())
    whole = {"pad": length, "drop": length // size * size, "wrap": length}[remainder]
    for epoch in range(2):
        records = seen[epoch * whole : (epoch + 1) * whole]
        assert len(set(records)) == whole
        assert remainder == "drop" or sorted(records) == list(range(length))


def test_the_comparison_with_the_host_can_fail():
    loader, host = loader_of(600, 64, "pad"), host_of(600, 64, "pad", seed=12)
    batch, _, mask = loader.next_batch(loader.init_state(11))
    assert not same(real(batch, mask), host[0])


@FEW
@given(seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 2**32 - 2), step=st.integers(0, 4))
def test_any_seed_and_any_epoch_are_the_hosts(seed, epoch, step):
    for loader, length, size in ((SMALL, 37, 10), (LARGE, 40_000, 100)):
        batch, mask = loader.batch_at(step, seed, epoch=epoch)
        number = epoch * loader.steps_per_epoch + step
        assert same(real(batch, mask), host_of(length, size, "pad", seed)[number])


SMALL, LARGE = loader_of(37, 10, "pad"), loader_of(40_000, 100, "pad")
WRAPPED = loader_of(37, 10, "wrap")


@FEW
@given(step=st.integers(0, 10**9))
def test_a_wrapped_batch_is_the_hosts_at_any_distance(step):
    batch, mask = WRAPPED.batch_at(step, 5)
    assert same(real(batch, mask), host_of(37, 10, "wrap", 5)[step])


def test_sequences_are_sequences():
    loader = loader_of(10, 4, "wrap", ordering="sequential")
    out, _ = steps(loader, loader.init_state(3), 5)
    assert np.concatenate([batch["x"] for batch, _ in out]).tolist() == [*range(10), *range(10)]


# ---------------------------------------------------------------------------------------------------------------------
# Seeds


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), depth=st.integers(0, 5))
def test_derived_seeds_are_the_hosts(seed, depth):
    assert int(uint32.derive_seed(jnp.uint32(seed), depth)) == rng.derive([(seed, depth)])


@pytest.mark.parametrize("make", [jax.random.PRNGKey, jax.random.key, lambda s: jax.random.key(s, impl="rbg"), int])
def test_a_key_made_from_a_seed_is_that_seed(make):
    for seed in (0, 1, 2**31 - 1):
        assert int(uint32.to_seed(make(seed))) == seed
        if make is not int:
            assert int(jax.jit(uint32.to_seed)(make(seed))) == seed


def test_other_keys_give_other_seeds():
    keys = jax.random.split(jax.random.key(0), 50)
    folded = {int(uint32.to_seed(key)) for key in keys}
    assert len(folded) == 50
    assert {int(uint32.to_seed(jax.random.key_data(key))) for key in keys} == folded


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (-1, "between 0 and 2**32-1"),
        (2**32, "between 0 and 2**32-1"),
        ("0", "A key must be an int or a key of jax.random, got '0' of type str."),
        (jnp.zeros(2), "got float32[2]"),
        (jax.random.split(jax.random.key(0), 3), "got keys of shape (3,). Use jax.vmap(loader.init_state) for many."),
    ],
)
def test_what_is_no_key_is_refused(key, sentence):
    with pytest.raises((TypeError, ValueError)) as raised:
        SMALL.init_state(key)
    assert sentence in str(raised.value)


@settings(max_examples=50, deadline=None)
@given(
    x=st.integers(0, 2**32 - 1),
    divisor=st.integers(1, 2**31),
    factor=st.integers(1, 2**31 - 1),
    plus=st.integers(0, 2**32 - 1),
)
def test_products_past_32_bits_are_divided_exactly(x, divisor, factor, plus):
    quotient, remainder = divmod(x * factor + plus, divisor)
    if quotient < 2**32:
        found = uint32.multiply_divide(np.uint32(x), factor, divisor, plus=np.uint32(plus))
        assert [int(n) for n in found] == [quotient, remainder]


# ---------------------------------------------------------------------------------------------------------------------
# Any way to run is the same


@pytest.mark.parametrize(("length", "remainder"), [(37, "wrap"), pytest.param(40_000, "drop", marks=pytest.mark.slow)])
def test_batch_at_is_the_sequence_of_next_batch(length, remainder):
    loader = loader_of(length, 10 if length == 37 else 9_000, remainder)
    out, _ = steps(loader, loader.init_state(4), 2 * loader.steps_per_epoch + 1)
    at = jax.jit(loader.batch_at)
    for step, (batch, mask) in enumerate(out):
        assert same(jax.tree.map(np.asarray, loader.batch_at(step, 4)), (batch, mask))
        assert same(jax.tree.map(np.asarray, at(step, 4)), (batch, mask))


@pytest.mark.parametrize("remainder", [pytest.param("pad", marks=pytest.mark.slow), "wrap"])
def test_one_resumes_anywhere(remainder):
    loader = loader_of(37, 10, remainder)
    out, _ = steps(loader, loader.init_state(4), 12)
    state = loader.init_state(4)
    for step in range(9):
        saved = json.loads(json.dumps(loader.save(state)))
        again, _ = steps(loader, loader.restore(saved), 3)
        assert same(again, out[step : step + 3])
        assert same(steps(loader, loader.state_at(step, 4), 3)[0], out[step : step + 3])
        batches, masks = jax.tree.map(np.asarray, loader.scan_epoch(state, None, collected)[2])
        for number in range(loader.steps_per_epoch):
            if step + number < len(out):
                batch = jax.tree.map(lambda leaf, number=number: np.asarray(leaf[number]), batches)
                assert same((batch, np.asarray(masks[number])), out[step + number])
        _, state, _ = loader.next_batch(state)


@pytest.mark.parametrize("length", [pytest.param(37, marks=pytest.mark.slow), 40_000])
def test_the_state_after_a_scan_is_that_after_its_steps(length):
    loader = loader_of(length, 10 if length == 37 else 9_000, "wrap")
    _, stepped = steps(loader, loader.init_state(4), loader.steps_per_epoch + 2)
    scanned, _, _ = loader.scan_epoch(loader.state_at(2, 4), None, collected)
    assert same(jax.tree.map(np.asarray, scanned), jax.tree.map(np.asarray, stepped))


def test_the_state_is_a_few_words_whatever_the_length():
    def words_of(length):
        return jax.tree.leaves(loader_of(length, 8, "pad", data=np.zeros(length, np.int8)).init_state(0))

    # One array and not three: each array that goes in or out of a compiled program takes time in every call.
    assert [leaf.shape for leaf in words_of(2**12)] == [leaf.shape for leaf in words_of(2**20)] == [(3,)]
    assert sum(leaf.size for leaf in words_of(2**12 - 1)) == 2**12 - 1 + 3  # a table beside them, which they determine


def test_iterate_is_the_sequence_of_next_batch():
    out, state = steps(SMALL, SMALL.init_state(4), SMALL.steps_per_epoch)
    iterator = SMALL.iterate(SMALL.init_state(4))
    assert same([jax.tree.map(np.asarray, pair) for pair in iterator], out)
    assert SMALL.save(iterator.state) == SMALL.save(state)
    assert len(list(SMALL.iterate(state, steps=7))) == 7
    with pytest.raises(ValueError, match="steps must not be negative, got -1"):
        SMALL.iterate(state, steps=-1)


@pytest.mark.parametrize(("length", "remainder"), [(37, "wrap"), pytest.param(40_000, "pad", marks=pytest.mark.slow)])
def test_vmap_is_a_loop_over_seeds(length, remainder):
    loader = loader_of(length, 10 if length == 37 else 9_000, remainder)
    keys = jax.random.split(jax.random.key(3), 3)
    states, each = jax.vmap(loader.init_state)(keys), [loader.init_state(key) for key in keys]
    together = jax.jit(jax.vmap(loader.next_batch))
    for _ in range(2 * loader.steps_per_epoch):
        batches, states, masks = together(states)
        batches, masks = jax.tree.map(np.asarray, (batches, masks))
        for number in range(3):
            batch, each[number], mask = loader.next_batch(each[number])
            one = jax.tree.map(lambda leaf, number=number: np.asarray(leaf[number]), (batches, masks))
            assert same(one, jax.tree.map(np.asarray, (batch, mask)))


def test_loaders_out_of_step_are_right_under_vmap():
    states = jax.vmap(lambda step, key: SMALL.state_at(step, key))(jnp.arange(3, 9), jnp.arange(6))
    together = jax.jit(jax.vmap(SMALL.next_batch))
    for ahead in range(5):
        batches, states, masks = together(states)
        batches, masks = jax.tree.map(np.asarray, (batches, masks))
        for number in range(6):
            one = jax.tree.map(lambda leaf, number=number: np.asarray(leaf[number]), (batches, masks))
            assert same(one, jax.tree.map(np.asarray, SMALL.batch_at(3 + number + ahead, number)))


def test_gradients_go_through_a_scan():
    def loss(weight, loader):
        def body(total, batch, mask):
            return total + (weight * batch["row"].sum(axis=1) * mask).sum(), None

        return loader.scan_epoch(loader.init_state(0), 0.0, body)[1]

    total = float(arrays(37)["row"].sum())
    for found in (jax.grad(loss)(2.0, SMALL), jax.jit(jax.grad(loss))(2.0, SMALL)):
        assert float(found) == pytest.approx(total)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints of the host


@pytest.mark.parametrize("remainder", ["pad", pytest.param("wrap", marks=pytest.mark.slow)])
def test_a_run_moves_from_the_host_into_jit_and_back(remainder, caplog):
    loader, host = loader_of(37, 10, remainder), host_of(37, 10, remainder, seed=6)
    iterator = iter(host)
    expected = [next(iterator) for _ in range(15)]
    iterator = iter(host)
    found = [next(iterator) for _ in range(6)]
    state = loader.from_host_state(json.loads(json.dumps(iterator.get_state())), 6)
    for _ in range(5):
        batch, state, mask = loader.next_batch(state)
        found.append(real(batch, mask))
    again = iter(host)
    with caplog.at_level(logging.INFO, logger="bushel"):
        again.set_state(json.loads(json.dumps(loader.to_host_state(state))))
    found += [next(again) for _ in range(4)]
    assert same(found, expected)
    (told,) = caplog.records  # not a warning, and not a word of Grain, which has written nothing
    assert told.levelno == logging.INFO and told.getMessage().startswith("This state comes from a loader of bushel.jit")
    assert loader.save(loader.from_host_state(loader.to_host_state(state), 6)) == loader.save(state)


@pytest.mark.parametrize(
    ("restore", "sentence"),
    [
        (lambda: SMALL.from_host_state({"parent": 3}), "which has an integer next_index; got {'parent': 3}."),
        (
            lambda: SMALL.restore({"seed": 1}),
            "restore takes what save returned, a dict of seed, epoch and position; got {'seed': 1}.",
        ),
        (
            lambda: SMALL.restore({"seed": 1, "epoch": "0", "position": 1}),
            "'epoch' of a saved state must be an integer from 0 to 2**32-1, got '0'.",
        ),
        (lambda: SMALL.restore({"seed": -1, "epoch": 0, "position": 1}), "got -1"),
        (lambda: SMALL.restore({"seed": 1, "epoch": 2**70, "position": 1}), "The place in the state: ['epoch']"),
        (lambda: SMALL.restore({"seed": 1, "epoch": 0, "position": True}), "got True"),
        (lambda: SMALL.restore({"seed": 1, "epoch": 0, "position": 1.5}), "got 1.5"),
        (lambda: SMALL.from_host_state({"next_index": True}), "which has an integer next_index"),
        (lambda: SMALL.from_host_state({"next_index": 2.0}), "which has an integer next_index"),
        (
            lambda: SMALL.restore({"seed": 1, "epoch": 0, "position": 4}),
            "at batch 4 of its epoch, but an epoch of this loader has 4 batches.",
        ),
    ],
)
def test_states_of_others_are_refused(restore, sentence):
    with pytest.raises(bushel.StateMismatch) as raised:
        restore()
    assert sentence in str(raised.value)
