"""From a config to batches: shares, order, resuming, hosts, and what a batch may be made into."""

import io
import json
import subprocess
import sys

import cloudpickle
import jax
import numpy as np
import pytest
from helpers import robots
from helpers.damaged_states import check_all
from helpers.golden_trajectories import assert_same_tree
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bushel._src.base.errors import StateMismatch, TooManySkipped
from bushel._src.base.options import MultiprocessingOptions, ShardByJaxProcess, ShardOptions
from bushel._src.trajectory.mixture_config import MixtureConfig
from bushel._src.trajectory.rlds.writer import write_rlds
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset
from bushel._src.trajectory.trajectory_loader import (
    build_dataset_from_config,
    get_dataloader,
    get_dataset,
    make_interleaved_dataset,
    make_single_dataset,
)
from bushel.trajectory.text_processing import process_text

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    names = ("arm", "gripper", "first", "second", "third", "all", "some", "other")
    return robots.prepared(tmp_path_factory.mktemp("cache"), *names)


@pytest.fixture(scope="module")
def config(cache):
    return robots.mixture(cache)


def some(batches, count):
    return [next(batches) for _ in range(count)]


def assert_same_batches(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        assert_same_tree(one, other)


@pytest.fixture(scope="module")
def expected(config):
    """The first batches, made in this process."""
    with iter(get_dataloader(config)) as batches:
        return some(batches, 8)


def numbers_only(cache, **fields):
    """Mixtures without images: quick."""
    return robots.mixture(cache, traj_transform_kwargs={}, frame_transform_kwargs={}, **fields)


def plain_robot(name, cache, **fields):
    return robots.robot(name, cache, image_obs_keys={}, language_key=None, **fields)


# What a config describes.


def test_a_config_is_the_functions_called_with_it(config, cache):
    theirs = make_interleaved_dataset(
        [one.to_kwargs() for one in config.datasets],
        [3, 1],
        train=True,
        traj_transform_kwargs=config.traj_transform_kwargs,
        frame_transform_kwargs=config.frame_transform_kwargs,
        seed=5,
    )
    ours = get_dataset(config, batch_size=None)
    for position in (0, 1, 2, 3, 500):
        assert str(ours[position]) == str(theirs[position])
    assert set(ours.dataset_statistics) == {"arm", "gripper"}
    np.testing.assert_array_equal(ours.sample_weights, [0.75, 0.25])
    batch = get_dataset(config)[0]
    assert batch["action"].shape == (8, 2, 3, 7)  # as wide as the widest robot


def test_one_data_set_gives_trajectories_and_several_give_frames(config, cache):
    alone = config.changed(datasets=config.datasets[:1])
    ours = build_dataset_from_config(alone)
    theirs = make_single_dataset(
        {**alone.datasets[0].to_kwargs(), "seed": 5},
        train=True,
        traj_transform_kwargs=alone.traj_transform_kwargs,
        frame_transform_kwargs=alone.frame_transform_kwargs,
    )
    assert (ours.is_flattened, len(ours)) == (False, 8)
    assert_same_tree(ours[3], theirs[3])
    assert build_dataset_from_config(config).is_flattened


def test_paraphrases_by_octos_arguments_are_those_of_a_file(cache, tmp_path):
    (tmp_path / "p.json").write_text(json.dumps({"pick up the red block": "lift it.grasp it"}))
    ways = (
        {"pickle_file_path": str(tmp_path / "p.json")},
        {
            "paraphrases_repo": str(tmp_path),
            "paraphrases_filename": "p.json",
        },
    )
    own, found = robots.robot("arm", cache, image_obs_keys={}), []
    for way in ways:
        kwargs = {"task_augment_strategy": "rephrase_instruction", "task_augment_kwargs": {**way, "rephrase_prob": 1.0}}
        with iter(get_dataloader(own, batch_size=16, traj_transform_kwargs=kwargs)) as batches:
            found.append(some(batches, 4))
    assert_same_batches(*found)
    words = {text for batch in found[0] for text in batch["task"]["language_instruction"]}
    assert words & {b"lift it", b"grasp it"}
    with pytest.raises(ValueError, match="delete_task_conditioning takes"):  # it has no use for paraphrases
        kwargs = {"keep_image_prob": 0.5, **ways[1]}
        get_dataset(
            own,
            traj_transform_kwargs={"task_augment_strategy": "delete_task_conditioning", "task_augment_kwargs": kwargs},
        )


def test_files_and_dicts_do_as_well(config, expected, tmp_path):
    config.save(tmp_path / "mixture.json")
    read = MixtureConfig.from_file(tmp_path / "mixture.json", modules=["helpers.robots"])
    for given_as in (read, config.to_dict()):
        with iter(get_dataloader(given_as)) as batches:
            assert_same_batches(some(batches, 2), expected[:2])


def test_validation_has_the_other_frames_and_the_statistics_of_training(cache):
    one = plain_robot("arm", cache, train_split="train[:6]", val_split="train[6:]")
    config = numbers_only(cache, datasets=[one], batch_size=4)
    train, held_out = (build_dataset_from_config(config, train=train) for train in (True, False))
    assert_same_tree(train.dataset_statistics, held_out.dataset_statistics)
    assert train.dataset_statistics["num_trajectories"] == 6
    assert (len(train), len(held_out)) == (6, 2)
    frames = [{frame["action"].tobytes() for frame in ds.flatten()} for ds in (train, held_out)]
    assert not frames[0] & frames[1]
    assert sum(len(ds.flatten()) for ds in (train, held_out)) == robots.FRAMES
    mixed = get_dataset(config, train=False, batch_size=None)
    assert {mixed[at]["action"].tobytes() for at in range(len(held_out.flatten()))} == frames[1]


def test_a_filter_of_frames_belongs_to_its_data_set(cache):
    for compat in (None, "crossformer"):
        own = {"frame_filter": "helpers.robots:even_frames", "override_traj_transform_kwargs": {"action_horizon": 1}}
        pair = [plain_robot("first", cache, **own), plain_robot("second", cache)]
        frames = first(get_dataset(numbers_only(cache, datasets=pair, compat=compat, batch_size=None)), 400)
        for name, odd_ones in ((b"first", False), (b"second", True)):
            own = [frame["observation"]["timestep"][0] % 2 for frame in frames if frame["dataset_name"] == name]
            assert any(own) == odd_ones
        alone = build_dataset_from_config(numbers_only(cache, datasets=pair[:1], compat=compat))
        assert {int(frame["observation"]["timestep"][0]) % 2 for frame in alone.flatten()} == {0}


def test_seeds_change_order_and_draws(config, expected):
    other = next(iter(get_dataloader(config, seed=6)))
    assert not np.array_equal(other["action"], expected[0]["action"])
    same, moved = (
        next(iter(get_dataloader(config, frame_transform_kwargs={**config.frame_transform_kwargs, "seed": seed})))
        for seed in (5, 6)
    )
    assert_same_tree(same, expected[0])
    np.testing.assert_array_equal(moved["action"], expected[0]["action"])
    images = [batch["observation"]["image_primary"] for batch in (moved, expected[0])]
    assert not np.array_equal(*images)


def test_compat_reaches_frames_too(cache):
    one = robots.robot("arm", cache, image_obs_keys={}, depth_obs_keys={"primary": None})
    shapes = [
        get_dataset(
            robots.mixture(cache, datasets=[one], frame_transform_kwargs={"depth_resize_size": [6, 5]}, compat=compat)
        )[0]["observation"]["depth_primary"].shape
        for compat in (None, "crossformer")
    ]
    assert shapes == [(8, 2, 6, 5), (8, 2, 6, 5, 1)]  # as the original has padding


# Shares and order.


@settings(deadline=None, max_examples=20)
@given(weights=st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any))
def test_shares_are_exact_in_every_prefix(cache, weights):
    names = ["first", "second", "third"]
    trio = [plain_robot(name, cache, weight=weight) for name, weight in zip(names, weights)]
    frames = first(get_dataset(numbers_only(cache, datasets=trio, batch_size=None)), 500)
    found = np.array([names.index(frame["dataset_name"].decode()) for frame in frames])
    counts = np.cumsum(found[:, None] == np.arange(3), axis=0)
    quotas = np.arange(1, len(found) + 1)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(counts - quotas).max() < 1


def first(ds, count):
    """The first frames of a mixture."""
    return ds.dataset.get(np.arange(count))


def key(action, state):
    return action.tobytes() + state.tobytes()


def test_balanced_weights_follow_the_numbers_of_frames(cache):
    pair = [
        plain_robot("all", cache),
        plain_robot("some", cache, filter_functions=[robots.long_enough], weight=2),
    ]
    ds = get_dataset(numbers_only(cache, datasets=pair, balance_weights=True, batch_size=None))
    frames = np.array([ds.dataset_statistics[name]["num_transitions"] for name in ("all", "some")])
    assert frames[0] > frames[1]
    np.testing.assert_allclose(ds.sample_weights, frames * [1, 2] / (frames @ [1, 2]))


def test_every_frame_comes_once_in_an_epoch(cache):
    loader = get_dataloader(numbers_only(cache, datasets=[plain_robot("arm", cache)], batch_size=17))
    every = build_dataset_from_config(numbers_only(cache, datasets=[plain_robot("arm", cache)])).flatten()
    expected = sorted(key(frame["action"], frame["observation"]["proprio_arm"]) for frame in every)
    with iter(loader) as batches:
        epochs = [
            [
                key(action, state)
                for batch in some(batches, 7)
                for action, state in zip(batch["action"], batch["observation"]["proprio_arm"])
            ]
            for _ in range(3)
        ]
    assert [sorted(epoch) for epoch in epochs] == [expected] * 3
    assert epochs[0] != epochs[1] != epochs[2]  # each in an order of its own
    np.testing.assert_array_equal(loader.sample_weights, [1.0])


# Whoever makes them, and from wherever.


@pytest.mark.parametrize("workers", [1, 2, MultiprocessingOptions(2, per_worker_buffer_size=2)])
def test_workers_do_not_change_batches(config, expected, workers):
    with iter(get_dataloader(config, workers=workers)) as batches:
        assert_same_batches(some(batches, len(expected)), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_hints_for_threads_do_not_change_batches(config, expected, workers):
    hints = {"traj_transform_threads": 4, "traj_read_threads": 4}
    loader = get_dataloader(
        config,
        workers=workers,
        frame_transform_kwargs={**config.frame_transform_kwargs, "num_parallel_calls": 3},
        **hints,
    )
    options = loader.dataset._read_options
    assert 1 <= options.num_threads <= 4 and options.threaded
    with iter(loader) as batches:
        assert_same_batches(some(batches, len(expected)), expected)


@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_loader_resumes_where_the_other_stood(config, expected, done):
    with iter(get_dataloader(config)) as batches:
        some(batches, done)
        state = json.loads(json.dumps(batches.get_state()))
    with iter(get_dataloader(config, workers=1 if done == 3 else 0)) as batches:
        some(batches, 2)
        batches.set_state(state)
        assert_same_batches(some(batches, len(expected) - done), expected[done:])


def test_a_damaged_state_is_refused_or_is_a_position(cache):
    loader = get_dataloader(numbers_only(cache, datasets=[plain_robot("arm", cache), plain_robot("other", cache)]))
    assert check_all(lambda: iter(loader), seed=0, count=6) > 20


def test_a_loader_resumes_anywhere(cache):
    loader = get_dataloader(numbers_only(cache, datasets=[plain_robot("arm", cache), plain_robot("other", cache)]))
    with iter(loader) as batches:
        begin, states, expected = batches.get_state(), [], []
        for _ in range(60):  # two epochs of each
            states.append(batches.get_state())
            expected.append(next(batches))

    @settings(deadline=None, max_examples=30)
    @given(st.lists(st.integers(0, 57), min_size=1, max_size=4))
    def check(jumps):
        batches.set_state(begin)
        for done in jumps:
            batches.set_state(json.loads(json.dumps(states[done])))
            assert_same_batches(some(batches, 2), expected[done : done + 2])
            assert batches.get_state() == states[done + 2]

    with iter(loader) as batches:
        check()


def test_a_state_of_another_config_is_refused(config):
    state = iter(get_dataloader(config)).get_state()
    batches = iter(get_dataloader(config, traj_transform_kwargs={**config.traj_transform_kwargs, "window_size": 1}))
    with pytest.raises(StateMismatch):
        batches.set_state(state)
    batches.set_state(state, check=False)
    assert next(batches)["action"].shape == (8, 1, 3, 7)


def test_rows_of_all_hosts_together_are_the_batch(config, expected):
    hosts = [get_dataloader(config, shard_options=ShardOptions(host, 2)) for host in range(2)]
    batches = [iter(loader) for loader in hosts]
    for whole in expected[:3]:
        rows = [next(own) for own in batches]
        assert all(len(own["action"]) == 4 for own in rows)
        assert_same_tree(jax.tree.map(lambda *own: np.stack(own, axis=1).reshape(8, *own[0].shape[1:]), *rows), whole)
    assert batches[0].get_state() == batches[1].get_state()
    alone = iter(get_dataloader(config, shard_options=ShardByJaxProcess()))
    alone.set_state(batches[0].get_state())
    assert_same_tree(next(alone), expected[3])


# What a batch may be made into.


def test_the_spec_is_that_of_batches(config, expected):
    loader = get_dataloader(config)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), expected[0]) == jax.tree.map(
        lambda spec: (spec.shape, spec.dtype), loader.element_spec
    )
    assert expected[0]["task"]["language_instruction"].dtype == object
    assert repr(loader) == "<loader of arm, gripper: batches of 8, host 0 of 1, on bushel>"


def test_batches_may_be_arrays_of_jax(config, expected):
    batch = next(iter(get_dataloader(config, arrays="jax")))
    assert isinstance(batch["action"], jax.Array)
    assert isinstance(batch["dataset_name"], np.ndarray)
    assert_same_tree(jax.tree.map(np.asarray, batch), expected[0])


class Lengths:
    """A text processor: how long the words are."""

    def encode(self, texts):
        assert all(isinstance(text, str) for text in texts)
        return {"lengths": np.array([len(text) for text in texts])}


def test_texts_are_encoded(config, expected):
    words = expected[0]["task"]["language_instruction"]
    assert any(words) and not all(words)
    batch = next(iter(get_dataloader(config, process_text=Lengths(), arrays="jax")))
    found = batch["task"]["language_instruction"]["lengths"]
    assert isinstance(found, jax.Array)
    assert found.tolist() == [len(text) for text in words]
    assert "dataset_name" not in batch
    counted = next(iter(get_dataloader(config, process_text=lambda batch: {"rows": len(batch["action"])})))
    assert counted == {"rows": 8}


def test_process_batch_of_train_py(config):
    def process_batch(batch):
        batch = process_text(batch, Lengths())
        del batch["dataset_name"]
        return batch

    found = next(iter(get_dataloader(config, process_text=process_batch, arrays="jax")))
    assert_same_tree(found, next(iter(get_dataloader(config, process_text=Lengths(), arrays="jax"))))


# What fails.


BAD = [7, 23]  # frames whose image is cut


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A config of forty frames, whose actions are their numbers; some have an image that cannot be decoded."""
    folder = tmp_path_factory.mktemp("damaged")
    with io.BytesIO() as file:
        Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(file, "png")
        png = file.getvalue()

    def episode(first):
        frames = range(first, first + 10)
        images = np.array([png[:40] if frame in BAD else png for frame in frames], object)
        return {"steps": {"observation": {"image": images}, "action": np.array(frames, np.float32)[:, None]}}

    write_rlds(
        {"train": [episode(first) for first in (0, 10, 20, 30)], "val": [episode(0)]}, name="arm", data_dir=folder
    )
    arm = {"name": "arm", "data_dir": str(folder), "image_obs_keys": {"primary": "image"}, "skip_norm": True}
    return {
        "datasets": [{**arm, "cache_dir": str(folder / "cache")}],
        "batch_size": 4,
        "frame_transform_kwargs": {"resize_size": (4, 4)},
    }


def actions(batches):
    return [int(number) for batch in batches for number in batch["action"].ravel()]


@pytest.mark.parametrize("workers", [0, 1])
def test_frames_that_fail_are_left_out(damaged, workers):
    blind = {"datasets": [{**damaged["datasets"][0], "image_obs_keys": {}}], "batch_size": 4}
    everything = actions(some(iter(get_dataloader(blind)), 30))
    with iter(get_dataloader(damaged, on_error="skip", workers=workers)) as batches:
        found = some(batches, 12)
        state = batches.get_state()
        rest = some(batches, 3)
        skipped = batches.skipped
    wanted = [number for number in everything if number not in BAD]
    assert actions(found + rest) == wanted[:60] and all(len(batch["action"]) == 4 for batch in found)
    assert skipped == sum(number in BAD for number in everything[: 60 + skipped]) >= 2
    with iter(get_dataloader(damaged, on_error="skip", workers=workers)) as later:
        later.set_state(state)
        assert_same_batches(some(later, 3), rest)
    with pytest.raises(TooManySkipped), iter(get_dataloader(damaged, on_error="skip", skip_limit=1)) as few:
        some(few, 12)
    with pytest.raises(ValueError, match="image"), iter(get_dataloader(damaged)) as none:
        some(none, 12)


def test_without_failures_batches_are_the_same(config, expected):
    with iter(get_dataloader(config, on_error="skip")) as batches:
        assert_same_batches(some(batches, 8), expected)
        assert batches.skipped == 0


def test_hosts_and_grain_cannot_leave_out_frames(config):
    with pytest.raises(ValueError, match='on_error="skip" works with a single host'):
        get_dataloader(config, on_error="skip", shard_options=ShardOptions(shard_index=0, shard_count=2))
    with pytest.raises(ValueError, match=r"needs Bushel's engine. Leave out data_backend"):
        get_dataloader(config, on_error="skip", data_backend="grain")
    with pytest.raises(ValueError, match='on_error must be "raise" or "skip"'):
        get_dataloader(config, on_error="ignore")


def test_datasets_that_ignore_errors(damaged):
    frames = get_dataset(damaged, batch_size=None)
    with iter(frames.ignore_errors(log_warning=True)) as found:
        seen = [int(frame["action"].item()) for frame in some(found, 76)]
        assert found.skipped == 4 and not set(seen) & set(BAD)
    with iter(get_dataset(damaged).ignore_errors()) as batches:  # of batches, whole ones
        assert not set(actions(some(batches, 30))) & set(BAD) and batches.skipped >= 4
    mixed = TrajectoryDataset.sample_from_datasets([frames.ignore_errors(), frames])
    assert not {int(frame["action"].item()) for frame in some(iter(mixed), 80)} & set(BAD)
    with pytest.raises(TooManySkipped), iter(frames.ignore_errors(skip_limit=0)) as none:
        some(none, 80)


def test_a_batch_whose_texts_fail_is_not_lost(config, expected):
    failures = iter([False, True, True, False, False])

    def sometimes(batch):
        if next(failures):
            raise OSError("no tokenizer today")
        return batch

    batches = iter(get_dataloader(config, process_text=sometimes))
    found = [next(batches)]
    before = batches.get_state()
    for _ in range(2):
        with pytest.raises(OSError, match="no tokenizer"):
            next(batches)
        assert batches.get_state() == before
    assert_same_batches([*found, *some(batches, 2)], expected[:3])


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"arrays": "torch"}, ValueError, 'arrays must be "numpy" or "jax", got \'torch\''),
        ({"shard_options": ShardOptions(0, 3)}, ValueError, "8 rows cannot be divided equally among 3 hosts"),
        ({"shard_options": 2}, TypeError, "shard_options must be ShardOptions, got 2"),
        ({"process_text": "clip"}, TypeError, "process_text must have a method `encode`"),
        ({"process_text": 3}, TypeError, "or be a function of a batch; got 3"),
        ({"data_backend": "grain", "use_grain": False}, ValueError, "contradict each other"),
        ({"data_backend": "tf"}, ValueError, 'data_backend must be "bushel" or "grain", got \'tf\''),
        ({"batch_size": 0}, ValueError, "batch_size must be positive"),
        ({"batchsize": 1}, ValueError, "Did you mean 'batch_size'"),
        ({"workers": -1}, ValueError, "num_workers must be non-negative"),
    ],
)
def test_arguments_that_cannot_be_are_refused(config, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        get_dataloader(config, **arguments)


def test_what_a_loader_needs_is_told(cache):
    config = numbers_only(cache, datasets=[plain_robot("arm", cache)], batch_size=None)
    with pytest.raises(ValueError, match="A loader needs a batch_size"):
        get_dataloader(config)
    with pytest.raises(KeyError, match=r"no task/language_instruction to encode"):
        next(iter(get_dataloader(config, batch_size=2, process_text=Lengths())))
    nowhere = config.changed(datasets=[plain_robot("arm", cache, data_dir="nowhere")])
    with pytest.raises(FileNotFoundError, match="There is no prepared data set 'arm': nowhere/arm"):
        get_dataset(nowhere)
    batches = iter(get_dataloader(config, batch_size=2))
    batches.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(batches)


def test_configs_and_loaders_need_nothing_until_they_are_used():
    heavy = "{'jax', 'grain', 'yaml', 'PIL', 'simplejpeg', 'tokenizers'}"
    program = f"import sys, bushel._src.trajectory.trajectory_loader; sys.exit(', '.join({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr.strip() == ""
