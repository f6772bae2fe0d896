"""One small data set of each format that Bushel reads, written by the format's own writer."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import h5py
import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from safetensors.numpy import save_file

import bushel
from bushel._src.trajectory.episode_conversion import convert_episodes
from bushel.sources import encode_example
from helpers.record_formats import array_record, bag, tfrecord

RECORDS = [random.Random(number).randbytes(20 + number * 13 % 3_000) for number in range(60)]
EXAMPLES = [encode_example({"x": [1, 2], "image": b"\xff\xd8\xff" + record, "y": 0.5}) for record in RECORDS]
JPEG = ("image", "bytes")


def write_all(folder: Path) -> None:
    """Writes all of them into a folder."""
    array_record("group_size:1,uncompressed")(folder / "a.array_record", RECORDS)
    for number in range(3):
        tfrecord(folder / f"e.tfrecord-0000{number}-of-00003", EXAMPLES[number * 20 : number * 20 + 20])
    (folder / "c.tfrecord.gz").write_bytes(gzip.compress((folder / "e.tfrecord-00000-of-00003").read_bytes()))
    bag(folder / "b.bagz", RECORDS)
    (folder / "x.jsonl").write_text("".join(json.dumps({"a": n, "b": {"c": "x"}}) + "\n" for n in range(50)))
    (folder / "x.csv").write_text("name,age\n" + "".join(f"x,{n}\n" for n in range(50)))
    (folder / "x.txt").write_text("one\ntwo\n")
    pq.write_table(pa.table({"id": list(range(1000)), "text": ["a"] * 1000}), folder / "t.parquet", row_group_size=100)
    with pa.ipc.new_file(folder / "a.arrow", pa.schema([("id", pa.int64())])) as writer:
        writer.write_table(pa.table({"id": list(range(10))}))
    lance.write_dataset(pa.table({"id": list(range(100)), "v": [0.5] * 100}), str(folder / "l.lance"))
    np.save(folder / "x.npy", np.zeros((10, 3)))
    np.savez_compressed(folder / "x.npz", a=np.zeros((10, 3)), b=np.zeros(10, np.int8))
    save_file({"w": np.zeros((3, 4), np.float32)}, folder / "w.safetensors")
    with h5py.File(folder / "h.h5", "w") as file:
        images = np.random.default_rng(0).integers(0, 255, (20, 8, 8, 3), np.uint8)
        file.create_dataset("images", data=images, chunks=(5, 8, 8, 3), compression="gzip", fletcher32=True)
        file["labels"] = np.arange(20)
    group = zarr.open_group(str(folder / "z.zarr"), mode="w")
    group.create_array("x", data=np.zeros((30, 4), np.float32), chunks=(10, 4))
    saved = bushel.MapDataset.range(30).map(lambda x: {"x": np.full(3, x), "name": str(x)})
    saved.save(folder / "saved", format="bagz", shards=2)
    with tarfile.open(folder / "w.tar", "w") as tar:
        for number in range(6):
            for ending, content in (("cls", b"3"), ("png", b"\x89PNG\r\n\x1a\nxx")):
                member = tarfile.TarInfo(f"s{number}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    (folder / "pictures" / "cat").mkdir(parents=True)
    (folder / "pictures" / "cat" / "1.png").write_bytes(b"x")
    (folder / "pictures" / "2.jpg").write_bytes(b"xx")
    write_episodes(folder)


def write_episodes(folder: Path) -> None:
    """The same robot data set in each format of episodes."""
    rng = np.random.default_rng(0)
    (folder / "npz").mkdir()
    with h5py.File(folder / "robomimic.hdf5", "w") as file:
        for number in range(4):
            steps = 5 + number
            state = rng.random((steps, 3)).astype(np.float32)
            actions = rng.random((steps, 2)).astype(np.float32)
            text = ["open the drawer", "close it"][number % 2]
            np.savez(folder / "npz" / f"{number}.npz", state=state, action=actions, language_instruction=text)
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"], demo["obs/state"] = actions, state
            demo["obs/agentview_image"] = np.zeros((steps, 16, 16, 3), np.uint8)
            demo.attrs["num_samples"] = steps
    convert_episodes(folder / "npz", folder / "rlds" / "mine", format="rlds", shards=2, progress=False)
    convert_episodes(folder / "npz", folder / "lerobot", format="lerobot", fps=10, robot_type="arm", progress=False)
