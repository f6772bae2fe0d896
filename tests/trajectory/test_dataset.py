"""Trajectory datasets: dlimp's names, mixtures in exact shares, resume anywhere, the same on any executor."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
from helpers.golden_trajectories import GOLDEN, made
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base import trees
from bushel._src.trajectory.data_utils import flatten_tree
from bushel._src.trajectory.dataset_transforms import apply_frame_transforms, apply_trajectory_transforms
from bushel._src.trajectory.episodes import Episodes, load, save
from bushel._src.trajectory.make_dataset import make_dataset_from_rlds
from bushel._src.trajectory.rlds.reader import RLDSBuilder
from bushel._src.trajectory.rlds.writer import write_rlds
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset

LENGTHS = [5, 1, 9, 3]


def trajectory(episode: int, length: int, robot: int = 0) -> dict:
    place = np.stack([np.full(length, robot), np.full(length, episode), np.arange(length)], 1)
    return {
        "observation": {"proprio": place.astype(np.float32)},
        "task": {"language_instruction": np.full(length, b"go", object)},
        "action": place.astype(np.float32),
        "dataset_name": np.full(length, b"robot %d" % robot, object),
    }


def robots(lengths=LENGTHS, robot: int = 0) -> TrajectoryDataset:
    return TrajectoryDataset.from_trajectories([trajectory(e, n, robot) for e, n in enumerate(lengths)])


def windows(ds: TrajectoryDataset, **kwargs) -> TrajectoryDataset:
    return apply_trajectory_transforms(ds, train=True, window_size=2, action_horizon=3, **kwargs)


def places(frames) -> list[tuple[int, ...]]:
    """(robot, episode, time) of frames."""
    return [tuple(frame["observation"]["proprio"][-1].astype(int).tolist()) for frame in frames]


def same(ours, theirs) -> None:
    ours, theirs = flatten_tree(ours), flatten_tree(theirs)
    assert ours.keys() == theirs.keys()
    for path in theirs:
        np.testing.assert_array_equal(ours[path], theirs[path], err_msg=str(path))


def renamed(trajectory):
    return {**trajectory, "reward": np.arange(len(trajectory["action"]))}


# dlimp's names.


def test_flattened_trajectories_are_their_frames_in_order():
    ds = windows(robots())
    assert (len(ds), ds.is_flattened) == (4, False)
    frames = ds.flatten()
    assert (len(frames), frames.is_flattened) == (sum(LENGTHS), True)
    stacked = [trees.map_leaves(lambda leaf, t=t: leaf[t], whole) for whole in ds for t in range(len(whole["action"]))]
    for ours, theirs in zip(frames, stacked, strict=True):
        same(ours, theirs)
    for ours, theirs in zip(ds.unbatch(), stacked, strict=True):
        same(ours, theirs)


def test_a_function_that_cannot_be_looked_into_gives_the_same_frames():
    known, opaque = windows(robots()), windows(robots()).traj_map(renamed)
    assert opaque._samples is None
    for ours, theirs in zip(opaque.flatten(), known.flatten(), strict=True):
        assert ours.pop("reward") == theirs["observation"]["timestep"][-1]
        same(ours, theirs)
    assert sorted(places(opaque.flatten().shuffle(seed=3))) == sorted(places(known.flatten()))


def test_a_function_of_rows_is_known_to_be_one():
    def marked(rows):
        return {**rows, "marker": np.full(len(rows["action"]), 7)}

    marked.rowwise = True  # pyright: ignore[reportFunctionMemberAccess]
    ds = windows(robots()).traj_map(marked)
    assert ds._samples is not None
    assert all(frame["marker"] == 7 for frame in ds.flatten())


def test_transforms_of_what_cannot_be_looked_into_are_made_of_a_table():
    ours = windows(robots().traj_map(renamed)).flatten()
    assert [int(frame["reward"]) for frame in ours] == [t for n in LENGTHS for t in range(n)]
    for frame, theirs in zip(ours, windows(robots()).flatten(), strict=True):
        frame.pop("reward")
        same(frame, theirs)


def test_a_function_before_the_transforms_is_called_once():
    def doubled(trajectory):
        return {**trajectory, "action": trajectory["action"] * 2}

    plain = windows(robots())
    made = windows(robots().traj_map(doubled))
    for ours, theirs in ((made, plain), (made.flatten(), plain.flatten())):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one["action"], other["action"] * 2)
    assert made._samples is not None  # and it is not called for each sample again


def test_a_function_before_the_transforms_loses_nothing(tmp_path):
    steps = {"observation": {"state": np.ones((5, 2), np.float32)}, "action": np.ones((5, 3), np.float32)}
    write_rlds({"train": [{"steps": steps}] * 3, "val": [{"steps": steps}]}, name="arm", data_dir=tmp_path)
    goals = []
    for seed in (0, 1):
        for compat in (None, "crossformer"):
            ds, _ = make_dataset_from_rlds(
                "arm",
                tmp_path,
                train=True,
                shuffle=False,
                proprio_obs_keys={"arm": "state", "leg": None, "hand": None},
                proprio_obs_dims={"leg": 4, "hand": 1},
                cache_dir=str(tmp_path),
                seed=seed,
                compat=compat,
            )
            kwargs = {"goal_relabeling_strategy": "uniform"}
            plain = windows(ds, **kwargs)
            same(windows(ds.traj_map(lambda t: t), **kwargs)[1], plain[1])
            goals.append(plain[1]["task"]["timestep"].tolist())

            def with_hand(t):
                return {**t, "observation": {**t["observation"], "proprio_hand": np.ones((len(t["action"]), 1))}}

            masks = windows(ds.traj_map(with_hand))[1]["observation"]["pad_mask_dict"]
            assert masks["proprio_hand"].all() and masks["proprio_leg"].all() == (compat is not None)
    assert goals[0] != goals[2]  # what was compared with is of the seed


def test_what_draws_belong_to():
    """To the sample; after a function of whole trajectories, to their steps; words stay if it is before transforms."""

    def told(trajectory):
        words = {name: np.full(len(trajectory["action"]), name, object) for name in (b"do", b"go")}
        return {**trajectory, "task": {"language_instructions": {name.decode(): one for name, one in words.items()}}}

    def drawn(ds):
        frames = ds.flatten()
        tasks = [frames.dataset[number]["task"] for number in range(9 * len(frames))]
        times, words = np.array([int(t["timestep"]) for t in tasks]), [t["language_instruction"] for t in tasks]
        return times.reshape(9, -1), np.array(words, object).reshape(9, -1)

    ds = TrajectoryDataset.from_trajectories([told(trajectory(e, n)) for e, n in enumerate(LENGTHS)])
    asked = {"goal_relabeling_strategy": "uniform"}
    goals, words = drawn(windows(ds, **asked))
    others, other_words = drawn(windows(ds, **asked).traj_map(lambda t: t))
    assert (others != goals).any()
    assert all(len(set(each)) == 2 for spoken in (words, other_words) for each in spoken.T)
    frozen = windows(ds.traj_map(lambda t: t), **asked)
    assert (drawn(frozen)[0] == goals).all()
    first = [ds[number]["task"]["language_instruction"][0] for number, n in enumerate(LENGTHS) for _ in range(n)]
    assert all(each.tolist() == first for each in drawn(frozen)[1])


def test_frame_map_is_of_each_frame():
    def summed(frame):
        return {"sum": frame["action"].sum(dtype=np.float64), "name": frame["dataset_name"]}

    flattened = windows(robots()).flatten().frame_map(summed)
    whole = windows(robots()).frame_map(summed)
    assert [len(each["sum"]) for each in whole] == LENGTHS
    stacked = np.concatenate([each["sum"] for each in whole])
    np.testing.assert_array_equal([frame["sum"] for frame in flattened], stacked)
    names = [name for each in whole for name in each["name"].tolist()]
    assert names == [b"robot 0"] * len(stacked)
    assert len(list(whole.flatten())) == len(stacked)


def test_functions_of_frames_are_carried_through_flatten():
    """What training scripts do with whole trajectories costs no more than frames in the first place."""
    calls = []

    def counted(frame, rng):
        calls.append(1)
        return {**frame, "noise": rng.random()}

    flattened = windows(robots()).random_frame_map(counted).repeat().unbatch().shuffle(seed=1)
    assert not calls
    batch = next(flattened.batch(4).iterator())
    assert len(calls) == 4
    expected = windows(robots()).flatten().random_frame_map(counted).repeat().shuffle(seed=1).batch(4)
    same(batch, next(expected.iterator()))


def test_explanations_name_episode_and_time():
    first = windows(robots()).flatten().shuffle(seed=1).batch(2).dataset.origin(0)
    frames = places(itertools.islice(windows(robots()).flatten().shuffle(seed=1), 2))
    for _, episode, time in frames:
        assert f"record {time} of episode {episode} of robot 0" in str(first)


def test_filters_of_trajectories_and_of_frames():
    long = windows(robots()).filter(lambda trajectory: len(trajectory["action"]) > 2)
    assert len(long) == 3 and long._samples is not None
    assert {episode for _, episode, _ in places(long.flatten())} == {0, 2, 3}
    opaque = robots().traj_map(renamed).filter(lambda trajectory: len(trajectory["action"]) > 2)
    assert [len(each["action"]) for each in opaque] == [5, 9, 3]
    even = windows(robots()).flatten().filter(lambda frame: frame["observation"]["timestep"][-1] % 2 == 0)
    assert len(even) == sum(-(-n // 2) for n in LENGTHS)
    assert all(time % 2 == 0 for _, _, time in places(even.shuffle(seed=1)))


def test_repeat_and_shuffle_do_not_mind_their_order():
    ds = windows(robots()).flatten()
    one, other = ds.repeat(3).shuffle(seed=4), ds.shuffle(seed=4).repeat(3)
    assert places(one) == places(other)
    found, size = places(one), sum(LENGTHS)
    epochs = [found[at : at + size] for at in range(0, 3 * size, size)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)  # every frame once in each
    assert epochs[0] != epochs[1] != epochs[2]
    endless = places(itertools.islice(ds.repeat().shuffle(seed=4), 2 * size))
    assert endless == found[: 2 * size]


def test_what_makes_no_sense_is_refused():
    ds = robots()
    with pytest.raises(ValueError, match=r"call flatten\(\) before batch\(\)"):
        ds.batch(2)
    with pytest.raises(ValueError, match="traj_map works on trajectories, but this dataset is flattened"):
        ds.flatten().traj_map(renamed)
    with pytest.raises(ValueError, match="flatten works on trajectories"):
        ds.flatten().flatten()
    with pytest.raises(ValueError, match="mixes frames: call flatten"):
        TrajectoryDataset.sample_from_datasets([ds])
    with pytest.raises(ValueError, match="2 datasets need as many weights, got 1"):
        TrajectoryDataset.sample_from_datasets([ds.flatten()] * 2, [1.0])
    with pytest.raises(ValueError, match="differ in length"):
        Episodes.of([{"a": np.zeros(3), "b": np.zeros(4)}])
    with pytest.raises(ValueError, match="does not have the same entries"):
        Episodes.of([{"a": np.zeros(3)}, {"b": np.zeros(4)}])
    with pytest.raises(
        ValueError, match=r"a of trajectory 1: it has float64\[2\] per frame here and float64\[\] before"
    ):
        Episodes.of([{"a": np.zeros(3)}, {"a": np.zeros((4, 2))}])
    with pytest.raises(ValueError, match="have 8 frames together, but action has 9 entries"):
        Episodes.of_arrays({"action": np.zeros((9, 2))}, [3, 5])
    for name, kwargs in (
        ('The strategy of goal_relabeling must be "uniform", got .near', {"goal_relabeling_strategy": "near"}),
        (
            "uniform takes \\['max_goal_distance'\\]",
            {"goal_relabeling_strategy": "uniform", "goal_relabeling_kwargs": {"d": 1}},
        ),
        ('task_augmentation must be "delete_task_conditioning"', {"task_augment_strategy": "near"}),
        ("takes \\['keep_image_prob'\\], got \\[\\]", {"task_augment_strategy": "delete_task_conditioning"}),
    ):
        with pytest.raises(ValueError, match=name):
            apply_trajectory_transforms(ds, train=True, **kwargs)


@pytest.mark.parametrize("name", ["subsample_length", "max_action_dim", "max_proprio_dim"])
@pytest.mark.parametrize("train", [True, False])
def test_numbers_that_leave_nothing_are_refused(name, train):
    with pytest.raises(ValueError, match=f"{name} must be .*got 0"):
        apply_trajectory_transforms(robots(), train=train, **{name: 0})
    with pytest.raises(ValueError, match=r"max_goal_distance must be .*got 0"):
        windows(robots(), goal_relabeling_strategy="uniform", goal_relabeling_kwargs={"max_goal_distance": 0})


def nothing(trajectory):
    return np.zeros(len(trajectory["action"]), bool)


def test_timesteps_count_from_zero_in_each_trajectory():
    ds = of({"timestep": np.arange(10, 13), "x": np.ones((3, 2))}, np.ones((3, 2)))
    assert ds[0]["observation"]["timestep"].tolist() == [0, 1, 2]
    assert windows(ds)[0]["observation"]["timestep"].tolist() == [[0, 0], [0, 1], [1, 2]]


def test_filters_that_leave_nothing_are_told():
    sentence = r"No trajectory of robot 7 is left: max_action=-1.0, max_proprio=9 removes all 4 trajectories"
    with pytest.raises(ValueError, match=sentence):
        windows(robots(robot=7), max_action=-1.0, max_proprio=9)
    with pytest.raises(ValueError, match=r"No frame of robot 7 is left: frame_filter=.*nothing.* removes all 18 "):
        windows(robots(robot=7), frame_filter=nothing)
    with pytest.raises(ValueError, match="there was none before the transforms"):
        windows(robots().filter(lambda trajectory: False))


def of(observation, action):
    return TrajectoryDataset.from_trajectories([{"observation": observation, "action": action}])


def test_layouts_that_transforms_do_not_know_are_refused():
    ones = np.ones((3, 2))
    with pytest.raises(ValueError, match=r"observation/hand is a dict with \['x', 'y'\].*with traj_map"):
        windows(of({"hand": {"x": ones, "y": ones}}, ones))
    with pytest.raises(ValueError, match=r"action is a dict with \['arm'\].*with traj_map"):
        windows(of({"x": ones}, {"arm": ones}))
    with pytest.raises(ValueError, match=r"task/goal is a dict with \['x'\].*with traj_map"):
        windows(robots().traj_map(lambda t: {**t, "task": {"goal": {"x": t["action"]}}}))
    for again in (windows(robots()), windows(robots()).traj_map(lambda t: t)):
        with pytest.raises(ValueError, match="apply_trajectory_transforms was applied to this dataset before"):
            windows(again)
    pixels = of({"image_top": np.zeros((3, 4, 4, 3), np.uint8)}, ones).flatten()
    with pytest.raises(ValueError, match=r"no pad_mask_dict beside image_top.*Call apply_trajectory_transforms before"):
        apply_frame_transforms(pixels, train=True, resize_size=(2, 2))[0]


def test_frames_are_transformed_as_their_trajectories_were():
    """Padding depth images of the original have an axis more; `compat` need not be said again."""
    traj = {"observation": {"depth_top": np.full(3, b"", object)}, "action": np.ones((3, 2))}
    ds = TrajectoryDataset.from_trajectories([traj])
    for compat, shape in (("crossformer", (1, 4, 4, 1)), (None, (1, 4, 4))):
        known = apply_trajectory_transforms(ds, train=True, compat=compat)
        unknown = known.traj_map(lambda t: t)
        frames = [known.flatten(), unknown.flatten(), TrajectoryDataset.sample_from_datasets([unknown.flatten()] * 2)]
        for one in (known, *frames):
            depth = apply_frame_transforms(one, train=True, depth_resize_size=(4, 4))[0]["observation"]["depth_top"]
            assert depth.shape == ((3, *shape) if one is known else shape)
        assert known.compat == compat
    other = apply_trajectory_transforms(ds, train=True, compat="crossformer").flatten()
    assert TrajectoryDataset.sample_from_datasets([other, ds.flatten()]).compat is None


def test_frames_are_not_transformed_as_trajectories():
    filtered = robots().flatten().filter(lambda frame: frame["action"][2] > 0)
    with pytest.raises(ValueError, match="apply_trajectory_transforms works on trajectories, but this dataset is flat"):
        windows(filtered)


def test_raw_trajectories_of_a_folder():
    builder = RLDSBuilder("synth_rlds", str(GOLDEN / "tfds"))
    ds = TrajectoryDataset.from_rlds(builder, "train", shuffle=False)
    theirs = builder.episodes("train", images="bytes")
    for ours, expected in zip(ds, theirs, strict=True):
        same(ours, expected)
    shuffled = [len(each["action"]) for each in TrajectoryDataset.from_rlds(builder, "train", seed=1)]
    assert sorted(shuffled) == sorted(len(each["action"]) for each in theirs)
    assert shuffled != [len(each["action"]) for each in theirs]


def actions(elements) -> list:
    return [element["action"].tolist() for element in elements]


@pytest.mark.parametrize("change", [None, "shuffle", "repeat", "flatten"])
def test_names_of_tensorflows_datasets(change):
    ds = windows(robots())
    ds = {None: ds, "shuffle": ds.shuffle(seed=1), "repeat": ds.repeat(2), "flatten": ds.flatten()}[change]
    everything = actions(ds)
    assert ds.cardinality() == len(everything) and ds.repeat().cardinality() == -1
    for count in (0, 1, 3, 100):
        assert actions(ds.take(count)) == everything[:count]
        assert actions(ds.skip(count)) == everything[count:]
    assert actions(ds.skip(1).take(2)) == everything[1:3]
    assert actions(ds.take(-1).as_numpy_iterator()) == everything
    numbered = [(number, element["action"].tolist()) for number, element in ds.enumerate(5)]
    assert numbered == list(enumerate(everything, 5))
    for hint in (ds.prefetch(4), ds.with_ram_budget(1)):
        assert actions(hint) == everything
    with pytest.raises(ValueError, match="count must be greater than or equal to 0, got -1"):
        ds.skip(-1)


def test_batches_of_what_has_no_end_have_none():
    assert windows(robots()).flatten().repeat().batch(2).cardinality() == -1


def test_some_trajectories_are_still_known_ones():
    some = robots().skip(1).take(2)
    assert some._samples is not None and len(windows(some).flatten()) == sum(LENGTHS[1:3])
    drawn = windows(robots()).shuffle(seed=1).take(2)
    assert len(drawn.flatten()) == sum(len(trajectory["action"]) for trajectory in drawn)


def test_leaves_that_are_no_arrays_of_steps_are_refused():
    for leaf in (True, np.float32(1), "pick", b"pick"):
        with pytest.raises(ValueError, match=r"success of trajectory 0 is .* an entry for each step. Repeat it"):
            TrajectoryDataset.from_trajectories([{**trajectory(0, 4), "success": leaf}])


def test_texts_in_batches_are_objects_whatever_was_done_to_frames():
    frames = windows(robots()).flatten()
    for ds in (frames, frames.frame_map(dict), windows(robots()).traj_map(dict).flatten(), frames.take(9)):
        batch = ds.batch(4)[0]
        assert batch["dataset_name"].dtype == object and batch["dataset_name"].tolist() == [b"robot 0"] * 4
        assert batch["task"]["language_instruction"].dtype == object


# Mixtures.


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
    count=st.integers(1, 120),
    alike=st.booleans(),
)
def test_shares_of_a_mixture_are_exact_in_every_prefix(weights, seed, count, alike):
    """Whether all have the same transforms, and are read as one table, or not."""
    parts = [windows(robots([4, 7, 2 + n], robot=n)).flatten().repeat() for n in range(len(weights))]
    if not alike:
        parts = [part.frame_map(_shorter) for part in parts]
    mixed = TrajectoryDataset.sample_from_datasets(parts, weights).shuffle(seed=seed)
    np.testing.assert_allclose(mixed.sample_weights, np.array(weights) / sum(weights))
    counts = collections.Counter()
    frames = collections.defaultdict(list)
    for position, place in enumerate(places(itertools.islice(mixed, count)), start=1):
        counts[place[0]] += 1
        frames[place[0]].append(place)
        for robot, weight in enumerate(weights):
            assert abs(counts[robot] - position * weight / sum(weights)) <= 1
    for robot, met in frames.items():  # every frame once before any comes again
        size = 4 + 7 + 2 + robot
        assert len(set(met[:size])) == len(met[:size])


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    weights=st.data(),
    alike=st.booleans(),
    seed=st.none() | st.integers(0, 5),
)
def test_a_mixture_with_an_end_has_all_frames_of_all(lengths, weights, alike, seed):
    shares = weights.draw(st.lists(st.sampled_from([0.5, 1, 2, 3.3]), min_size=len(lengths), max_size=len(lengths)))
    made = [windows(robots([length], robot=number)).flatten() for number, length in enumerate(lengths)]
    if not alike:
        made[0] = made[0].frame_map(lambda frame: frame)
    made[1] = made[1].repeat(2)
    mixed = TrajectoryDataset.sample_from_datasets(made, shares)
    mixed = mixed if seed is None else mixed.shuffle(seed=seed)
    found = collections.Counter(places(mixed))
    assert len(mixed) == sum(found.values())
    assert found == collections.Counter(
        {(number, 0, time): 1 + (number == 1) for number, length in enumerate(lengths) for time in range(length)}
    )
    it = mixed.iterator()
    for _ in range(len(mixed) // 2):
        next(it)
    resumed = mixed.iterator()
    resumed.set_state(it.get_state())
    assert places(it) == places(resumed)


def test_only_what_repeats_has_no_end():
    one, other = (windows(robots([length], robot=number)).flatten() for number, length in enumerate((4, 2)))
    mixed = TrajectoryDataset.sample_from_datasets([one.repeat(), other]).shuffle(seed=1)
    found = places(mixed[n] for n in range(40))
    assert sum(robot for robot, _, _ in found[:4]) == 2 and not any(robot for robot, _, _ in found[4:])
    assert all({time for _, _, time in found[n : n + 4]} == {0, 1, 2, 3} for n in range(6, 38, 4))
    alone = TrajectoryDataset.sample_from_datasets([other.repeat(3)])
    assert len(alone) == 6 and len(places(alone)) == 6


def _shorter(frame):
    return {**frame, "action": frame["action"][:, :3]}


def test_a_mixture_of_one_keeps_its_epochs_in_another():
    frames = windows(robots()).flatten()
    for change in (lambda ds: ds, lambda ds: ds.frame_map(dict)):
        one = change(TrajectoryDataset.sample_from_datasets([frames.repeat(2)]))
        assert len(TrajectoryDataset.sample_from_datasets([one.repeat(2), frames])) == 5 * len(frames)
        endless = change(TrajectoryDataset.sample_from_datasets([frames.repeat()]))
        assert TrajectoryDataset.sample_from_datasets([endless, frames]).cardinality() == -1


def test_mixtures_that_cannot_be_joined_are_mixed_all_the_same():
    one = windows(robots(robot=0)).flatten().repeat()
    other = windows(robots(robot=1), max_action_dim=3).flatten().repeat()
    met = places(itertools.islice(TrajectoryDataset.sample_from_datasets([one, other], [1, 3]).shuffle(seed=0), 40))
    assert collections.Counter(robot for robot, _, _ in met) == {0: 10, 1: 30}


# Executors and resume.


def whole_pipeline() -> TrajectoryDataset:
    parts = [windows(robots(LENGTHS, n), goal_relabeling_strategy="uniform").flatten().repeat() for n in range(3)]
    mixed = TrajectoryDataset.sample_from_datasets(parts, [0.5, 0.3, 0.2]).shuffle(seed=5)
    return mixed.random_frame_map(_noisy, seed=9).batch(4)


def _noisy(frame, rng):
    return {**frame, "noise": rng.random()}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_change_nothing(workers):
    here = list(itertools.islice(whole_pipeline().iterator(), 12))
    with whole_pipeline().iterator(workers=workers) as there:
        for ours, theirs in zip(itertools.islice(there, 12), here, strict=True):
            same(ours, theirs)
    with whole_pipeline()._with_threads(2).iterator(prefetch=3) as there:
        for ours, theirs in zip(itertools.islice(there, 12), here, strict=True):
            same(ours, theirs)


@settings(max_examples=15, deadline=None)
@given(before=st.integers(0, 20), after=st.integers(1, 6))
def test_resume_anywhere(before, after):
    it = whole_pipeline().iterator()
    for _ in range(before):
        next(it)
    state = it.get_state()
    expected = list(itertools.islice(it, after))
    again = whole_pipeline().iterator()  # built anew, as in another process
    again.set_state(state)
    for ours, theirs in zip(itertools.islice(again, after), expected, strict=True):
        same(ours, theirs)


def test_a_state_of_other_data_is_refused():
    state = whole_pipeline().iterator().get_state()
    other = windows(robots([7, 7])).flatten().repeat().shuffle(seed=5).random_frame_map(_noisy, seed=9).batch(4)
    with pytest.raises(bushel.StateMismatch):
        other.iterator().set_state(state)


def test_images_are_decoded_frame_by_frame_on_any_executor(tmp_path):
    def pipeline():
        ds, _ = made(str(tmp_path), compat=None)
        ds = windows(ds, goal_relabeling_strategy="uniform").flatten().repeat().shuffle(seed=2)
        augmentations = {"augment_order": ["random_flip_left_right", "random_brightness"], "random_brightness": [0.1]}
        ds = apply_frame_transforms(
            ds, train=True, resize_size=(16, 16), image_dropout_prob=0.3, image_augment_kwargs=augmentations
        )
        return ds.batch(8)

    here = list(itertools.islice(pipeline().iterator(), 4))
    assert here[0]["observation"]["image_primary"].shape == (8, 2, 16, 16, 3)
    assert here[0]["task"]["image_primary"].dtype == np.uint8
    with pipeline().iterator(workers=2) as there:
        for ours, theirs in zip(itertools.islice(there, 4), here, strict=True):
            same(ours, theirs)


# Tables on disk.


def test_a_table_is_the_same_from_disk(tmp_path):
    table = Episodes.of([trajectory(e, n) for e, n in enumerate(LENGTHS)])
    kept = save(table, str(tmp_path / "table"))
    assert kept.folder and kept.lengths.tolist() == LENGTHS
    again = load(str(tmp_path / "table"), None)
    frames = np.array([[3, 4], [0, 17]])
    for path, column in flatten_tree(table.columns).items():
        for other in (kept, again):
            np.testing.assert_array_equal(flatten_tree(other.columns)[path].take(frames), column.take(frames))
    assert save(table, str(tmp_path / "table")).lengths.tolist() == LENGTHS  # a second one finds it there
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]


def test_metadata_of_episodes_are_kept(tmp_path):
    for _ in range(2):  # made, then from the cache
        ds, _ = made(str(tmp_path))
        table = ds._samples.episodes
        episodes = RLDSBuilder("synth_rlds", str(GOLDEN / "tfds")).episodes("all")
        for name, column in table.metadata["episode_metadata"].items():
            expected = [episode["traj_metadata"]["episode_metadata"][name][0] for episode in episodes]
            assert column.take(np.arange(8)).tolist() == expected


def test_keys_for_the_device_belong_to_frames():
    import jax

    def keys(workers):
        with (
            windows(robots())
            .flatten()
            .repeat()
            .shuffle(seed=1)
            .with_keys(seed=3)
            .batch(4)
            .iterator(workers=workers) as it
        ):
            return np.concatenate([batch["key"] for batch in itertools.islice(it, 9)])

    found = keys(0)
    assert (found.dtype, found.shape) == (np.uint32, (36, 2)) and len(np.unique(found, axis=0)) == 36
    np.testing.assert_array_equal(keys(2), found)
    drawn = jax.vmap(jax.random.uniform)(found)
    assert len(np.unique(drawn)) == 36
