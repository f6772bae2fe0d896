"""Goals from a step's own future: distributed as in the original, never outside the episode."""

import numpy as np
import pytest
from helpers.golden_trajectories import text
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.trajectory.traj_transforms import choose_goals
from bushel.trajectory.goal_relabeling import uniform

DISTRIBUTIONS = text("goal/uniform_distribution")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributed_as_the_original(name):
    theirs = DISTRIBUTIONS[name]
    length, distance = (part.partition("=")[2] for part in name.split(","))
    length, distance = int(length), None if distance == "None" else int(distance)
    rows, rng = theirs["draws"], np.random.default_rng(0)
    times = np.tile(np.arange(length), rows)
    drawn = choose_goals(times, length, rng.random(len(times)), distance).reshape(rows, length)
    for step in range(length):
        low, high = theirs["support_lo"][step], theirs["support_hi"][step]
        counts = np.bincount(drawn[:, step], minlength=length)
        assert counts[low : high + 1].all() and counts.sum() == counts[low : high + 1].sum()
        expected = rows / (high - low + 1)
        chi_square = ((counts[low : high + 1] - expected) ** 2 / expected).sum()
        freedom = high - low
        assert chi_square <= freedom + 5 * np.sqrt(2 * freedom) + 5
        # the original's own counts, as two samples of one distribution
        other = np.array(theirs["counts"][step])[low : high + 1]
        both = ((counts[low : high + 1] - other) ** 2 / np.maximum(counts[low : high + 1] + other, 1)).sum()
        assert both <= freedom + 5 * np.sqrt(2 * freedom) + 5


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1)), min_size=1), st.none() | st.integers(1, 9), st.data())
def test_goals_lie_in_the_future_of_their_episode(rows, distance, data):
    lengths = np.array([length for length, _ in rows])
    times = np.array([data.draw(st.integers(0, length - 1)) for length in lengths])
    draws = np.array([draw for _, draw in rows])  # also 1.0, to which a product may be rounded
    found = choose_goals(times, lengths, draws, distance)
    assert found.dtype == np.int64
    assert (found >= times).all() and (found < lengths).all()
    if distance is not None:
        assert (found < times + distance).all()


def test_the_task_gets_the_whole_observation():
    observation = {
        "timestep": np.arange(6, dtype=np.int32),
        "image_0": np.array([b"%d" % step for step in range(6)], object),
        "pad_mask_dict": {"image_0": np.arange(6) % 2 == 0, "timestep": np.ones(6, bool)},
    }
    language = np.full(6, b"go", object)
    task = {
        "language_instruction": language,
        "timestep": np.zeros(6),
        "pad_mask_dict": {"language_instruction": np.ones(6, bool)},
    }
    made = uniform({"observation": observation, "task": task, "action": np.zeros((6, 1))}, rng=3)["task"]
    goal = made["timestep"]
    assert goal.dtype == np.int32 and (goal >= np.arange(6)).all()
    assert made["image_0"].tolist() == [b"%d" % step for step in goal]
    assert made["language_instruction"] is language
    assert set(made["pad_mask_dict"]) == {"language_instruction", "image_0", "timestep"}
    np.testing.assert_array_equal(made["pad_mask_dict"]["image_0"], goal % 2 == 0)
    again = uniform({"observation": observation, "task": task}, rng=np.random.default_rng(3))["task"]
    np.testing.assert_array_equal(again["timestep"], goal)


def test_wrong_input_of_goal_relabeling_is_named():
    with pytest.raises(ValueError, match="max_goal_distance must be positive, but got 0"):
        choose_goals([0], 3, [0.5], 0)
    with pytest.raises(ValueError, match="The observation is empty"):
        uniform({"observation": {}, "task": {}})
    with pytest.raises(ValueError, match="A trajectory has no 'task', only"):
        uniform({"observation": {"x": np.zeros(2)}})
