"""LeRobot data sets of lerobot itself, and its answers: pixels, masks, numbers and tasks are equal to the last bit.

`golden/lerobot.tar.xz` holds data sets that lerobot 0.3.3 and 0.4.4 wrote, and what they answered to queries.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.golden_trajectories import GOLDEN
from helpers.lerobot_folders import read_row

from bushel.trajectory import LeRobotSource

NAMES = ("lerobot_v30_h264", "lerobot_v30_av1", "lerobot_v21_h264", "lerobot_v21_av1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("lerobot")
    with tarfile.open(GOLDEN / "lerobot.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place


def opened(folder: Path, name: str, query: dict[str, Any], **options: Any) -> LeRobotSource:
    asked = {"delta_timestamps": query["delta_timestamps"], "episodes": query["episodes"]}
    return LeRobotSource(folder / name, **asked, cache_dir=folder / "cache", **options)


def list_queries(folder: Path, name: str) -> list[dict[str, Any]]:
    return json.loads((folder / "expected" / f"{name}.json").read_text())["queries"]


def expect(arrays: Any, query: dict[str, Any], key: str) -> np.ndarray:
    fact = query["keys"][key]
    if "frames" in fact:
        return arrays[fact["frames"]][arrays[f"{query['id']}/{key}"]]
    if "value" in fact:
        return np.array(fact["value"], fact["dtype"])
    return arrays[f"{query['id']}/{key}"]


@pytest.mark.parametrize("name", NAMES)
def test_all_answers_of_lerobot(folder, name):
    arrays = dict(np.load(folder / "expected" / f"{name}.npz"))
    answered = 0
    for query in list_queries(folder, name):
        if query.get("raises_at") == "construction":
            with pytest.raises(ValueError, match="is not a multiple of 1 / fps"):
                opened(folder, name, query)
            continue
        source = opened(folder, name, query)
        assert len(source) == query.get("len_dataset", len(source))
        element = source[query["index"]]
        for key, rows in query["rows"].items():
            images = element[key].reshape(-1, *element[key].shape[-3:])
            assert [read_row(image) for image in images] == rows
        if "error" in query:
            continue
        assert {key: element[key] for key in query["strings"]} == query["strings"]
        assert element.keys() == query["keys"].keys() | query["strings"].keys()
        for key, fact in query["keys"].items():
            np.testing.assert_array_equal(element[key], expect(arrays, query, key), err_msg=f"{query['id']} {key}")
            if "dtype" in fact:
                assert (str(element[key].dtype), list(element[key].shape)) == (fact["dtype"], fact["shape"])
        answered += 1
    assert answered >= 15


def test_a_batch_equals_its_rows_and_float_images_are_those_of_lerobot(folder):
    query = next(q for q in list_queries(folder, NAMES[0]) if q["delta_timestamps"] and q["episodes"] is None)
    source = opened(folder, NAMES[0], query)
    rows = [5, 63, 0, 5, 17, 46]
    batch = source.__getitems__(rows).tree
    floats = opened(folder, NAMES[0], query, float_images=True).__getitems__(rows).tree
    for place, row in enumerate(rows):
        element = source[row]
        assert element.keys() == batch.keys()
        for key, value in element.items():
            np.testing.assert_array_equal(batch[key][place], value)
    for key in ("observation.images.front", "observation.images.tactile"):
        assert floats[key].dtype == np.float32
        np.testing.assert_array_equal(floats[key], np.moveaxis(batch[key], -1, -3) / np.float32(255))


@pytest.mark.parametrize("name", NAMES)
def test_meta_is_read_as_lerobot_reads_it(folder, name):
    source = LeRobotSource(folder / name, cache_dir=folder / "cache")
    assert (source.fps, source.episodes, source.lengths.tolist()) == (10.0, [0, 1, 2, 3], [12, 5, 30, 17])
    assert source.tasks == {0: "pick up the red cube", 1: "put the cube in the left bin"}
    assert source.folder.splits == {"train": [0, 1, 2, 3]}
    assert source.features["observation.images.tactile"].shape == (24, 32, 3)
    states = source.__getitems__(range(64)).tree["observation.state"]
    statistics = source.statistics()["observation.state"]
    np.testing.assert_allclose(statistics["mean"], states.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(statistics["std"], states.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose([statistics["min"], statistics["max"]], [states.min(axis=0), states.max(axis=0)])
    assert statistics["count"].tolist() == [64]
