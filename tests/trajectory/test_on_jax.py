"""Functions of trajectories inside of `jit` and `vmap`: what they give for a batch is what NumPy gives row by row."""

import functools

import jax
import numpy as np
import pytest

from bushel._src.trajectory import normalization
from bushel.trajectory import data_utils, goal_relabeling, task_augmentation, traj_transforms

ROWS, STEPS = 4, 6
STATISTICS = {
    "action": {"mean": [0.5, 0.1], "std": [2.0, 0.3], "mask": [True, False]},
    "proprio_arm": {"mean": [0.0] * 3, "std": [1.0] * 3},
}


def trajectories(*, goals=False, state=False):
    """A batch of trajectories, each different."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=(ROWS, STEPS, *shape)).astype(np.float32)

    observation = {"proprio_arm": normal(3), "image_primary": rng.integers(0, 9, (ROWS, STEPS, 2, 2, 3), np.uint8)}
    made = {
        "observation": observation,
        "task": {"timestep": rng.integers(0, STEPS, (ROWS, STEPS)).astype(np.int32)} if goals else {},
        "action": normal(2),
        "action_pad_mask": rng.random((ROWS, STEPS, 2)) < 0.7,
    }
    if state:
        made |= {"observation": {"state": normal(7)}, "action": normal(7)}
    return made


def windowed():
    batch = trajectories()
    return {"observation": {"proprio_arm": np.ones((ROWS, STEPS, 3, 2), np.float32)}, "action": batch["action"]}


def positions():
    return np.random.default_rng(1).choice(np.array([0.0, 0.01, 0.5, 0.97, 1.0], np.float32), (ROWS, STEPS))


def moves():
    chosen = np.random.default_rng(2).choice(np.array([-1, -0.05, 0.0, 0.0, 0.05, 1], np.float32), (ROWS, STEPS))
    chosen[0] = 0  # one that never moves
    return chosen


chunk = traj_transforms.chunk_act_obs
FUNCTIONS = {
    "chunk": (functools.partial(chunk, window_size=2, action_horizon=3), trajectories),
    "chunk with goals": (functools.partial(chunk, window_size=2, action_horizon=3), lambda: trajectories(goals=True)),
    "chunk with goals as the original": (
        functools.partial(chunk, window_size=3, action_horizon=2, override_window_size=1, compat="crossformer"),
        lambda: trajectories(goals=True),
    ),
    "padding": (lambda t: traj_transforms.pad_actions_and_proprio(t, 4, 5), trajectories),
    "future": (traj_transforms.zero_out_future_proprio, windowed),
    "masks": (traj_transforms.add_pad_mask_dict, trajectories),
    "binarize": (data_utils.binarize_gripper_actions, positions),
    "relative to absolute": (data_utils.rel2abs_gripper_actions, moves),
    "first state": (data_utils.rel_open_or_closed, moves),
    "first state as the original": (functools.partial(data_utils.rel_open_or_closed, compat="crossformer"), moves),
    "invert": (data_utils.invert_gripper_actions, positions),
    "relabel": (data_utils.relabel_actions, lambda: trajectories(state=True)),
    "to padding": (lambda t: data_utils.to_padding(t["action"]), trajectories),
    "moving": (functools.partial(data_utils.moving, dims=1, tolerance=0.5), lambda: trajectories()["action"]),
    "normalize": (
        lambda t: normalization.normalize_action_and_proprio(t, STATISTICS, "normal", ["proprio_arm"]),
        trajectories,
    ),
    "unnormalize": (
        lambda t: normalization.unnormalize_action_and_proprio(t, STATISTICS, "normal", ["proprio_arm"]),
        trajectories,
    ),
}


def row(tree, number):
    return jax.tree.map(lambda leaf: leaf[number], tree)


def assert_same(ours, theirs, **tolerance):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        assert one.shape == other.shape
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), **tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_on_jax_is_the_rows_on_numpy(name):
    function, batch = FUNCTIONS[name]
    given = batch()
    expected = [function(row(given, number)) for number in range(ROWS)]
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(expected[0]))
    together = jax.jit(jax.vmap(function))(given)
    for number in range(ROWS):
        assert_same(row(together, number), expected[number], rtol=1e-5, atol=1e-6)


RANDOM = {
    "goals": lambda t, key: goal_relabeling.uniform(t, rng=key),
    "near goals": lambda t, key: goal_relabeling.uniform(t, max_goal_distance=2, rng=key),
    "keys": lambda t, key: {"task": {}, "action": data_utils.sample_match_keys_uniform(shifted(t), "*", rng=key)},
    "subsample": lambda t, key: traj_transforms.subsample(t, 3, rng=key),
}


def shifted(traj):
    return {str(n): traj["action"] + n for n in range(5)}


def steps():
    times = np.tile(np.arange(STEPS, dtype=np.int32), (ROWS, 1))
    return {"observation": {"timestep": times}, "task": {}, "action": times[..., None].astype(np.float32)}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_each_row_of_a_batch_draws_by_its_own_key(name, make):
    function, given = RANDOM[name], steps()
    keys = jax.random.split(make(0), ROWS)
    together = jax.jit(jax.vmap(function))(given, keys)
    for number in range(ROWS):
        assert_same(row(together, number), function(row(given, number), keys[number]))
    drawn = together["task"].get("timestep", together["action"])
    assert any((drawn[number] != drawn[0]).any() for number in range(ROWS))


def test_goals_by_keys_are_even():
    traj = row(steps(), 0)
    keys = jax.random.split(jax.random.key(3), 3000)
    goals = jax.vmap(lambda key: goal_relabeling.uniform(traj, rng=key)["task"]["timestep"])(keys)
    for time in range(STEPS):
        counts = np.bincount(np.asarray(goals)[:, time], minlength=STEPS)
        expected = 3000 / (STEPS - time)
        assert counts[:time].sum() == 0 and (np.abs(counts[time:] - expected) < 5 * np.sqrt(expected)).all()


def test_functions_of_the_host_take_keys_too():
    task = {"language_instruction": np.full(40, b"lift", object), "image_0": np.full(40, b"jpeg", object)}
    traj = {"task": task | {"pad_mask_dict": {name: np.ones(40, bool) for name in task}}, "action": np.zeros((40, 1))}

    def kept(key):
        changed = task_augmentation.delete_and_rephrase(traj, {"lift": "raise"}, 1.0, 0.5, rng=key)
        return changed["task"]["language_instruction"].tolist()

    assert kept(jax.random.key(0)) == kept(jax.random.key(0)) != kept(jax.random.key(1))
    drawn = [data_utils.sample_match_keys_uniform({"a": "x", "b": "y"}, "*", rng=jax.random.key(n)) for n in range(20)]
    assert set(drawn) == {"x", "y"}
