"""Public classes of bushel.jit: `isinstance`, subclasses, `repr`, pickles, their arguments and their type hints."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.image_files import write_mnist
from jax.sharding import Mesh

import bushel
from bushel import jit
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
    RandomMapTransform,
    ShardedSource,
    Source,
    WindowSource,
    cereal,
    datasets,
    mix,
)
from bushel.jit.cereal import set_loader_policy_state
from bushel.testing import same

ROWS = {"x": np.arange(10, dtype=np.int32)}


class Countdown:
    """An environment that ends after three steps."""

    def reset(self, key, params):
        return jnp.int32(3), jnp.int32(3)

    def step(self, key, state, action, params):
        return state - 1, state - 1, jnp.float32(1), state == 1, jnp.bool_(False), {}


def square(number):
    return np.float32(number * number)


def act(obs, params, key):
    return obs * params


def act_and_count(obs, count, new_episode, key):
    return obs, count + 1


def negate(batch):
    return jax.tree.map(lambda leaf: -leaf, batch)


def double(value, mask):
    return jax.tree.map(lambda leaf: leaf * 2, value)


def add_noise(value, key):
    return jax.tree.map(lambda leaf: leaf + jax.random.randint(key, (), 0, 1000), value)


def make_mesh():
    return Mesh(np.array(jax.devices()[:1]), ("data",))


SOURCES = {
    "arrays": (ArraySource, lambda: ArraySource(ROWS)),
    "filter": (ArraySource, lambda: ArraySource(ROWS, "sequential", where=np.arange(10) > 3)),
    "weights": (ArraySource, lambda: ArraySource(ROWS, weights=np.arange(10))),
    "mixture": (ArraySource, lambda: mix([ArraySource(ROWS), ArraySource(ROWS, "sequential")], [1, 2])),
    "windows": (WindowSource, lambda: WindowSource(ROWS, 3, stride=2, episode_lengths=[4, 6])),
    "disk": (DiskSource, lambda: DiskSource(10, square)),
    "mesh": (ShardedSource, lambda: ShardedSource(ROWS, make_mesh())),
    "environment": (GymnaxSource, lambda: GymnaxSource(Countdown(), None, act, jnp.int32(2), 6)),
}


def first_batches(source):
    loader = DataLoader([source, BatchTransform(4)])
    return [jax.tree.map(np.asarray, pair) for pair in loader.iterate(loader.init_state(5), steps=3)]


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_an_instance_of_its_class(name):
    cls, make = SOURCES[name]
    assert isinstance(make(), cls) and isinstance(make(), Source)
    for other in {other for other, _ in SOURCES.values()} - {cls}:
        assert not isinstance(make(), other)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("arrays", "ArraySource({'x': int32[]}, length=10, order=Shuffled)"),
        ("filter", "ArraySource({'x': int32[]}, length=6, order=Filtered)"),
        ("weights", "ArraySource({'x': int32[]}, length=10, order=Weighted)"),
        ("mixture", "ArraySource({'x': int32[]}, length=15, order=Mixed)"),
        ("windows", "WindowSource(Window({'x': int32[3]}, bool[3], int32[]), length=3, order=Shuffled)"),
        ("disk", "DiskSource(float32[], length=10, order=Shuffled)"),
        ("mesh", "ShardedSource({'x': int32[]}, length=10, order=RoundRobin)"),
    ],
)
def test_a_source_prints_what_it_holds(name, text):
    assert repr(SOURCES[name][1]()) == text


def test_pipelines_and_loaders_print_their_stages():
    batches = BatchTransform(4)(ArraySource(ROWS))
    shown = "BatchedSource(inner=ArraySource({'x': int32[]}, length=10, order=Shuffled), size=4, remainder='pad')"
    assert repr(batches) == shown
    assert repr(DataLoader(batches)) == f"DataLoader({shown}, steps_per_epoch=3)"
    assert "transform=MapTransform(fn=<function double" in repr(DataLoader([ArraySource(ROWS), MapTransform(double)]))
    environment = repr(SOURCES["environment"][1]())
    assert environment.startswith("GymnaxSource(env=<") and "policy_fn=<function act" in environment
    assert "steps_per_epoch=6" in environment and "Array(" not in environment
    chunks = repr(ChunkLoader(bushel.MapDataset.range(8).batch(2), 2))
    assert chunks.startswith("ChunkLoader(dataset=") and "batches_per_chunk=2, buffer_size=1, device=None" in chunks


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "mesh"])  # devices cannot be pickled
def test_a_copy_of_a_source_gives_the_same_elements(name):
    source = SOURCES[name][1]()
    first = first_batches(source)  # a reader that has begun is copied without its thread
    for again in (pickle.loads(pickle.dumps(source)), copy.deepcopy(source)):
        assert type(again) is type(source)
    assert same(first_batches(again), first)


@pytest.mark.parametrize(
    "stages",
    [
        [MapTransform(double), BatchTransform(4), RandomMapTransform(add_noise)],
        pytest.param([BufferTransform(5, 3, 2, "shuffled"), BatchTransform(2)], marks=pytest.mark.slow),
    ],
)
def test_a_loader_can_be_pickled(stages):
    loader = DataLoader([ArraySource(ROWS), *stages], batch_transform=negate)
    step = jax.jit(loader.next)
    again = pickle.loads(pickle.dumps(loader))
    for key in (0, 7):
        expected, _, _ = step(loader.init_state(key))
        batch, _, _ = again.next(again.init_state(key))
        assert same(jax.tree.map(np.asarray, batch), jax.tree.map(np.asarray, expected))
    assert again.steps_per_epoch == loader.steps_per_epoch and repr(again).startswith("DataLoader(")


# ---------------------------------------------------------------------------------------------------------------------
# Subclasses


class Squares(ArraySource):
    """A subclass with a constructor and an attribute of its own."""

    def __init__(self, count, power=2):
        super().__init__({"x": np.arange(count, dtype=np.int32) ** power}, "sequential")
        self.power = power


class SlowSquares(DiskSource):
    """A subclass that adds nothing."""


class NamedLoader(DataLoader):
    """A loader with an attribute and a method of its own."""

    def __init__(self, pipeline, name):
        super().__init__(pipeline)
        self.name = name

    def name_in_jit(self):
        return len(self.name)


def test_a_subclass_of_a_source_is_a_source_and_a_pytree():
    source = Squares(5, power=3)
    assert repr(source) == "Squares({'x': int32[]}, length=5, order=Sequential)"
    assert [leaf.tolist() for leaf in jax.tree.leaves(source)] == [[0, 1, 8, 27, 64]]
    again = jax.tree.map(lambda leaf: leaf + 1, source)
    assert type(again) is Squares and again.power == 3
    assert first_batches(again)[0][0]["x"].tolist() == [1, 2, 9, 28]
    assert jax.tree.structure(source) == jax.tree.structure(Squares(5, power=3)) != jax.tree.structure(Squares(5))
    assert same(first_batches(pickle.loads(pickle.dumps(source))), first_batches(source))
    assert first_batches(SlowSquares(10, square, ordering="sequential"))[0][0].tolist() == [0, 1, 4, 9]
    assert isinstance(mix([source, Squares(5)]), ArraySource)


def test_the_arrays_of_a_subclass_are_arguments_of_the_program():
    loader = DataLoader([Squares(100), BatchTransform(4)])
    assert len(jax.tree.leaves(loader)) == 1
    program = jax.make_jaxpr(lambda loader, state: loader.next_batch(state)[0])(loader, loader.init_state(0))
    assert program.jaxpr.invars[0].aval.shape == (100,) and not program.consts


def test_a_subclass_of_a_loader_goes_through_jit_with_its_attributes():
    loader = NamedLoader([ArraySource(ROWS, "sequential"), BatchTransform(4)], "train")
    assert repr(loader).startswith("NamedLoader(BatchedSource(")

    @jax.jit
    def step(loader, state):
        batch, state, _ = loader.next_batch(state)
        return batch["x"] * loader.name_in_jit(), state

    values, state = step(loader, loader.init_state(0))
    assert values.tolist() == [0, 5, 10, 15]
    assert jax.jit(loader.next)(state)[0]["x"].tolist() == [4, 5, 6, 7]


def test_a_loader_that_changes_between_calls_is_seen_to_have_changed():
    loader = NamedLoader([ArraySource(ROWS, "sequential"), BatchTransform(4)], "train")
    length = jax.jit(lambda loader: loader.name_in_jit())
    assert length(loader) == 5
    loader.name = "validation"
    assert length(loader) == 10
    loader.note = "more"
    assert ("note" in str(jax.tree.structure(loader)), length(loader)) == (True, 10)
    del loader.note
    assert "note" not in str(jax.tree.structure(loader))
    loader.source = ArraySource({"x": np.arange(7)})
    assert [leaf.tolist() for leaf in jax.tree.leaves(loader)] == [list(range(7))]


@jax.tree_util.register_pytree_node_class
class Constant:
    """A source of the user's, a pytree that may change."""

    steps_per_epoch = 1

    def __init__(self, value):
        self.value = value

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

    def init_state(self, key=None):
        return jnp.int32(0)

    def next(self, state):
        return self.value, jnp.bool_(True), state

    def element_spec(self):
        return jax.ShapeDtypeStruct((), jnp.float32)


def test_a_source_of_the_user_that_changes_between_calls_is_read_again():
    source = Constant(jnp.float32(1))
    loader = DataLoader(source)
    state = loader.init_state(0)
    assert float(loader.next_batch(state)[0]) == 1
    source.value = jnp.float32(2)
    assert float(loader.next_batch(state)[0]) == 2


def test_a_step_can_be_compiled_ahead_of_time():
    loader = jit.DataLoader(jit.BatchTransform(batch_size=4)(jit.ArraySource({"x": np.arange(12)})))
    state = loader.init_state(0)
    compiled = jax.jit(lambda loader, state: loader.next_batch(state)).lower(loader, state).compile()
    expected, next_state, _ = loader.next_batch(state)
    batch, compiled_state, _ = compiled(loader, state)
    assert (batch["x"] == expected["x"]).all()
    assert loader.save(compiled_state) == loader.save(next_state)


def test_the_parts_of_a_loader_are_taken_apart_once():
    # JAX asks for them in every call of a compiled program; the same structure is equal without being compared.
    loader = DataLoader([ArraySource(ROWS), BatchTransform(4)])
    assert loader._parts is loader._parts
    for again in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
        assert "_parts" not in vars(again)  # the oldest JAX cannot pickle them
        assert jax.tree.structure(again) == jax.tree.structure(loader)


def test_a_frozen_source_refuses_other_arrays():
    with pytest.raises(AttributeError):
        ArraySource(ROWS).columns = {}


# ---------------------------------------------------------------------------------------------------------------------
# The calls that users write


def get_arguments(value):
    return [(each.name, each.kind.name, each.default) for each in inspect.signature(value).parameters.values()]


POSITIONAL, KEYWORD = "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"
EMPTY = inspect.Parameter.empty


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (
            ArraySource,
            [
                ("data", POSITIONAL, EMPTY),
                ("ordering", POSITIONAL, "shuffle"),
                ("where", KEYWORD, None),
                ("weights", KEYWORD, None),
            ],
        ),
        (
            DiskSource,
            [
                ("length", POSITIONAL, EMPTY),
                ("sample_fn", POSITIONAL, EMPTY),
                ("sample_spec", POSITIONAL, None),
                ("ordering", POSITIONAL, "shuffle"),
                ("prefetch_size", POSITIONAL, 64),
            ],
        ),
        (
            WindowSource,
            [
                ("data", POSITIONAL, EMPTY),
                ("length", POSITIONAL, EMPTY),
                ("stride", KEYWORD, 1),
                ("episode_lengths", KEYWORD, None),
                ("partial", KEYWORD, False),
                ("ordering", KEYWORD, "shuffle"),
            ],
        ),
        (
            ShardedSource,
            [
                ("data", POSITIONAL, EMPTY),
                ("mesh", POSITIONAL, EMPTY),
                ("axis", POSITIONAL, "data"),
                ("ordering", POSITIONAL, "shuffle"),
                ("exchange", KEYWORD, False),
            ],
        ),
        (
            GymnaxSource,
            [
                ("env", POSITIONAL, EMPTY),
                ("env_params", POSITIONAL, EMPTY),
                ("policy_fn", POSITIONAL, None),
                ("policy_params", POSITIONAL, None),
                ("steps_per_epoch", POSITIONAL, 1024),
                ("policy_step_fn", KEYWORD, None),
                ("policy_state_template", KEYWORD, None),
            ],
        ),
        (
            ChunkLoader,
            [
                ("dataset", POSITIONAL, EMPTY),
                ("batches_per_chunk", POSITIONAL, EMPTY),
                ("buffer_size", KEYWORD, 1),
                ("device", KEYWORD, None),
            ],
        ),
        (
            cereal.MNISTDiskSource,
            [
                ("split", POSITIONAL, "train"),
                ("prefetch_size", POSITIONAL, 64),
                ("cache_dir", POSITIONAL, None),
                ("ordering", POSITIONAL, "shuffle"),
            ],
        ),
    ],
)
def test_the_arguments_are_those_of_the_functions_that_were_there_before(cls, arguments):
    assert get_arguments(cls.__init__)[1:] == arguments


def test_the_batches_of_cereal_are_padded_unless_dropped():
    source = ArraySource(ROWS, "sequential")
    for make, remainder in [
        (lambda: cereal.BatchTransform(4), "pad"),
        (lambda: cereal.BatchTransform(batch_size=4, drop_last=True), "drop"),
        (lambda: cereal.BatchTransform(4, drop_last=True, pad_last_batch=True), "drop"),
        (lambda: cereal.BatchTransform(4, pad_last_batch=False), "wrap"),
    ]:
        stage = make()
        assert isinstance(stage, BatchTransform) and stage(source).remainder == remainder
    for batches in (cereal.BatchTransform(source, 4), cereal.BatchTransform(inner=source, batch_size=4)):
        assert (batches.size, batches.remainder) == (4, "pad")
    assert pickle.loads(pickle.dumps(cereal.BatchTransform(4))) == cereal.BatchTransform(4)


def test_the_disk_source_of_mnist_is_a_class(tmp_path):
    write_mnist(tmp_path)
    source = cereal.MNISTDiskSource("test", 8, tmp_path, "sequential")
    assert isinstance(source, cereal.MNISTDiskSource) and isinstance(source, DiskSource)
    other = datasets.MNISTDataset.make_disk_source(split="test", cache_dir=tmp_path, ordering="sequential")
    assert type(other) is DiskSource
    assert same(first_batches(source), first_batches(other))
    assert same(first_batches(pickle.loads(pickle.dumps(source))), first_batches(other))


def test_a_policy_with_a_state_ignores_policy_params():
    source = GymnaxSource(
        Countdown(), None, None, 5, 6, policy_step_fn=act_and_count, policy_state_template=jnp.int32(0)
    )
    assert source.init_state(0).policy_state is None
    assert source.element_spec()["action"] == jax.ShapeDtypeStruct((), jnp.int32)
    loader = DataLoader(source)
    state = set_loader_policy_state(loader.init_state(0), jnp.int32(7))
    _, state, _ = loader.next_batch(state)
    assert int(state.inner_state.policy_state) == 8


def list_public_callables():
    for module in (jit, cereal, datasets, datasets.time_utils):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                yield f"{name}.__init__", value.__init__
                for method, function in inspect.getmembers(value, inspect.isfunction):
                    if not method.startswith("_"):
                        yield f"{name}.{method}", function
            elif inspect.isfunction(value):
                yield name, value


@pytest.mark.parametrize(("name", "function"), list(list_public_callables()))
def test_type_hints_are_complete(name, function):
    if function is object.__init__ or getattr(function, "__module__", None) in (None, "typing"):
        return
    hints = typing.get_type_hints(function, localns={**vars(jax), "Callable": typing.Callable})
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    assert [each for each in parameters if each not in hints] == []
    assert "return" in hints or function.__name__ == "__init__"


def test_a_callback_is_a_transform():
    assert isinstance(HostCallbackTransform(print), HostCallbackTransform)
