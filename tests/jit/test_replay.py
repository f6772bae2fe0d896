"""Replay buffers: what they keep, what they draw, and flashbax beside where both do the same."""

from __future__ import annotations

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.base import rng
from bushel._src.index import shuffle
from bushel._src.jit.replay_buffer import find_slots, importance_weights, make_tree, set_values
from bushel.jit import (
    ArraySource,
    BatchTransform,
    BufferTransform,
    DataLoader,
    PrioritisedBuffer,
    ReplayBuffer,
    TrajectoryBuffer,
    n_step_return,
)

FEW = settings(max_examples=15, deadline=None)
SET, FIND = jax.jit(set_values), jax.jit(find_slots)
ADD = {write: jax.jit(ReplayBuffer(7, write).add) for write in ("fifo", "reservoir")}


# ---------------------------------------------------------------------------------------------------------------------
# First in, first out


@FEW
@given(masks=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), max_size=8))
def test_a_buffer_keeps_the_newest(masks):
    buffer, everything, number = ReplayBuffer(7), [], 0
    state = buffer.init({"x": jnp.int32(0)})
    for mask in masks:
        items = np.arange(number, number + 4, dtype=np.int32)
        number += 4
        state = ADD["fifo"](state, {"x": items}, jnp.array(mask))
        everything.extend(items[np.array(mask)].tolist())
    held = int(state.held)
    assert held == min(7, len(everything)) and int(state.seen) == len(everything)
    assert sorted(state.items["x"][:held].tolist()) == sorted(everything[-7:])


def test_a_buffer_is_that_of_flashbax():
    theirs = flashbax.make_item_buffer(max_length=7, min_length=1, sample_batch_size=5, add_batches=True)
    their_state = theirs.init({"x": jnp.int32(0)})
    buffer = ReplayBuffer(7)
    state = buffer.init({"x": jnp.int32(0)})
    add, sample, our_sample = jax.jit(theirs.add), jax.jit(theirs.sample), jax.jit(buffer.sample, static_argnums=2)
    for start in range(0, 18, 3):
        items = {"x": jnp.arange(start, start + 3)}
        state, their_state = ADD["fifo"](state, items), add(their_state, items)
        assert state.items["x"].tolist() == their_state.experience["x"][0].tolist()
        drawn = set(np.asarray(our_sample(state, jax.random.key(start), 200)[0]["x"]).tolist())
        their_drawn = set()
        for key in jax.random.split(jax.random.key(start), 40):
            their_drawn |= set(sample(their_state, key).experience["x"].tolist())
        assert drawn == their_drawn == set(state.items["x"][: int(state.held)].tolist())


def test_more_items_than_there_is_place_for_leave_the_last():
    state = ReplayBuffer(7).add(ReplayBuffer(7).init(jnp.int32(0)), jnp.arange(20))
    assert sorted(state.items.tolist()) == list(range(13, 20))


def test_a_reservoir_is_a_fair_sample():
    def fill(key):
        state = ReplayBuffer(7, "reservoir").init(jnp.int32(0))

        def add(state, number):
            key_of_step = jax.random.fold_in(key, number)
            return ReplayBuffer(7, "reservoir").add(state, number * 4 + jnp.arange(4), key=key_of_step), None

        return jax.lax.scan(add, state, jnp.arange(10))[0]

    states = jax.jit(jax.vmap(fill))(jax.random.split(jax.random.key(0), 3000))
    assert (states.held == 7).all() and (states.seen == 40).all()
    items = np.asarray(states.items)
    assert all(len(set(row)) == 7 for row in items[:100].tolist())
    shares = np.bincount(items.reshape(-1), minlength=40) / 3000
    assert abs(shares - 7 / 40).max() < 5 * np.sqrt(7 / 40 * 33 / 40 / 3000)


# ---------------------------------------------------------------------------------------------------------------------
# Exact epochs over what is there

EPOCH = jax.jit(ReplayBuffer(3000).epoch_batch, static_argnums=2)


@FEW
@given(held=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 2**20))
def test_an_epoch_over_a_growing_buffer_is_a_permutation_and_the_hosts(held, seed, epoch):
    state = ReplayBuffer(3000).init(jnp.int32(0))._replace(items=jnp.arange(3000), held=jnp.int32(held))
    steps = int(ReplayBuffer(3000).steps_per_epoch(state, 1000))
    out = [EPOCH(state, jnp.int32(step), 1000, jnp.uint32(seed), jnp.uint32(epoch)) for step in range(steps)]
    records = np.concatenate([np.asarray(batch)[np.asarray(mask)] for batch, mask in out])
    own = (rng.derive([(seed, 1)]) + epoch) & 0xFFFFFFFF
    assert records.tolist() == shuffle.permute(np.arange(held), length=held, seed=own).tolist()
    assert not np.asarray(EPOCH(state, jnp.int32(steps), 1000, jnp.uint32(seed), jnp.uint32(epoch))[1]).any()


# ---------------------------------------------------------------------------------------------------------------------
# Priorities


@FEW
@given(
    values=st.lists(st.integers(0, 50), min_size=1, max_size=13),
    changes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 50)), max_size=4),
)
def test_a_sum_tree_finds_what_a_running_sum_finds(values, changes):
    numbers = np.zeros(13)
    tree = make_tree(13)
    for place, value in [*enumerate(values), *changes]:
        numbers[place] = value
        tree = SET(tree, np.array([place]), np.array([value], np.float32))
    assert float(tree.total) == numbers.sum()
    if numbers.sum():
        targets = (np.arange(64) + 0.5) / 64 * numbers.sum()
        found = FIND(tree, targets.astype(np.float32)).tolist()
        assert found == np.searchsorted(np.cumsum(numbers), targets, side="right").tolist()


def test_an_item_without_priority_is_never_drawn():
    buffer = PrioritisedBuffer(1000, exponent=1.0)
    state = buffer.init(jnp.int32(0))
    priorities = jnp.where(jnp.arange(1000) % 2 == 0, 0.0, 0.1)  # 0.1 is no exact float: sums are rounded
    state = jax.jit(buffer.add)(state, jnp.arange(1000), priorities)
    sample = jax.jit(buffer.sample, static_argnums=2)
    for seed in range(20):
        items, _, chances = sample(state, jax.random.key(seed), 2000)
        assert (np.asarray(items) % 2 == 1).all() and (np.asarray(chances) > 0).all()
    top = find_slots(state.tree, jnp.array([state.tree.total, jnp.nextafter(state.tree.total, jnp.inf)]))
    assert (np.asarray(top) % 2 == 1).all()


def test_items_are_drawn_by_priority_as_in_flashbax():
    weights = np.array([1.0, 2.0, 3.0, 4.0, 0.0, 5.0, 1.0, 0.5], np.float32)
    buffer = PrioritisedBuffer(8, exponent=0.5)
    state = jax.jit(buffer.add)(buffer.init(jnp.int32(0)), jnp.arange(8))
    state = jax.jit(buffer.update)(state, jnp.arange(8), jnp.asarray(weights))
    _, places, chances = jax.jit(buffer.sample, static_argnums=2)(state, jax.random.key(0), 8000)
    shares = weights**0.5 / (weights**0.5).sum()
    np.testing.assert_allclose(np.bincount(places, minlength=8) / 8000, shares, atol=0.002)
    np.testing.assert_allclose(chances, shares[np.asarray(places)], rtol=1e-5)

    theirs = flashbax.make_prioritised_trajectory_buffer(
        add_batch_size=1, sample_batch_size=2000, sample_sequence_length=1, period=1, min_length_time_axis=1,
        max_length_time_axis=8, priority_exponent=0.5,
    )  # fmt: skip
    their_state = jax.jit(theirs.add)(theirs.init(jnp.int32(0)), jnp.arange(8)[None])
    their_state = jax.jit(theirs.set_priorities)(their_state, jnp.arange(8), jnp.asarray(weights))
    drawn = jax.jit(theirs.sample)(their_state, jax.random.key(0)).experience.reshape(-1)
    np.testing.assert_allclose(np.bincount(drawn, minlength=8) / 2000, shares, atol=0.05)


def test_new_items_get_the_largest_priority_and_old_ones_make_room():
    buffer = PrioritisedBuffer(4, exponent=1.0)
    add = jax.jit(buffer.add)
    state = add(buffer.init(jnp.int32(0)), jnp.arange(4), jnp.array([1.0, 2.0, 3.0, 9.0]))
    state = add(state, jnp.array([4, 5]))
    assert state.tree.leaves.tolist() == [9.0, 9.0, 3.0, 9.0] and state.replay.items.tolist() == [4, 5, 2, 3]
    state = jax.jit(buffer.update)(state, jnp.array([0, 1]), jnp.array([jnp.nan, -1.0]))
    assert state.tree.leaves.tolist() == [0.0, 0.0, 3.0, 9.0]
    assert importance_weights(jnp.array([0.5, 0.25]), 4, 0.0).tolist() == [1.0, 1.0]


# ---------------------------------------------------------------------------------------------------------------------
# Sequences


@pytest.mark.parametrize("period", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_pieces_are_those_of_flashbax(period):
    buffer = TrajectoryBuffer(actors=2, capacity=8, length=3, period=period)
    theirs = flashbax.make_trajectory_buffer(
        add_batch_size=2, sample_batch_size=300, sample_sequence_length=3, period=period, min_length_time_axis=3,
        max_length_time_axis=8,
    )  # fmt: skip
    state, their_state = buffer.init(jnp.int32(0)), theirs.init(jnp.int32(0))
    ours_add, theirs_add, theirs_sample = jax.jit(buffer.add), jax.jit(theirs.add), jax.jit(theirs.sample)
    ours_sample = jax.jit(buffer.sample, static_argnums=2)
    for start in range(0, 20, 2):
        steps = jnp.stack([jnp.arange(start, start + 2), 100 + jnp.arange(start, start + 2)])
        state, their_state = ours_add(state, steps), theirs_add(their_state, steps)
        assert bool(buffer.can_sample(state)) == bool(theirs.can_sample(their_state))
        if not buffer.can_sample(state):
            continue
        pieces, _ = ours_sample(state, jax.random.key(start), 300)
        found = set(map(tuple, pieces.tolist()))
        newest, oldest = start + 1, max(0, start + 2 - 8)
        first = oldest + (-oldest) % period
        expected = {(t + a, t + 1 + a, t + 2 + a) for t in range(first, newest - 1, period) for a in (0, 100)}
        assert found == expected
        drawn = set(map(tuple, theirs_sample(their_state, jax.random.key(start)).experience.tolist()))
        assert drawn <= expected


def test_returns_over_steps_end_with_the_episode():
    rewards = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    dones = jnp.array([[False, True, False], [False, False, False]])
    total, rest = n_step_return(rewards, dones, 0.5)
    assert total.tolist() == [2.0, 2.75] and rest.tolist() == [0.0, 0.125]


# ---------------------------------------------------------------------------------------------------------------------
# In a pipeline, and with wrong arguments


def test_a_batch_of_buffers_has_a_mask_for_each_element():
    loader = DataLoader(
        [ArraySource(np.arange(20), "sequential"), BufferTransform(8, 4, sample_size=3), BatchTransform(2)]
    )
    state = loader.init_state(0)
    batch, state, mask = loader.next_batch(state)
    assert batch.shape == (2, 3) and batch[:, 0].tolist() == [0, 1]
    assert mask.tolist() == [False, False]  # each element has only one of three rows
    for _ in range(2):
        batch, state, mask = loader.next_batch(state)
    assert mask.tolist() == [True, True]


def test_a_shuffled_buffer_gives_what_it_holds():
    loader = DataLoader([ArraySource(np.arange(20), "sequential"), BufferTransform(5, 5, 4, mode="shuffled")])
    state = loader.init_state(0)
    for step in range(20):
        value, state, mask = loader.next_batch(state)
        if step >= 5:
            assert mask.all() and set(value.tolist()) <= set(range(step - 4, step + 1))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ReplayBuffer(0), "capacity must be positive, but got 0."),
        (lambda: ReplayBuffer(3, "lifo"), 'write must be "fifo" or "reservoir", got \'lifo\'.'),
        (lambda: ReplayBuffer(3).init(()), "A buffer needs items with at least one array, got ()."),
        (
            lambda: ReplayBuffer(3).add(ReplayBuffer(3).init(jnp.int32(0)), jnp.zeros(2)),
            "This buffer holds int32[3], got a batch of float32[2].",
        ),
        (
            lambda: ReplayBuffer(3, "reservoir").add(ReplayBuffer(3).init(jnp.int32(0)), jnp.arange(2)),
            "A reservoir replaces random items, so add needs a key.",
        ),
        (lambda: BufferTransform(4, 5), "A buffer needs sample_size <= prefill <= capacity, got 1, 5 and 4."),
        (lambda: BufferTransform(4, 4, mode="sorted"), 'mode must be "sequential" or "shuffled", got \'sorted\'.'),
        (lambda: PrioritisedBuffer(4, exponent=-1), "exponent must not be negative, got -1."),
        (
            lambda: PrioritisedBuffer(2).add(PrioritisedBuffer(2).init(jnp.int32(0)), jnp.arange(3)),
            "This buffer has a capacity of 2 items, got 3 at once.",
        ),
        (lambda: TrajectoryBuffer(1, 4, 5), "Sequences of 5 steps do not fit a capacity of 4."),
        (lambda: TrajectoryBuffer(1, 4, 2, period=3), "period must divide the capacity 4, got 3."),
        (
            lambda: TrajectoryBuffer(2, 4, 2).add(TrajectoryBuffer(2, 4, 2).init(jnp.int32(0)), jnp.zeros((1, 2))),
            "This buffer holds int32[2, 4], got a batch of float32[1, 2].",
        ),
    ],
)
def test_wrong_arguments_get_a_sentence(make, sentence):
    with pytest.raises(ValueError) as raised:
        make()
    assert sentence in str(raised.value)
