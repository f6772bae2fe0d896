"""What is compiled, and how often: nothing of the size of the data in a step, and one program for many steps.

Each check has a twin that shows it can fail.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.hlo import compiled, large
from helpers.jit_loaders import collected

from bushel._src.jit.compiled_loader import _next_batch, _scan_epoch
from bushel.jit import ArraySource, BatchTransform, DataLoader, NormalizeImageTransform, RandomMapTransform

LENGTH, SIZE = 100_000, 64


def data():
    images = np.random.default_rng(0).integers(0, 256, (LENGTH, 8, 8), np.uint8)
    return {"image": images, "label": np.arange(LENGTH, dtype=np.int32)}


def loader_over(remainder="pad"):
    return DataLoader(
        [
            ArraySource(data()),
            RandomMapTransform(lambda each, key: {**each, "label": each["label"] + jax.random.randint(key, (), 0, 2)}),
            BatchTransform(SIZE, remainder=remainder),
        ]
    )


@pytest.mark.parametrize("remainder", ["pad", "wrap"])
def test_a_step_makes_nothing_of_the_size_of_the_data(remainder):
    loader = loader_over(remainder)
    assert large(compiled(_next_batch, loader, loader.init_state(0)), LENGTH) == []


def test_a_scan_makes_nothing_of_the_size_of_the_data():
    loader = loader_over()
    text = compiled(_scan_epoch, loader, loader.init_state(0), 0, lambda carry, batch, mask: (carry, None), 1)
    # The records of a chunk are computed at once; the chunk does not grow with the data.
    assert large(text, LENGTH) == []


def test_the_check_finds_data_that_are_closed_over():
    loader = loader_over()
    text = compiled(jax.jit(lambda state: loader.next_batch(state)), loader.init_state(0))
    assert any(" constant(" in line for line in large(text, LENGTH))


def test_the_check_finds_a_permutation_that_is_sorted_or_copied():
    @jax.jit
    def step(rows, key, order, position):
        def turn():
            return jax.random.permutation(key, LENGTH)

        order = jax.lax.cond(position + SIZE > LENGTH, turn, lambda: order)
        return rows[jax.lax.dynamic_slice(order, (position,), (SIZE,))], order

    text = compiled(step, np.zeros((LENGTH, 4), np.float32), jax.random.key(0), jnp.arange(LENGTH), 0)
    found = large(text, LENGTH)
    assert any(" sort(" in line for line in found) and any(" copy(" in line for line in found)


def gathers(jaxpr, least):
    """How many gathers there are from arrays of at least so many rows, at any depth."""
    found = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "gather":
            found += equation.invars[0].aval.shape[:1] >= (least,)
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda each: hasattr(each, "eqns")):
            inner = getattr(part, "jaxpr", part)
            found += gathers(inner, least) if hasattr(inner, "eqns") else 0
    return found


def test_a_batch_is_one_gather_for_each_array():
    loader = DataLoader([ArraySource(data()), BatchTransform(SIZE)])
    state = loader.init_state(0)
    assert gathers(jax.make_jaxpr(DataLoader.next_batch)(loader, state).jaxpr, LENGTH) == 2
    twice = jax.make_jaxpr(lambda loader, state: loader.next_batch(loader.next_batch(state)[1]))(loader, state)
    assert gathers(twice.jaxpr, LENGTH) == 4  # it counts


def test_equal_stages_need_no_compilation():
    def loader():
        return DataLoader([ArraySource(data(), "sequential"), BatchTransform(SIZE), NormalizeImageTransform()])

    state = loader().init_state(0)
    loader().next_batch(state)
    second = loader()
    assert compilations(lambda: second.next_batch(state)) == 0


COMPILED = []


def note_compilation(name, *args, **kwargs):
    if name == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(name)


# For the whole process: the oldest JAX has no function that removes a listener.
jax.monitoring.register_event_duration_secs_listener(note_compilation)


def compilations(run):
    """How many programs are compiled while `run` runs."""
    before = len(COMPILED)
    run()
    return len(COMPILED) - before


def test_many_steps_and_epochs_are_compiled_once():
    loader = loader_over()
    states = [loader.init_state(0)]

    def run(count):
        for _ in range(count):
            _, state, _ = loader.next_batch(states[-1])
            states.append(state)

    run(2)
    assert compilations(lambda: run(5)) == 0
    states.append(loader.state_at(loader.steps_per_epoch - 1))
    assert compilations(lambda: run(3)) == 0  # the turn of an epoch
    list(loader.iterate(states[0], steps=2))
    assert compilations(lambda: list(loader.iterate(states[0], steps=5))) == 0


def test_scans_are_compiled_once():
    loader = loader_over()
    state, _, _ = loader.scan_epoch(loader.init_state(0), None, collected)
    assert compilations(lambda: loader.scan_epoch(state, None, collected)) == 0


def test_other_data_of_the_same_shape_need_no_compilation():
    first, second = (
        DataLoader([ArraySource(np.full((LENGTH, 4), value, np.float32)), BatchTransform(SIZE)]) for value in (1, 2)
    )
    state = first.init_state(0)
    first.next_batch(state)
    assert compilations(lambda: second.next_batch(state)) == 0
    assert float(second.next_batch(state)[0].sum()) == 2 * 4 * SIZE


def test_the_count_of_compilations_can_fail():
    loader = loader_over()
    state = loader.init_state(0)

    def run():
        loader.scan_epoch(state, None, functools.partial(lambda carry, batch, mask: (carry, None)))

    run()
    assert compilations(run) >= 1  # a new function every time


def test_jit_of_next_is_compiled_once():
    loader = DataLoader([ArraySource(np.arange(100)), BatchTransform(10)])
    state = loader.init_state(0)
    jax.jit(loader.next)(state)
    assert compilations(lambda: [jax.jit(loader.next)(state) for _ in range(3)]) == 0
