"""Robot data sets by path: the same format, episodes and facts on disk, in stores and behind a web server."""

from __future__ import annotations

import shutil

import fsspec
import h5py
import numpy as np
import pytest
from helpers.example_datasets import write_episodes
from helpers.servers import BUCKET, Web, s3

from bushel._src import cli
from bushel._src.inspection.inspector import inspect_target
from bushel._src.trajectory.episode_builder import detect_kind, find_kind
from bushel._src.view.panels import robots
from bushel._src.view.session import Query
from bushel._src.view.targets import open_session

KINDS = {
    "lerobot": "lerobot",
    "rlds/mine": "rlds",
    "rlds/mine/1.0.0": "rlds",
    "robomimic.hdf5": "robomimic",
    "npz": "npz",
    "npz_splits": "npz",
    "aloha": "aloha",
    "aloha/episode_0.hdf5": "aloha",
}
LISTED = {"rlds/mine", "npz", "npz_splits", "aloha"}
"""Which a web server cannot serve, since their files must be listed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robots")
    write_episodes(folder)
    for number in range(3):
        split = folder / "npz_splits" / ("train" if number else "val")
        split.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "npz" / f"{number}.npz", split)
        (folder / "aloha").mkdir(exist_ok=True)
        with h5py.File(folder / "aloha" / f"episode_{number}.hdf5", "w") as file:
            file["action"] = np.full((5 + number, 2), number, np.float32)
            file["observations/qpos"] = np.zeros((5 + number, 2), np.float32)
            file["observations/images/top"] = np.full((5 + number, 8, 8, 3), number, np.uint8)
    np.savez(folder / "arrays.npz", x=np.arange(3))
    (folder / "other").mkdir()
    np.savez(folder / "other" / "0.npz", x=np.arange(3))
    (folder / "empty.txt").write_text("")
    return folder


@pytest.fixture(scope="module")
def places(folder, tmp_path_factory):
    """The addresses of this folder: on disk, in S3, behind GCS's protocol, in a store of fsspec's, and on the web."""
    memory = fsspec.filesystem("memory")
    content = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with (
        s3(tmp_path_factory.mktemp("account")) as put,
        Web({f"/x/{key}": data for key, data in content.items()}) as web,
    ):
        for key, data in content.items():
            put(f"x/{key}", data)
            memory.pipe_file(f"/robots/{key}", data)
        yield {
            "file": f"file://{folder}",
            "s3": f"s3://{BUCKET}/x",
            "gs": f"gs://{BUCKET}/x",
            "memory": "memory://robots",
            "http": f"{web.url}/x",
        }
        memory.rm("/robots", recursive=True)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [(name, scheme) for name in KINDS for scheme in ("file", "s3", "memory", "http")] + [("rlds/mine", "gs")],
)
def test_a_data_set_is_the_same_wherever_it_lies(name, scheme, folder, places):
    url = f"{places[scheme]}/{name}"
    if scheme == "http" and name in LISTED:
        for use in (inspect_target, open_session, detect_kind):
            with pytest.raises(FileNotFoundError, match="a web server cannot list the files of a folder"):
                use(url)
        return
    assert find_kind(url) == find_kind(str(folder / name)) == KINDS[name]
    here, there = inspect_target(str(folder / name)), inspect_target(url)
    assert (there.format, there.count, there.splits, there.schema, there.details, there.damage) == (
        (here.format, here.count, here.splits, here.schema, here.details, [])
    )
    local, session = open_session(folder / name), open_session(f"{url}/" if name == "lerobot" else url)
    assert session.episodes is not None and session.last.length == local.last.length
    assert local.last.length is not None
    last = local.last.length - 1
    assert session.read(-1, last).error == ""
    query = Query({"index": str(last), "time": "3"})
    shown, expected = (robots.routes(one)["show"](query) for one in (session, local))
    for answer in (shown, expected):
        del answer["call"], answer["place"]["describe"]  # they name the path
    assert shown["robot"] and shown["actions"] and shown == expected


def test_what_is_something_else(folder, places):
    for scheme in ("file", "s3", "memory"):
        for name in ("other", "arrays.npz", "empty.txt", "missing", "missing.hdf5"):
            assert find_kind(f"{places[scheme]}/{name}") is None
    for name in ("arrays.npz", "empty.txt", "missing", "missing.hdf5", "lerobot.npz?signature=1"):
        assert find_kind(f"{places['http']}/{name}") is None
    with pytest.raises(FileNotFoundError, match=r"s3://bushels/x/missing\.hdf5 does not exist"):
        open_session(f"{places['s3']}/missing.hdf5")
    for use in (open_session, inspect_target):
        with pytest.raises(FileNotFoundError, match="s3://bushels/x/missing does not exist"):
            use(f"{places['s3']}/missing")


def test_the_commands_take_robot_data_in_a_store(places, capsys, tmp_path):
    url = f"{places['s3']}/npz"
    assert cli.main(["inspect", url]) == 0
    assert "npz episodes" in capsys.readouterr().out
    assert cli.main(["stats", url, "--quiet"]) == 0
    assert "action" in capsys.readouterr().out
    assert (
        cli.main(
            ["convert", f"{places['http']}/lerobot", str(tmp_path / "arm"), "--to", "rlds", "--workers", "1", "--quiet"]
        )
        == 0
    )
    assert "4 episodes" in capsys.readouterr().out


def test_a_store_that_refuses_is_named(places):
    with Web({"/x/b.npz": b"x"}, head=403, behave=lambda number: "denied") as web:
        for use in (find_kind, inspect_target, open_session):
            with pytest.raises(PermissionError, match=r"/x/pusht.* may not be read"):
                use(f"{web.url}/x/pusht")
