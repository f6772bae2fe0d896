"""Samples are what the functions on whole trajectories make, row by row, whichever rows are asked for."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from helpers.numpy_versions import STRING_DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.trajectory import task_augmentation, traj_transforms
from bushel._src.trajectory.data_utils import flatten_tree, take
from bushel._src.trajectory.dataset_parts import join_samples
from bushel._src.trajectory.dataset_transforms import apply_trajectory_transforms
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.samples import Draws, Samples, Transforms, draw_for_numbers
from bushel._src.trajectory.traj_transforms import Windows
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset

lengths_of_episodes = st.lists(st.integers(1, 12), min_size=1, max_size=6)
compats = st.sampled_from([None, "crossformer"])


def trajectory(episode: int, length: int) -> dict:
    """A trajectory whose numbers say which frame of which episode they are."""
    times = np.arange(length)
    words = np.array([b"" if (episode + t) % 3 == 0 else b"do %d" % episode for t in times], object)
    images = np.array([b"" if (episode + t) % 5 == 4 else b"image %d %d" % (episode, t) for t in times], object)
    return {
        "observation": {
            "proprio": np.stack([np.full(length, episode), times], 1).astype(np.float32),
            "image_primary": images,
        },
        "task": {"language_instruction": words},
        "action": np.stack([np.full(length, episode), times, -times], 1).astype(np.float32),
        "dataset_name": np.full(length, b"robot", object),
    }


def table(lengths: list[int]) -> Episodes:
    return Episodes.of([trajectory(episode, length) for episode, length in enumerate(lengths)])


def samples_of(lengths: list[int], **changes) -> Samples:
    made = table(lengths)
    return Samples(made, np.arange(len(made)), **changes)


def same(ours, theirs) -> None:
    ours, theirs = flatten_tree(ours), flatten_tree(theirs)
    assert ours.keys() == theirs.keys()
    for path, leaf in theirs.items():
        assert (ours[path].dtype, ours[path].shape) == (leaf.dtype, leaf.shape), path
        np.testing.assert_array_equal(ours[path], leaf, err_msg=str(path))


@settings(max_examples=30, deadline=None)
@given(
    lengths=lengths_of_episodes, relabel=st.booleans(), transformed=st.booleans(), twice=st.booleans(), compat=compats
)
def test_the_arrays_of_samples_are_new(lengths, relabel, transformed, twice, compat):
    """The engine does not copy them, so a consumer that writes into a batch writes into them."""
    options = {
        "relabel_goals": relabel,
        "keep_image_prob": 0.5,
        "max_action_dim": 5,
        "head_to_dataset": {"a": [], "b": []},
    }
    transforms = Transforms(Windows(2, 3), **options) if transformed else None
    samples = samples_of(lengths, transforms=transforms, compat=compat)
    joined = join_samples([samples, samples]) if twice else samples
    assert joined is not None and joined.makes_new_arrays
    known = joined.ahead(np.arange(len(joined)))
    sources = [value for column in flatten_tree(joined.episodes.columns).values() for value in vars(column).values()]
    others = [value for value in (*known.values(), *sources) if isinstance(value, np.ndarray)]
    for _, leaf in sorted(flatten_tree(joined.after(known)).items()):
        assert type(leaf) is np.ndarray and len(leaf) == len(joined) and leaf.flags.writeable
        assert not any(np.shares_memory(leaf, other) for other in others)
        others.append(leaf)
    assert not dataclasses.replace(samples, row_functions=(lambda rows: rows,)).makes_new_arrays


# The same as the functions on whole trajectories.


@settings(max_examples=60, deadline=None)
@given(
    lengths=lengths_of_episodes,
    window=st.integers(1, 4),
    horizon=st.integers(1, 6),
    override=st.none() | st.integers(0, 4),
    width=st.none() | st.integers(3, 5),
    relabel=st.booleans(),
    distance=st.none() | st.integers(1, 5),
    goals=st.booleans(),
    in_a_line=st.booleans(),
    compat=compats,
)
def test_rows_are_what_the_trajectory_functions_make(
    lengths, window, horizon, override, width, relabel, distance, goals, in_a_line, compat
):
    """Also where the data have goals of their own, and where there are too many actions for one line."""
    transforms = Transforms(
        Windows(window, horizon, override, compat),
        relabel_goals=relabel,
        max_goal_distance=distance,
        max_action_dim=width,
        max_proprio_dim=width,
        head_to_dataset={"arm": ["robot"], "legs": ["dog"]},
    )
    trajectories = [trajectory(episode, length) for episode, length in enumerate(lengths)]
    for made in trajectories if goals else ():
        made["task"]["timestep"] = np.arange(len(made["action"]), dtype=np.int32) // 2
    samples = Samples(Episodes.of(trajectories), np.arange(len(lengths)), transforms=transforms, compat=compat)
    if not in_a_line:
        vars(samples)["_line_of_actions"] = None
    for episode, length in enumerate(lengths):
        expected = {**trajectories[episode], "observation": dict(trajectories[episode]["observation"])}
        expected["observation"]["timestep"] = np.arange(length, dtype=np.int32)
        expected = traj_transforms.add_pad_mask_dict(expected)
        expected = traj_transforms.pad_actions_and_proprio(expected, width, width, compat=compat)
        chance = Draws(0, np.arange(length), np.zeros(length, int))
        if relabel:
            chosen = traj_transforms.choose_goals(np.arange(length), length, chance.per_sample(0), distance)
            observed = take(expected["observation"], chosen)
            expected["task"] = traj_transforms_merge(expected["task"], observed)
        expected = traj_transforms.add_head_action_mask(expected, transforms.head_to_dataset)
        expected = traj_transforms.chunk_act_obs(expected, window, horizon, override, compat=compat)
        same(samples.rows(np.full(length, episode), np.arange(length), chance), expected)


def traj_transforms_merge(*trees):
    from bushel.trajectory.data_utils import tree_merge

    return tree_merge(*trees)


@settings(max_examples=40, deadline=None)
@given(lengths=lengths_of_episodes, rows=st.lists(st.integers(0, 10**6), min_size=1, max_size=8), compat=compats)
def test_any_rows_are_those_of_the_whole(lengths, rows, compat):
    """A shuffled batch has the very rows that each trajectory has: no frame of another episode, none lost."""
    transforms = Transforms(Windows(3, 4, compat=compat), relabel_goals=True, keep_image_prob=0.5)
    samples = samples_of(lengths, transforms=transforms, compat=compat)
    pairs = [(episode, time) for episode, length in enumerate(lengths) for time in range(length)]
    chosen = np.array([row % len(pairs) for row in rows])
    episodes, times = np.array(pairs).T
    whole = samples.rows(episodes, times, Draws(7, np.arange(len(pairs)), episodes))
    some = samples.rows(episodes[chosen], times[chosen], Draws(7, chosen, episodes[chosen]))
    same(some, take(whole, chosen))


@settings(max_examples=40, deadline=None)
@given(lengths=lengths_of_episodes, keep=st.sampled_from([0.0, 0.3, 1.0]), compat=compats)
def test_deleting_is_that_of_whole_trajectories(lengths, keep, compat):
    transforms = Transforms(Windows(1, 1, compat=compat), relabel_goals=True, keep_image_prob=keep)
    samples = samples_of(lengths, transforms=transforms, compat=compat)
    untouched = dataclasses.replace(samples, transforms=dataclasses.replace(transforms, keep_image_prob=None))
    for episode, length in enumerate(lengths):
        rows = np.full(length, episode), np.arange(length), Draws(3, np.arange(length), np.zeros(length, int))
        before = untouched.rows(*rows)["task"]
        masks = before["pad_mask_dict"]
        has_image = None
        if compat is not None:
            frames = samples.episodes.columns["observation"]["image_primary"].is_present(np.arange(sum(lengths)))
            start = sum(lengths[:episode])
            has_image = np.full(length, frames[start : start + length].any())
        expected = task_augmentation.delete_conditioning(
            before, rows[2].per_sample(1), length, keep, has_image=has_image
        )
        ours = samples.rows(*rows)["task"]
        same(ours, expected)
        told = ours["pad_mask_dict"]["language_instruction"] | ours["pad_mask_dict"]["image_primary"]
        if compat is None:  # nobody loses the only thing that tells the task
            assert (told == (masks["language_instruction"] | masks["image_primary"])).all()


def told_by_images(episode: int, length: int) -> dict:
    """A trajectory whose task has images of its own, of which there are none in every second episode."""
    made = trajectory(episode, length)
    goals = [b"" if episode % 2 or t % 2 else b"goal %d %d" % (episode, t) for t in range(length)]
    return {**made, "task": {**made["task"], "image_goal": np.array(goals, object)}}


@settings(max_examples=40, deadline=None)
@given(lengths=lengths_of_episodes, keep=st.sampled_from([0.0, 0.3, 1.0]), compat=compats)
def test_deleting_asks_the_task_for_images(lengths, keep, compat):
    """Not the observation, unless it becomes the goal."""
    trajectories = [told_by_images(episode, length) for episode, length in enumerate(lengths)]
    transforms = Transforms(Windows(compat=compat), keep_image_prob=keep)
    samples = Samples(Episodes.of(trajectories), np.arange(len(lengths)), transforms=transforms, compat=compat)
    for episode, length in enumerate(lengths):
        task = traj_transforms.add_pad_mask_dict(trajectories[episode])["task"]
        has_image = np.full(length, task["pad_mask_dict"]["image_goal"].any()) if compat else None
        chance = Draws(3, np.arange(length), np.zeros(length, int))
        expected = task_augmentation.delete_conditioning(task, chance.per_sample(1), length, keep, has_image=has_image)
        same(samples.rows(np.full(length, episode), np.arange(length), chance)["task"], expected)


# Instructions.


@settings(max_examples=60, deadline=None)
@given(
    spoken=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=5),
    skip=st.booleans(),
    compat=compats,
)
def test_no_sample_without_words_where_unlabelled_ones_are_skipped(spoken, skip, compat):
    """`spoken` says which of three instructions which episode has; the original never draws the last of them."""

    def told(episode, has):
        words = {f"words_{n}": np.array([b"", b"%d" % n if yes else b""], object) for n, yes in enumerate(has)}
        return {**trajectory(episode, 2), "task": {"language_instructions": words}}

    ds = TrajectoryDataset.from_trajectories([told(*pair) for pair in enumerate(spoken)])
    drawable = [has[:2] if compat else has for has in spoken]
    possible = {e: {b"%d" % n for n, yes in enumerate(has) if yes} for e, has in enumerate(drawable)}
    if skip:
        possible = {episode: words for episode, words in possible.items() if words}
    else:
        possible = {e: words | ({b""} if not all(drawable[e]) else set()) for e, words in possible.items()}
    if not possible:
        with pytest.raises(ValueError, match="skip_unlabeled=True removes all"):
            apply_trajectory_transforms(ds, train=True, skip_unlabeled=True, compat=compat)
        return
    frames = apply_trajectory_transforms(ds, train=True, skip_unlabeled=skip, compat=compat).flatten()
    found = {episode: set() for episode in possible}
    for number in range(40 * len(frames)):
        sample = frames.dataset[number]
        episode, time = sample["observation"]["proprio"][-1].astype(int).tolist()
        if time:  # the first step has no words in any language
            found[episode].add(sample["task"]["language_instruction"])
    assert found == possible


@pytest.mark.parametrize("kind", [object, "S", "U", *STRING_DTYPES])
def test_texts_of_any_kind_are_bytes_and_empty_ones_padding(kind):
    made = trajectory(0, 3)
    made["task"]["language_instruction"] = np.array(["", "go", "stop"]).astype(kind)
    masks = traj_transforms.add_pad_mask_dict(made)["task"]["pad_mask_dict"]
    for episodes in (Episodes.of([made]), Episodes.of_arrays(made, [3])):
        task = Samples(episodes, np.arange(1), transforms=Transforms(Windows())).trajectory(0)["task"]
        assert task["language_instruction"].tolist() == [b"", b"go", b"stop"]
        assert task["pad_mask_dict"]["language_instruction"].tolist() == [False, True, True]
        assert masks["language_instruction"].tolist() == [False, True, True]


# Laws of windows.


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_of_episodes, window=st.integers(1, 5), horizon=st.integers(1, 8), seed=st.integers(0, 99))
def test_no_window_crosses_an_episode_and_masks_are_true_where_data_are_real(lengths, window, horizon, seed):
    samples = samples_of(lengths, transforms=Transforms(Windows(window, horizon)))
    ds = TrajectoryDataset._from_samples(samples).flatten().shuffle(seed=seed)
    met = set()
    for sample in ds:
        observation, action = sample["observation"], sample["action"]
        episode, time = observation["proprio"][-1].astype(int).tolist()
        met.add((episode, time))
        assert (observation["proprio"][..., 0] == episode).all()
        assert (action[..., 0] == episode).all()
        for slot in range(window):
            at = time - window + 1 + slot
            assert observation["timestep_pad_mask"][slot] == (at >= 0)
            assert observation["proprio"][slot, 1] == max(at, 0) == observation["timestep"][slot]
            for ahead in range(horizon):
                late = at + ahead >= lengths[episode]  # never so before the episode starts
                real = at >= 0 and not late
                assert (sample["action_pad_mask"][slot, ahead] == real).all()
                assert observation["task_completed"][slot, ahead] == late
                if real:
                    assert action[slot, ahead, 1] == at + ahead
    assert len(ds) == len(met) == sum(lengths)  # every frame once


@settings(max_examples=30, deadline=None)
@given(lengths=lengths_of_episodes, chunk=st.integers(1, 6), horizon=st.integers(1, 6), window=st.integers(1, 3))
def test_actions_in_chunks_are_cut_to_the_horizon(lengths, chunk, horizon, window):
    def chunked(episode, length):
        made = trajectory(episode, length)
        times = np.arange(length)[:, None] + np.arange(chunk)
        return {**made, "action": np.stack([np.full_like(times, episode), times], -1).astype(np.float32)}

    made = Episodes.of([chunked(*pair) for pair in enumerate(lengths)])
    ds = TrajectoryDataset.from_episodes(made)
    asked = {"train": True, "window_size": window, "action_horizon": horizon}
    if chunk < horizon:
        with pytest.raises(ValueError, match="Make the chunks longer or the horizon shorter"):
            apply_trajectory_transforms(ds, **asked)
        return
    if chunk > horizon:
        with pytest.raises(ValueError, match=f"The original cannot cut chunks of {chunk}"):
            apply_trajectory_transforms(ds, **asked, compat="crossformer")
    samples = apply_trajectory_transforms(ds, **asked)._samples
    for episode, length in enumerate(lengths):
        rows = samples.trajectory(episode)
        assert rows["action"].shape == (length, window, horizon, 2) == rows["action_pad_mask"].shape
        assert (rows["action"][..., 0] == episode).all()
        np.testing.assert_array_equal(rows["action"][:, -1, :, 1], np.arange(length)[:, None] + np.arange(horizon))


# Which frames are samples.


@settings(max_examples=40, deadline=None)
@given(lengths=lengths_of_episodes, limit=st.integers(1, 8), data=st.data())
def test_subsampling_takes_each_frame_at_most_once_and_others_in_the_next_epoch(lengths, limit, data):
    kept = None
    if data.draw(st.booleans()):
        kept = np.array(data.draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths))))
    samples = samples_of(lengths, kept=kept, transforms=Transforms(Windows(), subsample_length=limit))
    starts = np.cumsum(lengths) - lengths
    possible = [{t for t in range(length) if kept is None or kept[start + t]} for start, length in zip(starts, lengths)]
    assert len(samples) == sum(min(limit, len(times)) for times in possible)
    drawn = []
    for epoch in range(3):
        whole = [
            samples.trajectory(epoch * len(lengths) + n)["observation"]["proprio"][:, 0] for n in range(len(lengths))
        ]
        found = [sorted(rows[:, 1].astype(int).tolist()) for rows in whole]
        for times, allowed in zip(found, possible):
            assert len(times) == len(set(times)) == min(limit, len(allowed)) and set(times) <= allowed
        if len(samples):
            rows = samples(epoch * len(samples) + np.arange(len(samples)))["observation"]["proprio"][:, 0].astype(int)
            by_frame = [sorted(rows[rows[:, 0] == n, 1].tolist()) for n in range(len(lengths))]
            assert by_frame == found  # frame by frame the same draw
        drawn.append(found)
    if sum(len(times) > 2 * limit for times in possible) > 2:
        assert drawn[0] != drawn[1] or drawn[1] != drawn[2]


def test_a_trajectory_of_which_no_frame_is_kept_is_empty():
    kept = np.array([False] * 3 + [True] * 4)
    samples = samples_of([3, 4], kept=kept, transforms=Transforms(Windows(2, 5), max_action_dim=4))
    assert (len(samples), samples.trajectory(0)["action"].shape) == (4, (0, 2, 5, 4))
    assert samples.trajectory(1)["action_pad_mask"][0, 1, 0].tolist() == [True, True, True, False]


def test_subsampling_is_even():
    samples = samples_of([10], transforms=Transforms(Windows(), subsample_length=3))
    counts = np.zeros(10)
    for epoch in range(3000):
        counts[samples.space.times(0, epoch)] += 1
    assert np.abs(counts - 900).max() < 5 * np.sqrt(900)


@settings(max_examples=30, deadline=None)
@given(lengths=lengths_of_episodes, modulus=st.integers(1, 4))
def test_a_frame_filter_chooses_samples_and_windows_still_see_the_rest(lengths, modulus):
    ds = TrajectoryDataset.from_episodes(table(lengths))

    def every_nth(trajectory):
        return trajectory["observation"]["timestep"] % modulus == 0

    filtered = apply_trajectory_transforms(ds, train=False, window_size=2, frame_filter=every_nth).flatten()
    met = []
    for sample in filtered:
        episode, time = sample["observation"]["proprio"][-1].astype(int).tolist()
        assert time % modulus == 0
        assert sample["observation"]["proprio"][0, 1] == max(time - 1, 0)
        met.append((episode, time))
    assert met == [(e, t) for e, length in enumerate(lengths) for t in range(0, length, modulus)]
    with pytest.raises(ValueError, match="one bool for each of the"):
        apply_trajectory_transforms(ds, train=False, frame_filter=lambda trajectory: np.ones(99, bool))


# One index space for several data sets.


@settings(max_examples=30, deadline=None)
@given(first=lengths_of_episodes, second=lengths_of_episodes, third=lengths_of_episodes, compat=compats)
def test_joined_samples_are_those_of_the_parts(first, second, third, compat):
    transforms = Transforms(Windows(2, 3, compat=compat), relabel_goals=True)
    parts = [
        samples_of(lengths, transforms=transforms, compat=compat, normalize=Scaled(number + 2.0))
        for number, lengths in enumerate((first, second, third))
    ]
    together = join_samples(parts)
    assert together is not None and len(together) == sum(map(len, parts))
    numbers = np.random.default_rng(0).permutation(len(together))
    rows = together(numbers)
    offset = 0
    for part in parts:
        here = np.flatnonzero((numbers >= offset) & (numbers < offset + len(part)))
        episode, time = part.space.locate(numbers[here] - offset, np.zeros(len(here), int))
        chance = Draws(0, numbers[here], episode)
        same(take(rows, here), part.rows(episode, time, chance))
        offset += len(part)


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A normalisation that can be told from another."""

    factor: float

    def __call__(self, values, name, episode):
        return values * np.float32(self.factor) if name in ("action", "proprio") else values


def test_what_differs_is_not_joined():
    one = samples_of([3], transforms=Transforms(Windows()))
    assert join_samples([one, samples_of([3], transforms=Transforms(Windows(2)))]) is None
    assert join_samples([one, dataclasses.replace(one, labelled_only=True)]) is None
    wider = Episodes.of([{**trajectory(0, 3), "action": np.zeros((3, 9), np.float32)}])
    assert join_samples([one, Samples(wider, np.arange(1), transforms=Transforms(Windows()))]) is None


# Widths.


def test_proprio_without_a_width_is_not_filled_up():
    observation = {"proprio_grip": np.arange(4.0), "proprio_arm": np.ones((4, 2))}
    ds = TrajectoryDataset.from_trajectories([{"observation": observation, "action": np.ones((4, 2))}])
    with pytest.raises(ValueError, match=r"observation/proprio_grip is one number per step, so max_proprio_dim=3"):
        apply_trajectory_transforms(ds, train=True, window_size=2, max_proprio_dim=3)
    with pytest.raises(ValueError, match=r"proprio_arm has 2 dimensions, more than max_proprio_dim=1"):
        apply_trajectory_transforms(ds.traj_map(without_grip), train=True, max_proprio_dim=1)
    filled = apply_trajectory_transforms(ds.traj_map(without_grip), train=True, window_size=2, max_proprio_dim=3)
    assert filled[0]["observation"]["proprio_arm"].shape == (4, 2, 3)
    untouched = apply_trajectory_transforms(ds, train=True, window_size=2, max_proprio_dim=3, compat="crossformer")
    assert untouched[0]["observation"]["proprio_grip"].shape == (4, 2)  # it has another name than the original's


def test_widths_of_actions_are_checked_when_samples_are_described():
    def of(*shape):
        traj = {"observation": {"x": np.ones(4)}, "action": np.ones((4, *shape), np.float32)}
        return TrajectoryDataset.from_trajectories([traj])

    for shape in ((2,), (3, 2)):
        with pytest.raises(ValueError, match="action has 2 dimensions, more than max_action_dim=1"):
            apply_trajectory_transforms(of(*shape), train=True, max_action_dim=1)
    for shape in ((), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"Actions must have the shape \[A\], or \[N, A\] in chunks"):
            apply_trajectory_transforms(of(*shape), train=True)
    nothing = apply_trajectory_transforms(of(0), train=True, window_size=2, action_horizon=3, max_action=1.0)
    assert nothing[0]["action"].shape == nothing[0]["action_pad_mask"].shape == (4, 2, 3, 0)


def without_grip(trajectory):
    return {**trajectory, "observation": {"proprio_arm": trajectory["observation"]["proprio_arm"]}}


# Draws.


def test_draws_are_even_and_independent():
    numbers = np.arange(200_000)
    for key in (0, 1, 12345):
        found = draw_for_numbers(numbers, key)
        assert found.min() >= 0 and found.max() < 1
        counts = np.histogram(found, bins=50, range=(0, 1))[0]
        assert ((counts - 4000) ** 2 / 4000).sum() < 100  # chi-square with 49 degrees of freedom
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(draw_for_numbers(numbers, 0), draw_for_numbers(numbers, 1))[0, 1]) < 0.01
    chance = Draws(5, np.arange(1000), np.arange(1000) // 10)
    assert len(np.unique(chance.per_trajectory(3))) == 100
    assert abs(np.corrcoef(chance.per_sample(0), chance.per_sample(1))[0, 1]) < 0.1


def test_a_pickle_of_samples_does_not_grow_when_they_are_used():
    """Chunks of actions are rows that overlap in memory; in a pickle each of them would be a copy."""
    samples = samples_of([30, 40], transforms=Transforms(Windows(1, 20)))
    before = len(pickle.dumps(samples))
    expected = samples.after(samples.ahead(np.arange(len(samples))))
    used = pickle.dumps(samples)
    assert len(used) < before + 20 * 70
    again = pickle.loads(used)
    same(again.after(again.ahead(np.arange(len(again)))), expected)
