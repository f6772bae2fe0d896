"""Windows of frames and actions for whole arrays of rows: none leaves its episode, and masks say what is real."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.trajectory.data_utils import reproduces_faults
from bushel._src.trajectory.traj_transforms import Windows


@st.composite
def rows(draw):
    """Times with their lengths and goals: rows of different episodes."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    times = [draw(st.integers(0, length - 1)) for length in lengths]
    goals = [draw(st.integers(time, length - 1)) for time, length in zip(times, lengths)]
    return np.array(times), np.array(lengths), np.array(goals)


settings_of_windows = st.builds(
    Windows, st.integers(1, 5), st.integers(1, 6), st.none() | st.integers(0, 6), st.sampled_from([None, "crossformer"])
)


@settings(deadline=None)
@given(settings_of_windows, rows())
def test_no_window_leaves_its_episode(windows, rows):
    times, lengths, goals = rows
    seen, _ = windows.observations(times)
    acted, _ = windows.actions(times, lengths, goals)
    assert seen.dtype == acted.dtype == np.int64
    assert seen.shape == (len(times), windows.window_size)
    assert acted.shape == (len(times), windows.window_size, windows.action_horizon)
    assert (seen >= 0).all() and (seen <= times[:, None]).all()
    assert (acted >= 0).all() and (acted < lengths[:, None, None]).all()


@settings(deadline=None)
@given(settings_of_windows, rows())
def test_masks_are_true_exactly_where_data_are_real(windows, rows):
    windows = Windows(windows.window_size, windows.action_horizon)
    times, lengths, goals = rows
    seen, seen_real = windows.observations(times)
    acted, acted_real = windows.actions(times, lengths, goals)
    completed = windows.completed(times, lengths, goals)
    for n, (time, goal) in enumerate(zip(times, goals)):
        for w in range(windows.window_size):
            wanted = time - windows.window_size + 1 + w
            assert seen_real[n, w] == (wanted == seen[n, w])
            for h in range(windows.action_horizon):
                exists = wanted >= 0 and wanted + h == acted[n, w, h]
                assert acted_real[n, w, h] == (exists and wanted + h <= goal)
                assert completed[n, w, h] == (wanted + h > goal)  # also before the episode


@settings(deadline=None)
@given(settings_of_windows, rows())
def test_the_original_masks_two_steps_late(windows, rows):
    windows = Windows(windows.window_size, windows.action_horizon, compat="crossformer")
    times, lengths, goals = rows
    gathered, real = windows.actions(times, lengths, goals)
    w = np.arange(windows.window_size)[:, None]
    h = np.arange(windows.action_horizon)
    completed = goals[:, None, None] - (times[:, None, None] - (windows.window_size + 1) + w + h) <= 0
    assert (real == ~completed).all()
    ours, _ = Windows(windows.window_size, windows.action_horizon).actions(times, lengths, goals)
    assert (gathered == ours).all()


def test_an_override_masks_old_slots_only():
    times, real = Windows(window_size=3, override_window_size=2).observations([0, 2])
    assert times.tolist() == [[0, 0, 0], [0, 1, 2]]
    assert real.tolist() == [[False, False, True], [False, True, True]]
    assert not Windows(2, override_window_size=0).observations([5])[1].any()
    assert Windows(2, override_window_size=9).observations([5])[1].all()


def test_one_length_for_all_rows_and_the_last_frame_as_goal():
    windows = Windows(2, 3)
    for one, each in zip(windows.actions([0, 3], 4), windows.actions([0, 3], [4, 4], [3, 3])):
        assert (one == each).all()


def test_windows_of_no_rows_are_empty():
    assert Windows(2).observations([])[0].shape == (0, 2)
    assert Windows(2, 3).actions([], 4)[0].shape == (0, 2, 3)


def test_bad_arguments():
    with pytest.raises(ValueError, match="window_size must be positive, but got 0"):
        Windows(0)
    with pytest.raises(ValueError, match="action_horizon must be positive"):
        Windows(1, 0)
    with pytest.raises(ValueError, match="override_window_size must be greater than or equal to 0, got -1"):
        Windows(1, 1, -1)
    with pytest.raises(ValueError, match=r"compat must be None .* or 'crossformer' .*, got 'octo'"):
        Windows(compat="octo")
    with pytest.raises(ValueError, match=r"outside its episode: times \[4\], lengths 4"):
        Windows().actions([4], 4)
    with pytest.raises(ValueError, match=r"not negative, got \[-1\]"):
        Windows().observations([-1])
    assert reproduces_faults("crossformer") and not reproduces_faults(None)
