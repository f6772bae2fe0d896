"""`ds.save(folder, format="rlds")`: a data set that RLDSBuilder and `sources.open` read. A stopped run can go on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel._src.trajectory.rlds.reader import RLDSBuilder
from bushel.sources import TFDSDataSource, TFRecordDataSource
from bushel.testing import same
from bushel.trajectory import write_rlds


def episode(number):
    count = number % 3 + 1
    return {
        "steps": {
            "action": np.full((count, 2), number, np.float32),
            "observation": {
                # Sizes differ between episodes, so that what is known of them matters when a run goes on.
                "image": np.full((count, 4 + (number == 1), 4, 3), number, np.uint8),
                "text": [f"step {step}" for step in range(count)],
            },
        },
        "episode_metadata": {"success": number % 2 == 0},
    }


def records(folder):
    names = sorted(name for name in os.listdir(folder) if ".tfrecord-" in name)
    return [bytes(record) for name in names for record in TFRecordDataSource(os.path.join(folder, name))]


def expected(number):
    made = episode(number)
    made["steps"]["observation"]["text"] = [text.encode() for text in made["steps"]["observation"]["text"]]
    return made


def check_episodes(found, count):
    assert len(found) == count
    for number in (0, 5, count - 1):
        wanted = expected(number)
        assert same(found[number]["steps"]["action"], wanted["steps"]["action"])
        assert same(np.asarray(found[number]["steps"]["observation"]["image"]), wanted["steps"]["observation"]["image"])
        assert list(found[number]["steps"]["observation"]["text"]) == wanted["steps"]["observation"]["text"]
        assert bool(found[number]["episode_metadata"]["success"]) == wanted["episode_metadata"]["success"]


@pytest.mark.parametrize("shards", [None, 1, 3])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_episodes_are_saved_and_read_back(tmp_path, shards, kind):
    ds = MapDataset.range(12).map(episode)
    if kind == "stream":
        ds = ds.to_iter_dataset()
    files = ds.save(tmp_path / "arm", format="rlds", shards=shards)
    assert [os.path.basename(file) for file in files.files] == [
        f"arm-train.tfrecord-{n:05d}" for n in range(shards or 1)
    ]
    source = bushel.sources.open(tmp_path / "arm")
    assert isinstance(source, TFDSDataSource)
    check_episodes(source, 12)
    assert len(RLDSBuilder("arm", tmp_path / "arm").episodes("train")) == 12
    folder = Path(
        write_rlds({"train": [episode(n) for n in range(12)]}, name="arm", data_dir=tmp_path / "other", shards=3).path
    )
    assert records(tmp_path / "arm") == records(folder)
    assert (tmp_path / "arm" / "features.json").read_text() == (folder / "features.json").read_text()
    saved, written = (json.loads((path / "dataset_info.json").read_text()) for path in (tmp_path / "arm", folder))
    assert saved["splits"][0].pop("numBytes") == written["splits"][0].pop("numBytes")
    assert (saved["name"], saved["version"]) == (written["name"], written["version"])


def test_the_path_names_the_data_set(tmp_path):
    ds = MapDataset.range(2).map(episode)
    ds.save(tmp_path / "arm" / "2.1.0", format="rlds")
    assert repr(RLDSBuilder("arm", tmp_path)) == "RLDSBuilder(arm 2.1.0; train: 2)"
    ds.save(tmp_path / "7 arms-left", format="rlds")
    assert repr(RLDSBuilder("_7_arms_left", tmp_path / "7 arms-left")) == "RLDSBuilder(_7_arms_left 1.0.0; train: 2)"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(stop=st.integers(0, 11))
def test_a_run_that_was_stopped_goes_on_and_gives_the_same_files(tmp_path_factory, stop):
    folder = tmp_path_factory.mktemp("rlds") / "arm"
    alive = False

    def fragile(number):
        if number == stop and not alive:
            raise RuntimeError("stopped")
        return episode(number)

    ds = MapDataset.range(12).map(fragile)
    with pytest.raises(RuntimeError, match="stopped"):
        ds.save(folder, format="rlds", shards=4)
    with pytest.raises(ValueError, match=r"has files of `ds\.save`, but no|does not know the format|has no files"):
        bushel.sources.open(folder)
    alive = True
    ds.save(folder, format="rlds", shards=4)
    check_episodes(bushel.sources.open(folder), 12)
    whole = tmp_path_factory.mktemp("rlds") / "arm"
    MapDataset.range(12).map(episode).save(whole, format="rlds", shards=4)
    for name in sorted(os.listdir(whole)):
        if name != ".saving.json":
            assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_saving_again_does_nothing_and_what_is_there_is_not_mixed(tmp_path):
    ds = MapDataset.range(4).map(episode)
    files = ds.save(tmp_path / "arm", format="rlds", shards=2)
    changed = [os.stat(file).st_mtime_ns for file in files.files]
    assert ds.save(tmp_path / "arm", format="rlds", shards=2) == files
    assert [os.stat(file).st_mtime_ns for file in files.files] == changed
    for other in (MapDataset.range(3).map(episode), MapDataset.range(4).map(lambda x: {"x": x})):
        with pytest.raises(
            FileExistsError, match="has elements of another pipeline, or of another format or number of shards"
        ):
            other.save(tmp_path / "arm", format="bagz", shards=2)
    (tmp_path / "arm" / "mine.txt").write_text("stays")
    MapDataset.range(5).map(lambda x: {"x": x}).save(tmp_path / "arm", format="bagz", overwrite=True)
    assert sorted(os.listdir(tmp_path / "arm")) == ["bushel.json", "mine.txt", "part-00000.bagz"]
    assert len(bushel.sources.open(tmp_path / "arm")) == 5
    ds.save(tmp_path / "arm", format="rlds", overwrite=True)
    assert len(bushel.sources.open(tmp_path / "arm")) == 4 and (tmp_path / "arm" / "mine.txt").exists()


def test_a_data_set_of_others_is_left_alone(tmp_path):
    folder = write_rlds({"train": [episode(1)], "val": [episode(2)]}, name="arm", data_dir=tmp_path).path
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="has a data set that `save` did not write"):
            MapDataset.range(4).map(episode).save(folder, format="rlds", overwrite=overwrite)
    with pytest.raises(ValueError, match=r"has the splits 'train', 'val'. Open one of them with"):
        bushel.sources.open(folder)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda x: {"x": x},
            ValueError,
            "Element 0 cannot be saved with the others: the episode: an episode must be a dict",
        ),
        (lambda x: {"steps": {"a" if x < 2 else "b": np.zeros(3)}}, ValueError, "Element 2 .* have different leaves"),
        (lambda x: {"steps": {"a": np.zeros((2, 2 + x))}}, ValueError, "Element 1 .* Give all episodes the same"),
        (lambda x: {"steps": {"a": np.zeros(2, complex)}}, TypeError, "should be numbers, bytes or strings"),
    ],
)
def test_what_is_no_episode_is_named(tmp_path, make, error, words):
    with pytest.raises(error, match=words):
        MapDataset.range(3).map(make).save(tmp_path / "arm", format="rlds")
    assert [name for name in os.listdir(tmp_path / "arm") if "train" in name] == []


def test_no_episodes_are_no_data_set(tmp_path):
    with pytest.raises(ValueError, match="The pipeline has no episodes"):
        MapDataset.range(0).map(episode).save(tmp_path / "arm", format="rlds")
