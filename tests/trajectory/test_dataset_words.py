"""What a TrajectoryDataset has in common with other datasets: describe, show, save, to_device, len."""

import numpy as np
import pytest

import bushel
from bushel.trajectory import TrajectoryDataset


@pytest.fixture
def frames():
    episodes = [{"action": np.full((n, 2), n, np.float32)} for n in (4, 6)]
    return TrajectoryDataset.from_trajectories(episodes).flatten().shuffle(seed=1)


def test_the_steps_and_an_element_can_be_looked_at(frames):
    assert len(frames) == 10
    assert str(frames.describe()) == str(frames.dataset.describe())
    assert str(frames.show(3)) == str(frames.dataset.show(3))
    assert "float32[2]" in str(frames.describe())


def test_saved_elements_are_those_of_the_iterator(frames, tmp_path):
    written = frames.save(tmp_path / "frames", workers=0)
    assert written.elements == 10
    saved = list(bushel.MapDataset.source(bushel.sources.open(tmp_path / "frames")))
    assert bushel.testing.same(saved, list(frames.iterator()))


def test_batches_go_to_a_device(frames):
    batches = list(frames.batch(4).to_device(buffer_size=1, remainder="drop"))
    expected = list(frames.batch(4, drop_remainder=True).iterator())
    assert [type(batch["action"]).__name__ for batch in batches] == ["ArrayImpl", "ArrayImpl"]
    assert bushel.testing.same([np.asarray(batch["action"]) for batch in batches], [b["action"] for b in expected])
