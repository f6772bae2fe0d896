"""Shards of an RLDS data set, made of the rows of a table of episodes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import DamagedFile, writing
from bushel._src.sources.array_record import ArrayRecordDataSource
from bushel._src.sources.output_folders import Folder
from bushel._src.sources.record_writers import ArrayRecordWriter, TFRecordWriter
from bushel._src.sources.tfrecord import TFRecordDataSource
from bushel._src.trajectory.conversion.targets import Shard, Target
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.frame_columns import take_entries
from bushel._src.trajectory.rlds.episode_encoder import EpisodeEncoder
from bushel._src.trajectory.rlds.saved_episodes import name_data_set
from bushel._src.trajectory.rlds.writer import FEATURES, INFO, split_entry, write_info

_WRITERS: dict[str, Any] = {"tfrecord": TFRecordWriter, "array_record": ArrayRecordWriter}
_SOURCES: dict[str, Any] = {"tfrecord": TFRecordDataSource, "array_record": ArrayRecordDataSource}
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class RLDSTarget(Target):
    """An RLDS data set: records of episodes, `features.json`, and `dataset_info.json`, which is written last."""

    last_file = INFO

    def __init__(self, address: str, file_format: str, image_format: Any):
        checks.choice(file_format, _WRITERS, "file_format")
        EpisodeEncoder(image_format)  # which refuses unknown formats
        self._format, self._images = file_format, image_format
        self._name, self._version = name_data_set(address)

    def settings(self) -> Any:
        return ["rlds", self._format, self._images, self._name, self._version]

    def prepare(self, table: Episodes) -> Episodes:
        return table

    def belongs(self, name: str) -> bool:
        return name in (FEATURES, INFO) or bool(re.fullmatch(rf"{self._name}-\w+\.(tfrecord|array_record)-.*", name))

    def write_shard(self, table: Episodes, shard: Shard, folder: Folder, verify: bool) -> Iterator[tuple[int, Any]]:
        name = self._file_name(shard)
        encoder = EpisodeEncoder(self._images)
        digest, size, count = 0, 0, 0
        with folder.new_file(name) as path:
            with writing(folder.shown(name)):
                writer = _WRITERS[self._format](path, compress=False)
            try:
                for episode in range(shard.low, shard.high):
                    record = encoder.encode(make_episode(table, episode), shard.describe(episode))
                    with writing(folder.shown(name)):
                        writer.write(record)
                    digest, size, count = zlib.crc32(record, digest), size + len(record), count + 1
                    yield int(table.lengths[episode]), None
            finally:
                with writing(folder.shown(name)):
                    writer.close()
            if verify:
                self._verify(path, folder.shown(name), digest, count)
        yield 0, {"facts": encoder.facts(), "count": count, "size": size}

    def _file_name(self, shard: Shard) -> str:
        return f"{self._name}-{shard.split}.{self._format}-{shard.number:05d}-of-{shard.of:05d}"

    def _verify(self, path: str, shown: str, digest: int, count: int) -> None:
        options = {"verify": True} if self._format == "array_record" else {}
        source = _SOURCES[self._format](path, **options)
        found = 0
        for number in range(len(source)):
            found = zlib.crc32(source[number], found)
        if (len(source), found) != (count, digest):
            raise DamagedFile(f"{shown}: what was written is not what was read back. Is the disk full, or failing?")

    def finish(self, table: Episodes, shards: Sequence[Shard], facts: Sequence[Any], folder: Folder) -> None:
        encoder = EpisodeEncoder(self._images)
        encoder.restore(facts[0]["facts"])
        for entry in facts[1:]:
            encoder.merge(entry["facts"])
        splits = []
        for split in dict.fromkeys(shard.split for shard in shards):
            own = [entry for shard, entry in zip(shards, facts) if shard.split == split]
            size = sum(entry["size"] for entry in own)
            splits.append(split_entry(split, _TEMPLATE, [entry["count"] for entry in own], size))
        info = {"fileFormat": self._format, "name": self._name, "splits": splits, "version": self._version}
        write_info(folder, encoder, info)


def make_episode(table: Episodes, number: int) -> dict[str, Any]:
    """An episode of a table as RLDS has it: steps, with marks of the first and the last one, and metadata."""
    length = int(table.lengths[number])
    frames = table.starts[number] + np.arange(length)
    steps: dict[str, Any] = take_entries(table.columns, frames)
    steps.setdefault("is_first", np.arange(length) == 0)
    steps.setdefault("is_last", np.arange(length) == length - 1)
    metadata = take_entries(table.metadata, np.array([number]))
    once = _take_first(metadata)
    if once and "episode_metadata" not in once:
        once = {"episode_metadata": once}
    return {"steps": steps, **once}


def _take_first(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _take_first(entry) if isinstance(entry, Mapping) else entry[0] for name, entry in tree.items()}
