"""An argument that has no effect in a call raises or warns, and the sentence names it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bushel
from bushel import BushelWarning, MapDataset, MultiprocessingOptions

trajectory = pytest.importorskip("bushel.trajectory")
jit = pytest.importorskip("bushel.jit")

ds = MapDataset.range(8)
rows = ds.map(lambda x: {"x": np.full(2, x)})


def stream() -> bushel.IterDataset[int]:
    return ds.to_iter_dataset()


def episodes() -> Any:
    return trajectory.TrajectoryDataset.from_trajectories(
        [{"action": np.zeros((3, 2)), "observation": {"proprio": np.zeros((3, 2))}}]
    )


def convert(**arguments: Any) -> Any:
    return trajectory.convert_episodes("never", "out", **arguments)


Call = Callable[[], Any]
RAISES: dict[str, tuple[Call, str]] = {
    "cache in memory, in a store": (lambda: stream().cache(storage_options={"region": "x"}), "storage_options"),
    "cache in memory, trusted": (lambda: stream().cache(trust_source=True), "trust_source"),
    "column that is not kept, in a store": (lambda: ds.column(float, storage_options={}), "storage_options"),
    "column that is not kept, trusted": (lambda: ds.column(float, trust_source=True), "trust_source"),
    "bucket with batch_fn and features": (
        lambda: rows.bucket([2] * 8, [4], 2, seed=0, features=["x"], batch_fn=list),
        "features",
    ),
    "bucket with batch_fn and padding": (
        lambda: rows.bucket([2] * 8, [4], 2, seed=0, padding={"x": 1}, batch_fn=list),
        "padding",
    ),
    "pack that cuts, with a window": (
        lambda: rows.map(lambda row: row["x"]).pack([2] * 8, 4, strategy="concat_split", window=8),
        "window",
    ),
    "pack that cuts, with a largest number": (
        lambda: rows.map(lambda row: row["x"]).pack([2] * 8, 4, strategy="concat_split", max_sequences=8),
        "max_sequences",
    ),
    "split without groups, hashed": (lambda: ds.split([0.5, 0.5], hashed=True), "hashed"),
    "mix with numbers and a temperature": (lambda: MapDataset.mix([ds, ds], [1, 2], temperature=2.0), "temperature"),
    "mix in Grain's order, with an ending": (
        lambda: MapDataset.mix([ds, ds], when_exhausted="restart"),
        "when_exhausted",
    ),
    "two numbers of workers": (lambda: stream().mp_prefetch(2, num_workers=3), "num_workers"),
    "a range and a number of actors": (lambda: bushel.RayOptions(2, min_workers=1), "min_workers"),
    "view without a checkpoint": (lambda: bushel.view(ds, training_step=4), "step"),
    "a file without splits": (lambda: bushel.sources.open("a.npy", split="train"), "split"),
    "a file without columns": (lambda: bushel.sources.open("a.npy", columns=["x"]), "columns"),
    "drawn at random, in order": (
        lambda: jit.ArraySource({"x": np.arange(4)}, "sequential", weights=[1, 1, 1, 1]),
        "ordering",
    ),
    "drawn at random, chosen": (
        lambda: jit.ArraySource({"x": np.arange(4)}, where=np.ones(4, bool), weights=[1, 1, 1, 1]),
        "where",
    ),
    "the start of sequences that are not packed": (
        lambda: jit.TimeSeriesBatchTransform(sequence_start_key="start"),
        "sequence_start_key",
    ),
    "statistics that are not kept there": (
        lambda: trajectory.get_dataset_statistics(episodes(), ["proprio"], [], storage_options={"region": "x"}),
        "storage_options",
    ),
    "a loader that raises": (
        lambda: trajectory.get_dataloader({"name": "a", "data_dir": "never"}, batch_size=2, skip_limit=4),
        "skip_limit",
    ),
    "two back ends": (
        lambda: trajectory.get_dataloader(
            {"name": "a", "data_dir": "never"}, batch_size=2, data_backend="bushel", use_grain=True
        ),
        "use_grain",
    ),
    "RLDS with a codec": (lambda: convert(format="rlds", codec="av1"), "codec"),
    "RLDS with key frames": (
        lambda: convert(format="rlds", key_frame_interval=8, crf=20),
        "key_frame_interval and crf",
    ),
    "RLDS with what LeRobot says of a data set": (
        lambda: convert(format="rlds", fps=10, task="pick", robot_type="arm"),
        "fps and task and robot_type",
    ),
    "LeRobot in files of RLDS": (lambda: convert(format="lerobot", file_format="array_record"), "file_format"),
    "LeRobot with images of RLDS": (lambda: convert(format="lerobot", image_format="jpeg"), "image_format"),
    "LeRobot without videos, with a quality": (lambda: convert(format="lerobot", codec=None, crf=20), "crf"),
}
WARNS: dict[str, tuple[Call, str]] = {
    "order_by without noise": (lambda: ds.order_by(float, seed=1), "seed"),
    "a time limit without workers": (lambda: MultiprocessingOptions(num_workers=0, timeout_s=1.0), "timeout_s"),
    "a limit of memory without workers": (
        lambda: MultiprocessingOptions(num_workers=0, budget_bytes=1 << 20),
        "budget_bytes",
    ),
    "a function of workers that are none": (
        lambda: stream().mp_prefetch(0, worker_init_fn=lambda index, count: None),
        "worker_init_fn",
    ),
    "a limit of what is not skipped": (lambda: list(stream().with_options(skip_limit=3)), "skip_limit"),
    "a remainder without batches": (
        lambda: bushel.load([1, 2, 3], num_epochs=1, drop_remainder=True),
        "drop_remainder",
    ),
}
# The same calls with the argument that is missing above: none of them raises or warns.
EFFECTIVE: dict[str, Call] = {
    "order_by": lambda: ds.order_by(float, noise=0.5, seed=1),
    "column": lambda: ds.column(float, cache_dir="columns", trust_source=True, storage_options={}),
    "cache": lambda: stream().cache("cache", trust_source=True, storage_options={}),
    "bucket": lambda: rows.bucket([2] * 8, [4], 2, seed=0, features=["x"], padding={"x": 1}),
    "bucket with a function": lambda: rows.bucket([2] * 8, [4], 2, seed=0, batch_fn=list),
    "pack": lambda: rows.map(lambda row: row["x"]).pack([2] * 8, 4, window=8, max_sequences=2),
    "skipping": lambda: list(stream().with_options(skip_limit=3, on_error="skip")),
    "a limit of an earlier skip": lambda: list(stream().with_options(skip_limit=3).with_options(on_error="skip")),
    "workers": lambda: stream().mp_prefetch(2, worker_init_fn=lambda index, count: None),
    "limits of workers": lambda: MultiprocessingOptions(num_workers=None, budget_bytes=1 << 20, timeout_s=1.0),
    "batches": lambda: bushel.load([1, 2, 3], num_epochs=1, batch_size=2, drop_remainder=True),
    "packed": lambda: jit.TimeSeriesBatchTransform(mode="packed", sequence_start_key="start"),
    "drawn": lambda: jit.ArraySource({"x": np.arange(4)}, weights=[1, 1, 1, 1]),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.arange(4))
    return tmp_path


@pytest.mark.parametrize("name", RAISES)
def test_what_has_no_effect_raises(name, folder):
    call, argument = RAISES[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert argument in str(caught.value)
    assert [path.name for path in folder.iterdir()] == ["a.npy"]


@pytest.mark.parametrize("name", WARNS)
def test_what_has_no_effect_warns(name):
    call, argument = WARNS[name]
    with pytest.warns(BushelWarning, match=rf"{argument}\S* has no effect") as caught:
        call()
    assert len(caught) == 1


@pytest.mark.parametrize("name", EFFECTIVE)
def test_what_has_an_effect_does_not(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EFFECTIVE[name]()
