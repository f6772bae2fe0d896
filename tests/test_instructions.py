"""What a message tells the user to pass works on the object that has raised it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bushel
from bushel import IterDataset, MapDataset, StateMismatch
from bushel import experimental as bx
from bushel.checkpoint import CheckpointHandler


class Count(bushel.DatasetIterator[int]):
    """An iterator of a user's own, as Grain has it: its `set_state` takes a state only."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __next__(self) -> int:
        self.at += 1
        return self.at

    def get_state(self) -> dict[str, Any]:
        return {"at": self.at}

    def set_state(self, state: dict[str, Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.at = state["at"]


def shuffled(seed: int) -> MapDataset[int]:
    return MapDataset.range(40).seed(seed).shuffle()


def streamed(seed: int) -> IterDataset[int]:
    return shuffled(seed).to_iter_dataset().map(lambda x: x + 1)


def loader(seed: int) -> bushel.DataLoader[Any]:
    return bushel.load(list(range(40)), shuffle=True, seed=seed, num_epochs=1)


def put(elements: Any) -> Any:
    pytest.importorskip("jax")
    return iter(bushel.device_put(elements))


NO_SHARDING = bushel.NoSharding()
ITERATORS: dict[str, Callable[[int], Any]] = {
    "MapDataset": lambda seed: iter(shuffled(seed)),
    "IterDataset": lambda seed: iter(streamed(seed)),
    "threads": lambda seed: iter(bx.ThreadPrefetchIterDataset(streamed(seed), prefetch_buffer_size=2)),
    "ThreadPrefetchDatasetIterator": lambda seed: bx.ThreadPrefetchDatasetIterator(iter(streamed(seed)), 2),
    "ThreadPrefetchDatasetIterator without a thread": lambda seed: bx.ThreadPrefetchDatasetIterator(
        iter(shuffled(seed)), 0
    ),
    "DataLoader": lambda seed: iter(loader(seed)),
    "device_put of a dataset": lambda seed: put(shuffled(seed).batch(2)),
    "device_put of a loader": lambda seed: put(loader(seed)),
    "ElasticIterator": lambda seed: bx.ElasticIterator(shuffled(seed), 4, NO_SHARDING),
    "ElasticIterator of an interleave": lambda seed: bx.ElasticIterator(
        bx.InterleaveIterDataset([shuffled(seed), shuffled(seed + 7)], cycle_length=1), 2, NO_SHARDING
    ),
}


def plain(elements: list[Any]) -> list[Any]:
    return [np.asarray(element).tolist() for element in elements]


@pytest.mark.parametrize("name", ITERATORS)
def test_check_false_restores_the_state_of_another_pipeline(name):
    make = ITERATORS[name]
    first, other = make(1), make(2)
    before = [next(first), next(first)]
    state = first.get_state()
    expected = make(2)
    _ = [next(expected) for _ in before]
    next(other)
    with pytest.raises(StateMismatch, match="Pass check=False to set_state to restore it anyway"):
        other.set_state(state)
    other.set_state(state, check=False)
    assert plain([next(other), next(other)]) == plain([next(expected), next(expected)])
    # From here on its states are its own again.
    later = make(2)
    later.set_state(other.get_state())
    assert plain([next(later)]) == plain([next(other)])
    for it in (first, other, expected, later):
        getattr(it, "close", lambda: None)()


@pytest.mark.parametrize("size", [0, 2])
def test_check_false_also_goes_to_an_iterator_that_does_not_take_it(size):
    it = bx.ThreadPrefetchDatasetIterator(Count(), size)
    assert [next(it), next(it)] == [1, 2]
    it.set_state({"at": 7}, check=False)
    assert [next(it), next(it)] == [8, 9]
    it.close()


def test_check_false_after_an_element_that_fails():
    """The element is computed again from the restored position, whose state another pipeline has written."""
    fails = [True]

    def once(x: int) -> int:
        if x == 4 and fails[0]:
            fails[0] = False
            raise OSError("once")
        return x

    one = bx.ThreadPrefetchDatasetIterator(iter(MapDataset.range(0, 40, 2)), 2)
    state = (next(one), next(one), one.get_state())[2]
    other = bx.ThreadPrefetchDatasetIterator(iter(MapDataset.range(40).map(once).to_iter_dataset()), 2)
    with pytest.raises(StateMismatch, match="Pass check=False"):
        other.set_state(state)
    other.set_state(state, check=False)
    assert [next(other), next(other)] == [2, 3]
    with pytest.raises(OSError, match="once"):
        next(other)
    assert [next(other), next(other)] == [4, 5]
    one.close()
    other.close()


def test_check_false_of_the_states_of_shards():
    def it(seed: int) -> Any:
        parts = [shuffled(seed), shuffled(seed + 7)]
        return bx.ElasticIterator(bx.InterleaveIterDataset(parts, cycle_length=1), 2, NO_SHARDING)

    one, other = it(1), it(2)
    next(one)
    states = json.loads(json.dumps(one.get_shard_states()))
    with pytest.raises(StateMismatch, match="Pass check=False to set_shard_states to restore it anyway"):
        other.set_shard_states(states)
    other.set_shard_states(states, check=False)
    next(other)


def test_check_false_of_a_trajectory_loader(tmp_path):
    pytest.importorskip("jax")
    from bushel.trajectory import get_dataloader, write_rlds

    action = np.arange(12, dtype=np.float32).reshape(6, 2)
    episode = {"steps": {"observation": {"state": action}, "action": action}}
    write_rlds({"train": [episode] * 3, "val": [episode]}, name="arm", data_dir=str(tmp_path))
    own = {"data_dir": str(tmp_path), "cache_dir": str(tmp_path), "proprio_obs_keys": {"arm": "state"}}
    config = {"datasets": [{**own, "name": "arm", "skip_norm": True}], "batch_size": 4}
    one, other = (iter(get_dataloader({**config, "seed": seed})) for seed in (1, 2))
    next(one)
    for it in (other, put(get_dataloader({**config, "seed": 2}))):
        with pytest.raises(StateMismatch, match="Pass check=False to set_state"):
            it.set_state(one.get_state())
        it.set_state(one.get_state(), check=False)
        next(it)
        it.close()
    one.close()


@pytest.mark.parametrize("name", ITERATORS)
def test_check_false_of_a_checkpoint(name, tmp_path):
    first, other, expected = (ITERATORS[name](seed) for seed in (1, 2, 2))
    handler = CheckpointHandler()
    _ = next(first), next(expected)
    handler.save(tmp_path, first)
    with pytest.raises(StateMismatch, match="Pass check=False to restore to restore it anyway"):
        handler.restore(tmp_path, other)
    handler.restore(tmp_path, other, check=False)
    assert plain([next(other)]) == plain([next(expected)])
    for it in (first, other, expected):
        getattr(it, "close", lambda: None)()


def test_check_false_of_a_checkpoint_of_an_iterator_that_does_not_take_it(tmp_path):
    it = Count()
    next(it)
    CheckpointHandler().save(tmp_path, it)
    assert next(CheckpointHandler().restore(tmp_path, Count(), check=False)) == 2


def test_check_false_of_a_checkpoint_of_shards(tmp_path):
    """Another number of hosts restores the states of the parts of an interleave."""

    def host(seed: int, count: int) -> Any:
        parts = [shuffled(seed), shuffled(seed + 7)]
        return bx.ElasticIterator(bx.InterleaveIterDataset(parts, cycle_length=1), 2, bushel.ShardOptions(0, count))

    one, other = host(1, 1), host(2, 2)
    next(one)
    CheckpointHandler().save(tmp_path, one)
    with pytest.raises(StateMismatch, match="Pass check=False to restore to restore it anyway"):
        CheckpointHandler().restore(tmp_path, other)
    next(CheckpointHandler().restore(tmp_path, other, check=False))


def test_check_false_of_a_checkpoint_of_orbax(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    from orbax.checkpoint.experimental import v1

    from bushel.checkpoint import CheckpointRestore, CheckpointSave

    first, other = iter(shuffled(1)), iter(shuffled(2))
    next(first)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, args=ocp.args.Composite(data=CheckpointSave(first)))
        manager.wait_until_finished()
        with pytest.raises(StateMismatch, match="Pass check=False to CheckpointRestore to restore it anyway"):
            manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(other)))
        manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(other, check=False)))
    assert next(other) == shuffled(2)[1]
    # The newer protocol calls `load` of the iterator, which has no arguments: the message names the handler.
    v1.save_checkpointables(tmp_path / "newer", {"data": first})
    other = iter(shuffled(2))
    with pytest.raises(Exception) as raised:
        v1.load_checkpointables(tmp_path / "newer", {"data": other})
    error = raised.value if isinstance(raised.value, StateMismatch) else raised.value.__cause__  # Orbax wraps it
    assert isinstance(error, StateMismatch)
    assert "Pass check=False to bushel.checkpoint.CheckpointHandler().restore(folder, iterator)" in str(error)
    bushel.checkpoint.CheckpointHandler().restore(tmp_path / "newer" / "data", other, check=False)
    assert next(other) == shuffled(2)[1]


def test_validate_state_of_the_iterator_of_a_loader():
    """Grain's class takes the state as a dict, and calls the argument so."""
    first = iter(loader(1))
    next(first)
    state = json.loads(first.get_state())
    with pytest.raises(StateMismatch, match="Pass validate_state=False to DataLoaderIterator to restore it anyway"):
        bushel.DataLoaderIterator(loader(2), state)
    later = bushel.DataLoaderIterator(loader(2), state, validate_state=False)
    expected = iter(loader(2))
    assert (next(expected), next(expected))[1] == next(later)


def two_streams(**options: Any) -> list[Any]:
    parts = [MapDataset.range(3).to_iter_dataset(), MapDataset.range(5).to_iter_dataset()]
    return list(bx.ZipIterDataset(parts, **options))


class Files:
    """A source that does not say what its data are."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        with open(__file__) as file:
            return len(file.read()) + index


@pytest.fixture
def saved_by_another(tmp_path):
    MapDataset.range(3).map(lambda x: {"x": x}).save(tmp_path / "saved", format="parquet")
    return tmp_path / "saved"


def save_again(folder: Any, **options: Any) -> Any:
    return MapDataset.range(4).map(lambda x: {"x": x}).save(folder, format="parquet", **options)


@pytest.mark.parametrize(
    ("call", "words", "options"),
    [
        (lambda folder, **options: two_streams(**options), "Pass strict=False", {"strict": False}),
        (save_again, "Pass overwrite=True", {"overwrite": True}),
        (
            lambda folder, **options: list(
                MapDataset.source(Files()).to_iter_dataset().cache(folder / "cache", **options)
            ),
            "pass trust_source=True",
            {"trust_source": True},
        ),
        (
            lambda folder, **options: MapDataset.source(Files()).column(
                lambda x: x, cache_dir=folder / "column", **options
            ),
            "pass trust_source=True",
            {"trust_source": True},
        ),
    ],
    ids=["zip", "save", "cache", "column"],
)
def test_what_a_message_says_to_pass_is_taken_by_the_same_call(call, words, options, saved_by_another):
    with pytest.raises(ValueError, match=words):
        call(saved_by_another)
    call(saved_by_another, **options)
