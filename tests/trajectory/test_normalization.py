"""Actions and proprioception on one scale and back: the numbers of the original, bit by bit, also under jit."""

import numpy as np
import pytest
from helpers.golden_trajectories import LENGTHS, arrays, manifest, restructured, statistics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bushel._src.trajectory.normalization import (
    NormalizationType,
    normalize,
    normalize_action_and_proprio,
    unnormalize,
    unnormalize_action_and_proprio,
)

CASES = {
    "norm/normal": ("normal", {}),
    "norm/normal_mask": ("normal", {}),
    "norm/bounds": ("bounds", {}),
    "norm/skip_norm": ("normal", {"skip_norm_keys": ["action", "proprio_arm"]}),
    "norm/skip_norm_keys_proprio_arm": ("normal", {"skip_norm_keys": ["proprio_arm"]}),
    "norm/skip_norm_keys_action": ("normal", {"skip_norm_keys": ["action"]}),
    "norm/normal_given_stats_zero_std": ("normal", {}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("episode", range(len(LENGTHS)))
def test_equal_to_the_original_bit_for_bit(name, episode):
    kind, kwargs = CASES[name]
    case, stats = manifest()[name], statistics()
    stats["action"] |= {"mask": case.get("kwargs", {}).get("action_normalization_mask") or [True] * 7}
    stats["action"] |= case.get("statistics", {})
    ours = normalize_action_and_proprio(restructured(episode), stats, kind, ["proprio_arm"], **kwargs)
    theirs = arrays(name)
    found = [(ours["action"], f"ep{episode}/action")]
    if "zero_std" not in name:
        found.append((ours["observation"]["proprio_arm"], f"ep{episode}/observation/proprio_arm"))
    for leaf, key in found:
        assert leaf.dtype == np.float32
        np.testing.assert_array_equal(leaf, theirs[key])


numbers = st.floats(-100, 100, width=32)


@st.composite
def data(draw):
    x = draw(hnp.arrays(np.float32, (draw(st.integers(1, 5)), draw(st.integers(1, 4))), elements=numbers))
    width = x.shape[1]
    low = draw(hnp.arrays(np.float64, width, elements=st.floats(-50, 50)))
    spread = draw(hnp.arrays(np.float64, width, elements=st.floats(0.01, 50)))
    mask = draw(hnp.arrays(bool, width))
    return x, {"mean": low, "std": spread, "p01": low, "p99": low + spread}, mask


@settings(deadline=None)
@given(data(), st.sampled_from(NormalizationType))
def test_unnormalize_is_the_inverse(data, kind):
    x, stats, mask = data
    there = normalize(x, stats, kind, mask)
    back = unnormalize(there, stats, kind, mask)
    if kind is NormalizationType.BOUNDS:
        x = np.where(mask, np.clip(x, stats["p01"], stats["p99"]), x)
        assert (np.abs(there[:, mask]) <= 1).all()
    np.testing.assert_allclose(back, x, rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(there[:, ~mask], x[:, ~mask])


@settings(deadline=None, max_examples=20)
@given(data(), st.sampled_from(NormalizationType))
def test_normalization_gives_the_same_under_jit(data, kind):
    jax = pytest.importorskip("jax")
    x, stats, mask = data
    for function in (normalize, unnormalize):
        traced = jax.jit(lambda x, function=function: function(x, stats, kind, mask))(x)
        np.testing.assert_allclose(traced, function(x, stats, kind, mask), rtol=1e-5, atol=1e-3)


def test_a_trajectory_there_and_back():
    traj, stats = restructured(0), statistics()
    there = normalize_action_and_proprio(traj, stats, NormalizationType.NORMAL, ["proprio_arm"])
    back = unnormalize_action_and_proprio(there, stats, NormalizationType.NORMAL, ["proprio_arm"])
    np.testing.assert_allclose(back["action"], traj["action"], atol=1e-6)
    np.testing.assert_allclose(back["observation"]["proprio_arm"], traj["observation"]["proprio_arm"], atol=1e-5)
    assert not np.allclose(there["action"], traj["action"])
    np.testing.assert_array_equal(traj["action"], restructured(0)["action"])  # what was given is as it was


def test_normalization_takes_lists():
    stats = {"mean": [1.0, 0.0], "std": [2.0, 1.0]}
    assert unnormalize([[0.5, 1.0]], stats, "normal", [True, False]).round(6).tolist() == [[2.0, 1.0]]
    assert normalize([[2.0, 1.0]], stats, "normal", [True, False]).round(6).tolist() == [[0.5, 1.0]]


def test_wrong_input_of_normalization_is_named():
    stats = {"mean": [0.0, 0.0], "std": [1.0, 1.0]}
    with pytest.raises(ValueError, match=r"shape \[2\] do not fit an array of shape \[4, 3\]"):
        normalize(np.zeros((4, 3)), stats, "normal")
    with pytest.raises(ValueError, match=r"mask of shape \[3\] does not fit"):
        normalize(np.zeros((4, 2)), stats, "normal", [True] * 3)
    with pytest.raises(TypeError, match="floating point numbers can be normalised, got int64"):
        normalize(np.zeros((4, 2), np.int64), stats, "normal")
    with pytest.raises(ValueError, match="has no 'p01', only"):
        normalize(np.zeros((4, 2)), stats, "bounds")
    with pytest.raises(ValueError, match=r'normalization must be "normal" or "bounds", got .minmax'):
        normalize(np.zeros((4, 2)), stats, "minmax")
    traj = {"observation": {}, "action": np.zeros((4, 2))}
    with pytest.raises(ValueError, match="An observation has no 'proprio_arm', only"):
        normalize_action_and_proprio(traj, {"action": stats, "proprio_arm": stats}, "normal", ["proprio_arm"])
    with pytest.raises(ValueError, match="The dict of statistics has no 'action', only"):
        normalize_action_and_proprio(traj, {}, "normal", [])


@pytest.mark.parametrize("kind", ["normal", "bounds"])
def test_half_precision_of_what_never_changes(kind):
    """In float16 the 1e-8 that keeps a division from failing is nothing."""
    stats = {"mean": [1.5, 0.0], "std": [0.0, 2.0], "p01": [1.5, -1.0], "p99": [1.5, 1.0]}
    x = np.array([[1.5, 0.5], [1.5, -0.5]], np.float16)
    scaled = normalize(x, stats, kind)
    assert scaled.dtype == np.float16 and np.isfinite(scaled).all()
    np.testing.assert_allclose(unnormalize(scaled, stats, kind), x, atol=1e-3)


def test_without_names_the_proprioception_is_octos():
    stats = {"mean": [1.0], "std": [2.0]}
    traj = {"observation": {"proprio": np.array([[3.0]])}, "action": np.array([[5.0]])}
    scaled = normalize_action_and_proprio(traj, {"action": stats, "proprio": stats}, "normal")
    assert scaled["observation"]["proprio"].round(6).tolist() == [[1.0]] and scaled["action"].round(6).tolist() == [
        [2.0]
    ]
    back = unnormalize_action_and_proprio(scaled, {"action": stats, "proprio": stats}, "normal")
    np.testing.assert_allclose(back["observation"]["proprio"], [[3.0]])
    assert "proprio" not in normalize_action_and_proprio({**traj, "observation": {}}, {"action": stats}, "normal")
