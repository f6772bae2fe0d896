"""Helpers for trees, gripper actions and shares of threads: the outputs of the original, and their laws."""

import collections
import json

import numpy as np
import pytest
from helpers.golden_trajectories import arrays, assert_same_tree, text, tree
from helpers.numpy_versions import STRING_DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bushel._src.trajectory.data_utils import fnmatch_filter, matching_key
from bushel.trajectory.data_utils import (
    allocate_threads,
    binarize_gripper_actions,
    combine_dataset_statistics,
    filter_success_droid,
    invert_gripper_actions,
    moving,
    pprint_data_mixture,
    rel2abs_gripper_actions,
    rel_open_or_closed,
    relabel_actions,
    sample_match_keys_uniform,
    to_padding,
    tree_map,
    tree_merge,
)


@pytest.mark.parametrize("case", text("utils/tree_merge"))
def test_merged_as_the_original(case):
    assert tree_merge(*case["inp"]) == case["out"]


def test_a_dict_may_take_the_place_of_a_value():
    assert tree_merge({"a": 5}, {"a": {"x": 1}}) == {"a": {"x": 1}}
    assert tree_map(str, {"a": {"b": 1}, "c": {}}) == {"a": {"b": "1"}, "c": {}}


def test_padding_has_the_shape_and_dtype_of_its_leaf():
    for leaf in (np.ones(3, np.float32), np.ones((2, 2), np.int64), np.array([b"a", b"b"]), np.array(["a"])):
        padding = to_padding(leaf)
        assert (padding.dtype, padding.shape) == (leaf.dtype, leaf.shape) and not any(padding.ravel().tolist())
    for kind in STRING_DTYPES:
        assert to_padding(np.array(["a"], kind)).tolist() == [""]
    assert to_padding(np.array([b"a", "b"], object)).tolist() == [b"", b""]
    with pytest.raises(ValueError, match="no padding for an array of bool"):
        to_padding(np.ones(3, bool))


def gripper(function):
    cases = [key.split("/")[1] for key in arrays("utils/gripper_and_relabel") if key.startswith(f"{function}/")]
    return [tree("utils/gripper_and_relabel", f"{function}/{case}") for case in dict.fromkeys(cases)]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("binarize", binarize_gripper_actions),
        ("rel2abs", rel2abs_gripper_actions),
        ("rel_open_or_closed", lambda actions: rel_open_or_closed(actions, compat="crossformer")),
    ],
)
def test_gripper_actions_of_the_original(name, function):
    cases = gripper(name)
    assert len(cases) >= 4
    for case in cases:
        assert_same_tree(function(case["in"]), case["out"])


values = np.float32([-1, -0.05, 0, 0.02, 0.3, 0.7, 0.96, 1])
steps = hnp.arrays(np.float32, st.integers(1, 12), elements=st.sampled_from(values.tolist()))


@settings(deadline=None)
@given(steps)
def test_gripper_actions_against_loops(actions):
    carry, wanted = actions[-1], np.empty_like(actions)
    for step in reversed(range(len(actions))):
        if not 0.05 <= actions[step] <= 0.95:
            carry = np.float32(actions[step] > 0.95)
        wanted[step] = carry
    np.testing.assert_array_equal(binarize_gripper_actions(actions), wanted)

    first = next((a for a in actions if abs(a) > 0.1), 1)
    state = float(first > 0)
    for step, action in enumerate(actions):
        if abs(action) > 0.1:
            state = float(action < 0)
        wanted[step] = state
    np.testing.assert_array_equal(rel2abs_gripper_actions(actions), wanted)

    first = next((a for a in actions if abs(a) > 1e-3), -1)
    assert rel_open_or_closed(actions) == float(first < 0)


def test_the_thresholds_of_motions_have_the_dtype_of_the_actions():
    barely = [np.nextafter(0.1, 1), 0.0]  # a motion in float64; in float32 it is 0.1, which is none
    assert rel2abs_gripper_actions(np.array(barely)).tolist() == [0.0, 0.0]
    assert rel2abs_gripper_actions(np.array(barely, np.float32)).tolist() == [1.0, 1.0]


def test_gripper_actions_of_no_steps_and_of_too_many_axes():
    assert binarize_gripper_actions([]).shape == rel2abs_gripper_actions([]).shape == (0,)
    with pytest.raises(ValueError, match=r"one number per step, got an array of shape \(2, 1\)"):
        binarize_gripper_actions(np.zeros((2, 1)))
    np.testing.assert_array_equal(invert_gripper_actions(np.array([0, 1, 0.25])), [1, 0, 0.75])


def test_relabelled_as_the_original():
    given_ = tree("utils/gripper_and_relabel", "relabel/in")
    assert_same_tree(relabel_actions(given_), tree("utils/gripper_and_relabel", "relabel/out"))
    with pytest.raises(ValueError, match="The observation has no 'state', only"):
        relabel_actions({"observation": {}, "action": np.zeros((2, 7))})


@pytest.mark.parametrize("case", text("utils/allocate_threads"))
def test_threads_of_the_original(case):
    if "assertion" in case:
        with pytest.raises(ValueError, match="4 data sets need at least 4 threads, got 3"):
            allocate_threads(case["n"], case["weights"])
    else:
        assert allocate_threads(case["n"], case["weights"], compat="crossformer").tolist() == case["out"]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=16), min_size=1, max_size=60).filter(any), st.integers(0, 50))
def test_threads_sum_up_and_nobody_is_left_out(weights, more):
    given_ = allocate_threads(len(weights) + more, weights)
    assert given_.sum() == len(weights) + more
    assert ((given_ > 0) == (np.array(weights) > 0)).all()


def test_threads_of_equal_weights_whose_shares_are_rounded_down():
    assert allocate_threads(49, [1 / 49] * 49).tolist() == [1] * 49


def test_threads_unasked_and_bad_weights():
    assert allocate_threads(None, [1, 2]).tolist() == [None, None]
    with pytest.raises(ValueError, match=r"not be negative and not all be zero, got \[0\.0, 0\.0\]"):
        allocate_threads(3, [0, 0])
    with pytest.raises(ValueError, match="not be negative"):
        allocate_threads(3, [1, -1])


def test_keys_are_drawn_alike():
    d = {"text_1": 1, "text_2": 2, "text_3": 3, "other": 4}
    rng = np.random.default_rng(0)
    counts = collections.Counter(sample_match_keys_uniform(d, "text*", rng=rng) for _ in range(900))
    assert set(counts) == {1, 2, 3} and all(abs(count - 300) < 60 for count in counts.values())
    faulty = {sample_match_keys_uniform(d, "text*", rng=rng, compat="crossformer") for _ in range(100)}
    assert faulty == {1, 2} and set(text("meta/filters_splits_language")["sample_match_keys_uniform_3keys"]) == {
        "x",
        "y",
    }
    assert matching_key(["x", "y"], "*", 0.99, compat="crossformer") == "x"  # as in the original's 2,000 of 2,000
    assert matching_key(["x"], "*", 0.99, compat="crossformer") == "x"
    assert fnmatch_filter("text_[12]", d) == ["text_1", "text_2"]
    with pytest.raises(ValueError, match=r"No key matches 'image\*'. There are: \['text_1'"):
        sample_match_keys_uniform(d, "image*")


def test_frames_whose_action_moves_the_robot_are_found():
    actions = np.zeros((4, 7))
    actions[1, 6] = 1  # the gripper alone
    actions[2, 3] = 1e-6
    actions[3, 0] = -0.1
    assert moving(actions).tolist() == [False, False, False, True]
    assert moving(actions, at_rest=actions[3]).tolist() == [True, True, True, False]
    assert moving(actions, dims=7).tolist() == [False, True, False, True]
    assert moving(actions[:, None]).tolist() == [False, False, False, True]  # in chunks
    with pytest.raises(ValueError, match=r"must have the shape \[T, A\], got \[3\]"):
        moving(np.zeros(3))


def test_successes_of_droid():
    def traj(path):
        return {"traj_metadata": {"episode_metadata": {"file_path": np.array([path], object)}}}

    for episode in range(8):
        raw = tree("inputs/synth_rlds", f"ep{episode}")
        assert filter_success_droid(raw) == (episode in text("meta/filters_splits_language")["filter_keep_success_eps"])
    assert filter_success_droid(traj("/a/success/b")) and not filter_success_droid(traj(b"success/b"))


def test_a_mixture_needs_a_weight_for_each(capsys):
    pprint_data_mixture([{"name": "a"}], [1])
    assert capsys.readouterr().out.split() == ["1", "datasets,", "with", "their", "weights:", "a", "1"]
    with pytest.raises(ValueError, match="shorter"):
        pprint_data_mixture([{"name": "a"}, {"name": "b"}], [1])


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_combined_statistics_are_those_of_all_rows(counts, seed):
    rng = np.random.default_rng(seed)
    rows = [rng.normal(rng.normal(), 1, (count, 2)) for count in counts]
    parts = [summary_of(own) for own in rows]
    parts[0] |= {"proprio": parts[0]["action"]}  # which the others do not have
    whole, expected = combine_dataset_statistics(parts), summary_of(np.concatenate(rows))
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(whole["action"][name], expected["action"][name], atol=1e-12)
        np.testing.assert_allclose(whole["proprio"][name], parts[0]["action"][name], atol=1e-12)
    assert whole["num_transitions"] == sum(counts) and whole["num_trajectories"] == len(counts)
    assert combine_dataset_statistics(parts, compat="crossformer")["num_transitions"] == counts
    assert json.dumps(whole)


def summary_of(rows):
    moments = {"mean": rows.mean(0).tolist(), "std": rows.std(0), "min": rows.min(0), "max": rows.max(0)}
    return {"action": moments, "num_transitions": len(rows), "num_trajectories": 1}


def test_statistics_that_cannot_be_combined_are_told():
    one, wide = summary_of(np.zeros((2, 2))), summary_of(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"action has the shapes \[\(2,\), \(3,\)\] in these data sets"):
        combine_dataset_statistics([one, wide])
    with pytest.raises(TypeError, match=r"pass list\(loader.dataset_statistics.values\(\)\)"):
        combine_dataset_statistics({"bridge": one})
    with pytest.raises(ValueError, match="at least one data set"):
        combine_dataset_statistics([])
