"""From RLDS folders to transformed trajectories: equal to what the original gave, faults included where asked for."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from helpers.golden_trajectories import GOLDEN, arrays, assert_same_tree, made, manifest, statistics, text, tree

from bushel._src.trajectory.dataset_transforms import apply_trajectory_transforms
from bushel._src.trajectory.rlds.reader import RLDSBuilder
from bushel._src.trajectory.rlds.writer import write_rlds
from bushel._src.trajectory.samples import Draws, read_images
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset

# A warning where no package computes checksums: `make test-core`.
pytestmark = pytest.mark.filterwarnings("ignore:TFRecord files are read without")
DATA = str(GOLDEN / "tfds")
ORDER = text("inputs/rlds_element_spec")["file_order_episode_ids"]
EPISODES_OF_A_CASE = [1, 2, 3, 4, 6]


def add_marker(trajectory, value):
    return {**trajectory, "marker": np.full(len(trajectory["action"]), value, np.int32)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@functools.cache
def frame_numbers() -> dict[bytes, bytes]:
    """Encoded image -> the number of its frame in its episode."""
    numbers = {b"": b""}
    for trajectory in RLDSBuilder("synth_rlds", DATA).episodes("all", images="bytes"):
        for name in ("image", "wrist_image", "depth"):
            for number, image in enumerate(trajectory["observation"][name]):
                numbers[image] = b"%d" % number
    return numbers


def numbered(leaf: Any) -> Any:
    """A tree with the numbers of frames in place of their images."""
    if isinstance(leaf, dict):
        return {
            name: np.vectorize(frame_numbers().__getitem__, otypes=[object])(value)
            if name.startswith(("image_", "depth_")) and value.dtype == object
            else numbered(value)
            for name, value in leaf.items()
        }
    return leaf


def episode(ds: TrajectoryDataset, number: int) -> Any:
    """Episode `number` of the inputs."""
    return numbered(ds[ORDER.index(number)])


# Reading and normalisation.


@pytest.mark.parametrize("case", [name for name in manifest() if name.startswith("norm/")])
def test_restructured_and_normalised_trajectories_are_the_originals(case, cache):
    entry = manifest()[case]
    kwargs = dict(entry.get("kwargs", {}))
    base = manifest()["norm/normal"]["base_kwargs"]
    keys = {name: base[name] for name in ("image_obs_keys", "depth_obs_keys", "proprio_obs_keys", "proprio_obs_dims")}
    given = statistics()
    if "statistics" in entry:
        given = {**given, "action": entry["statistics"]}
    ds, _ = made(cache, **keys, **kwargs, dataset_statistics=given)
    found = {key.split("/")[0] for key in arrays(case)}
    for name in found:
        ours, theirs = episode(ds, int(name[2:])), tree(case, name)
        if case == "norm/normal":
            assert_same_tree(ours, theirs)
        else:  # the case holds some leaves only
            for key, leaf in theirs.get("observation", {}).items():
                assert_same_tree(ours["observation"][key], leaf)
            assert_same_tree(ours["action"], theirs["action"])
    assert len(found) > 1


def test_statistics_with_the_fault_are_the_originals_and_without_it_are_right(cache):
    ds, found = made(cache)
    theirs = statistics()
    assert (found["num_transitions"], found["num_trajectories"]) == (119, 8)
    for key in ("action", "proprio_arm"):
        for name in ("mean", "std", "max", "min", "p99", "p01"):
            np.testing.assert_allclose(
                found[key][name], theirs[key][name], rtol=1e-6, atol=1e-6, err_msg=f"{key} {name}"
            )
    assert ds.dataset_statistics is found
    _, right = made(cache, compat=None)
    states = np.concatenate([tree("inputs/synth_rlds", f"ep{n}")["observation"]["state"] for n in range(8)])
    np.testing.assert_allclose(right["proprio_arm"]["mean"], states.mean(axis=0), rtol=1e-5, atol=1e-6)
    assert not np.allclose(right["proprio_arm"]["mean"], theirs["proprio_arm"]["mean"], rtol=1e-4)


# Trajectory transforms.


class Chosen(Draws):
    """Draws that lead to goals that are known."""

    def __init__(self, draws: np.ndarray):
        super().__init__(0, np.arange(len(draws)), np.zeros(len(draws), np.int64))
        object.__setattr__(self, "_draws", draws)

    def per_sample(self, purpose: int) -> np.ndarray:
        return self._draws if purpose == 0 else np.full(len(self._draws), 0.5)


def with_goals(ds: TrajectoryDataset, number: int, goals: np.ndarray) -> Any:
    """The whole trajectory, with these goals."""
    samples = ds._samples
    place = ORDER.index(number)
    length = int(samples.episodes.lengths[samples.chosen[place]])
    times = np.arange(length)
    draws = (goals - times + 0.5) / (length - times)
    return numbered(read_images(samples.rows(np.full(length, samples.chosen[place]), times, Chosen(draws))))


@pytest.mark.parametrize(
    "case", [n for n, c in manifest().items() if n.startswith("traj/") and c["file"].endswith(".npz")]
)
def test_transformed_trajectories_are_the_originals(case, cache):
    kwargs = dict(manifest()[case]["kwargs"])
    kwargs["post_chunk_transforms"] = [
        functools.partial(add_marker, **spec["kwargs"]) for spec in kwargs.get("post_chunk_transforms", [])
    ]
    ds, _ = made(cache, dataset_statistics=statistics())
    ds = apply_trajectory_transforms(ds, **kwargs)
    for number in manifest()[case]["episodes"]:
        theirs = tree(case, f"ep{number}")
        if kwargs.get("goal_relabeling_strategy"):
            deleted = kwargs.get("task_augment_strategy") is not None
            goals = theirs["task"]["timestep"]
            if deleted:  # the drawn goal is still there where the image was kept
                goals = np.where(theirs["task"]["pad_mask_dict"]["image_primary"], goals, len(goals) - 1)
            ours = with_goals(ds, number, goals)
            if deleted:
                ours, theirs = (without_lost_goals(part, theirs) for part in (ours, theirs))
        else:
            ours = episode(ds, number)
        assert_same_tree(ours, theirs)


def without_lost_goals(ours: Any, theirs: Any) -> Any:
    """Where the goal image was deleted nothing tells which goal was drawn: its proprioception is left out."""
    kept = theirs["task"]["pad_mask_dict"]["image_primary"]
    task = {**ours["task"], "proprio_arm": ours["task"]["proprio_arm"][kept]}
    return {**ours, "task": task}


def test_filters_leave_out_what_the_original_leaves_out(cache):
    theirs = text("traj/filters")
    ds, _ = made(cache, dataset_statistics=statistics())

    def left(**kwargs):
        filtered = apply_trajectory_transforms(ds, train=False, **kwargs)
        return sorted(ORDER[number] for number in filtered._samples.chosen.tolist())

    for name in ("max_action_3", "max_action_50", "max_action_6"):
        assert left(max_action=float(name.rpartition("_")[2])) == theirs[name]
    assert left(max_proprio=0.001) == theirs["max_proprio_0.001"]
    assert left(skip_unlabeled=True) == theirs["skip_unlabeled"]
    assert left(max_proprio=0.001, compat=None) == theirs["max_proprio_0.001"]  # as the data set was made
    unlabelled, _ = made(cache, dataset_statistics=statistics(), language_key=None)
    with pytest.raises(ValueError, match=theirs["skip_unlabeled_without_language_error"]):
        apply_trajectory_transforms(unlabelled, train=False, skip_unlabeled=True)
    right, _ = made(cache, dataset_statistics=statistics(), compat=None)
    with pytest.raises(ValueError, match=r"No trajectory of synth_rlds is left: max_proprio=0.001 removes all 8"):
        apply_trajectory_transforms(right, train=False, max_proprio=0.001)


# Splits, filters, languages.


def keep_success(trajectory):
    return b"/success/" in trajectory["traj_metadata"]["episode_metadata"]["file_path"][0]


def at_least_8(trajectory):
    return len(trajectory["action"]) >= 8


def test_filter_functions_see_raw_trajectories(cache):
    theirs = text("meta/filters_splits_language")
    for functions, name in (([keep_success], "keep_success"), ([keep_success, at_least_8], "success_and_len8")):
        ds, found = made(cache, filter_functions=functions)
        numbers = ds._samples.episodes.numbers
        assert numbers is not None and sorted(ORDER[n] for n in numbers) == theirs[f"filter_{name}_eps"]
        assert [found["num_trajectories"], found["num_transitions"]] == theirs[f"filter_{name}_num"]


def test_splits_are_the_originals(cache):
    theirs = text("meta/filters_splits_language")
    ds, found = made(cache)
    assert [ORDER[n] for n in ds._samples.chosen] == theirs["split/synth_rlds/train=True"]["eps"]
    assert found["num_trajectories"] == theirs["split/synth_rlds/train=True"]["stats_num_traj"]
    with pytest.raises(ValueError, match=r"'train\[95%:\]' names no episodes \('train' has 8\)"):
        made(cache, train=False)


@pytest.mark.parametrize("train", [True, False])
def test_a_split_for_validation_is_the_originals(train, cache, tmp_path):
    known = text("meta/filters_splits_language")
    theirs = {mode: known[f"split/synth_rlds_val/train={mode}"] for mode in (True, False)}
    raw = [tree("inputs/synth_rlds", f"ep{number}") for number in range(8)]
    steps = [
        {name: one[name] for name in ("action", "language_instruction")}
        | {"observation": {"state": one["observation"]["state"]}}
        for one in raw
    ]
    splits = {name: [{"steps": steps[n]} for n in theirs[name == "train"]["eps"]] for name in ("train", "val")}
    write_rlds(splits, name="synth_rlds_val", data_dir=tmp_path)
    for compat, counted in (("crossformer", 8), (None, 6)):  # statistics are made of all splits, or of the training one
        kwargs = {"name": "synth_rlds_val", "data_dir": str(tmp_path), "image_obs_keys": {}, "compat": compat}
        ds, found = made(cache, train=train, skip_norm=True, **kwargs)
        for ours, number in zip(ds, theirs[train]["eps"], strict=True):
            np.testing.assert_array_equal(ours["action"], raw[number]["action"])
        assert found["num_trajectories"] == counted
        assert theirs[train]["stats_num_traj"] == 8


def test_empty_trajectories_are_left_out(cache):
    theirs = text("meta/filters_splits_language")
    ds, found = made(cache, name="synth_rlds_edge", image_obs_keys={}, language_key=None)
    assert sorted(ds._samples.episodes.lengths.tolist()) == theirs["edge_lengths_after_is_nonzero_length"]
    assert [found["num_trajectories"], found["num_transitions"]] == theirs["edge_stats"]


def test_a_mask_of_the_wrong_length_is_refused(cache):
    with pytest.raises(ValueError) as error:
        made(cache, action_normalization_mask=[True] * 5)
    assert str(error.value).startswith(text("meta/filters_splits_language")["mask_length_error"])


def test_of_several_languages_one_is_drawn_for_each_trajectory(cache):
    """All of them alike; the original never draws the last."""
    for compat, expected in ((None, 3), ("crossformer", 2)):
        ds, _ = made(cache, language_key="language_instruction*", compat=compat, dataset_statistics=statistics())
        raw = RLDSBuilder("synth_rlds", DATA).episodes("all", images="bytes")
        keys = [name for name in raw[0] if name.startswith("language_instruction")]
        drawn = {name: 0 for name in keys}
        for epoch in range(60):
            for place in range(8):
                ours = ds.dataset[epoch * 8 + place]["task"]["language_instruction"]
                found = [name for name in keys if ours.tolist() == raw[place][name].tolist()]
                assert found
                if len(found) == 1:
                    drawn[found[0]] += 1
        assert sum(count > 0 for count in drawn.values()) == expected, drawn
        counts = [count for count in drawn.values() if count]
        assert max(counts) < 2 * min(counts)
