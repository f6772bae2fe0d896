"""One pass over a data set: each element once, whichever are left out, whoever makes them. What has no end is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.trajectory import single_pass
from bushel.trajectory import TrajectoryDataset, apply_trajectory_transforms, get_dataset_statistics

LENGTHS = (3, 1, 7, 5, 1, 9)
KEPT = [0, 2, 3, 5]  # those with more than two steps


def trajectories() -> list[dict]:
    return [
        {"observation": {"x": np.full(n, number)}, "action": np.full((n, 1), number, np.float32)}
        for number, n in enumerate(LENGTHS)
    ]


def numbers(ds) -> list[int]:
    return [int(trajectory["observation"]["x"][0]) for trajectory in ds]


def long(trajectory) -> bool:
    return len(trajectory["action"]) > 2


def long_or_none(trajectory):
    return trajectory if long(trajectory) else None


def forgotten(trajectory) -> None:
    len(trajectory["action"])


@settings(max_examples=30, deadline=None)
@given(kept=st.lists(st.booleans(), max_size=20))
def test_what_is_left_out_makes_nothing_come_twice(kept):
    ds = MapDataset.range(len(kept)).filter(lambda number: kept[number])
    expected = [number for number, keeps in enumerate(kept) if keeps]
    assert list(single_pass.iterate_once(ds, "numbers")) == expected
    assert list(single_pass.evaluate_once(ds, lambda number: number * 10, "tens")) == [(n, n * 10) for n in expected]


@pytest.mark.parametrize("after", [0, 3, 11])
def test_workers_go_on_where_this_process_stood(after, monkeypatch):
    taken = []
    monkeypatch.setattr(single_pass.time, "monotonic", lambda: float(len(taken)))
    monkeypatch.setattr(single_pass, "_INLINE_S", after + 0.5)
    monkeypatch.setattr(single_pass.os, "cpu_count", lambda: 2)
    for number in single_pass.iterate_once(MapDataset.range(30).filter(lambda number: number % 3 != 1), "numbers"):
        taken.append(number)
    assert taken == [number for number in range(30) if number % 3 != 1]


def test_trajectories_that_are_left_out_do_not_come_twice():
    filtered = TrajectoryDataset.from_trajectories(MapDataset.source(trajectories()).filter(long))
    assert numbers(filtered) == KEPT
    assert numbers(TrajectoryDataset.from_trajectories([*trajectories(), None])) == [0, 1, 2, 3, 4, 5]
    mapped = TrajectoryDataset.from_trajectories(trajectories()).traj_map(long_or_none)
    assert numbers(mapped.as_table()) == KEPT
    assert numbers(mapped.filter(lambda trajectory: len(trajectory["action"]) > 5)) == [2, 5]
    frames = mapped.flatten()
    expected = np.repeat(KEPT, [LENGTHS[number] for number in KEPT]).tolist()
    assert [int(frames[i]["observation"]["x"]) for i in range(len(frames))] == expected


def test_a_forgotten_return_is_told():
    ds = TrajectoryDataset.from_trajectories(trajectories())
    for elements in (ds, ds.flatten()):
        with pytest.raises(ValueError, match=r"^filter returned None for element 0; did you forget a return"):
            elements.filter(forgotten)
    with pytest.raises(ValueError, match="frame_filter returned None for element 0; did you forget a return"):
        apply_trajectory_transforms(ds, train=True, frame_filter=forgotten)
    for made in (
        ds.traj_map(forgotten),
        apply_trajectory_transforms(ds, train=True, post_chunk_transforms=[forgotten]),
    ):
        with pytest.raises(ValueError, match=r"None of the 6 trajectories has a frame.*Did you forget a return"):
            made.flatten()


def test_what_has_no_end_is_told():
    frames = TrajectoryDataset.from_trajectories(trajectories()).flatten()
    endless = TrajectoryDataset.sample_from_datasets([frames.repeat(), frames.repeat()])
    told = "the dataset is endless. Do it before repeat"
    with pytest.raises(ValueError, match=told):
        endless.batch(4).filter(lambda batch: True)
    with pytest.raises(ValueError, match=told):
        TrajectoryDataset.from_trajectories(MapDataset.source(trajectories()).repeat())
    with pytest.raises(ValueError, match="endless data set"):
        get_dataset_statistics(endless.batch(4).dataset, [], ("endless",))
    for without_order in (TrajectoryDataset.sample_from_datasets([endless, frames]), endless.batch(4)):
        with pytest.raises(ValueError, match="Endless batches and endless mixtures cannot be shuffled"):
            without_order.shuffle()
    shuffled = TrajectoryDataset.sample_from_datasets([endless.shuffle(seed=1), frames.repeat()])
    assert len(shuffled.batch(4)[0]["action"]) == 4
