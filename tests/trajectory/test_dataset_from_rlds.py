"""Data sets out of folders: when a table is made anew, what their statistics are, and what is refused."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import time
import warnings

import jax
import numpy as np
import pytest

from bushel._src.sources import checksums
from bushel._src.sources.tfrecord import TFRecordDataSource, frame_record
from bushel._src.trajectory import make_dataset
from bushel._src.trajectory.data_utils import flatten_tree
from bushel._src.trajectory.rlds import reader
from bushel.trajectory import get_dataloader, load_statistics, make_dataset_from_rlds, save_statistics, write_rlds

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
    write_rlds({"train": episodes, "val": episodes[:1]}, name="arm", data_dir=folder)


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


# Octo's arguments.


def test_octos_key_of_proprioception(made):
    dataset, statistics = made(proprio_obs_key="state")
    plain, others = made(proprio_obs_keys={"arm": "state"})
    for ours, theirs in zip(dataset.iterator(), plain.iterator(), strict=True):
        np.testing.assert_array_equal(ours["observation"]["proprio"], theirs["observation"]["proprio_arm"])
        assert "proprio_arm" not in ours["observation"]
    assert {name: value.tolist() for name, value in statistics["proprio"].items()} == {
        name: value.tolist() for name, value in others["proprio_arm"].items()
    }
    both, _ = made(proprio_obs_key="state", proprio_obs_keys={"grip": "grip"})
    assert {"proprio", "proprio_grip"} <= set(next(both.iterator())["observation"])
    with pytest.raises(ValueError, match="The observations of arm have no 'stat', which proprio_obs_key names"):
        made(proprio_obs_key="stat")
    with pytest.raises(TypeError, match=r"must be the name of one entry of the observation, got \{'a': 'state'\}"):
        made(proprio_obs_key={"a": "state"})


def test_octos_key_goes_through_the_whole_pipeline(made, tmp_path):
    made()
    own = {"name": "arm", "data_dir": str(tmp_path), "proprio_obs_key": "state", "cache_dir": str(tmp_path / "cache")}
    windows = {"window_size": 2, "action_horizon": 3, "max_proprio_dim": 4, "max_proprio": 5.0}
    batch = next(iter(get_dataloader(own, batch_size=4, traj_transform_kwargs=windows)))
    assert batch["observation"]["proprio"].shape == (4, 2, 4)
    assert batch["observation"]["pad_mask_dict"]["proprio"].all()


# Functions that were written for TensorFlow.


class Tensor:
    """An array that is not NumPy's, with what an eager tensor of TensorFlow has: `numpy()`, no `dtype.kind`."""

    dtype = "DType"

    def __init__(self, value):
        self._value = np.asarray(value)
        self.shape = self._value.shape

    def numpy(self):
        return self._value if self.shape else self._value.item()

    def __getitem__(self, key):
        return Tensor(self._value[key])

    def __len__(self):
        return len(self._value)

    def __bool__(self):
        raise TypeError("numpy() is the way to a value")


class Arrays(Tensor):
    """One that has `__array__` alone."""

    numpy = None  # pyright: ignore[reportAssignmentType]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._value, dtype)


def written_for(kind):
    """A standardize_fn, a filter, a filter of frames and a function of trajectories that return arrays of a kind."""

    def standardize(trajectory):
        action = kind(trajectory["action"][:, :2] * 2)
        words = kind(np.array([b"lift"] * len(action), object))
        state = kind(trajectory["observation"]["state"] + 1)
        return {"observation": {"state": state}, "action": action, "words": words}

    def keep(trajectory):
        return kind(np.array(len(trajectory["action"]) != 4))

    def frames(trajectory):
        return kind(np.arange(len(trajectory["action"])) % 2 == 0)

    def finish(trajectory):
        return {**trajectory, "action": kind(trajectory["action"] + 1), "words": kind(trajectory["task"]["words"])}

    return standardize, keep, frames, finish


@pytest.mark.parametrize("kind", [Tensor, Arrays])
def test_functions_may_return_arrays_of_tensorflow(made, tmp_path, kind):
    made()
    results = []
    for kind_of_array in (np.asarray, kind):
        standardize, keep, frames, finish = written_for(kind_of_array)

        def rowwise(trajectory, finish=finish):
            return finish({**trajectory, "task": {**trajectory["task"], "words": trajectory["dataset_name"]}})

        rowwise.rowwise = True  # pyright: ignore[reportFunctionMemberAccess]
        own = {
            "name": "arm",
            "data_dir": str(tmp_path),
            "cache_dir": str(tmp_path / "other"),
            "standardize_fn": standardize,
            "filter_functions": [keep],
            "frame_filter": frames,
            "proprio_obs_keys": {"arm": "state"},
            "language_key": "words",
        }
        windows = {"window_size": 2, "action_horizon": 2}
        for functions in ([rowwise], [lambda t, change=rowwise: change(t)]):
            kwargs = {**windows, "post_chunk_transforms": functions}
            with iter(get_dataloader(own, batch_size=4, traj_transform_kwargs=kwargs)) as batches:
                results.append([next(batches) for _ in range(3)])
        plain, _ = make_dataset_from_rlds(
            **{name: value for name, value in own.items() if name != "frame_filter"}, train=True, shuffle=False
        )
        few = plain.filter(lambda t, kind=kind_of_array: kind(np.array(len(t["action"]) < 6)))
        mapped = few.frame_map(lambda f, kind=kind_of_array: {"action": kind(f["action"]), "word": kind(np.array("a"))})
        results.append([*few.traj_map(lambda t, kind=kind_of_array: {"a": kind(t["action"])}), *mapped])
        results.append([*mapped.flatten().batch(4)])
        assert len(few) == 2
    expected, found = results[: len(results) // 2], results[len(results) // 2 :]
    assert jax.tree.all(jax.tree.map(lambda a, b: type(a) is type(b) and np.array_equal(a, b), expected, found))


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
    write_rlds(
        {"train": [episode(number, 3) for number in range(30)], "val": [episode(0, 3)]}, name="many", data_dir=tmp_path
    )
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    ds, _ = made(name="many", standardize_fn=noted(folder), num_parallel_calls=12)
    assert 1 <= len(list(folder.iterdir())) <= 2 and str(os.getpid()) not in os.listdir(folder)
    assert ds._read_options.num_threads == 2
    assert made(num_parallel_calls=1)[0]._read_options.num_threads == 1
    assert made(num_parallel_reads=1)[0]._read_options.num_threads == 1


def test_minus_one_leaves_the_number_to_the_library(made, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(make_dataset, "iterate_once", lambda ds, what, options=None: asked.append(options) or iter(ds))
    for hint in (None, -1, 0):
        ds, _ = made(num_parallel_calls=hint, num_parallel_reads=hint, cache_dir=str(tmp_path / str(hint)))
        assert ds._read_options.num_threads == 0
    assert asked == [None, None, None]


# Statistics.


def test_statistics_are_arrays_as_models_expect_them(made, tmp_path):
    mask = [True, False, True]
    _, computed = made(proprio_obs_keys={"arm": "state"}, action_normalization_mask=mask)
    save_statistics(tmp_path / "given.json", computed)
    plain = load_statistics(tmp_path / "given.json")
    for source in (None, plain, tmp_path / "given.json"):
        ds, statistics = made(proprio_obs_keys={"arm": "state"}, dataset_statistics=source)
        leaves = flatten_tree(statistics)
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
    with pytest.raises(ValueError, match=r"dataset_statistics of arm have no 'proprio_arm'.*to skip_norm_keys"):
        made(dataset_statistics=given, **keys)
    with pytest.raises(ValueError, match=r"dataset_statistics of arm have no 'action'"):
        made(dataset_statistics={}, action_normalization_mask=[True] * 3, skip_norm=True)
    assert len(made(dataset_statistics=given, skip_norm_keys=["proprio_arm"], **keys)[0]) == 4
    assert len(made(dataset_statistics={}, skip_norm=True, **keys)[0]) == 4


def with_nan(trajectory):
    return {**trajectory, "action": trajectory["action"] * (np.nan if number_of(trajectory) == 2 else 1)}


def test_numbers_that_are_none_are_told_with_the_ways_out(made):
    sentence = r"Trajectory 2, action: .* NaN.*filter_functions.*dataset_statistics \(.*empty dict is enough"
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


def test_a_language_key_that_names_a_dict_is_told(made):
    with pytest.raises(ValueError, match=r"Language key obs. names a dict in arm/observation, but it must be strings"):
        made(language_key="obs*")


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


# What cannot be read.


def damaged(tmp_path, damage: str) -> None:
    """Damages the third record of the data set: it is one of other features, or its checksum does not fit."""
    (path,) = tmp_path.glob("arm/*/arm-train.tfrecord*")
    records = [bytes(record) for record in TFRecordDataSource(str(path))]
    if damage == "a bit":
        content = bytearray(path.read_bytes())
        content[content.index(records[2]) + len(records[2]) // 2] ^= 1
        path.write_bytes(content)
        return
    other = episode(2, LENGTHS[2])
    if damage == "no leaf":
        del other["steps"]["observation"]["grip"]
    else:
        other["steps"]["action"] = other["steps"]["action"][:, :2]
    folder = write_rlds({"train": [other]}, name="other", data_dir=tmp_path).path
    (records[2],) = (bytes(record) for record in TFRecordDataSource(f"{folder}/*tfrecord*"))
    path.write_bytes(b"".join(frame_record(record, checksums.get_checksum()) for record in records))


@pytest.mark.parametrize("damage", ["no leaf", "too few values", "a bit"])
def test_what_cannot_be_read_is_left_out_and_counted(made, tmp_path, damage):
    damaged(tmp_path, damage)
    keys = {"proprio_obs_keys": {"arm": "grip"}}
    with pytest.raises(ValueError):
        made(**keys)
    with pytest.warns(UserWarning, match="1 of 5 trajectories of arm could not be read and are left out. The first: "):
        ds, statistics = made(**keys, ignore_errors=True)
    assert [int(trajectory["action"].shape[0]) for trajectory in ds] == [3, 4, 6]
    assert statistics["num_trajectories"] == 3


def test_a_store_that_fails_is_not_a_trajectory_that_does(made, monkeypatch):
    def unplugged(episodes, indices):
        raise ConnectionError("the cable")

    monkeypatch.setattr(reader.RLDSEpisodes, "__getitems__", unplugged)
    with pytest.raises(ConnectionError, match="the cable"):
        made(ignore_errors=True)


def test_a_filter_without_a_return_is_told(made):
    def forgotten(trajectory):
        len(trajectory["action"])

    with pytest.raises(ValueError, match=r"forgotten.* of filter_functions returned None; did you forget a return"):
        made(filter_functions=[forgotten])


def test_nothing_that_can_be_read_is_told(made):
    def failing(trajectory):
        raise KeyError("boo")

    with pytest.raises(ValueError, match="5 could not be read, the first because of KeyError: 'boo'"):
        made(standardize_fn=failing, ignore_errors=True)


def test_a_file_of_facts_that_cannot_be_read_is_named(made, tmp_path):
    (info,) = tmp_path.glob("arm/*/dataset_info.json")
    info.write_text("{")
    with pytest.raises(ValueError, match=r"dataset_info.json cannot be read as JSON: .* Was it copied in full"):
        made()


@pytest.mark.parametrize("keys", ["image_obs_keys", "depth_obs_keys", "proprio_obs_keys", "proprio_obs_dims"])
def test_image_and_depth_keys_must_be_dicts(made, keys):
    with pytest.raises(TypeError, match=f"{keys} of arm must be a dict, got list"):
        made(**{keys: ["state"]})


def test_options_of_the_store_reach_it(made, monkeypatch):
    asked = []
    builder = reader.RLDSBuilder

    def open_builder(*args, storage_options):
        asked.append(storage_options)
        return builder(*args, storage_options=storage_options)

    monkeypatch.setattr(reader, "RLDSBuilder", open_builder)
    made(storage_options={"anon": True})
    assert asked == [{"anon": True}]


# The cache.


def test_a_cache_that_cannot_be_written_stops_nothing(made, tmp_path, caplog):
    expected, statistics = made()
    (tmp_path / "file").touch()
    with pytest.warns(
        UserWarning, match=r"arm cannot be written to .*file.*stays in memory.*cache_dir or .*BUSHEL_CACHE"
    ):
        ds, found = made(cache_dir=tmp_path / "file" / "below")
    for ours, theirs in zip(ds.iterator(workers=1), expected, strict=True):
        for path, leaf in flatten_tree(theirs).items():
            np.testing.assert_array_equal(flatten_tree(ours)[path], leaf)
    assert found["num_transitions"] == statistics["num_transitions"]


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("file", ["table.json", "0.npy", "episodes.npy"])
@pytest.mark.parametrize("damage", [cut, lambda path: path.write_bytes(b""), pathlib.Path.unlink])
def test_a_damaged_table_is_made_again(made, tmp_path, file, damage):
    kept, _ = made()
    expected = [trajectory["action"] for trajectory in kept]
    (folder,) = (tmp_path / "cache" / "episodes").iterdir()
    damage(folder / file)
    with pytest.warns(UserWarning, match="The table in .* is damaged, so arm is read again"):
        ds, _ = made()
    assert all((ours["action"] == theirs).all() for ours, theirs in zip(ds, expected, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made()  # from the cache again


def test_the_cache_is_a_local_folder(made, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made(cache_dir="~/kept")
    assert (tmp_path / "home" / "kept" / "episodes").is_dir() and not (tmp_path / "~").exists()
    with pytest.raises(
        ValueError, match="cache_dir must be a local folder, since tables are mapped from it; got 's3://b/c'"
    ):
        made(cache_dir="s3://b/c")
