"""HDF5 files that name other files of the machine: refused by name, and read only if the user allows it."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from bushel._src.trajectory import array_episodes
from bushel.sources import HDF5DataSource


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "private.bin").write_bytes(np.arange(6, dtype=np.int64).tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(6)
        file["demos/demo_0/x"] = np.arange(6)
    return tmp_path


def external_storage(file, folder):
    file.create_dataset("data/demo_0/x", (6,), np.int64, external=str(folder / "private.bin"))


def external_link(file, folder):
    file["data/demo_0/x"] = h5py.ExternalLink(str(folder / "other.h5"), "x")


def soft_link_to_an_external_link(file, folder):
    file["hidden"] = h5py.ExternalLink(str(folder / "other.h5"), "/")
    file["data/demo_0/x"] = h5py.SoftLink("/hidden/x")


def virtual(file, folder):
    layout = h5py.VirtualLayout((6,), np.int64)
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", (6,))
    file.create_virtual_dataset("data/demo_0/x", layout)


def virtual_of_external_storage(file, folder):
    file.create_dataset("below/x", (6,), np.int64, external=str(folder / "private.bin"))
    layout = h5py.VirtualLayout((6,), np.int64)
    layout[:] = h5py.VirtualSource(".", "below/x", (6,))
    file.create_virtual_dataset("data/demo_0/x", layout)


def virtual_through_a_link(file, folder):
    file["hidden"] = h5py.ExternalLink(str(folder / "other.h5"), "/")
    layout = h5py.VirtualLayout((6,), np.int64)
    layout[:] = h5py.VirtualSource(".", "hidden/x", (6,))
    file.create_virtual_dataset("data/demo_0/x", layout)


WAYS = [
    external_storage,
    external_link,
    soft_link_to_an_external_link,
    virtual,
    virtual_of_external_storage,
    virtual_through_a_link,
]
SAYS = r"bad\.h5: .*(private\.bin|other\.h5).*Bushel does not follow such names.*allow_other_files=True"


@pytest.mark.parametrize("way", WAYS)
def test_a_dataset_in_another_file_is_refused_unless_it_is_allowed(folder, way):
    with h5py.File(folder / "bad.h5", "w") as file:
        way(file, folder)
    name = "data/demo_0/x"
    with pytest.raises(ValueError, match=SAYS):
        HDF5DataSource(folder / "bad.h5", columns=[name])
    with pytest.raises(ValueError, match=SAYS):
        HDF5DataSource(folder / "bad.h5", columns=["x"], group="data/*")[0]
    assert [row[name] for row in HDF5DataSource(folder / "bad.h5", columns=[name], allow_other_files=True)] == list(
        range(6)
    )
    found = HDF5DataSource(folder / "bad.h5", columns=["x"], group="data/*", allow_other_files=True)[0]
    assert found["x"].tolist() == list(range(6))


@pytest.mark.parametrize("way", [external_storage, virtual, virtual_of_external_storage])
def test_all_datasets_are_checked_where_none_is_named(folder, way):
    with h5py.File(folder / "bad.h5", "w") as file:
        way(file, folder)
    with pytest.raises(ValueError, match=SAYS):
        HDF5DataSource(folder / "bad.h5")


def test_a_group_in_another_file_is_refused(folder):
    with h5py.File(folder / "bad.h5", "w") as file:
        file["data"] = h5py.ExternalLink(str(folder / "other.h5"), "demos")
        file["soft"] = h5py.SoftLink("/data")
    for pattern in ("data/*", "soft/*"):
        with pytest.raises(ValueError, match=SAYS):
            HDF5DataSource(folder / "bad.h5", group=pattern)
        assert len(HDF5DataSource(folder / "bad.h5", group=pattern, allow_other_files=True)) == 1


def test_links_and_virtual_datasets_inside_the_file_are_read(folder):
    with h5py.File(folder / "good.h5", "w") as file:
        file["x"] = np.arange(6)
        file["hard"], file["soft"] = file["x"], h5py.SoftLink("/x")
        layout = h5py.VirtualLayout((6,), np.int64)
        layout[:3] = h5py.VirtualSource(".", "x", (6,))[3:]
        layout[3:] = h5py.VirtualSource(".", "x", (6,))[:3]
        file.create_virtual_dataset("virtual", layout)
    source = HDF5DataSource(folder / "good.h5", columns=["x", "hard", "soft", "virtual"])
    assert source[1] == {"x": 1, "hard": 1, "soft": 1, "virtual": 4}


@pytest.mark.parametrize("way", [external_storage, external_link, virtual])
def test_episodes_of_robots_are_not_read_from_other_files(folder, way):
    with h5py.File(folder / "bad.h5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((6, 2))
        way(file, folder)
    if way is external_link:  # a visit leaves links out
        builder = array_episodes.open_robomimic("bad", folder)
        assert "x" not in str(builder)
        return
    with pytest.raises(ValueError, match=r"bad\.h5: .*(private\.bin|other\.h5)"):
        array_episodes.open_robomimic("bad", folder)
    with h5py.File(folder / "bad.h5", "w") as file:
        way(file, folder)
        file.move("data/demo_0/x", "action")
    with pytest.raises(ValueError, match=r"bad\.h5: .*(private\.bin|other\.h5)"):
        array_episodes.open_aloha("bad", folder).episodes()[0]
