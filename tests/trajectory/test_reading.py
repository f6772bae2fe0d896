"""Data sets out of folders: when a table is made anew, what their statistics are, and what is refused."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import time

import jax
import numpy as np
import pytest

from bushel.trajectory import load_statistics, make_dataset_from_rlds, reading, save_statistics, write_rlds
from bushel.trajectory.columns import flat

LENGTHS = (3, 4, 5, 6)


def episode(number: int, length: int) -> dict:
    steps = {
        "observation": {"state": np.full((length, 2), number, np.float32), "grip": np.arange(length, dtype=np.float32)},
        "action": np.full((length, 3), number + 1, np.float32),
    }
    return {"steps": steps, "episode_metadata": {"number": number}}


def written(folder: pathlib.Path, scale: float = 1.0) -> None:
    episodes = [episode(number, length) for number, length in enumerate(LENGTHS)]
    for one in episodes:
        one["steps"]["action"] *= scale
    write_rlds(folder, "arm", {"train": episodes, "val": episodes[:1]})


@pytest.fixture
def made(tmp_path):
    """Makes the data set with one cache; gives the dataset and its statistics."""
    written(tmp_path)

    def make(**more):
        known = {"name": "arm", "data_dir": tmp_path, "cache_dir": str(tmp_path / "cache"), "shuffle": False}
        return make_dataset_from_rlds(**{**known, **more}, train=True)

    return make


def number_of(trajectory) -> int:
    return int(trajectory["traj_metadata"]["episode_metadata"]["number"][0])


# Threads and processes.


def noted(folder):
    def standardize(trajectory):
        time.sleep(0.02)
        (folder / str(os.getpid())).touch()
        return trajectory

    return standardize


def test_hints_for_threads_are_honoured_up_to_one_per_core(made, tmp_path, monkeypatch):
    folder = tmp_path / "processes"
    folder.mkdir()
    write_rlds(tmp_path, "many", {"train": [episode(number, 3) for number in range(30)], "val": [episode(0, 3)]})
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    ds, _ = made(name="many", standardize_fn=noted(folder), num_parallel_calls=12)
    assert 1 <= len(list(folder.iterdir())) <= 2 and str(os.getpid()) not in os.listdir(folder)
    assert ds.read_options.num_threads == 2
    assert made(num_parallel_calls=1)[0].read_options.num_threads == 1
    assert made(num_parallel_reads=1)[0].read_options.num_threads == 1


def test_minus_one_leaves_the_number_to_the_library(made, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(reading, "results", lambda ds, what, options=None: asked.append(options) or iter(ds))
    for hint in (None, -1, 0):
        ds, _ = made(num_parallel_calls=hint, num_parallel_reads=hint, cache_dir=str(tmp_path / str(hint)))
        assert ds.read_options.num_threads == 0
    assert asked == [None, None, None]


# Statistics.


def test_statistics_are_arrays_as_models_expect_them(made, tmp_path):
    mask = [True, False, True]
    _, computed = made(proprio_obs_keys={"arm": "state"}, action_normalization_mask=mask)
    save_statistics(tmp_path / "given.json", computed)
    plain = load_statistics(tmp_path / "given.json")
    for source in (None, plain, tmp_path / "given.json"):
        ds, statistics = made(proprio_obs_keys={"arm": "state"}, dataset_statistics=source)
        leaves = flat(statistics)
        assert all(isinstance(leaf, np.ndarray) for leaf in leaves.values())
        assert (statistics["action"]["mean"].shape, statistics["proprio_arm"]["p01"].shape) == ((3,), (2,))
        assert statistics["num_transitions"] == sum(LENGTHS)
        written = json.dumps(jax.tree.map(lambda leaf: leaf.tolist(), statistics))  # as Octo saves a model
        assert json.loads(written)["action"]["std"] == plain["action"]["std"]
        assert ds.dataset_statistics is statistics
    assert computed["action"]["mask"].tolist() == mask


def test_statistics_that_lack_something_are_told(made):
    given = {"action": {"mean": [0.0] * 3, "std": [1.0] * 3}}
    keys = {"proprio_obs_keys": {"arm": "state"}}
    with pytest.raises(ValueError, match=r"dataset_statistics of arm have no 'proprio_arm'.*in skip_norm_keys"):
        made(dataset_statistics=given, **keys)
    with pytest.raises(ValueError, match=r"dataset_statistics of arm have no 'action'"):
        made(dataset_statistics={}, action_normalization_mask=[True] * 3, skip_norm=True)
    assert len(made(dataset_statistics=given, skip_norm_keys=["proprio_arm"], **keys)[0]) == 4
    assert len(made(dataset_statistics={}, skip_norm=True, **keys)[0]) == 4


def with_nan(trajectory):
    return {**trajectory, "action": trajectory["action"] * (np.nan if number_of(trajectory) == 2 else 1)}


def test_numbers_that_are_none_are_told_with_the_ways_out(made):
    sentence = r"Trajectory 2, action: .* NaN.*filter_functions .*dataset_statistics \(with skip_norm=True an empty"
    for skip in (True, False):
        with pytest.raises(ValueError, match=sentence):
            made(standardize_fn=with_nan, skip_norm=skip)
    assert len(made(standardize_fn=with_nan, filter_functions=[among([True, True, False, True])])[0]) == 3
    assert np.isnan(made(standardize_fn=with_nan, skip_norm=True, dataset_statistics={})[0][2]["action"]).all()


# What is refused.


@pytest.mark.parametrize(
    ("standardize", "sentence"),
    [
        (lambda t: None, r"standardize_fn of arm must return the trajectory, a dict; it returned None"),
        (lambda t: {**t, "action": {"hand": t["action"]}}, r"action of arm is a dict with \['hand'\].*np.concatenate"),
        (
            lambda t: {**t, "observation": {"state": t["observation"]}},
            r"'state', which proprio_obs_keys names, is a dict with \['grip', 'state'\]",
        ),
    ],
)
def test_what_standardize_fn_returns_is_checked(made, standardize, sentence):
    with pytest.raises(ValueError, match=sentence):
        made(standardize_fn=standardize, proprio_obs_keys={"arm": "state"})


def test_an_argument_that_is_not_known_is_told_with_the_nearest_one(made):
    with pytest.raises(ValueError, match=r"of arm has no argument 'languagekey'. Did you mean 'language_key'\?"):
        made(languagekey="words")
    assert len(made(override_traj_transform_kwargs={"window_size": 2})[0]) == 4
    with pytest.warns(UserWarning, match=r"ignores \['languagekey'\]"):
        made(languagekey="words", compat="crossformer")


# When a table is made anew.


def among(wanted):
    return lambda trajectory: wanted[number_of(trajectory)]


def test_a_filter_that_reads_another_table_makes_another_one(made):
    for refused in (None, 1, 3):
        wanted = {number: number != refused for number in range(1000)}
        ds, statistics = made(filter_functions=[among(wanted)])
        assert len(ds) == statistics["num_trajectories"] == (4 if refused is None else 3)


SCALE = 1.0


def scaled(trajectory):
    return {**trajectory, "action": larger(trajectory["action"])}


def larger(action):
    return action * SCALE


def test_a_constant_of_a_module_makes_another_one(made, monkeypatch):
    means = []
    for scale in (1.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        means.append(made(standardize_fn=scaled)[1]["action"]["mean"][0])
    assert means[1] == 2 * means[0]


def test_recomputing_statistics_reads_the_data_anew(made, tmp_path):
    kept = made()[0]
    first = made()[1]["action"]["mean"][0]
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("arm/**/*.*") if path.is_file()}
    shutil.rmtree(tmp_path / "arm")
    written(tmp_path, scale=8.0)
    for path, changed in times.items():  # files that cannot be told from those before
        os.utime(path, ns=(changed, changed))
    assert made()[1]["action"]["mean"][0] == first
    assert made(force_recompute_dataset_statistics=True)[1]["action"]["mean"][0] == 8 * first
    assert made()[1]["action"]["mean"][0] == 8 * first
    assert kept[0]["action"].shape == (3, 3)  # who has the old table goes on with it
    assert len(list((tmp_path / "cache" / "episodes").iterdir())) == 1
