"""Writes RLDS data sets in TFDS's form: records, `features.json` and `dataset_info.json`. All of it, or nothing.

How episodes become records is in `rlds_columns.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterable, Mapping, Sized
from typing import Any, Literal

import numpy as np

from bushel.base import checks
from bushel.base.errors import writing
from bushel.base.progress import Progress
from bushel.sources import stores
from bushel.sources.stores import Path
from bushel.sources.writers import ArrayRecordWriter, TFRecordWriter, Writer
from bushel.trajectory.rlds_columns import Columns, ImageFormat
from bushel.trajectory.rlds_folders import is_version

_WRITERS: dict[str, type[ArrayRecordWriter] | type[TFRecordWriter]] = {
    "tfrecord": TFRecordWriter,
    "array_record": ArrayRecordWriter,
}
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def write_rlds(
    data_dir: Path,
    name: str,
    splits: Mapping[str, Iterable[Mapping[str, Any]]],
    *,
    version: str = "1.0.0",
    shards: int = 1,
    file_format: Literal["tfrecord", "array_record"] = "tfrecord",
    image_format: ImageFormat | Mapping[str, ImageFormat] = "png",
) -> str:
    """Writes episodes as an RLDS data set that `RLDSBuilder` and TFDS read. Returns its folder.

    An episode is `{"steps": tree, "episode_metadata": tree}`, and may have more entries beside these two. The arrays of
    the steps have a leading axis of steps; all episodes have the same leaves. Numbers are stored as TFDS stores them:
    float64 in the precision of float32. uint8 arrays of height x width x (1, 3 or 4) and uint16 arrays of height x
    width x 1 become encoded images. Encoded images that are given as bytes, or as handles, stay as they are; other
    bytes and strings are texts.

    The folder appears when it is complete.

    Args:
      data_dir: a local folder; the data set goes to data_dir/name/version.
      name: of the data set: letters, digits and underscores.
      splits: the episodes of each split; with several shards something that has a length.
      version: three numbers.
      shards: files for each split, with consecutive episodes; never more than there are episodes.
      file_format: "tfrecord", of which single frames can be read, or "array_record", of which only whole episodes can
        (and which the package array_record writes).
      image_format: "png" or "jpeg", for all arrays that are images or for each of them ("observation/image").

    >>> import tempfile
    >>> from bushel.trajectory.rlds import RLDSBuilder
    >>> episode = {"steps": {"action": np.zeros((5, 2), np.float32)}, "episode_metadata": {"success": True}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds(folder, "mine", {"train": [episode, episode]})
    ...     RLDSBuilder("mine", folder)
    RLDSBuilder(mine 1.0.0; train: 2)
    """
    _check(name, splits, version, file_format)
    shards = checks.positive(shards, "shards")
    parent = os.path.join(stores.local(data_dir), name)
    folder = os.path.join(parent, version)
    if os.path.exists(folder):
        raise FileExistsError(f"{folder} is there already. Remove it, or write another version.")
    temporary = f"{folder}.{os.getpid()}-{threading.get_ident()}.part"
    os.makedirs(temporary)
    try:
        columns = Columns(image_format)
        entries = [
            _written(temporary, name, split, episodes, shards, file_format, columns)
            for split, episodes in splits.items()
        ]
        info = {"fileFormat": file_format, "name": name, "splits": entries, "version": version}
        for file, content in (("features.json", columns.features()), ("dataset_info.json", info)):
            path = os.path.join(temporary, file)
            with writing(path), open(path, "w", encoding="utf-8") as output:
                json.dump(content, output, indent=2)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(parent)  # where nothing else is in it
        raise
    return folder


def _check(name: str, splits: Mapping[str, Any], version: str, file_format: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"The name of a data set has letters, digits and underscores, got {name!r}.")
    if not splits:
        raise ValueError("There are no splits: pass episodes as {'train': [...]}.")
    for split in splits:
        if not re.fullmatch(r"\w+", split) or split == "all":
            raise ValueError(
                f"The name of a split has letters, digits and underscores, and is not 'all', got {split!r}."
            )
    if not is_version(version):
        raise ValueError(f"A version is three numbers such as '1.0.0', got {version!r}.")
    if file_format not in _WRITERS:
        raise ValueError(f"file_format is one of {', '.join(map(repr, _WRITERS))}, got {file_format!r}.")


def _written(
    folder: str,
    name: str,
    split: str,
    episodes: Iterable[Mapping[str, Any]],
    shards: int,
    file_format: str,
    columns: Columns,
) -> dict[str, Any]:
    """Writes the files of a split; returns its entry in `dataset_info.json`."""
    total = len(episodes) if isinstance(episodes, Sized) else None
    if total is None and shards > 1:
        raise ValueError(
            f"{shards} shards of consecutive episodes need to know how many episodes there are. Pass the split "
            f"{split!r} as a list, or as anything that has a length, or pass shards=1."
        )
    shards = shards if total is None else min(shards, max(total, 1))
    ends = [] if total is None else np.linspace(0, total, shards + 1).astype(int)[1:-1].tolist()
    progress = Progress(f"writing {name}/{split}", total)
    counts, size, at = [0], 0, 0
    path = _shard_path(folder, name, split, file_format, 0, shards)
    writer = _opened(path, file_format)
    try:
        for number, episode in enumerate(episodes):
            if number in ends:
                with writing(path):
                    writer.close()
                at += 1
                path = _shard_path(folder, name, split, file_format, at, shards)
                writer = _opened(path, file_format)
                counts.append(0)
            record = columns.record(episode, f"episode {number} of {split!r}")
            with writing(path):
                writer.write(record)
            counts[-1] += 1
            size += len(record)
            progress.show(number + 1)
        with writing(path):
            writer.close()
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first is what matters
            writer.close()
        raise
    progress.end()
    if not sum(counts):
        raise ValueError(f"The split {split!r} has no episodes. Leave it out.")
    lengths = [str(count) for count in counts]
    return {"filepathTemplate": _TEMPLATE, "name": split, "numBytes": str(size), "shardLengths": lengths}


def _shard_path(folder: str, name: str, split: str, file_format: str, shard: int, shards: int) -> str:
    return os.path.join(folder, f"{name}-{split}.{file_format}-{shard:05d}-of-{shards:05d}")


def _opened(path: str, file_format: str) -> Writer:
    with writing(path):
        return _WRITERS[file_format](path, compress=False)
