"""The same config on Bushel and on Google's Grain: equal batches, states that either restores."""

import sys

import grain
import pytest
from absl import flags
from helpers import robots
from helpers.golden_trajectories import assert_same_tree

import bushel
from bushel._src.base.errors import StateMismatch
from bushel._src.base.options import ShardOptions
from bushel._src.trajectory.trajectory_loader import get_dataloader


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return robots.prepared(tmp_path_factory.mktemp("cache"), "arm", "gripper", "one", "two")


@pytest.fixture(scope="module")
def config(cache):
    return robots.mixture(cache)


def assert_equal(config, count=6, **arguments):
    """The first batches of both, with their states."""
    with iter(get_dataloader(config)) as ours, iter(get_dataloader(config, use_grain=True, **arguments)) as theirs:
        for _ in range(count):
            assert_same_tree(next(theirs), next(ours))
            assert theirs.get_state() == ours.get_state()


def test_grain_gives_the_same_batches_with_images_and_all_that_is_random(config):
    assert_equal(config)
    assert isinstance(iter(get_dataloader(config, data_backend="grain"))._parent._iterator, grain.DatasetIterator)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 9, "batch_size": 5},
        {"train": False, "compat": "crossformer", "sample_weights": [1.0, 2.0], "traj_transform_kwargs": {}},
        {"traj_read_threads": 3},
        {"balance_weights": True},
    ],
)
def test_grain_gives_the_same_batches_of_other_configs(config, cache, changes):
    same_width = [robots.robot(name, cache, val_split="train[3:]") for name in ("one", "two")]
    assert_equal(config.changed(datasets=same_width, **changes), count=3)


def test_grain_gives_the_same_batches_of_one_data_set_over_several_epochs(cache):
    one = robots.robot("arm", cache, image_obs_keys={})
    alone = robots.mixture(cache, datasets=[one], traj_transform_kwargs={}, batch_size=50)
    assert_equal(alone, count=6)


@pytest.mark.slow
def test_grains_workers_do_not_change_batches(config):
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    for workers in (1, 2):
        assert_equal(config, workers=workers)


def test_hosts_on_grain_have_the_rows_of_hosts_on_bushel(config):
    for host in range(2):
        shard = ShardOptions(host, 2)
        with (
            iter(get_dataloader(config, shard_options=shard)) as ours,
            iter(get_dataloader(config, shard_options=shard, data_backend="grain")) as theirs,
        ):
            for _ in range(3):
                assert_same_tree(next(theirs), next(ours))


@pytest.mark.parametrize(("before", "after"), [("bushel", "grain"), ("grain", "bushel"), ("grain", "grain")])
def test_a_run_moves_from_one_back_end_to_the_other(config, before, after):
    with iter(get_dataloader(config, data_backend=before)) as first:
        for _ in range(3):
            next(first)
        state, expected = first.get_state(), [next(first) for _ in range(2)]
    with iter(get_dataloader(config.changed(data_backend=after))) as second:
        next(second)
        second.set_state(state)
        assert second.get_state() == state
        for batch in expected:
            assert_same_tree(next(second), batch)


def test_a_state_of_another_config_is_refused(config):
    other = iter(get_dataloader(config, seed=77)).get_state()
    batches = iter(get_dataloader(config, use_grain=True))
    with pytest.raises(StateMismatch):
        batches.set_state(other)
    batches.set_state(other, check=False)
    batches.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(batches)


# Where Grain cannot be used.


def test_without_grain_the_error_names_the_way_to_get_it(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(ImportError, match=r"needs Google's Grain: pip install grain\. Leave it out to run on Bushel"):
        get_dataloader(config, use_grain=True)
    next(iter(get_dataloader(config, use_grain=False)))


def test_bushel_under_grains_name_is_no_grain(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", bushel)
    with pytest.raises(ImportError, match=r"`import grain` imports Bushel\. Run it with plain Python"):
        get_dataloader(config, data_backend="grain")


def test_what_grain_needs_of_workers_is_told(config):
    with pytest.raises(ValueError, match="Grain cannot choose the number of workers"):
        iter(get_dataloader(config, use_grain=True, workers=bushel.MultiprocessingOptions(num_workers=None)))
    parsed = flags.FLAGS.is_parsed()
    flags.FLAGS.unparse_flags()
    try:
        with pytest.raises(RuntimeError, match=r"call absl.flags.FLAGS.mark_as_parsed\(\) first"):
            iter(get_dataloader(config, use_grain=True, workers=2))
    finally:
        if parsed:
            flags.FLAGS.mark_as_parsed()
