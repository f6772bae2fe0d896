"""`bushel stats`: the numbers of NumPy for arrays and tables, those of training for robots, and a bar."""

from __future__ import annotations

import json
import warnings

import ml_dtypes
import numpy as np
import pytest
from helpers.terminals import COMMAND, last_drawn, run_on_terminal
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel._src import cli
from bushel._src.inspection.statistics import EntryStatistics, measure_elements, show_table
from bushel._src.trajectory.episode_builder import open_episodes
from bushel.trajectory import get_dataset_statistics, load_statistics


def stats(*words, capsys):
    assert cli.main(["stats", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


numbers = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=width, max_size=width), min_size=1)
)


@given(numbers)
def test_vectors_have_the_statistics_of_numpy(rows):
    statistics = EntryStatistics()
    for row in rows:
        statistics.add(np.array(row))
    found, exact = statistics.summary(), np.array(rows, np.float64)
    assert found["of"] == "vector" and found["count"] == len(rows)
    np.testing.assert_allclose(found["mean"], exact.mean(0), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(found["std"], exact.std(0), rtol=1e-6, atol=1e-6)
    assert found["min"] == exact.min(0).tolist() and found["max"] == exact.max(0).tolist()
    np.testing.assert_allclose(found["p50"], np.median(exact, 0), rtol=1e-6)


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=5), min_size=1).filter(lambda rows: any(rows)))
def test_vectors_of_several_lengths_count_as_one_row_of_numbers(rows):
    statistics = EntryStatistics()
    for row in rows:
        statistics.add(np.array(row))
    exact = np.array([number for row in rows for number in row])
    found = statistics.summary()
    if found["of"] == "vector":
        assert len({len(row) for row in rows}) == 1
        return
    assert found["count"] == len(exact)
    np.testing.assert_allclose(found["mean"], exact.mean(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found["std"], exact.std(), rtol=1e-5, atol=1e-5)
    assert (found["min"], found["max"]) == (exact.min(), exact.max())
    np.testing.assert_allclose(found["p50"], np.median(exact), rtol=1e-5, atol=1e-6)


def test_large_whole_numbers_keep_their_digits():
    found = measure_elements(bushel.MapDataset.source([2**40, 2**40 + 1]), progress=False)["entries"]["element"]
    assert (found["min"], found["max"], found["mean"]) == (2**40, 2**40 + 1, 2**40 + 0.5)


def test_numbers_that_are_not_finite_are_counted_and_left_out():
    found = measure_elements(bushel.MapDataset.source([1.0, np.nan, 3.0, np.inf]), progress=False)["entries"]["element"]
    assert (found["count"], found["not finite"], found["mean"]) == (2, 2, 2.0)


def test_vectors_that_are_not_finite_are_named_below_the_table():
    rows = bushel.MapDataset.source(
        [{"v": np.array([1.0, np.nan]), "x": np.inf}, {"v": np.array([3.0, 4.0]), "x": 1.0}]
    )
    table = show_table(measure_elements(rows, progress=False))
    assert "v: 1 numbers are not finite, and are left out, with the vectors that hold them." in table.splitlines()
    assert "x: 1 numbers are not finite, and are left out." in table.splitlines()


def test_small_floats_and_lists():
    rows = [{"w": np.full((2, 3), n, ml_dtypes.bfloat16), "l": [n, {"a": (n, "x" * n)}], "ids": [n, 3]} for n in (1, 5)]
    found = measure_elements(bushel.MapDataset.source(rows), progress=False)
    assert "left out" not in found and list(found["entries"]) == ["w", "l/0", "l/1/a/0", "l/1/a/1", "ids"]
    assert found["entries"]["w"]["mean"] == 3 and found["entries"]["l/1/a/1"]["max"] == 5
    assert found["entries"]["ids"]["mean"] == [3, 3]


def test_pictures_texts_and_what_has_no_statistics():
    rows = [
        {"i": np.full((4, 5, 3), [n, 0, 255], np.uint8), "t": "x" * n, "d": np.datetime64(n, "s")} for n in range(3)
    ]
    found = measure_elements(bushel.MapDataset.source(rows), progress=False)
    assert found["entries"]["i"]["mean"] == [1.0, 0.0, 255.0] and found["entries"]["i"]["count"] == 60
    assert found["entries"]["t"]["max"] == 2 and found["entries"]["t"]["of"] == "length"
    assert found["left out"] == {"d": "it is datetime64[s], which has no statistics"}
    assert show_table(found).endswith("d is left out: it is datetime64[s], which has no statistics.")


def test_stats_of_files_of_several_formats(written, capsys):
    assert stats(written / "t.parquet", capsys=capsys)["entries"]["id"]["mean"] == 499.5
    assert stats(written / "x.jsonl", capsys=capsys)["entries"]["a"]["max"] == 49
    assert stats(written / "e.tfrecord-*", capsys=capsys)["entries"]["x"]["mean"] == [1, 2]
    assert stats(written / "a.array_record", "--limit", 5, capsys=capsys)["num_elements"] == 5
    assert cli.main(["stats", str(written / "t.parquet")]) == 0
    assert "id     value   499.5" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["npz", "rlds", "lerobot", "robomimic"])
def test_robots_have_the_statistics_of_training(kind, written, tmp_path, capsys):
    target = {"rlds": "rlds/mine", "robomimic": "robomimic.hdf5"}.get(kind, kind)
    output = tmp_path / "statistics.json"
    assert cli.main(["stats", str(written / target), str(output)]) == 0
    found = load_statistics(output)
    above, name = (written / target).parent, (written / target).name
    episodes = open_episodes(name, above, format=kind).episodes("all")
    assert found == get_dataset_statistics(list(episodes), ["state"], ["test", kind], tmp_path, progress=False)
    assert found["num_trajectories"] == 4 and len(found["action"]["mean"]) == 2 and len(found["state"]["p99"]) == 3


def test_stats_takes_the_options_of_robot_data_sets(written, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_standardize.py").write_text(
        "def double(traj):\n"
        "    return {**traj, 'action': traj['action'] * 2, 'observation': {'only': traj['action']}}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--standardize-fn", "my_standardize:double", "--split", "train[:2]", "--key", "only"]
    found = stats(written / "npz", *words, capsys=capsys)
    assert found["num_trajectories"] == 2 and set(found) == {"action", "only", "num_transitions", "num_trajectories"}
    np.testing.assert_allclose(found["action"]["mean"], 2 * np.array(found["only"]["mean"]), rtol=1e-5)
    assert cli.main(["stats", str(written / "t.parquet"), "--key", "id"]) == 1
    assert "are for robot data sets" in capsys.readouterr().err


FOREVER = """
import bushel
import numpy as np

ds = bushel.MapDataset.range(3).repeat()
batches = ds.batch(2)
shard = ds[1::4]
stream = ds.to_iter_dataset().map(lambda x: x).batch(2)
repeated = bushel.MapDataset.range(3).to_iter_dataset().repeat()
filtered = ds.to_iter_dataset().filter(lambda x: x > 0)
flat = ds.to_iter_dataset().flat_map(lambda x: [x, x])
loader = bushel.load(bushel.MapDataset.range(3))
robot = bushel.trajectory.TrajectoryDataset.from_trajectories([{"action": np.zeros((3, 2))}]).flatten().repeat()


def make():
    return stream
"""


def test_an_endless_pipeline_needs_a_limit(tmp_path, monkeypatch, capsys):
    (tmp_path / "forever.py").write_text(FOREVER)
    monkeypatch.chdir(tmp_path)
    for name in ("ds", "batches", "shard", "stream", "repeated", "filtered", "flat", "loader", "make", "robot"):
        assert cli.main(["stats", f"forever.py:{name}"]) == 1, name
        assert "Look at its first elements: `--limit 1000`" in capsys.readouterr().err, name
        assert stats(f"forever.py:{name}", "--limit", 6, capsys=capsys)["num_elements"] == 6, name
    assert stats("forever.py:ds", "--limit", 6, capsys=capsys)["entries"]["element"]["mean"] == 1


def test_workers_give_the_same_numbers(written, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert stats(written / "x.npz", capsys=capsys) == stats(written / "x.npz", "--workers", 2, capsys=capsys)


def test_the_bar_is_on_the_terminal(written):
    code, out, screen = run_on_terminal("-c", COMMAND, "stats", written / "t.parquet")
    assert code == 0 and out.startswith("entry") and last_drawn(screen)[-1].startswith("statistics: 100%")
    code, _, screen = run_on_terminal("-c", COMMAND, "stats", "--quiet", written / "t.parquet")
    assert code == 0 and screen == ""


def test_a_data_set_without_elements(tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("")
    assert stats(tmp_path / "empty.jsonl", capsys=capsys) == {"num_elements": 0, "entries": {}}
    assert cli.main(["stats", str(tmp_path / "empty.jsonl")]) == 0
    assert capsys.readouterr().out == "There are no elements.\n"
