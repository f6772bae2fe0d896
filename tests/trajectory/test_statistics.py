"""Statistics of data sets: those of the original, merged, the same in every order of reading."""

import functools
import json
import logging
import pickle
import sys

import numpy as np
import pytest
from helpers.golden_trajectories import restructured, statistics, text
from helpers.processes import workers
from helpers.waiting import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bushel
from bushel._src.trajectory.config_values import ModuleSpec
from bushel._src.trajectory.dataset_statistics import (
    Statistics,
    code_of,
    get_dataset_statistics,
    load_statistics,
    merge,
    save_statistics,
)

GOLDEN = text("stats/statistics_default")
FILE_ORDER = text("inputs/rlds_element_spec")["file_order_episode_ids"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing is read from or written to the user's cache."""
    monkeypatch.setenv("BUSHEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def episodes():
    return [restructured(episode) for episode in FILE_ORDER]


def plain(trajectories, key, first_twice=False):
    rows = [traj["action"] if key == "action" else traj["observation"][key] for traj in trajectories]
    return np.concatenate(rows[:1] * first_twice + rows).astype(np.float64)


def assert_describes(found, rows, rtol=1e-9):
    scale = np.abs(rows).max(initial=1e-30)
    wanted = {
        "mean": rows.mean(0),
        "std": rows.std(0),
        "max": rows.max(0),
        "min": rows.min(0),
        "p99": np.quantile(rows, 0.99, 0),
        "p01": np.quantile(rows, 0.01, 0),
    }
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=rtol * scale, err_msg=name)


def test_the_statistics_of_the_original(tmp_path):
    dependencies = GOLDEN["checks"]["hash_dependencies"]
    found = get_dataset_statistics(episodes(), ["proprio_arm"], dependencies, tmp_path, compat="crossformer")
    (path,) = tmp_path.glob("*.json")
    assert path.name == GOLDEN["checks"]["cache_file"]
    assert json.loads(path.read_text()) == found
    theirs = statistics()
    assert set(found) == set(theirs)
    assert (found["num_transitions"], found["num_trajectories"]) == (119, 8)
    for key in ("action", "proprio_arm"):
        assert set(found[key]) == set(theirs[key])
        for name in found[key]:
            np.testing.assert_allclose(
                found[key][name], theirs[key][name], rtol=1e-6, atol=1e-6, err_msg=f"{key} {name}"
            )
    assert_describes(found["proprio_arm"], plain(episodes(), "proprio_arm", first_twice=True))


def test_each_trajectory_counts_once(tmp_path):
    dependencies = GOLDEN["checks"]["hash_dependencies"]
    found = get_dataset_statistics(episodes(), ["proprio_arm"], dependencies, tmp_path)
    for key in ("action", "proprio_arm"):
        assert_describes(found[key], plain(episodes(), key))
    (path,) = tmp_path.glob("*.json")
    assert path.name != GOLDEN["checks"]["cache_file"]  # a faulty file of the original is not taken for ours
    faulty = get_dataset_statistics(episodes(), ["proprio_arm"], dependencies, tmp_path, compat="crossformer")
    assert faulty["action"] == found["action"] and faulty["proprio_arm"]["mean"] != found["proprio_arm"]["mean"]


values = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 30), st.just(3)),
    elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False),
)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=6).filter(lambda parts: sum(map(len, parts))), st.integers(0, 6))
def test_merged_statistics_are_those_of_the_whole(parts, cut):
    one_by_one, left, right, whole = Statistics(), Statistics(), Statistics(), Statistics()
    for number, part in enumerate(parts):
        one_by_one.add(part)
        (left if number < cut else right).add(part)
    rows = np.concatenate(parts)
    whole.add(rows)
    for made in (one_by_one, merge(left, right), merge(right, left), pickle.loads(pickle.dumps(whole))):
        assert made.count == len(rows) and made.rank_error == 0
        assert_describes(made.summary(), rows.astype(np.float64))
        for exact in ("max", "min", "p99", "p01"):
            assert made.summary()[exact] == whole.summary()[exact]


def test_merging_leaves_both_as_they_were():
    a, b = Statistics(), Statistics()
    a.add([[1.0], [2.0]])
    b.add([[30.0]])
    before = a.summary(), b.summary()
    merge(a, b).add([[99.0]])
    assert (a.summary(), b.summary()) == before


def test_many_rows_within_a_small_budget():
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((50_000, 2)) + 100).astype(np.float32)
    parts = [Statistics(budget_bytes=1), Statistics(budget_bytes=1)]
    for number, piece in enumerate(np.array_split(rows, 100)):
        parts[number % 2].add(piece)
    made = merge(*parts)
    found, exact = made.summary(), rows.astype(np.float64)
    assert 0 < made.rank_error < 0.06 * len(rows)
    np.testing.assert_allclose(found["mean"], exact.mean(0), rtol=1e-9)
    np.testing.assert_allclose(found["std"], exact.std(0), rtol=1e-9)
    assert found["max"] == rows.max(0).tolist()
    for name, share in (("p01", 0.01), ("p99", 0.99)):
        ranks = (rows <= np.array(found[name])).mean(0)
        assert (np.abs(ranks - share) <= (made.rank_error + 1) / len(rows)).all()


def test_small_differences_of_large_numbers():
    rows = 1e6 + np.arange(8, dtype=np.float32)[:, None]
    made = Statistics()
    for row in rows:
        made.add(row[None])
    np.testing.assert_allclose(made.summary()["std"], rows.astype(np.float64).std(0), rtol=1e-9)


class Slow:
    """Trajectories by index, in no memory."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        steps = int(rng.integers(1, 9))
        action = rng.standard_normal((steps, 3)).astype(np.float32)
        return {"observation": {"proprio": action * 2}, "action": action}


def test_however_they_are_read_the_statistics_are_the_same():
    source = Slow(40)
    found = functools.partial(get_dataset_statistics, proprio_keys=["proprio"], hash_dependencies=["x"])
    found = functools.partial(found, force_recompute=True)
    wanted = found([source[index] for index in range(40)])
    dataset = bushel.MapDataset.source(source)
    ways = [
        found(source),
        found(source, workers=3),
        found(source, workers=0),
        found(source, workers=bushel.MultiprocessingOptions(2)),
        found(dataset),
        found(dataset.to_iter_dataset()),
        found(source[index] for index in range(40)),
    ]
    assert all(way == wanted for way in ways)
    assert wanted["num_trajectories"] == 40


def test_an_error_leaves_no_worker_behind():
    class Bad(Slow):
        def __getitem__(self, index):
            return super().__getitem__(index) if index < 3 else {"observation": {}, "action": np.full((1, 3), np.inf)}

    with pytest.raises(ValueError, match="Trajectory 3, action: Some numbers are infinite") as error:
        get_dataset_statistics(Bad(40), [], ["x"], workers=bushel.MultiprocessingOptions(2))
    wait_until(lambda: not workers())
    assert error.traceback  # which keeps all that was open alive


def test_statistics_of_chunks_scalars_and_empty_trajectories():
    chunks = [{"action": np.arange(12.0).reshape(2, 3, 2)}]
    assert np.shape(get_dataset_statistics(chunks, [], ["chunks"])["action"]["mean"]) == (3, 2)
    scalar = [{"observation": {"gripper": np.arange(4.0)}, "action": np.zeros((4, 1))}]
    assert get_dataset_statistics(scalar, ["gripper"], ["scalar"])["gripper"]["mean"] == 1.5
    empty = [{"action": np.zeros((0, 2))}, {"action": np.ones((1, 2))}]
    found = get_dataset_statistics(empty, [], ["empty"])
    assert (found["num_transitions"], found["num_trajectories"]) == (1, 2)


@pytest.mark.parametrize(
    ("trajectories", "error", "sentence"),
    [
        ([], ValueError, "0 trajectories have no steps. Check the split and the filters"),
        ([{"action": np.zeros((0, 2))}], ValueError, "1 trajectories have no steps"),
        (
            [{"action": np.zeros(5)}],
            ValueError,
            r"Trajectory 0, action: actions must have the shape \[T, A\], but have .*\[5\]",
        ),
        (
            [{"action": np.zeros((1, 2))}, {"action": np.zeros((1, 3))}],
            ValueError,
            r"Trajectory 1, action: .*\[3\].*\[2\]",
        ),
        ([{"action": np.array([[0, np.nan]])}], ValueError, r"Trajectory 0, action: .*NaN, in the dimensions \[1\]"),
        ([{"observation": {}}], ValueError, "A trajectory has no 'action', only"),
        ({"action": np.zeros((1, 2))}, TypeError, "need many trajectories, got a dict"),
    ],
)
def test_bad_trajectories(trajectories, error, sentence):
    with pytest.raises(error, match=sentence):
        get_dataset_statistics(trajectories, [], ["bad"])


def test_bad_arguments():
    with pytest.raises(ValueError, match="An observation has no 'proprio', only"):
        get_dataset_statistics([{"observation": {}, "action": np.zeros((1, 2))}], ["proprio"], ["bad"])
    with pytest.raises(ValueError, match="endless data set"):
        get_dataset_statistics(bushel.MapDataset.source(Slow(3)).repeat(), [], ["bad"])
    with pytest.raises(TypeError, match="lists of strings, got a string"):
        get_dataset_statistics([], "proprio", ["bad"])
    with pytest.raises(ValueError, match="compat must be None"):
        get_dataset_statistics([], [], [], compat="octo")
    with pytest.raises(ValueError, match="no rows were added"):
        Statistics().summary()
    with pytest.raises(ValueError, match=r"array of rows, got the number 1\.0"):
        Statistics().add(1.0)


ONE = [{"action": np.array([[1.0], [3.0]])}]
OTHER = [{"action": np.array([[5.0]])}]


def test_arguments_have_the_originals_names(tmp_path):
    found = get_dataset_statistics(
        dataset=ONE, proprio_keys=[], hash_dependencies=["a"], save_dir=tmp_path, force_recompute=True
    )
    assert found["num_trajectories"] == 1


def test_a_known_file_is_read_and_not_computed(tmp_path):
    first = get_dataset_statistics(ONE, [], ["a", "b"], tmp_path)
    assert get_dataset_statistics(OTHER, [], ["a", "b"], tmp_path) == first
    assert get_dataset_statistics(OTHER, [], ["ab"], tmp_path) != first  # not the same words
    assert get_dataset_statistics(OTHER, [], ["a", "b"], tmp_path, force_recompute=True)["action"]["mean"] == [5.0]
    assert get_dataset_statistics(ONE, [], ["a", "b"], tmp_path)["action"]["mean"] == [5.0]


def test_a_file_that_lacks_an_entry_is_made_again(tmp_path, caplog):
    trajectories = [{"observation": {"proprio": np.ones((2, 1))}, "action": np.ones((2, 1))}]
    get_dataset_statistics(trajectories, [], ["a"], tmp_path)
    assert get_dataset_statistics(trajectories, ["proprio"], ["a"], tmp_path)["proprio"]["mean"] == [1.0]
    assert "has no 'proprio', only" in caplog.text


@pytest.mark.parametrize("damage", ['{"action": {"mean": [1', "", "[]", '{"action": null}', "\x00"])
def test_a_damaged_file_is_made_again(tmp_path, caplog, damage):
    first = get_dataset_statistics(ONE, [], ["a"], tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text(damage)
    with caplog.at_level(logging.WARNING):
        assert get_dataset_statistics(ONE, [], ["a"], tmp_path) == first
    assert (
        f"The statistics in {path} cannot be read" in caplog.text and "The statistics are computed again" in caplog.text
    )
    assert load_statistics(path) == first
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [path.name]  # nothing half written


def test_a_folder_that_is_none(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    first = get_dataset_statistics(ONE, [], ["a"], tmp_path / "file" / "data")  # no folder can be made there
    assert "cannot be written to" in caplog.text
    assert get_dataset_statistics(OTHER, [], ["a"], tmp_path / "file" / "data") == first
    assert len(list((tmp_path / "cache" / "statistics").glob("dataset_statistics_*.json"))) == 1


def test_without_a_folder_and_with_a_url(tmp_path):
    first = get_dataset_statistics(ONE, [], ["a"])
    assert get_dataset_statistics(OTHER, [], ["a"], "gs://bucket/data") == first
    get_dataset_statistics(OTHER, [], ["a"], compat="crossformer")
    originals = tmp_path / "home" / ".cache" / "crossformer"  # where the original keeps them
    assert len(list(originals.glob("*.json"))) == 1


def test_statistics_come_back_from_files(tmp_path):
    stats = {"action": {"mean": np.array([1.5]), "std": np.float32(2), "mask": np.array([True])}, "num_transitions": 3}
    save_statistics(tmp_path / "new" / "s.json", stats)
    assert load_statistics(tmp_path / "new" / "s.json") == {
        "action": {"mean": [1.5], "std": 2.0, "mask": [True]},
        "num_transitions": 3,
    }
    with pytest.raises(FileNotFoundError):
        load_statistics(tmp_path / "none.json")


def test_the_code_of_a_function():
    def standardize(traj):  # pyright: ignore[reportRedeclaration]
        return traj

    first = code_of(standardize)

    def standardize(traj):
        return {**traj, "new": 1}

    assert code_of(standardize) != first
    assert code_of(functools.partial(standardize, 1)) != code_of(functools.partial(standardize, 2))
    assert code_of(None) == ""
    assert code_of(ModuleSpec.create(get_dataset_statistics)) == code_of(functools.partial(get_dataset_statistics))
    assert code_of(ModuleSpec.create(get_dataset_statistics)) != code_of(ModuleSpec.create(merge))


def test_progress_is_told_to_a_terminal_only(monkeypatch, capsys):
    get_dataset_statistics(ONE, [], ["a"])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("bushel._src.base.shown_text.BAR_AFTER_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    get_dataset_statistics(ONE, [], ["b"])
    assert "1/1" in capsys.readouterr().err
    get_dataset_statistics(iter(ONE), [], ["c"])
    assert "statistics: 1 trajectories" in capsys.readouterr().err
    seen = []
    get_dataset_statistics(ONE, [], ["d"], progress=False)
    get_dataset_statistics(ONE, [], ["e"], progress=lambda *facts: seen.append(facts))
    assert capsys.readouterr().err == "" and seen == [(1, 1)]
