"""Pipelines whose order must not change between releases, and a digest of the first elements of each.

The digests are in `tests/golden_streams.json`. `python tests/helpers/golden_streams.py` compares them, and needs only
NumPy and cloudpickle; `--write` writes new ones. docs/releases.md says when that is right. The digests do not depend on
the platform, on the version of NumPy or on the number of workers. So no pipeline here takes numbers from NumPy's
distributions, whose values NumPy may change, or from functions of floats that round differently on other machines.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import bushel
from bushel import IterDataset, MapDataset, experimental

FILE = Path(__file__).parents[1] / "golden_streams.json"
COUNT = 40  # elements of each stream that are compared

STREAMS: dict[str, Callable[[], Iterable[Any]]] = {}
NEEDS: dict[str, str] = {}
"""The package that a stream needs beyond the core dependencies."""


def stream(function: Callable[[], Iterable[Any]]) -> Callable[[], Iterable[Any]]:
    """Registers a stream under the name of its function."""
    STREAMS[function.__name__] = function
    return function


def stream_with_jax(function: Callable[[], Iterable[Any]]) -> Callable[[], Iterable[Any]]:
    """Registers a stream that needs JAX."""
    NEEDS[function.__name__] = "jax"
    return stream(function)


def sentences(count: int = 60) -> list[dict[str, np.ndarray]]:
    """Sequences of different lengths, for packing."""
    return [{"tokens": np.arange(1, 2 + 7 * n % 11) + 100 * n} for n in range(count)]


def draw(element: Any, rng: np.random.Generator) -> tuple[Any, list[int]]:
    """A function for `random_map`. NumPy guarantees the bits of its generators, not the numbers made from them."""
    return element, [int(word) for word in np.atleast_1d(rng.bit_generator.random_raw(2))]


@stream
def shuffle():
    return MapDataset.range(1000).shuffle(seed=42)


@stream
def shuffle_of_several_epochs():
    return MapDataset.range(7).seed(3).shuffle().repeat()


@stream
def shuffle_of_a_large_range():
    return MapDataset.range(2**40).seed(1).shuffle()


@stream
def shuffle_with_the_same_order_in_each_epoch():
    return MapDataset.range(9).seed(3).shuffle().repeat(3, reseed_each_epoch=False)


@stream
def seeds_of_later_operations():
    return MapDataset.range(50).seed(11).map(lambda x: x + 1).shuffle()[3:40].shuffle().random_map(draw)


@stream
def window_shuffle_by_index():
    return MapDataset.range(100).window_shuffle(16, seed=5)


@stream
def window_shuffle_of_a_stream():
    return MapDataset.range(100).to_iter_dataset().window_shuffle(16, seed=5)


@stream
def random_map():
    return MapDataset.range(30).seed(9).random_map(draw)


@stream
def random_map_of_a_stream():
    return MapDataset.range(30).to_iter_dataset().seed(9).filter(lambda x: x % 3).random_map(draw)


@stream
def mix_with_weights():
    parts = [MapDataset.range(start, start + 100).shuffle(seed=start) for start in (0, 1000, 2000)]
    return MapDataset.mix(parts, [0.5, 0.3, 0.2])


@stream
def mix_with_a_schedule():
    parts = [MapDataset.range(start, start + 9) for start in (0, 100)]
    return MapDataset.mix(parts, [(0, [3, 1]), (20, [1, 3])], when_exhausted="restart")


@stream
def mix_by_size_with_temperature():
    parts = [MapDataset.range(0, 64), MapDataset.range(100, 116), MapDataset.range(200, 204)]
    return MapDataset.mix(parts, "size", temperature=2.0, when_exhausted="continue")


@stream
def mix_of_streams():
    parts = {"a": MapDataset.range(50).to_iter_dataset(), "b": MapDataset.range(100, 150).to_iter_dataset()}
    return IterDataset.mix(parts, {"a": 2.0, "b": 1.0})


@stream
def interleave():
    parts = [MapDataset.range(start, start + 3 + start % 7).seed(1).shuffle() for start in range(0, 100, 10)]
    return experimental.InterleaveIterDataset(parts, cycle_length=4)


@stream
def batches_with_a_remainder():
    return MapDataset.range(23).map(lambda x: {"x": np.full(2, x, np.int32), "y": x}).shuffle(seed=2).batch(5)


@stream
def batches_of_a_filtered_stream():
    ds = MapDataset.range(200).shuffle(seed=8).filter(lambda x: x % 7 < 3)
    return ds.to_iter_dataset().batch(6).rebatch(4).map(lambda batch: batch * 2)


@stream
def flat_map_and_zip():
    ds = MapDataset.range(20).shuffle(seed=4).to_iter_dataset().flat_map(lambda x: [x] * (x % 4))
    return ds.zip(MapDataset.range(100).shuffle(seed=1).to_iter_dataset(), strict=False)


@stream
def shards_of_an_epoch():
    return MapDataset.concatenate([MapDataset.range(40).shuffle(seed=6)[shard::3] for shard in range(3)])


@stream
def packing_first_fit():
    ds = MapDataset.source(sentences()).to_iter_dataset()
    return experimental.FirstFitPackIterDataset(ds, length_struct={"tokens": 16}, num_packing_bins=4, seed=3)


@stream
def packing_best_fit():
    ds = MapDataset.source(sentences()).to_iter_dataset()
    return experimental.BestFitPackIterDataset(ds, length_struct={"tokens": 16}, num_packing_bins=4, seed=3)


@stream
def packing_concatenated():
    ds = MapDataset.source(sentences()).shuffle(seed=3).to_iter_dataset()
    return experimental.ConcatThenSplitIterDataset(ds, length_struct={"tokens": 16})


@stream
def packing_by_random_access():
    ds = MapDataset.source(sentences())
    lengths = np.array([len(sentence["tokens"]) for sentence in sentences()])
    return ds.pack(lengths, {"tokens": 16}, strategy="best_fit", seed=1).shuffle(seed=2)


@stream
def buckets():
    ds = MapDataset.source(sentences()).shuffle(seed=5)
    return ds.bucket(ds.column(lambda sentence: len(sentence["tokens"])), [4, 8, 12], 5, seed=2)


@stream
def weighted_samples():
    return MapDataset.range(32).sample(np.arange(32) % 4, seed=3)


@stream
def curriculum():
    return MapDataset.range(32).order_by(np.arange(32) * 5 % 32, noise=0.25, seed=3).repeat()


@stream
def where_after_a_shuffle():
    ds = MapDataset.range(60).shuffle(seed=5)
    return ds.where(ds.column(lambda x: x % 3 == 1)).repeat(2).batch(4, drop_remainder=True)


@stream
def data_loader_with_a_shuffled_sampler():
    sampler = bushel.IndexSampler(50, shard_options=bushel.ShardOptions(1, 3), shuffle=True, num_epochs=3, seed=13)
    return bushel.DataLoader(data_source=range(100, 150), sampler=sampler, operations=[Jitter(), bushel.Batch(4)])


@stream
def data_loader_in_sequence():
    sampler = bushel.SequentialSampler(30, bushel.ShardOptions(0, 2), seed=4)
    return bushel.DataLoader(data_source=range(30), sampler=sampler, operations=[Jitter()])


class Jitter(bushel.RandomMapTransform):
    """A `draw` whose result can be stacked into batches."""

    def random_map(self, element: int, rng: np.random.Generator) -> np.ndarray:
        return np.array([element, int(rng.bit_generator.random_raw(1)[0]) >> 1])


@stream
def frames_of_robots():
    return robots(seed=1).shuffle(seed=7).dataset.map(lambda sample: sample["action"])


@stream
def mixture_of_robots():
    parts = [robots(seed).shuffle(seed=seed).repeat() for seed in (1, 2)]
    from bushel.trajectory import TrajectoryDataset

    mixture = TrajectoryDataset.sample_from_datasets(parts, [3, 1]).batch(4)
    return mixture.dataset.map(lambda batch: {"action": batch["action"], "goal": batch["task"]["timestep"]})


def robots(seed: int) -> Any:
    """Windows of trajectories with random goals."""
    from bushel.trajectory import TrajectoryDataset, apply_trajectory_transforms

    trajectories = [
        {
            "observation": {"proprio": np.arange(3 * length, dtype=np.float32).reshape(length, 3)},
            "task": {},
            "action": 1000 * seed + 100 * number + np.arange(length, dtype=np.float32)[:, None],
            "dataset_name": np.array([b"arm"] * length, object),
        }
        for number, length in enumerate([5, 3, 9, 4])
    ]
    dataset = TrajectoryDataset.from_trajectories(trajectories, seed=seed)
    return apply_trajectory_transforms(
        dataset, train=True, window_size=2, action_horizon=3, goal_relabeling_strategy="uniform", subsample_length=6
    ).flatten()


@stream_with_jax
def jit_loader_with_padded_batches():
    return jit_batches("shuffle", "pad")


@stream_with_jax
def jit_loader_that_drops_the_last_batch():
    return jit_batches("shuffle", "drop")


@stream_with_jax
def jit_loader_in_order():
    return jit_batches("sequential", "pad")


def jit_batches(ordering: Any, remainder: Any) -> Iterable[Any]:
    """Batches of a loader inside jit, with their masks, over several epochs."""
    from bushel import jit

    loader = jit.DataLoader(
        [jit.ArraySource(np.arange(50), ordering=ordering), jit.BatchTransform(8, remainder=remainder)]
    )
    state = loader.init_state(21)
    while True:
        batch, state, mask = loader.next(state)
        yield np.asarray(batch).astype(np.int64), np.asarray(mask)


def encode(element: Any) -> bytes:
    """An element as bytes: the same on every platform, for arrays with any layout in memory."""
    if isinstance(element, dict):
        return b"{%s}" % b",".join(key.encode() + b":" + encode(element[key]) for key in sorted(element))
    if isinstance(element, (tuple, list)):
        return b"(%s)" % b",".join(map(encode, element))
    if isinstance(element, (str, int, bool, bytes, type(None))):
        return f"{type(element).__name__} {element!r}".encode()
    array = np.asarray(element)
    little = array.astype(array.dtype.newbyteorder("<"))
    return f"{little.dtype.str}{array.shape}".encode() + little.tobytes()


def summarize(elements: Iterable[Any]) -> dict[str, str]:
    """The digest of the first elements, and the first three as text, for those who look for the difference."""
    first = list(itertools.islice(elements, COUNT))
    text = " ".join(repr(element) for element in first[:3])
    return {
        "sha256": hashlib.sha256(b"\n".join(map(encode, first))).hexdigest(),
        "begins": " ".join(text.split())[:200],
    }


def kept() -> dict[str, dict[str, str]]:
    """What the file says."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def explain(name: str, before: Any, now: Any) -> str:
    """What to do about a stream that has changed."""
    return (
        f"The elements of the pipeline {name!r} in tests/helpers/golden_streams.py have changed.\n"
        f"  before: {before and before['begins']}\n  now:    {now['begins']}\n"
        "A run that resumes with this version would see other data than with the last release. If you did not want "
        "this, repair the change. If you did: say so in CHANGELOG.md under `Changed`, raise the version as "
        "docs/releases.md asks, and write the new digests with `python tests/helpers/golden_streams.py --write`."
    )


def main() -> int:
    """Compares all streams whose packages are here; `--write` writes the file."""
    names = [name for name in STREAMS if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    now = {name: summarize(STREAMS[name]()) for name in names}
    if "--write" in sys.argv:
        if len(names) < len(STREAMS):
            print(f"Install {', '.join(sorted(set(NEEDS.values())))} first: all streams are written together.")
            return 2
        FILE.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    before = kept()
    different = [name for name in names if now[name]["sha256"] != before.get(name, {}).get("sha256")]
    for name in different:
        print(explain(name, before.get(name), now[name]))
    print(
        f"Python {sys.version.split()[0]}, NumPy {np.__version__}: "
        f"{len(names) - len(different)} of {len(names)} streams are as kept."
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
