"""What writes files returns one dataclass: where they are, how many elements are in them, how many were left out."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

import bushel
from bushel import MapDataset
from bushel.sources import convert

EPISODE = {"steps": {"action": np.zeros((4, 2), np.float32), "observation": {"state": np.zeros((4, 3), np.float32)}}}


def save(folder):
    return MapDataset.range(7).save(folder / "saved", shards=2), 7


def save_rlds(folder):
    return MapDataset.range(3).map(lambda x: EPISODE).save(folder / "arm", format="rlds"), 3


def convert_lines(folder):
    (folder / "in.txt").write_text("a\nb\nc\n")
    return convert(folder / "in.txt", folder / "out.bag", shards=2, workers=1), 3


def write_rlds(folder):
    splits = {"train": [EPISODE] * 2, "val": [EPISODE]}
    return bushel.trajectory.write_rlds(splits, name="arm", data_dir=folder), 3


def convert_episodes(folder):
    bushel.trajectory.write_rlds({"train": [EPISODE] * 2}, name="arm", data_dir=folder / "in")
    target = folder / "lerobot"
    return bushel.trajectory.convert_episodes(folder / "in" / "arm", target, format="lerobot", fps=10, workers=1), 2


@pytest.mark.parametrize("write", [save, save_rlds, convert_lines, write_rlds, convert_episodes])
def test_what_is_written_is_said(write, tmp_path):
    pytest.importorskip("pyarrow")
    written, count = write(tmp_path)
    assert type(written) is bushel.Written and (written.elements, written.skipped) == (count, 0)
    assert written.files and all(map(os.path.isfile, written.files))
    assert all(file.startswith(str(tmp_path)) for file in (written.path, *written.files))
    assert written.to_dict() == {**dataclasses.asdict(written), "files": list(written.files)}


def fail_at_3_and_8(x):
    if x in (3, 8) or (x == 9 and not os.environ.get("ALIVE")):
        raise (ValueError if x in (3, 8) else KeyboardInterrupt)(x)
    return x


@pytest.mark.parametrize("format", ["bag", "rlds"])
def test_skipped_elements_are_counted_also_after_a_stop_and_when_all_is_there(tmp_path, monkeypatch, format):
    def make(x):
        fail_at_3_and_8(x)
        return EPISODE if format == "rlds" else x

    stream = MapDataset.range(12).map(make).to_iter_dataset()
    ds = bushel.experimental.WithOptionsIterDataset(stream, bushel.experimental.DatasetOptions(on_error="skip"))
    monkeypatch.setattr("bushel._src.datasets.saving.SHARD_BYTES", 1)  # each element gets a file
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning):
        ds.save(tmp_path / "arm", format=format)
    monkeypatch.setenv("ALIVE", "1")
    for _ in range(2):
        written = ds.save(tmp_path / "arm", format=format)
        assert (written.elements, len(written.files), written.skipped) == (10, 10, 2)
        assert repr(written).endswith("arm: 10 elements in 10 files, 2 skipped)")


def test_the_arguments_of_write_rlds_cannot_be_swapped(tmp_path):
    with pytest.raises(TypeError, match=r'Write `write_rlds\(\{"train": episodes\}, name="arm", data_dir="data"\)`'):
        bushel.trajectory.write_rlds("arm", tmp_path, {"train": [EPISODE]})  # type: ignore[call-arg]
