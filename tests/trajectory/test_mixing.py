"""Mixtures of data sets that differ: what one lacks is padding, overrides stay with their data set."""

from __future__ import annotations

import numpy as np
import pytest

from bushel.trajectory import make_interleaved_dataset, make_single_dataset, write_rlds


def episode(length: int, width: int, camera: str) -> dict:
    steps = {
        "observation": {camera: np.full((length, 8, 8, 3), 9, np.uint8), "state": np.ones((length, width), np.float32)},
        "action": np.arange(length * width, dtype=np.float32).reshape(length, width),
        "language_instruction": np.full(length, b"go", object),
    }
    return {"steps": steps, "episode_metadata": {"length": length}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = str(tmp_path_factory.mktemp("robots"))
    write_rlds(where, "arm", {"train": [episode(n, 3, "image") for n in (4, 5)], "val": [episode(3, 3, "image")]})
    write_rlds(where, "rover", {"train": [episode(n, 2, "view") for n in (6, 7)], "val": [episode(3, 2, "view")]})
    return where


def arm(folder, **more):
    keys = {"image_obs_keys": {"primary": "image"}, "proprio_obs_keys": {"arm": "state"}}
    return {"name": "arm", "data_dir": folder, "cache_dir": folder, "language_key": "language_*", **keys, **more}


def rover(folder, **more):
    keys = {"image_obs_keys": {"nav": "view"}, "proprio_obs_keys": {"wheels": "state"}}
    return {"name": "rover", "data_dir": folder, "cache_dir": folder, **keys, **more}


def mixed(parts, weights=None, **more):
    frames = {"resize_size": (8, 8)}
    return make_interleaved_dataset(parts, weights, train=True, frame_transform_kwargs=frames, batch_size=12, **more)


def test_robots_that_differ_are_filled_up_and_masked(folder):
    ds = mixed([arm(folder), rover(folder)], [2.0, 1.0], traj_transform_kwargs={"action_horizon": 2})
    np.testing.assert_allclose(ds.sample_weights, [2 / 3, 1 / 3])
    assert set(ds.dataset_statistics) == {"arm", "rover"}
    batch = next(ds.iterator())
    arms = batch["dataset_name"] == b"arm"
    assert arms.sum() == 8
    masks = {name: mask[:, 0] for name, mask in batch["observation"]["pad_mask_dict"].items()}
    for name, there in (
        ("image_primary", arms),
        ("proprio_arm", arms),
        ("image_nav", ~arms),
        ("proprio_wheels", ~arms),
    ):
        np.testing.assert_array_equal(masks[name], there)
        assert not batch["observation"][name][~there].any()
    assert batch["action"].shape == (12, 1, 2, 3)
    np.testing.assert_array_equal(batch["action_pad_mask"][:, 0, 0], np.stack([arms | True, arms | True, arms], 1))
    np.testing.assert_array_equal(batch["task"]["pad_mask_dict"]["language_instruction"], arms)


def test_an_override_holds_for_its_data_set_alone(folder):
    override = {"override_traj_transform_kwargs": {"action_horizon": 3}}
    given = {"action_horizon": 2}
    ds = make_interleaved_dataset(
        [arm(folder, **override), rover(folder)],
        train=True,
        traj_transform_kwargs=given,
        frame_transform_kwargs={"resize_size": (8, 8)},
    )
    horizons = {ds[n]["dataset_name"]: ds[n]["action"].shape[1] for n in range(6)}
    assert horizons == {b"arm": 3, b"rover": 2} and given == {"action_horizon": 2}
    single = make_single_dataset(arm(folder, **override), train=False, frame_transform_kwargs={"resize_size": (8, 8)})
    assert single[0]["action"].shape[2] == 3


def test_the_originals_override_leaks_into_later_data_sets(folder):
    override = {"override_traj_transform_kwargs": {"action_horizon": 3}}
    both = {"image_obs_keys": {"primary": None}, "proprio_obs_keys": {}, "language_key": None, "compat": "crossformer"}
    ds = make_interleaved_dataset(
        [arm(folder) | both | override, rover(folder) | both], train=True, compat="crossformer"
    )
    assert {ds[n]["action"].shape[1:] for n in range(6)} == {(3, 3), (3, 2)}  # widths must agree already, there
    single = make_single_dataset(arm(folder) | both | override, train=True)
    assert single[0]["action"].shape[2] == 1  # there it has no effect


def test_one_name_for_different_widths_is_refused(folder):
    same = {"proprio_obs_keys": {"body": "state"}}
    with pytest.raises(ValueError, match=r"proprio_body is \[3\] per frame in one data set and \[2\] in another"):
        mixed([arm(folder) | same, rover(folder) | same])
    ds = mixed([arm(folder) | same, rover(folder) | same], traj_transform_kwargs={"max_proprio_dim": 4})
    assert next(ds.iterator())["observation"]["proprio_body"].shape == (12, 1, 4)


def test_names_and_weights_are_checked(folder):
    with pytest.raises(ValueError, match="Names of data sets must differ"):
        mixed([arm(folder), arm(folder)])
    with pytest.raises(ValueError, match="2 data sets need as many sample_weights, got 1"):
        mixed([arm(folder), rover(folder)], [1.0])
    with pytest.raises(ValueError, match="needs at least one data set"):
        mixed([])
