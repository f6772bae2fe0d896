"""Files for Rerun: what was written is read back with Rerun's own reader."""

import io
import os
import sys

import numpy as np
import pytest
from helpers.traceable_robots import (
    LENGTHS,
    SIZE,
    WORDS,
    actions,
    frame,
    keys,
    state,
    steps,
    write_all_formats,
    write_robot,
)
from PIL import Image

import bushel
from bushel import MapDataset
from bushel._src import cli
from bushel.trajectory import TrajectoryDataset, make_interleaved_dataset, open_episodes
from bushel.view import to_rerun

chunks = pytest.importorskip("rerun.chunk")


def read(path):
    """What a file holds: entity -> component -> {time: value}. Static components have the time None."""
    found = {}
    for chunk in chunks.RrdReader(path).stream():
        batch = chunk.to_record_batch()
        columns = dict(zip(batch.schema.names, batch.columns))
        times = next((columns[name].to_pylist() for name in ("step", "sample") if name in columns), None)
        for name, column in columns.items():
            if ":" not in name:
                continue
            values = found.setdefault(chunk.entity_path, {}).setdefault(name, {})
            for row, value in enumerate(column.to_pylist()):
                values[None if times is None else times[row]] = value
    return found


def decode(value):
    return np.array(Image.open(io.BytesIO(bytes(value[0]))))


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    return write_all_formats(tmp_path_factory.mktemp("formats"))


@pytest.mark.parametrize("kind", ["rlds", "npz", "lerobot"])
def test_episodes_are_read_back(tmp_path, formats, kind):
    name, folder = formats[kind]
    source = open_episodes(name, folder, format=kind).episodes("all")
    path = tmp_path / "arm.rrd"
    assert to_rerun(MapDataset.source(source), path, elements=[0, 2]).elements == 2
    found = read(path)
    root = "/arm" if kind == "lerobot" else "/arm/all"
    entities = {entity.removeprefix(f"{root}/") for entity in found if entity.startswith(root)}
    assert {entity.partition("/")[0] for entity in entities} == {"episode_0", "episode_2"}
    for episode in (0, 2):
        of = f"{root}/episode_{episode}"
        scalars = found[f"{of}/action/action"]["Scalars:scalars"]
        assert [scalars[step] for step in range(LENGTHS[episode])] == actions(0, episode, LENGTHS[episode]).tolist()
        scalars = found[f"{of}/observation/state"]["Scalars:scalars"]
        assert [scalars[step] for step in range(LENGTHS[episode])] == state(0, episode, LENGTHS[episode]).tolist()
        for number, camera in enumerate(("front", "wrist")):
            (entity,) = [e for e in found if e.startswith(f"{of}/camera/") and e.endswith(camera)]
            images = found[entity]["EncodedImage:blob"]
            assert sorted(images) == list(range(LENGTHS[episode]))
            for step, value in images.items():
                assert (decode(value) == frame(0, episode, step, number)).all()
            assert all(kind == ["image/png"] for kind in found[entity]["EncodedImage:media_type"].values())
        assert found[f"{of}/instruction"]["TextDocument:text"] == {0: [WORDS]}
    assert [store.application_id for store in chunks.RrdReader(path).blueprints()] == ["bushel"]


def test_samples_are_read_back_with_their_padding(tmp_path):
    robot = keys("arm", write_robot(tmp_path / "data", "arm"), tmp_path / "cache")
    ds = make_interleaved_dataset(
        [robot],
        train=True,
        traj_transform_kwargs={"window_size": 2, "action_horizon": 3},
        frame_transform_kwargs={"resize_size": SIZE},
        batch_size=4,
    ).dataset
    path = tmp_path / "samples.rrd"
    assert to_rerun(ds, path, elements=range(3)).elements == 12
    found = read(path)
    sample = 0
    for index in range(3):
        batch = ds[index]
        for row in range(4):
            tensor = found["/samples/chunk/action"]["Tensor:data"][sample][0]
            assert tensor["shape"] == [2, 3, 2]
            values = tensor["buffer"]
            written = np.array(values).reshape(2, 3, 2)
            mask = batch["action_pad_mask"][row]
            assert np.isnan(written[~mask]).all() and (written[mask] == batch["action"][row][mask]).all()
            _, episode, step = (int(x) for x in batch["observation"]["proprio_arm"][row, -1])
            image = found["/samples/camera/image_primary_slot_1"]["EncodedImage:blob"][sample]
            assert (decode(image) == frame(0, episode, step)).all()
            first = found["/samples/camera/image_primary_slot_0"]["EncodedImage:blob"].get(sample)
            assert (first is None) == (not batch["observation"]["timestep_pad_mask"][row, 0])
            text = found["/samples/instruction"]["TextDocument:text"][sample][0]
            assert text == f"episode {episode} of arm, step {step}\n\n{WORDS}"
            sample += 1


def test_images_that_are_files_stay_as_they_are(tmp_path):
    out = io.BytesIO()
    Image.fromarray(frame(0, 0, 0)).save(out, "JPEG")
    episode = steps(0, 0, 2)
    episode["observation"] = {"image_primary": np.array([out.getvalue(), b""], object)}
    path = tmp_path / "jpeg.rrd"
    to_rerun(TrajectoryDataset.from_trajectories([episode]).dataset, path)
    camera = read(path)["/episode_0/camera/image_primary"]
    assert {time: bytes(value[0]) for time, value in camera["EncodedImage:blob"].items()} == {0: out.getvalue()}
    assert camera["EncodedImage:media_type"] == {0: ["image/jpeg"]}


def test_depth_stays_depth(tmp_path):
    episode = steps(0, 0, 2)
    depth = np.stack([np.arange(24 * 32, dtype=np.uint16).reshape(24, 32, 1) + step for step in range(2)])
    episode["observation"] = {"depth_primary": depth, "state": state(0, 0, 2)}
    path = tmp_path / "depth.rrd"
    write_robot(tmp_path / "data", "arm")
    bushel.trajectory.write_rlds({"train": [{"steps": episode}]}, name="deep", data_dir=str(tmp_path))
    to_rerun(MapDataset.source(open_episodes("deep", str(tmp_path)).episodes("all")), path)
    camera = next(part for entity, part in read(path).items() if entity.endswith("camera/depth_primary"))
    assert sorted(camera["DepthImage:buffer"]) == [0, 1]
    written = np.frombuffer(bytes(camera["DepthImage:buffer"][1][0]), np.float32).reshape(24, 32)
    assert np.allclose(written, (depth[1, :, :, 0]) / 65535)


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "arm.rrd"
    with pytest.raises(ValueError, match="no robot data"):
        to_rerun(MapDataset.range(3), path)
    assert os.listdir(tmp_path) == []

    def fail(episode):
        raise ValueError("no such arm")

    with pytest.raises(ValueError, match=r"Element 0 cannot be read: .*no such arm"):
        to_rerun(TrajectoryDataset.from_trajectories([steps(0, 0, 2)]).dataset.map(fail), path)
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        to_rerun(MapDataset.range(3), tmp_path / "none" / "arm.rrd")
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        to_rerun(MapDataset.range(3), path)
    assert path.read_text() == "mine"


def test_the_command_view_writes_a_rerun_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "robot_script.py").write_text(
        "from helpers import traceable_robots\n"
        "from bushel.trajectory import TrajectoryDataset\n"
        "def make():\n"
        "    return TrajectoryDataset.from_trajectories([traceable_robots.steps(0, e, 3) for e in range(4)]).dataset\n"
    )
    assert cli.main(["view", "robot_script.py:make", "--rerun", "out.rrd", "--limit", "2", "--index", "1"]) == 0
    assert "2 elements in out.rrd" in capsys.readouterr().out
    found = read(tmp_path / "out.rrd")
    assert "/episode_1/action/action" in found and "/episode_2/action/action" in found
    assert not any(entity.startswith("/episode_0") for entity in found)
    assert cli.main(["view", "robot_script.py:make", "--index", "2", "--rerun"]) == 0
    assert "2 elements in robot_script.py.rrd" in capsys.readouterr().out  # to the end, and not over it
    assert cli.main(["view", "robot_script.py:make", "--rerun", "more.rrd", "--limit", "9"]) == 0
    assert "4 elements in more.rrd" in capsys.readouterr().out
