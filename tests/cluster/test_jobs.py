"""One-off jobs on a cluster: the values of the local ones, bit for bit, on actors that all jobs share."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers import ray_clusters

import bushel
from bushel._src.base.options import using_for_jobs
from bushel._src.cli import main
from bushel._src.datasets import computed_columns
from bushel._src.sources import conversion
from bushel._src.trajectory import episode_conversion, episodes, single_pass
from bushel._src.trajectory.dataset_statistics import get_dataset_statistics
from bushel._src.trajectory.episodes import Episodes
from bushel.testing import same
from bushel.trajectory import convert_episodes

pytestmark = [pytest.mark.ray, pytest.mark.serial]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors need not import the tests


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs leave this process after the first piece, however quick they are."""
    monkeypatch.setattr(computed_columns, "_INLINE_S", 0.0)
    monkeypatch.setattr(single_pass, "_INLINE_S", 0.0)


@contextlib.contextmanager
def no_cluster() -> Iterator[None]:
    """A block whose jobs run on this machine, inside of one whose jobs run on actors."""
    with using_for_jobs(bushel.MultiprocessingOptions()):
        yield


def facts(x: int) -> dict[str, Any]:
    return {"root": np.sqrt(x), "process": os.getpid()}


def trajectory(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    steps = 5 + number % 7
    observation = {"proprio": rng.standard_normal((steps, 3))}
    return {
        "action": rng.standard_normal((steps, 2)).astype(np.float32),
        "observation": observation,
        "language_instruction": np.full(steps, f"task {number % 3}".encode(), object),
    }


def trajectory_with_process(number: int) -> dict[str, Any]:
    return trajectory(number) | {"process": np.full(5 + number % 7, os.getpid())}


def has_even_number_of_steps(traj: dict[str, Any]) -> bool:
    return len(traj["action"]) % 2 == 0


@pytest.fixture(scope="module")
def actors(cluster: Any) -> Iterator[bushel.RayOptions]:
    """The actors of all jobs in this file."""
    options = bushel.RayOptions(num_workers=2)
    with ray_clusters.leaving_nothing(), bushel.ray.jobs_on_cluster(2):
        yield options


def test_columns_tables_and_statistics_use_the_same_actors(actors, at_once, tmp_path):
    column = bushel.MapDataset.range(1000).column(facts, cache_dir=tmp_path / "columns")
    assert same(column.values["root"], np.sqrt(np.arange(1000)))
    assert set(column.values["process"]) - {os.getpid()}, "no actor has computed anything"
    begun = set(ray_clusters.living_actors())
    trajectories = bushel.MapDataset.range(60).map(trajectory)
    table = Episodes.of(single_pass.iterate_once(trajectories, ""))
    verdicts = list(single_pass.evaluate_once(trajectories, has_even_number_of_steps, ""))
    statistics = get_dataset_statistics(trajectories, ["proprio"], ["cluster"], tmp_path / "statistics")
    others = bushel.MapDataset.range(60).map(trajectory_with_process)
    processes = {int(traj["process"][0]) for traj in single_pass.iterate_once(others, "")}
    assert processes - {os.getpid()}, "no actor has made a trajectory"
    assert set(ray_clusters.living_actors()) == begun
    expected = [trajectory(number) for number in range(60)]
    check_same_tables(table, Episodes.of(expected), tmp_path)
    assert verdicts == [(number, has_even_number_of_steps(traj)) for number, traj in enumerate(expected)]
    assert statistics == get_dataset_statistics(trajectories, ["proprio"], ["here"], tmp_path, workers=1)


def check_same_tables(found: Episodes, expected: Episodes, folder: Path) -> None:
    """Compares all files that hold the tables, bit for bit."""
    contents = []
    for name, table in (("found", found), ("expected", expected)):
        episodes.save(table, str(folder / name))
        files = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        contents.append({str(path.relative_to(folder / name)): path.read_bytes() for path in files})
    assert contents[0] == contents[1] and contents[0]


def slow_root(x: int) -> float:
    time.sleep(0.002)
    return float(np.sqrt(x))


def test_an_interrupted_column_goes_on_where_it_was(actors, monkeypatch, tmp_path):
    ds = bushel.MapDataset.range(1500)
    monkeypatch.setattr(computed_columns, "_SAVE_EVERY_S", 0.0)
    seen: list[int] = []

    def interrupt(self: Any, done: int) -> None:
        seen.append(done)
        if done > 500:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computed_columns.Progress, "show", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ds.column(slow_root, cache_dir=tmp_path, workers=actors)
    seen.clear()
    monkeypatch.setattr(computed_columns.Progress, "show", lambda self, done: seen.append(done))
    column = ds.column(slow_root, cache_dir=tmp_path, workers=actors)
    assert seen[0] >= 448, "it began anew"
    assert same(column.values, np.sqrt(np.arange(1500)))


def test_saved_elements_are_the_same_files(actors, tmp_path):
    ds = bushel.MapDataset.range(300).map(lambda x: {"x": np.full(5, x)})
    here = ds.save(tmp_path / "here", format="bagz", shards=3, workers=bushel.MultiprocessingOptions())
    there = ds.save(tmp_path / "there", format="bagz", shards=3, workers=actors)
    assert [Path(file).read_bytes() for file in there.files] == [Path(file).read_bytes() for file in here.files]


def test_converted_files_are_the_same(actors, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(1000)))
    here = conversion.convert(lines, tmp_path / "here.array_record", shards=5)
    seen: list[int] = []
    there = bushel.ray.convert(
        lines,
        tmp_path / "there.array_record",
        workers=actors,
        shards=5,
        progress=lambda done, of: seen.append(done),
    )
    assert [Path(file).read_bytes() for file in there.files] == [Path(file).read_bytes() for file in here.files]
    assert seen[0] == 0 and seen[-1] == 1000 and len(seen) > 3


@pytest.mark.parametrize("workers", [True, "2", bushel.MultiprocessingOptions(2)])
def test_workers_of_a_cluster_are_a_number_or_their_options(workers, tmp_path):
    with pytest.raises(TypeError, match=r"workers must be a number of actors or bushel\.RayOptions, got"):
        bushel.ray.convert(tmp_path / "lines.txt", tmp_path / "there.bagz", shards=2, workers=workers)
    with pytest.raises(TypeError, match="workers must be"), bushel.ray.jobs_on_cluster(workers):
        pass


def test_the_command_converts_on_the_cluster(cluster, tmp_path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(500)))
    here = conversion.convert(lines, tmp_path / "here.array_record", shards=3)
    target = str(tmp_path / "there.array_record")
    with ray_clusters.leaving_nothing():
        command = ["convert", str(lines), target, "--ray", "--workers", "2", "--shards", "3", "--quiet"]
        assert main(command) == 0
    assert "500 records" in capsys.readouterr().out
    there = sorted(tmp_path.glob("there-*"))
    assert [path.read_bytes() for path in there] == [Path(file).read_bytes() for file in here.files]
    assert main(["convert", str(lines), target, "--ray"]) == 1
    assert "--ray needs --shards" in capsys.readouterr().err


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes with a camera, in `.npz` files."""
    folder = tmp_path_factory.mktemp("episodes") / "arm"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        steps = 5 + number
        np.savez(
            folder / f"{number}.npz",
            image=rng.integers(0, 256, (steps, 32, 32, 3), np.uint8),
            state=rng.standard_normal((steps, 3)),
            action=rng.standard_normal((steps, 2)).astype(np.float32),
            language_instruction=f"task {number % 2}",
        )
    return folder


def run_by_nobody(job: Any) -> Iterator[int]:
    raise AssertionError("The shard is written by the process that has asked for it, and not by an actor.")


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", ["rlds", "lerobot"])
def test_converted_episodes_are_the_same_files(to, actors, arm, tmp_path, monkeypatch):
    settings: dict[str, Any] = {"format": to, "shards": 3, "progress": False} | ({"fps": 10} if to == "lerobot" else {})
    with no_cluster():
        convert_episodes(arm, tmp_path / "here" / "arm", **settings)
    monkeypatch.chdir(arm.parent)
    monkeypatch.setattr(episode_conversion._ShardJob, "run", run_by_nobody)  # in this process alone
    there = os.path.relpath(tmp_path / "there" / "arm")
    done = convert_episodes("arm", there, **settings)  # actors have other working directories
    assert done.elements == 6
    expected = read_files(tmp_path / "here")
    assert len(expected) >= 5 and read_files(tmp_path / "there") == expected
    # A LeRobot data set with videos is a source, too; its tables of packets lie in the cache of this machine.
    if to == "lerobot":
        again: dict[str, Any] = {"format": "rlds", "shards": 2, "progress": False}
        convert_episodes(tmp_path / "there" / "arm", tmp_path / "again" / "arm", **again)
        monkeypatch.undo()
        with no_cluster():
            convert_episodes(tmp_path / "there" / "arm", tmp_path / "once" / "arm", **again)
        assert read_files(tmp_path / "again") == read_files(tmp_path / "once")


def test_a_conversion_that_was_stopped_continues_on_the_cluster(actors, arm, tmp_path, monkeypatch):
    settings: dict[str, Any] = {"format": "rlds", "shards": 6, "progress": False}
    target = tmp_path / "there" / "arm"
    with no_cluster():
        convert_episodes(arm, tmp_path / "here" / "arm", **settings)

        def stop(done: int, total: int) -> None:
            if done >= 15:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert_episodes(arm, target, **settings | {"progress": stop, "workers": 1})
    kept = {path: path.stat().st_mtime_ns for path in target.rglob("*.tfrecord*")}
    assert 0 < len(kept) < 6 and not list(target.rglob("dataset_info.json"))
    killed: list[Any] = []

    def kill_one(done: int, total: int) -> None:
        if done > 15 and not killed:
            killed.append(ray_clusters.kill_actor())

    convert_episodes(arm, target, **settings | {"progress": kill_one})
    assert killed and read_files(tmp_path / "there") == read_files(tmp_path / "here")
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())  # these were not written again


def test_the_command_converts_episodes_on_the_cluster(cluster, arm, tmp_path, capsys):
    target = tmp_path / "there" / "arm"
    with ray_clusters.leaving_nothing():
        words = ["convert", str(arm), str(target), "--to", "rlds", "--ray", "--quiet"]
        assert main([*words, "--workers", "2", "--shards", "3"]) == 0
    assert "6 episodes in 5 files" in capsys.readouterr().out
    assert main(["convert", str(arm), str(tmp_path / "here" / "arm"), "--to", "rlds", "--shards", "3", "--quiet"]) == 0
    assert read_files(target) == read_files(tmp_path / "here" / "arm")
    capsys.readouterr()
    assert main([*words, "--overwrite"]) == 1
    assert "--ray needs --shards" in capsys.readouterr().err
