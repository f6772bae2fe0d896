"""Functions of whole trajectories, such as windows, masks and padding: the outputs of the original, and their laws."""

import collections
import copy

import numpy as np
import pytest
from helpers.golden_trajectories import arrays, assert_same_tree, manifest, restructured, statistics, text, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.trajectory.normalization import normalize_action_and_proprio
from bushel._src.trajectory.traj_transforms import choose_steps
from bushel.trajectory import goal_relabeling, task_augmentation
from bushel.trajectory.traj_transforms import (
    add_head_action_mask,
    add_pad_mask_dict,
    chunk_act_obs,
    pad_actions_and_proprio,
    subsample,
    zero_out_future_proprio,
)


def numbered(length, goals=None, chunk=None, width=2):
    """A trajectory whose values tell their step."""
    steps = np.arange(length, dtype=np.float32)
    action = np.stack([steps, -steps], axis=1)[:, :width]
    if chunk is not None:
        action = action[:, None] * 100 + np.arange(chunk, dtype=np.float32)[:, None]
    return {
        "observation": {"timestep": np.arange(length, dtype=np.int32)},
        "task": {} if goals is None else {"timestep": goals},
        "action": action,
        "action_pad_mask": np.broadcast_to(np.arange(width) == 0, action.shape),
    }


@pytest.mark.parametrize("case", manifest()["chunk/grid"]["index"], ids=lambda case: case["key"])
def test_windows_of_the_original(case):
    theirs = tree("chunk/grid", case["key"])
    kwargs = {name: case[name] for name in ("window_size", "action_horizon", "override_window_size")}
    traj = numbered(case["traj_len"], theirs.get("goal_timestep"))
    ours = chunk_act_obs(traj, **kwargs, compat="crossformer")
    np.testing.assert_array_equal(ours["observation"]["timestep"], theirs["obs_timestep"])
    np.testing.assert_array_equal(ours["observation"]["timestep_pad_mask"], theirs["timestep_pad_mask"])
    np.testing.assert_array_equal(ours["observation"]["task_completed"], theirs["task_completed"])
    np.testing.assert_array_equal(ours["action"][..., 0], theirs["action_index"])
    np.testing.assert_array_equal(ours["action"][..., 1], -ours["action"][..., 0])
    np.testing.assert_array_equal(ours["action_pad_mask"], theirs["action_pad_mask"])
    right = chunk_act_obs(traj, **kwargs)  # the same data, other masks
    np.testing.assert_array_equal(right["action"], ours["action"])
    np.testing.assert_array_equal(right["observation"]["timestep"], ours["observation"]["timestep"])


def test_chunks_that_come_as_chunks():
    theirs = tree("chunk/prechunked", "T5_N4_H4_W2")
    traj = numbered(5) | {"action": theirs["in_action"], "action_pad_mask": np.ones((5, 4, 2), bool)}
    ours = chunk_act_obs(traj, 2, 4, compat="crossformer")
    np.testing.assert_array_equal(ours["action"], theirs["action"])
    np.testing.assert_array_equal(ours["action_pad_mask"], theirs["action_pad_mask"])
    np.testing.assert_array_equal(ours["observation"]["task_completed"], theirs["task_completed"])
    for failed in manifest()["chunk/prechunked"]["results"][1:]:
        traj = numbered(failed["T"], chunk=failed["N"])
        with pytest.raises(ValueError, match=f"cannot cut chunks of {failed['N']} actions"):
            chunk_act_obs(traj, failed["W"], failed["H"], compat="crossformer")
        chunk_act_obs(traj, failed["W"], failed["H"])


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.data())
def test_masks_are_true_exactly_where_data_are_real(length, window, horizon, more, data):
    """Against loops; masks per step may be anything, and chunks may be longer than the horizon."""
    chunk = data.draw(st.sampled_from([None, horizon + more]))
    goals = np.array([data.draw(st.integers(step, length - 1)) for step in range(length)])
    traj = numbered(length, goals, chunk)
    traj["action_pad_mask"] = np.random.default_rng(length).random(traj["action"].shape) < 0.5
    override = data.draw(st.none() | st.integers(0, window + 1))
    made = chunk_act_obs(traj, window, horizon, override)
    assert made["action"].shape == made["action_pad_mask"].shape == (length, window, horizon, 2)
    for t in range(length):
        for w in range(window):
            slot = t - window + 1 + w
            there = slot >= 0 and (override is None or w >= window - override)
            assert made["observation"]["timestep"][t, w] == max(slot, 0)
            assert made["observation"]["timestep_pad_mask"][t, w] == there
            for h in range(horizon):
                late = slot + h > goals[t]
                assert made["observation"]["task_completed"][t, w, h] == late
                if late or not there:
                    assert not made["action_pad_mask"][t, w, h].any()
                    continue
                at = (slot + h,) if chunk is None else (slot, h)
                np.testing.assert_array_equal(made["action"][t, w, h], traj["action"][at])
                np.testing.assert_array_equal(made["action_pad_mask"][t, w, h], traj["action_pad_mask"][at])


def test_a_mask_of_steps_for_actions_in_chunks():
    traj = numbered(3, chunk=4) | {"action_pad_mask": np.array([[True, False]] * 3)}
    for compat, horizon in ((None, 2), ("crossformer", 4)):
        mask = chunk_act_obs(traj, 2, horizon, compat=compat)["action_pad_mask"]
        assert mask.shape == (3, 2, horizon, 2)
        assert mask[..., 0].any() and not mask[..., 1].any()


@pytest.mark.parametrize("compat", [None, "crossformer"])
def test_chunks_of_a_trajectory_without_steps_are_empty(compat):
    made = chunk_act_obs(goal_relabeling.uniform(numbered(0)), 2, 3, compat=compat)
    assert made["action"].shape == (0, 2, 3, 2) and made["observation"]["timestep"].shape == (0, 2)


def test_chunking_refuses():
    with pytest.raises(ValueError, match="chunks of 2, which is less than action_horizon=4"):
        chunk_act_obs(numbered(3, chunk=2), 1, 4)
    with pytest.raises(ValueError, match=r"has no 'action_pad_mask', only .* pad_actions_and_proprio makes it"):
        chunk_act_obs({"observation": {}, "task": {}, "action": np.zeros((3, 2))})
    with pytest.raises(ValueError, match=r"shape \[T, A\], .* got \[3\]"):
        chunk_act_obs(numbered(3) | {"action": np.zeros(3)})


class Given(np.random.Generator):
    """A generator that draws what it was told to."""

    def __init__(self, draws):
        super().__init__(np.random.PCG64(0))
        self._draws = list(draws)

    def random(self, size=None, *args, **kwargs):
        return self._draws.pop(0)


def draws_for(goals, length):
    """Draws with which each step gets its goal."""
    steps = np.arange(length)
    return (goals - steps + 0.5) / (length - steps)


def goals_of(theirs, traj):
    """The goals that the original drew: where they were overwritten later, a frame with the same proprioception."""
    same = (theirs["task"]["proprio_arm"][:, None] == traj["observation"]["proprio_arm"][None]).all(-1)
    steps = np.arange(len(same))
    same &= steps[None] >= steps[:, None]
    assert same.any(1).all()
    stated = theirs["task"]["timestep"]
    return np.where(same[steps, stated], stated, same.argmax(1))


@pytest.mark.parametrize("name", [name for name in manifest() if name.startswith("traj/") and name != "traj/filters"])
def test_the_whole_order_of_transforms(name):
    """Every leaf of the original's trajectories, bit for bit."""
    case = manifest()[name]
    settings = dict(case["kwargs"])
    for episode in case["episodes"]:
        theirs = tree(name, f"ep{episode}")
        theirs.pop("marker", None)
        traj = normalize_action_and_proprio(restructured(episode), statistics(), "normal", ["proprio_arm"])
        traj = pad_actions_and_proprio(add_pad_mask_dict(traj), None, None, compat="crossformer")
        if "goal_relabeling_strategy" in settings:
            drawn = draws_for(goals_of(theirs, traj), len(traj["action"]))
            limit = settings.get("goal_relabeling_kwargs", {}).get("max_goal_distance")
            drawn = np.zeros(len(drawn)) if limit == 1 else drawn
            traj = goal_relabeling.uniform(traj, limit, rng=Given([drawn]))
        traj = add_head_action_mask(traj)
        if "task_augment_strategy" in settings:
            augment = getattr(task_augmentation, settings["task_augment_strategy"])
            traj = augment(traj, **settings["task_augment_kwargs"], compat="crossformer")
        window, horizon = settings.get("window_size", 1), settings.get("action_horizon", 1)
        assert_same_tree(chunk_act_obs(traj, window, horizon, compat="crossformer"), theirs, f"ep{episode}")


def test_pad_mask_dict_of_the_original():
    theirs = {part: tree("pads/add_pad_mask_dict", part) for part in ("observation", "task")}
    theirs["action"] = arrays("pads/add_pad_mask_dict")["action"]
    given_ = {part: {k: v for k, v in theirs[part].items() if k != "pad_mask_dict"} for part in ("observation", "task")}
    given_["action"] = theirs["action"]
    assert_same_tree(add_pad_mask_dict(given_), theirs)
    absent = add_pad_mask_dict(add_pad_mask_dict(given_), missing=["proprio_arm"])["observation"]["pad_mask_dict"]
    assert set(absent) == set(theirs["observation"]["pad_mask_dict"])
    assert not absent["proprio_arm"].any() and absent["timestep"].all()
    with pytest.raises(ValueError, match=r"No entry of the observation is named \['proprio_leg'\]"):
        add_pad_mask_dict(given_, missing=["proprio_leg"])
    with pytest.raises(ValueError, match="task/nested is a dict"):
        add_pad_mask_dict(given_ | {"task": {"nested": {}}})


def test_an_encoded_image_is_not_read_for_its_mask():
    class Handle:
        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

        def __bytes__(self):
            raise AssertionError("it was read")

    images = np.array([Handle(0), Handle(3)], object)
    traj = {"observation": {"image_0": images}, "task": {}, "action": np.zeros((2, 1))}
    traj = pad_actions_and_proprio(add_pad_mask_dict(traj), None, None)
    assert traj["observation"]["pad_mask_dict"]["image_0"].tolist() == [False, True]
    traj = chunk_act_obs(goal_relabeling.uniform(traj), 2, 2)
    assert traj["observation"]["image_0"][1, 1] is images[1] and traj["task"]["image_0"][1] is images[1]


@pytest.mark.parametrize("action_dim", [None, 7, 10, 14])
@pytest.mark.parametrize("proprio_dim", [None, 8])
def test_padding_of_the_original(action_dim, proprio_dim):
    theirs = tree("pads/pad_actions_and_proprio", f"a{action_dim}_p{proprio_dim}")
    traj = {
        "observation": {"proprio": np.ones((4, 5), np.float32), "proprio_arm": np.ones((4, 5), np.float32)},
        "action": tree("pads/pad_actions_and_proprio", "aNone_pNone")["action"],
    }
    assert_same_tree(pad_actions_and_proprio(traj, action_dim, proprio_dim, compat="crossformer"), theirs)
    ours = pad_actions_and_proprio(traj, action_dim, proprio_dim)
    if proprio_dim:
        padded = ours["observation"].pop("proprio_arm")
        np.testing.assert_array_equal(padded, theirs["observation"]["proprio"])
        theirs["observation"].pop("proprio_arm")
    assert_same_tree(ours, theirs)


def test_padding_that_would_cut():
    traj = {"observation": {"proprio_arm": np.ones((4, 5))}, "action": np.ones((4, 7))}
    with pytest.raises(ValueError, match="action has 7 dimensions, more than max_action_dim=6"):
        pad_actions_and_proprio(traj, 6, None)
    with pytest.raises(ValueError, match="observation/proprio_arm has 5 dimensions, more than max_proprio_dim=4"):
        pad_actions_and_proprio(traj, None, 4)
    pad_actions_and_proprio(traj, None, 4, compat="crossformer")
    with pytest.raises(ValueError, match=r"action is one number per step"):
        pad_actions_and_proprio({"observation": {}, "action": np.ones(4)}, 6, None)
    assert pad_actions_and_proprio(traj | {"action": np.ones((4, 3, 2))}, 5, None)["action_pad_mask"].shape == (4, 3, 5)


def test_head_masks_of_the_original():
    theirs = text("pads/add_head_action_mask")
    heads = {"single_arm": ["bridge_dataset", "kuka"], "nav": ["gnm"], "bimanual": ["aloha"]}
    for name in (b"bridge_dataset", "bridge_dataset"):
        traj = {"dataset_name": np.full(3, name, object)}
        for key, mapping in (("None", None), ("map", heads)):
            masks = add_head_action_mask(traj, mapping)["action_head_masks"]
            assert {head: mask.tolist() for head, mask in masks.items()} == theirs[key]
            assert all(mask.dtype == bool for mask in masks.values())
    with pytest.raises(TypeError, match=r"head_to_dataset\['nav'\] must be a list of names, got the string 'gnm'"):
        add_head_action_mask(traj, {"nav": "gnm"})


def test_proprio_of_the_future_of_the_original():
    theirs = arrays("pads/zero_out_future_proprio")
    traj = {"observation": {"proprio": theirs["in"], "proprio_arm": theirs["in"], "x": theirs["in"]}}
    kept = zero_out_future_proprio(traj, compat="crossformer")["observation"]
    np.testing.assert_array_equal(kept["proprio"], theirs["out"])
    np.testing.assert_array_equal(kept["proprio_arm"], theirs["in"])
    right = zero_out_future_proprio(traj)["observation"]
    np.testing.assert_array_equal(right["proprio"], theirs["out"])
    np.testing.assert_array_equal(right["proprio_arm"], theirs["out"])
    np.testing.assert_array_equal(right["x"], theirs["in"])
    with pytest.raises(ValueError, match="has no 'proprio', only"):
        zero_out_future_proprio({"observation": {}}, compat="crossformer")
    assert zero_out_future_proprio({"observation": {}}) == {"observation": {}}


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 99))
def test_subsampling_keeps_whole_steps(length, wanted, seed):
    traj = {"action": np.arange(length), "observation": {"x": np.arange(length) * 10}}
    kept = subsample(traj, wanted, rng=seed)
    assert len(kept["action"]) == min(length, wanted) == len(set(kept["action"].tolist()))
    np.testing.assert_array_equal(kept["observation"]["x"], kept["action"] * 10)
    np.testing.assert_array_equal(subsample(traj, wanted, rng=seed)["action"], kept["action"])


@pytest.mark.parametrize("wanted", [3, 9, 10, 15])
def test_subsampling_is_distributed_as_the_original(wanted):
    theirs = text("subsample/distribution")[str(wanted)]
    rng = np.random.default_rng(0)
    draws = [choose_steps(rng.random(10), wanted) for _ in range(800)]
    counts = collections.Counter(np.concatenate(draws).tolist())
    assert {str(len(kept)) for kept in draws} == set(theirs["out_lengths"])
    expected = np.sum(theirs["counts"]) / 10
    spread = np.sqrt(expected * (1 - expected / 800))
    assert all(abs(counts[step] - expected) <= 4 * spread for step in range(10))
    ordered = sum((np.diff(kept) > 0).all() for kept in draws)
    assert abs(ordered - theirs["in_time_order"].get("True", 0)) <= 60
    with pytest.raises(ValueError, match="subsample_length must be positive, but got 0"):
        subsample({"action": np.arange(3)}, 0)


@pytest.mark.parametrize("compat", [None, "crossformer"])
def test_nothing_that_was_given_is_changed(compat):
    traj = restructured(4)
    traj["observation"]["proprio"] = np.ones((8, 5), np.float32)
    steps = [
        add_pad_mask_dict,
        lambda traj: pad_actions_and_proprio(traj, 9, 9, compat="crossformer"),
        goal_relabeling.uniform,
        add_head_action_mask,
        lambda traj: task_augmentation.delete_task_conditioning(traj, 0.5, compat=compat),
        lambda traj: chunk_act_obs(traj, 2, 3, compat=compat),
        lambda traj: zero_out_future_proprio(traj, compat=compat),
        lambda traj: subsample(traj, 3),
    ]
    for step in steps:
        before = copy.deepcopy(traj)
        after = step(traj)
        assert_same_tree(traj, before)
        traj = after
