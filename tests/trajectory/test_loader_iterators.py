"""Iterators of a loader are like any other: measured, explained, started ahead, closed; on both back ends."""

from __future__ import annotations

import json
import re
import threading

import jax
import numpy as np
import pytest

import bushel
from bushel._src.base.options import ShardOptions
from bushel.experimental import device_put
from bushel.trajectory import get_dataloader, write_rlds

LENGTHS = (5, 7, 4)
BACKENDS = ("bushel", "grain")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Two robots; the first number of a frame's action says which frame of which of them it is."""
    folder = str(tmp_path_factory.mktemp("data"))
    for robot, name in enumerate(("arm", "gripper")):
        episodes = []
        for number, length in enumerate(LENGTHS):
            action = np.array([[1000 * robot + 100 * number + time, 0] for time in range(length)], np.float32)
            episodes.append({"steps": {"observation": {"state": action}, "action": action}})
        write_rlds({"train": episodes, "val": episodes[:1]}, name=name, data_dir=folder)
    own = {"data_dir": folder, "cache_dir": folder, "proprio_obs_keys": {"arm": "state"}, "skip_norm": True}
    return {"datasets": [{**own, "name": "arm", "weight": 3}, {**own, "name": "gripper"}], "batch_size": 8, "seed": 1}


def frames_of(batch):
    return batch["action"][:, 0, 0, 0].astype(int).tolist()


def frame_of(record):
    """What `frames_of` gives for a record of an explanation."""
    episode, robot = re.fullmatch(r"episode (\d+) of (\w+)", record.source).groups()
    return 1000 * (robot == "gripper") + 100 * int(episode) + record.record


def test_a_loader_reports_where_the_time_goes(config):
    with iter(get_dataloader(config, execution_tracking_mode="stage_timing")) as batches:
        for _ in range(3):
            next(batches)
        report = batches.report()
    assert report.timed and report.elements == 3 and report.stages[-1].elements == 3
    assert "3 elements in" in str(report) and report._repr_html_().startswith("<table>")


def test_a_loader_with_workers_reports_on_them(config):
    with iter(get_dataloader(config, workers=1)) as batches:
        next(batches)
        (pool,) = batches.report().pools
    assert pool.size == 1


def test_a_loader_explains_its_next_batches(config):
    for shard in (None, ShardOptions(shard_index=1, shard_count=2)):
        with iter(get_dataloader(config, shard_options=shard)) as batches:
            next(batches)
            told = batches.origins(2)
            assert [step.index for step in told] == [1, 2]
            for step in told:
                batch = next(batches)
                assert [frame_of(record) for record in step.records] == frames_of(batch)
                assert "element" in str(step) and "<table>" in step._repr_html_()


def test_what_grain_does_not_tell_is_said_with_the_way_out(config):
    with iter(get_dataloader(config, data_backend="grain")) as batches:
        next(batches)
        with pytest.raises(NotImplementedError, match="Leave out data_backend for a report"):
            batches.report()
        with pytest.raises(NotImplementedError, match="Restore the state of this iterator in a loader without"):
            batches.origins()
        with iter(get_dataloader(config)) as ours:  # the way out
            ours.set_state(batches.get_state())
            (step,) = ours.origins()
            assert frames_of(next(batches)) == frames_of(next(ours))
            assert step.index == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loader_is_closed_by_with(config, backend):
    with iter(get_dataloader(config, data_backend=backend)) as batches:
        next(batches)
    with pytest.raises(ValueError, match="closed iterator: LoaderIterator"):
        next(batches)
    batches.close()  # again


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loader_starts_before_the_first_batch_is_asked_for(config, backend):
    begun = threading.Event()

    def seen(trajectory):
        begun.set()
        return trajectory

    seen.rowwise = True  # pyright: ignore[reportFunctionMemberAccess]
    loader = get_dataloader(
        {**config, "traj_transform_kwargs": {"post_chunk_transforms": [seen], "num_parallel_calls": 2}},
        data_backend=backend,
    )
    with iter(get_dataloader(config)) as batches:
        expected = [frames_of(next(batches)) for _ in range(3)]
    with iter(loader) as batches:
        begun.clear()
        before = batches.get_state()
        batches.start_prefetch()
        assert begun.wait(60)
        assert batches.get_state() == before  # nothing was delivered
        assert [frames_of(next(batches)) for _ in range(3)] == expected
    with pytest.raises(ValueError, match="closed"):
        batches.start_prefetch()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loader_and_its_dataset_show_themselves_in_a_notebook(config, backend):
    loader = get_dataloader(config, data_backend=backend)
    shown = loader._repr_html_()
    assert "loader of arm, gripper: batches of 8, host 0 of 1" in shown and f"on {backend}&gt;" in shown
    assert "<table>" in shown and loader.dataset._repr_html_() in shown
    assert "<loader" not in shown  # texts are escaped


def test_a_trajectory_dataset_is_explained_and_measured_as_a_map_dataset(config):
    loader = get_dataloader(config)
    (record,) = loader.dataset.dataset.origin(3).records
    assert frame_of(record) == int(loader.dataset[3]["action"][0, 0, 0])
    with loader.dataset.iterator() as frames:
        next(frames)
        assert isinstance(frames.report(), bushel.Report)
        assert [step.index for step in frames.origins(2)] == [1, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_a_loader_are_put_on_a_device_ahead(config, backend):
    device, loader = jax.devices()[0], get_dataloader(config, data_backend=backend)
    moved = device_put(loader, device)
    with iter(get_dataloader(config)) as plain, iter(moved) as ours:
        for _ in range(4):
            batch, expected = next(ours), next(plain)
            assert batch["action"].devices() == {device} and frames_of(np_tree(batch)) == frames_of(expected)
            assert batch["dataset_name"].tolist() == expected["dataset_name"].tolist()  # texts stay
            assert ours.get_state() == plain.get_state()
        state = json.loads(json.dumps(ours.get_state()))
        expected = frames_of(next(plain))
        if backend == "bushel":
            assert isinstance(ours.report(), bushel.Report)
    with iter(moved) as ours, iter(loader) as host:
        ours.set_state(state)
        host.set_state(state)
        assert frames_of(np_tree(next(ours))) == frames_of(next(host)) == expected


def np_tree(batch):
    return jax.tree.map(np.asarray, batch)


def test_a_batch_that_cannot_be_finished_is_explained_and_tried_again(config):
    fails = [True]

    def once(batch):
        if fails:
            raise RuntimeError("not yet")
        return batch

    with iter(get_dataloader(config, process_text=once)) as batches:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="not yet"):
                next(batches)
            assert [step.index for step in batches.origins()] == [0]
        (step,) = batches.origins()
        fails.clear()
        assert [frame_of(record) for record in step.records] == frames_of(next(batches))
