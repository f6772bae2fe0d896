"""Mixtures of data sets that differ: what one lacks is padding, overrides stay with their data set."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict, FieldReference

from bushel._src.trajectory.data_utils import flatten_tree
from bushel.trajectory import (
    ModuleSpec,
    apply_frame_transforms,
    apply_trajectory_transforms,
    build_dataset_from_config,
    make_dataset_from_rlds,
    make_interleaved_dataset,
    make_single_dataset,
    write_rlds,
)


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
    write_rlds(
        {"train": [episode(n, 3, "image") for n in (4, 5)], "val": [episode(3, 3, "image")]}, name="arm", data_dir=where
    )
    write_rlds(
        {"train": [episode(n, 2, "view") for n in (6, 7)], "val": [episode(3, 2, "view")]}, name="rover", data_dir=where
    )
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
    override = {"override_traj_transform_kwargs": {"override_window_size": 1}}
    given = {"window_size": 3, "override_window_size": 2}
    batch = mixed([arm(folder, **override), rover(folder)], traj_transform_kwargs=given)[1]
    most = [
        batch["observation"]["timestep_pad_mask"][batch["dataset_name"] == name].sum(axis=1).max()
        for name in (b"arm", b"rover")
    ]
    assert most == [1, 2] and given == {"window_size": 3, "override_window_size": 2}
    longer = arm(folder, override_traj_transform_kwargs={"action_horizon": 3})
    single = make_single_dataset(longer, train=False, frame_transform_kwargs={"resize_size": (8, 8)})
    assert single[0]["action"].shape[2] == 3


@pytest.mark.filterwarnings("ignore:There is no size for image_primary:UserWarning")  # the original has no sizes here
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
    with pytest.raises(ValueError, match=r"shape of proprio_body per frame is \[3\] in arm, \[2\] in rover"):
        mixed([arm(folder) | same, rover(folder) | same])
    ds = mixed([arm(folder) | same, rover(folder) | same], traj_transform_kwargs={"max_proprio_dim": 4})
    assert next(ds.iterator())["observation"]["proprio_body"].shape == (12, 1, 4)


def test_padding_of_another_width_is_refused(folder):
    padded = {"proprio_obs_keys": {"arm": None}, "proprio_obs_dims": {"arm": 7}}
    sentence = r"shape of proprio_arm per frame is \[3\] in arm, \[7\] in rover \(padding, by its proprio_obs_dims\)"
    with pytest.raises(ValueError, match=sentence):
        mixed([arm(folder), rover(folder) | padded])
    fitting = padded | {"proprio_obs_dims": {"arm": 3}}
    for parts in ([arm(folder), rover(folder) | fitting], [rover(folder) | fitting, arm(folder)]):
        observation = mixed(parts)[0]["observation"]
        assert observation["proprio_arm"].shape == (12, 1, 3)
        assert 0 < observation["pad_mask_dict"]["proprio_arm"].sum() < 12


def test_a_robot_may_observe_nothing(folder):
    blind = {"image_obs_keys": {}, "proprio_obs_keys": {}}
    for parts in ([arm(folder), rover(folder) | blind], [rover(folder) | blind, arm(folder)]):
        batch = mixed(parts)[0]
        seen = batch["observation"]["pad_mask_dict"]["image_primary"][:, 0]
        np.testing.assert_array_equal(seen, batch["dataset_name"] == b"arm")


def pixels(size):
    def standard(trajectory):
        observation = {"pixels": np.full((len(trajectory["action"]), size, size, 3), 7, np.uint8)}
        return {**trajectory, "observation": observation}

    return standard


def test_images_as_pixels_may_have_different_sizes_before_they_are_resized(folder):
    own = {"image_obs_keys": {"primary": "pixels"}, "proprio_obs_keys": {}}
    parts = [arm(folder) | own | {"standardize_fn": pixels(8)}, rover(folder) | own | {"standardize_fn": pixels(12)}]
    images = mixed(parts)[0]["observation"]["image_primary"]
    assert images.shape == (12, 1, 8, 8, 3) and (images == 7).all()


def counted(trajectory):
    """A function that the library cannot look into."""
    return {**trajectory, "length": np.full(len(trajectory["action"]), len(trajectory["action"]))}


def test_robots_are_made_alike_before_functions_of_their_trajectories(folder):
    seen = []

    def watched(trajectory):
        seen.append((trajectory["action"].shape[1:], sorted(trajectory["observation"])))
        return counted(trajectory)

    kwargs = {"action_horizon": 2, "post_chunk_transforms": [watched]}
    batch = mixed([arm(folder), rover(folder)], [2.0, 1.0], traj_transform_kwargs=kwargs)[0]
    plain = mixed([arm(folder), rover(folder)], [2.0, 1.0], traj_transform_kwargs={"action_horizon": 2})[0]
    assert len(batch["length"]) == 12 and all(shape == (1, 2, 3) for shape, _ in seen)
    assert all(names == seen[0][1] for _, names in seen)
    np.testing.assert_array_equal(batch["action_pad_mask"], plain["action_pad_mask"])


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ({"window_size": 1}, r"window_size must be the same .* 1 for arm, 2 for rover. .* set override_window_size"),
        ({"action_horizon": 5}, r"action_horizon must be the same .* 5 for arm, 1 for rover"),
        ({"goal_relabeling_strategy": "uniform"}, r"goal_relabeling_strategy must .* uniform for arm, None for rover"),
        ({"head_to_dataset": {"a": ["arm"]}}, r"head_to_dataset must be the same .* \['a'\] for arm, \['action'\] for"),
        ({"max_proprio_dim": 5}, r"max_proprio_dim must be the same .* 5 for arm, None for rover"),
    ],
)
def test_settings_that_shape_samples_must_be_the_same(folder, override, sentence):
    with pytest.raises(ValueError, match=sentence):
        mixed(
            [arm(folder, override_traj_transform_kwargs=override), rover(folder)],
            traj_transform_kwargs={"window_size": 2},
        )


def test_one_width_for_actions(folder):
    def widths(arms, rovers):
        first, second = ({"override_traj_transform_kwargs": {"max_action_dim": width}} for width in (arms, rovers))
        return mixed([arm(folder, **first), rover(folder, **second)])[0]["action"].shape[-1]

    assert [widths(5, None), widths(None, 3), widths(4, 4), widths(None, None)] == [5, 3, 4, 3]
    for given, told in (((5, 4), "5 for arm, 4 for rover"), ((None, 2), "3 for arm, 2 for rover")):
        with pytest.raises(ValueError, match=f"max_action_dim must be the same .* {told}"):
            widths(*given)


def test_balanced_weights_need_numbers_of_frames(folder):
    known = make_dataset_from_rlds(**arm(folder), train=True)[1]
    given = arm(folder, dataset_statistics={name: known[name] for name in ("action", "proprio_arm")})
    with pytest.raises(
        ValueError, match=r"statistics given for arm has no 'num_transitions', only .* balance_weights=True needs it\."
    ):
        mixed([given, rover(folder)], balance_weights=True)
    assert mixed([given, rover(folder)])[0]["action"].shape == (12, 1, 1, 3)


def test_one_folder_for_the_tables_of_all(folder, tmp_path):
    parts = [{**arm(folder), "cache_dir": None}, {**rover(folder), "cache_dir": str(tmp_path / "own")}]
    common = tmp_path / "common"
    mixed(parts, cache_dir=str(common))
    assert [len(list((where / "episodes").iterdir())) for where in (common, tmp_path / "own")] == [1, 1]
    build_dataset_from_config({"datasets": [{**rover(folder), "cache_dir": None}], "cache_dir": str(common)})
    assert len(list((common / "episodes").iterdir())) == 2


def test_data_sets_that_cannot_be_joined_draw_differently(tmp_path):
    steps = {"observation": {"state": np.zeros((40, 2), np.float32)}, "action": np.zeros((40, 2), np.float32)}
    for name in ("one", "other"):
        write_rlds({"train": [{"steps": steps}], "val": [{"steps": steps}]}, name=name, data_dir=tmp_path)
    own = {"override_traj_transform_kwargs": {"goal_relabeling_kwargs": {"max_goal_distance": 40}}}
    known = {"data_dir": tmp_path, "cache_dir": str(tmp_path), "proprio_obs_keys": {"arm": "state"}}
    ds = make_interleaved_dataset(
        [{**known, "name": "one"}, {**known, "name": "other", **own}],
        train=True,
        traj_transform_kwargs={"goal_relabeling_strategy": "uniform"},
    )
    goals = {}
    for number in range(80):
        frame = ds[number]
        goals[frame["dataset_name"], int(frame["observation"]["timestep"][0])] = int(frame["task"]["timestep"])
    assert len(goals) == 80
    assert sum(goals[b"one", time] == goals[b"other", time] for time in range(40)) < 20


def same(ours, theirs):
    ours, theirs = flatten_tree(ours), flatten_tree(theirs)
    assert ours.keys() == theirs.keys()
    for path in theirs:
        np.testing.assert_array_equal(ours[path], theirs[path], err_msg=str(path))


def test_the_originals_calls_take_config_dicts(folder):
    augment = {"primary": {"random_brightness": [0.1], "augment_order": ["random_brightness"]}}
    plain = {
        "dataset_kwargs": arm(folder, standardize_fn=ModuleSpec.create("helpers.robots:narrow", width=2)),
        "traj_transform_kwargs": {"window_size": FieldReference(2), "head_to_dataset": {"arm": ["arm"]}},
        "frame_transform_kwargs": {"resize_size": {"primary": (4, 4)}, "image_augment_kwargs": augment},
    }
    config = ConfigDict(plain)
    plain["traj_transform_kwargs"]["window_size"] = 2
    single = make_single_dataset(
        config.dataset_kwargs,
        traj_transform_kwargs=config.traj_transform_kwargs,
        frame_transform_kwargs=config.frame_transform_kwargs,
        train=True,
    )
    expected = make_single_dataset(**plain, train=True)
    assert expected[0]["action"].shape[1:] == (2, 1, 2)
    same(single[0], expected[0])
    made, statistics = make_dataset_from_rlds(**config.dataset_kwargs, train=True)
    given = ConfigDict({key: value for key, value in jax.tree.map(np.ndarray.tolist, statistics).items()})
    again, _ = make_dataset_from_rlds(**config.dataset_kwargs, dataset_statistics=given, train=True)
    same(again[0], made[0])
    frames = apply_frame_transforms(
        apply_trajectory_transforms(made, train=True, **config.traj_transform_kwargs),
        train=True,
        **config.frame_transform_kwargs,
    )
    same(frames[0], expected[0])
    training = {"dataset_kwargs_list": [plain.pop("dataset_kwargs")], **plain, "batch_size": 4, "seed": 1}
    whole = make_interleaved_dataset(**ConfigDict(training), train=True)
    same(whole[0], make_interleaved_dataset(**training, train=True)[0])


@pytest.mark.parametrize("threads", [None, -1, 0, 1, 2, 48])
def test_hints_for_threads_are_only_hints(folder, threads):
    made = mixed([arm(folder), rover(folder)], traj_read_threads=threads, traj_transform_threads=threads)
    same(made[0], mixed([arm(folder), rover(folder)])[0])


def test_augmentations_of_nothing_are_refused(folder):
    def augmented(**kwargs):
        return make_interleaved_dataset([arm(folder)], train=True, frame_transform_kwargs={**sizes, **kwargs})

    sizes, order = {"resize_size": (4, 4)}, {"augment_order": ["random_brightness"], "random_brightness": [0.1]}
    for kwargs in ({"random_brightness": [0.1]}, {"primary": {"random_brightness": [0.1]}}):
        with pytest.raises(ValueError, match="image_augment_kwargs needs an 'augment_order'"):
            augmented(image_augment_kwargs=kwargs)
        augmented(image_augment_kwargs=kwargs, compat="crossformer")
    with pytest.raises(ValueError, match=r"has primray; the images are primary. Nothing would be augmented"):
        augmented(image_augment_kwargs={"primray": order})
    with pytest.warns(UserWarning, match="has wrist; the images are primary"):
        augmented(image_augment_kwargs={"primary": order, "wrist": order})
    with pytest.raises(TypeError, match="image_augment_kwargs must be a dict, got list"):
        augmented(image_augment_kwargs=["random_brightness"])
    for size in (4, (4,), {"primary": 4}):
        with pytest.raises(ValueError, match=r"resize_size.* must be .height, width., or such pairs"):
            augmented(resize_size=size)


def test_data_sets_without_a_head_are_told(folder):
    parts = [arm(folder), rover(folder)]
    with pytest.raises(ValueError, match=r"no head for arm, rover: .* names of data sets, which are arm, rover"):
        mixed(parts, traj_transform_kwargs={"head_to_dataset": {"single_arm": ["amr"]}})
    with pytest.warns(UserWarning, match="head_to_dataset has no head for rover: actions of these"):
        mixed(parts, traj_transform_kwargs={"head_to_dataset": {"single_arm": ["arm", "another"], "legs": ["dog"]}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed(parts, traj_transform_kwargs={"head_to_dataset": {"single_arm": ["arm"], "wheels": ["rover"]}})


def test_nothing_in_place_of_functions_and_one_in_place_of_several(folder):
    one = arm(folder, override_traj_transform_kwargs=None, filter_functions=None)
    same(mixed([one], traj_transform_kwargs={"post_chunk_transforms": None})[0], mixed([arm(folder)])[0])
    functions = {"filter_functions": is_long}
    named = mixed([arm(folder, **functions)], traj_transform_kwargs={"post_chunk_transforms": with_reward})
    listed = {name: [function] for name, function in functions.items()}
    same(named[0], mixed([arm(folder, **listed)], traj_transform_kwargs={"post_chunk_transforms": [with_reward]})[0])
    assert named[0]["reward"].tolist() == [1.0] * 12 and named.dataset_statistics["arm"]["num_trajectories"] == 1


def is_long(trajectory):
    return len(trajectory["action"]) > 4


def with_reward(trajectory):
    return {**trajectory, "reward": np.ones(len(trajectory["action"]))}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"seed": None}, "Seed must be an integer, got None"),
        ({"dataset_kwargs_list": [{"data_dir": "data"}]}, "Data set 0 of dataset_kwargs_list has no 'name'"),
        ({"traj_transform_kwargs": {"override_window_size": 0}}, "override_window_size must be positive"),
    ],
)
def test_arguments_that_cannot_be_are_told(folder, more, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        make_interleaved_dataset(**{"dataset_kwargs_list": [arm(folder)], "train": True, **more})


def test_a_data_set_without_validation_is_named(folder, tmp_path):
    write_rlds({"train": [episode(4, 3, "image")]}, name="tiny", data_dir=tmp_path)
    tiny = arm(tmp_path, name="tiny")
    with pytest.raises(ValueError, match=r"Data set 'tiny': The split 'train.95%:.' names no episodes.*val_split"):
        make_interleaved_dataset([arm(folder), tiny], train=False)


def test_names_and_weights_are_checked(folder):
    with pytest.raises(ValueError, match="Names of data sets must differ"):
        mixed([arm(folder), arm(folder)])
    with pytest.raises(ValueError, match="2 data sets need as many sample_weights, got 1"):
        mixed([arm(folder), rover(folder)], [1.0])
    assert mixed([arm(folder), rover(folder)], []).sample_weights.tolist() == [0.5, 0.5]  # none given
    with pytest.raises(ValueError, match="needs at least one data set"):
        mixed([])
