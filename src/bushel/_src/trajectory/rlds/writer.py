"""Writes RLDS data sets as TFDS does: files of records, `features.json` and `dataset_info.json`.

`episode_encoder.py` encodes episodes as records. `dataset_info.json` is written last: without it, no reader recognizes
a data set, so an unfinished one is never read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import writing
from bushel._src.base.hints import explains_arguments
from bushel._src.base.progress import Progress
from bushel._src.base.public import public
from bushel._src.base.written import Written
from bushel._src.sources import output_folders
from bushel._src.sources.output_folders import Folder
from bushel._src.sources.paths import Options, Path, normalize_path
from bushel._src.sources.record_writers import ArrayRecordWriter, TFRecordWriter
from bushel._src.trajectory.rlds.dataset_folder import is_version
from bushel._src.trajectory.rlds.episode_encoder import EpisodeEncoder, ImageFormat

_WRITERS: dict[str, type[ArrayRecordWriter] | type[TFRecordWriter]] = {
    "tfrecord": TFRecordWriter,
    "array_record": ArrayRecordWriter,
}
FEATURES, INFO = "features.json", "dataset_info.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@public("bushel.trajectory")
@explains_arguments('Write `write_rlds({"train": episodes}, name="arm", data_dir="data")`.')
def write_rlds(
    splits: Mapping[str, Iterable[Mapping[str, Any]]],
    *,
    name: str,
    data_dir: Path,
    version: str = "1.0.0",
    shards: int = 1,
    file_format: Literal["tfrecord", "array_record"] = "tfrecord",
    image_format: ImageFormat | Mapping[str, ImageFormat] = "png",
    storage_options: Options | None = None,
) -> Written:
    """Writes episodes as an RLDS data set that `RLDSBuilder` and TFDS read.

    An episode is `{"steps": tree, "episode_metadata": tree}`, and may have more entries. The arrays in `steps` have a
    leading axis of steps. All episodes have the same leaves. Numbers are stored as TFDS stores them: float64 with the
    precision of float32. uint8 arrays of height x width x (1, 3 or 4) and uint16 arrays of height x width x 1 are
    encoded as images. Images that are encoded already (bytes, or handles of images in files) are not changed; other
    bytes and strings are texts.

    A local folder gets its name when it is complete. In a store, `dataset_info.json` is written last; without it the
    other files cannot be opened. If writing fails, the files are removed. Files that a killed process has left are
    removed when the same data set is written again. Let only one process write to an address: a store has no locks.

    Args:
      splits: the episodes of each split. With several shards, a split must have a length.
      name: the name of the data set: letters, digits and underscores.
      data_dir: a local folder, or an address such as "s3://bucket/data". The data set is written to
        data_dir/name/version. A file for a store is first written to the folder for temporary files, which needs room
        for one shard.
      version: three numbers, such as "1.0.0".
      shards: the number of files for each split, with consecutive episodes; at most the number of episodes.
      file_format: "tfrecord", from which single frames can be read, or "array_record", from which only whole episodes
        can be read, and which needs the package array_record.
      image_format: "png" or "jpeg", for all arrays that are images, or for each of them ("observation/image").
      storage_options: options of the store that holds data_dir.

    >>> import tempfile
    >>> from bushel._src.trajectory.rlds import RLDSBuilder
    >>> episode = {"steps": {"action": np.zeros((5, 2), np.float32)}, "episode_metadata": {"success": True}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds({"train": [episode, episode]}, name="mine", data_dir=folder)
    ...     RLDSBuilder("mine", folder)
    RLDSBuilder(mine 1.0.0; train: 2)
    """
    _check(name, splits, version, file_format)
    shards, columns = checks.positive(shards, "shards"), EpisodeEncoder(image_format)
    folder = output_folders.open_folder(
        output_folders.join_path(normalize_path(data_dir), f"{name}/{version}"), storage_options
    )

    def belongs(file: str) -> bool:
        shard = rf"{name}-\w+\.({'|'.join(_WRITERS)})-\d+-of-\d+"
        return file in (FEATURES, INFO) or re.fullmatch(shard, file) is not None

    with folder.filling(INFO, belongs) as filled:
        entries = [
            _written(filled, name, split, episodes, shards, file_format, columns) for split, episodes in splits.items()
        ]
        write_info(filled, columns, {"fileFormat": file_format, "name": name, "splits": entries, "version": version})
    files = tuple(map(folder.path, filter(belongs, folder.names())))
    return Written(folder.address, files, sum(int(count) for entry in entries for count in entry["shardLengths"]))


def write_info(folder: Folder, columns: EpisodeEncoder, info: Mapping[str, Any]) -> None:
    """Writes the two files that make a folder of records a data set."""
    for file, content in ((FEATURES, columns.features()), (INFO, info)):
        folder.write(file, json.dumps(content, indent=2).encode())


def _check(name: str, splits: Mapping[str, Any], version: str, file_format: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"The name of a data set may have letters, digits and underscores, got {name!r}.")
    if not splits:
        raise ValueError("splits is empty: pass episodes as {'train': [...]}.")
    for split in splits:
        if not re.fullmatch(r"\w+", split) or split == "all":
            raise ValueError(
                f"The name of a split may have letters, digits and underscores, and must not be 'all', got {split!r}."
            )
    if not is_version(version):
        raise ValueError(f"version must be three numbers such as '1.0.0', got {version!r}.")
    checks.choice(file_format, _WRITERS, "file_format")


def _written(
    folder: Folder,
    name: str,
    split: str,
    episodes: Iterable[Mapping[str, Any]],
    shards: int,
    file_format: str,
    columns: EpisodeEncoder,
) -> dict[str, Any]:
    """Writes the files of a split. Returns its entry in `dataset_info.json`."""
    total = len(episodes) if isinstance(episodes, Sized) else None
    if total is None and shards > 1:
        raise ValueError(
            f"To write {shards} shards of consecutive episodes, the number of episodes must be known. Pass the split "
            f"{split!r} as a list, or as another object with a length, or pass shards=1."
        )
    shards = shards if total is None else min(shards, max(total, 1))
    ends = [] if total is None else np.linspace(0, total, shards + 1).astype(int)[1:-1].tolist()
    progress = Progress(f"writing {name}/{split}", total, unit="episodes")
    left = enumerate(episodes)
    counts, size = [], 0
    for shard, end in enumerate([*ends, None]):
        file = f"{name}-{split}.{file_format}-{shard:05d}-of-{shards:05d}"
        with folder.new_file(file) as path, _opened(path, folder.shown(file), file_format) as write:
            counts.append(0)
            for number, episode in left if end is None else itertools.islice(left, end - sum(counts)):
                record = columns.encode(episode, f"episode {number} of {split!r}")
                write(record)
                counts[-1] += 1
                size += len(record)
                progress.show(number + 1)
    progress.end()
    if not sum(counts):
        raise ValueError(f"The split {split!r} has no episodes. Leave it out.")
    return split_entry(split, _TEMPLATE, counts, size)


def split_entry(split: str, template: str, counts: Iterable[int], size_bytes: int) -> dict[str, Any]:
    """The entry of a split in `dataset_info.json`."""
    lengths = [str(count) for count in counts]
    return {"filepathTemplate": template, "name": split, "numBytes": str(size_bytes), "shardLengths": lengths}


@contextlib.contextmanager
def _opened(path: str, shown: str, file_format: str) -> Iterator[Callable[[bytes], None]]:
    """A new file of records, as a function that writes a record."""
    with writing(shown):
        writer = _WRITERS[file_format](path, compress=False)

    def write(record: bytes) -> None:
        with writing(shown):
            writer.write(record)

    try:
        yield write
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is reported, not one of the clean-up
            writer.close()
        raise
    with writing(shown):
        writer.close()
