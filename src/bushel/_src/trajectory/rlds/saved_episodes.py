"""`ds.save(folder, format="rlds")`: writes the episodes of a pipeline as an RLDS data set with one split.

`saving.py` decides which files are written when, and where a stopped run goes on. `episode_encoder.py` encodes episodes
as records.
"""

from __future__ import annotations

import re
from typing import Any

from bushel._src.base import redact
from bushel._src.datasets.saving import Files, Form
from bushel._src.sources.output_folders import Folder
from bushel._src.sources.record_writers import TFRecordWriter
from bushel._src.trajectory.rlds.dataset_folder import is_version
from bushel._src.trajectory.rlds.episode_encoder import EpisodeEncoder
from bushel._src.trajectory.rlds.writer import FEATURES, INFO, split_entry, write_info

SPLIT = "train"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
"""Without the number of files, which is unknown until the last element."""


def form(folder: str) -> Form:
    """The format for a folder. The path of the folder gives the name of the data set: "arm", or "arm/1.0.0"."""
    return _Episodes(*name_data_set(folder))


def name_data_set(folder: str) -> tuple[str, str]:
    """The name and the version of the data set in a folder, by the folder's name.

    >>> name_data_set("data/arm"), name_data_set("data/arm/2.0.0")
    (('arm', '1.0.0'), ('arm', '2.0.0'))
    """
    above, _, last = redact.remove_query(folder).rstrip("/").rpartition("/")
    version = last if is_version(last) else "1.0.0"
    name = re.sub(r"\W", "_", above.rpartition("/")[2] if is_version(last) else last, flags=re.ASCII)
    return (name if re.match(r"[A-Za-z_]", name) else f"_{name}"), version


class _Episodes(Form):
    def __init__(self, name: str, version: str):
        self._name, self._version = name, version
        self._columns = EpisodeEncoder("png")

    @property
    def layout(self) -> Any:
        return self._columns.facts()

    @layout.setter
    def layout(self, facts: Any) -> None:
        self._columns.restore(facts)

    def file_name(self, number: int) -> str:
        return f"{self._name}-{SPLIT}.tfrecord-{number:05d}"

    def belongs(self, name: str) -> bool:
        return name in (FEATURES, INFO) or name.startswith(f"{self._name}-{SPLIT}.tfrecord-")

    def open(self, path: str, first: Any) -> _EpisodeFile:
        return _EpisodeFile(TFRecordWriter(path, compress=False), self._columns)

    def finish(self, folder: Folder, files: Files, identity: str, skipped: int) -> None:
        if not files.names:
            raise ValueError("The pipeline has no episodes, but an RLDS data set needs at least one.")
        split = split_entry(SPLIT, _TEMPLATE, files.counts, sum(files.sizes))
        info = {"fileFormat": "tfrecord", "name": self._name, "splits": [split], "version": self._version}
        write_info(folder, self._columns, info)


class _EpisodeFile:
    """Encodes episodes as records and writes them to a TFRecord file."""

    def __init__(self, writer: TFRecordWriter, columns: EpisodeEncoder):
        self._writer, self._columns = writer, columns

    def write(self, element: Any) -> int:
        record = self._columns.encode(element, "the episode")
        self._writer.write(record)
        return len(record)

    def close(self) -> None:
        self._writer.close()
