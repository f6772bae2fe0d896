"""Python beside the compiled program: sources that read, callbacks, chunks that are sent ahead, environments."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.jit_loaders import loader_of

import bushel
from bushel.jit import (
    ArraySource,
    BatchTransform,
    BufferTransform,
    ChunkLoader,
    DataLoader,
    DiskSource,
    GymnaxSource,
    HostCallbackTransform,
    MapTransform,
)
from bushel.jit.cereal import set_loader_policy_state, set_source_policy_state
from bushel.testing import same


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


# ---------------------------------------------------------------------------------------------------------------------
# Sources that read


@pytest.mark.parametrize("ahead", [1, 64])
def test_a_disk_source_is_an_array_source(ahead):
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    threads = set()

    def read(number):
        threads.add(threading.get_ident())
        return {"x": np.int32(number), "row": rows[number]}

    disk = DataLoader([DiskSource(50, read, prefetch_size=ahead), BatchTransform(8)])
    arrays = DataLoader([ArraySource({"x": np.arange(50, dtype=np.int32), "row": rows}), BatchTransform(8)])
    for step in (0, 9, 3):  # forward and back
        ours = disk.iterate(disk.state_at(step, 5), steps=9)
        theirs = arrays.iterate(arrays.state_at(step, 5), steps=9)
        assert same([numpy(pair) for pair in ours], [numpy(pair) for pair in theirs])
    assert len(threads - {threading.get_ident()}) == 1  # all but the example at the beginning


def test_a_disk_source_reads_ahead():
    read = []

    def sample(number):
        read.append(number)
        return np.int32(number)

    spec = jax.ShapeDtypeStruct((), jnp.int32)
    loader = DataLoader([DiskSource(100, sample, spec, "sequential", prefetch_size=10), BatchTransform(4)])
    state = loader.init_state(0)
    batch, state, _ = loader.next_batch(state)
    assert batch.tolist() == [0, 1, 2, 3]
    batch, state, _ = loader.next_batch(state)
    assert batch.tolist() == [4, 5, 6, 7]
    loader.source.inner.reader._pool.submit(lambda: None).result()  # behind all that was asked for
    assert read == list(range(18))  # each once


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        (
            lambda number: jnp.float32(number),
            "returned a JAX array. Compute with NumPy instead: inside a callback JAX may wait for itself forever.",
        ),
        (lambda number: np.zeros(number % 7, np.float32), "but the spec is float32[0]"),
        (lambda number: np.float32(1 / (number - 9) if number else 0), "division by zero"),
    ],
)
def test_what_a_reading_function_does_wrong_is_told(sample, sentence):
    with pytest.raises(Exception) as raised:
        loader = DataLoader([DiskSource(20, sample, ordering="sequential"), BatchTransform(20)])
        jax.block_until_ready(loader.next_batch(loader.init_state(0)))
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: DiskSource(0, np.float32), "length must be positive, but got 0."),
        (lambda: DiskSource(3, np.float32, prefetch_size=0), "prefetch_size must be positive, but got 0."),
        (lambda: DiskSource(3, np.float32, {}), "A record needs at least one array"),
    ],
)
def test_wrong_arguments_of_a_disk_source_get_a_sentence(make, sentence):
    with pytest.raises(ValueError) as raised:
        make()
    assert sentence in str(raised.value)


# ---------------------------------------------------------------------------------------------------------------------
# Callbacks


def with_callback(fn, override=None, size=4):
    return DataLoader(
        [ArraySource({"x": np.arange(10, dtype=np.int32)}, "sequential"), BatchTransform(size),
         HostCallbackTransform(fn, override)]
    )  # fmt: skip


def test_a_callback_sees_every_batch_and_may_change_it():
    seen = []

    def fn(batch, mask):
        assert isinstance(batch["x"], np.ndarray)
        seen.append(batch["x"][mask].tolist())
        return None if len(seen) % 2 else {"x": batch["x"] + 100}

    loader = with_callback(fn)
    out = [batch["x"].tolist() for batch, _ in loader.iterate(loader.init_state(0))]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert out == [[0, 1, 2, 3], [104, 105, 106, 107], [8, 9, 0, 0]]


def test_a_callback_runs_in_a_scan_with_large_batches():
    large = np.ones((64, 1_000_000), np.float32)  # 64 MB through the callback
    loader = DataLoader([ArraySource(large), BatchTransform(16), HostCallbackTransform(lambda batch, mask: None)])
    _, total, _ = loader.scan_epoch(
        loader.init_state(0), 0.0, lambda total, batch, mask: (total + batch[:, 0].sum(), None)
    )
    assert float(total) == 64


def test_a_callback_may_give_another_kind_of_element():
    spec = {"mean": jax.ShapeDtypeStruct((), jnp.float32)}
    loader = with_callback(lambda batch, mask: {"mean": np.float32(batch["x"].mean())}, spec)
    batch, _, _ = loader.next_batch(loader.init_state(0))
    assert float(batch["mean"]) == 1.5 and loader.element_spec() == spec


@pytest.mark.parametrize(
    ("fn", "sentence"),
    [
        (lambda batch, mask: {"x": jnp.asarray(batch["x"])}, "returned a JAX array"),
        (lambda batch, mask: {"y": batch["x"]}, "returned {'y': int32[4]}, but the spec is {'x': int32[4]}."),
        (lambda batch, mask: {"x": batch["x"] * 0.5}, "returned {'x': float64[4]}, but the spec is {'x': int32[4]}."),
    ],
)
def test_what_a_callback_does_wrong_is_told(fn, sentence):
    loader = with_callback(fn)
    with pytest.raises(Exception) as raised:
        jax.block_until_ready(loader.next_batch(loader.init_state(0)))
    assert sentence in str(raised.value)


# ---------------------------------------------------------------------------------------------------------------------
# Chunks


def batches_of(length=50, size=4):
    return bushel.MapDataset.range(length).seed(3).shuffle().batch(size, drop_remainder=True)


@pytest.mark.parametrize("per_chunk", [1, 5, 100])
@pytest.mark.parametrize("ahead", [1, 3])
def test_chunks_are_the_batches_of_the_host(per_chunk, ahead):
    host = batches_of()
    loader = ChunkLoader(host, per_chunk, buffer_size=ahead)
    for start in (0, 7, 12, 30):  # also in later epochs, where the order is another
        stop = (start // 12 + 1) * 12
        state, count, out = loader.scan_epoch(start, 0, lambda count, batch: (count + 1, batch))
        assert state == stop and int(count) == stop - start
        assert np.asarray(out).tolist() == [host.repeat()[n].tolist() for n in range(start, stop)]


def test_the_order_of_chunks_is_that_of_a_loader_inside_jit():
    loader = loader_of(50, 4, "drop")
    host = bushel.MapDataset.source(bushel.sources.ArrayDataSource(np.arange(50))).seed(3).shuffle()
    chunks = ChunkLoader(host.batch(4, drop_remainder=True), 5)
    _, _, out = chunks.scan_epoch(0, None, lambda carry, batch: (carry, batch))
    inside = [batch["x"].tolist() for batch, _ in loader.iterate(loader.init_state(3))]
    assert np.asarray(out).tolist() == inside


class Watched:
    """A data set that counts what was asked of it."""

    def __init__(self, count=12, fail_at=None):
        self.count, self.fail_at, self.asked = count, fail_at, []

    def __len__(self):
        return self.count

    def get(self, indices):
        self.asked.append(list(indices))
        if self.fail_at in self.asked[-1]:
            raise OSError("the disk is gone")
        return [np.float32(index) for index in indices]


def test_chunks_are_prepared_ahead_but_not_far():
    data = Watched(count=40)
    chunks = ChunkLoader(data, 4, buffer_size=2).chunks()
    next(chunks)
    chunks.close()  # waits for what was begun
    assert 1 <= len(data.asked) <= 3
    assert not [each for each in threading.enumerate() if each.name.startswith("bushel-chunks")]


def test_an_error_of_the_data_comes_in_its_place_and_leaves_nothing():
    loader = ChunkLoader(Watched(fail_at=6), 2)
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        for chunk in loader.chunks():
            seen.append(chunk.first)
    assert seen == [0, 2, 4]
    assert not [each for each in threading.enumerate() if each.name.startswith("bushel-chunks")]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ChunkLoader([1, 2], 2), "takes a data set with `get` and `__len__`"),
        (lambda: ChunkLoader(bushel.MapDataset.range(0), 2), "needs at least one batch, got an empty data set"),
        (lambda: ChunkLoader(Watched(), 0), "batches_per_chunk must be positive, but got 0."),
        (lambda: list(ChunkLoader(Watched(), 2).chunks(-1)), "start must not be negative, got -1."),
        (lambda: ChunkLoader(Watched(), 2).scan_epoch({}, 0, None), "must be the number of the next batch, got {}."),
        (
            lambda: list(ChunkLoader(bushel.MapDataset.range(5).batch(2), 3).chunks()),
            "can only be stacked if all have the same structure and shapes",
        ),
        (lambda: list(ChunkLoader(bushel.MapDataset.range(5).map(str), 3).chunks()), "must be arrays of numbers"),
    ],
)
def test_wrong_chunks_get_a_sentence(make, sentence):
    with pytest.raises((TypeError, ValueError)) as raised:
        make()
    assert sentence in str(raised.value)


# ---------------------------------------------------------------------------------------------------------------------
# Environments


class Counting:
    """An environment with Gymnax' interface: counts steps, and is done after five."""

    def reset(self, key, params):
        return jnp.int32(0), jnp.int32(0)

    def step(self, key, state, action, params):
        state = state + 1
        return state, state, action.astype(jnp.float32) * params, state >= 5, {"discount": jnp.float32(1)}


def test_transitions_follow_the_environment_and_begin_again():
    source = GymnaxSource(Counting(), 2.0, lambda obs, params, key: obs + params, 10, steps_per_epoch=8)
    loader = DataLoader([source, BatchTransform(8)])
    state = loader.init_state(jax.random.key(0))
    for _ in range(2):  # an epoch ends an episode
        batch, state, mask = loader.next_batch(state)
        assert batch["state"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2] and mask.all()
        assert batch["next_state"].tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
        assert batch["done"].tolist() == [False] * 4 + [True] + [False] * 3
        assert batch["reward"].tolist() == [20, 22, 24, 26, 28, 20, 22, 24]


def test_a_policy_with_a_state_gets_it_and_keeps_it():
    def act(obs, policy, new_episode, key):
        count = jnp.where(new_episode, 0, policy["count"]) + 1
        return count * policy["factor"], {**policy, "count": count}

    template = {"factor": jnp.int32(1), "count": jnp.int32(0)}
    source = GymnaxSource(Counting(), 1.0, policy_step_fn=act, policy_state_template=template, steps_per_epoch=8)
    loader = DataLoader([source, BatchTransform(4)])
    with pytest.raises(ValueError, match="The state of the policy is not set"):
        loader.next_batch(loader.init_state(0))
    state = set_loader_policy_state(loader.init_state(0), template)
    batch, state, _ = loader.next_batch(state)
    assert batch["action"].tolist() == [1, 2, 3, 4]
    state = set_loader_policy_state(state, {"factor": jnp.int32(10), "count": jnp.int32(4)})
    batch, state, _ = loader.next_batch(state)
    assert batch["action"].tolist() == [50, 10, 20, 30]
    assert set_source_policy_state(source.init_state(0), template, new_episode=False).new_episode == jnp.bool_(False)


@pytest.mark.parametrize("buffered", [False, True])
def test_a_policy_with_a_state_in_a_pipeline_of_several_stages(buffered):
    """The shapes come from the template: the state of the policy is set later."""

    def act(obs, policy, new_episode, key):
        return policy["count"], {"count": policy["count"] + 1}

    template = {"count": jnp.int32(0)}
    source = GymnaxSource(Counting(), 1.0, policy_step_fn=act, policy_state_template=template, steps_per_epoch=8)
    stages = [
        MapTransform(lambda element, mask: {**element, "twice": 2 * element["action"]}),
        *([BufferTransform(capacity=4, prefill=1)] if buffered else []),
        BatchTransform(4),
        MapTransform(lambda batch, mask: batch["twice"]),
    ]
    loader = DataLoader([source, *stages])
    assert loader.element_spec().shape == (4,)
    state = set_loader_policy_state(loader.init_state(0), {"count": jnp.int32(5)})
    batch, state, mask = loader.next_batch(state)
    assert mask.shape == (4,) and batch[0] == 10
    if not buffered:
        assert batch.tolist() == [10, 12, 14, 16]


class AsBefore1(Counting):
    """Counting as an environment of Gymnax 0.0: `step` begins the next episode, at -1, and `step_env` does not."""

    def step_env(self, key, state, action, params):
        return super().step(key, state, action, params)

    def step(self, key, state, action, params):
        obs, state, reward, done, info = self.step_env(jax.random.split(key)[0], state, action, params)
        return jnp.where(done, -1, obs), jnp.where(done, 0, state), reward, done, info


class Wrapped:
    """A wrapper in the manner of Gymnax: it passes on all attributes, and returns twice the observation."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, *args):
        obs, *others = self.env.step(*args)
        return 2 * obs, *others


def test_the_last_observation_of_an_episode_is_its_own_before_gymnax_1():
    source = GymnaxSource(AsBefore1(), 2.0, lambda obs, params, key: obs, steps_per_epoch=8)
    batch = first_batch(source, 8)
    assert batch["next_state"].tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert batch["state"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert sorted(batch) == ["action", "done", "info", "next_state", "reward", "state"]


def test_the_observations_of_a_wrapper_are_its_own():
    source = GymnaxSource(Wrapped(AsBefore1()), 2.0, lambda obs, params, key: obs, steps_per_epoch=4)
    batch = first_batch(source, 4)
    assert batch["next_state"].tolist() == [2, 4, 6, 8]


def first_batch(source, size):
    loader = DataLoader([source, BatchTransform(size)])
    return loader.next_batch(loader.init_state(0))[0]


def test_a_real_environment_of_gymnax_runs():
    gymnax = pytest.importorskip("gymnax")  # here, since it imports scipy and matplotlib, too

    env = gymnax.make("CartPole-v1")[0]
    params = env.default_params.replace(max_steps_in_episode=12)
    source = GymnaxSource(env, params, lambda obs, _, key: jax.random.bernoulli(key, 0.3).astype(int))
    loader = DataLoader([source, BatchTransform(64)])
    batch, _, _ = loader.next_batch(loader.init_state(0))
    assert batch["state"].shape == (64, 4) and loader.steps_per_epoch == 16
    state, after = np.asarray(batch["state"]), np.asarray(batch["next_state"])
    done, truncated = np.asarray(batch["done"]), np.asarray(batch["truncated"])
    assert (np.abs(state[1:][done[:-1]]) <= 0.05).all()  # where an episode begins
    assert (after[:-1][~done[:-1]] == state[1:][~done[:-1]]).all()
    fallen = (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 12 * 2 * np.pi / 360)
    assert (fallen == batch["terminated"]).all() and (done == fallen | truncated).all()
    assert truncated.any() and (truncated & ~fallen).any() and fallen.any()
    begun = np.diff(np.flatnonzero(done))
    assert begun.max() == 12 and begun.min() < 12
    assert "final_observation" not in batch["info"]
    again, _, _ = loader.next_batch(loader.init_state(0))
    assert same(numpy(batch), numpy(again))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GymnaxSource(Counting(), 1.0), "takes either policy_fn or policy_step_fn."),
        (lambda: GymnaxSource(Counting(), 1.0, policy_step_fn=print), "policy_step_fn needs policy_state_template"),
        (lambda: GymnaxSource(Counting(), 1.0, print, steps_per_epoch=0), "steps_per_epoch must be positive"),
        (
            lambda: set_loader_policy_state(loader_of(37, 10, "pad").init_state(0), 1),
            "There is no GymnaxSource in this pipeline, so its state has no policy.",
        ),
    ],
)
def test_wrong_environments_get_a_sentence(make, sentence):
    with pytest.raises((TypeError, ValueError)) as raised:
        make()
    assert sentence in str(raised.value)
