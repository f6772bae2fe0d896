"""`RLDSBuilder` and `RLDSEpisodes`: the episodes of an RLDS data set that TFDS has prepared, without TensorFlow.

An index of the files, made once, has the lengths of the episodes and the places of their images.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import io
import json
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from bushel._src.base import checked_files, checks, redact
from bushel._src.base.errors import BushelWarning, DamagedFile
from bushel._src.base.public import public
from bushel._src.base.shown_text import Progress, Shown
from bushel._src.base.state_names import in_states
from bushel._src.sources import folders, protocol_buffers
from bushel._src.sources.folders import Folder
from bushel._src.sources.paths import Options, Path, get_cache_folder, is_url
from bushel._src.sources.protocol_buffers import Located, locate_example
from bushel._src.sources.record_files import JoinedRecords
from bushel._src.sources.tfds import FORMATS, read_json, shard_lengths, shard_names, split_entries
from bushel._src.trajectory.data_utils import nest_leaves, to_objects
from bushel._src.trajectory.encoded_images import Encoded, RecordSpans
from bushel._src.trajectory.episode_builder import EpisodeBuilder, EpisodeSource, parse_split
from bushel._src.trajectory.rlds.dataset_folder import EpisodeFeatures, FeatureLeaf, Values, find_folder, parse_features

_FORMAT = 2
_THREADS = 8


@dataclasses.dataclass(frozen=True)
class EpisodeIndex:
    """The lengths of episodes and the places of their entries, in the order of their records.

    Attributes:
      lengths: the number of steps of each episode.
      rest_counts: the number of ranges of each record that hold entries other than images.
      rest: these ranges, as (start, size) in the record, int64.
      images: for each leaf that is an image, the places of the images of all steps of all episodes, as (start, size) in
        the record, int64.
    """

    lengths: np.ndarray
    rest_counts: np.ndarray
    rest: np.ndarray
    images: Mapping[str, np.ndarray]

    @functools.cached_property
    def first_frames(self) -> np.ndarray:
        """The number of the first step of each episode among all steps, and the number of all steps."""
        return np.concatenate(([0], np.cumsum(self.lengths)))

    @functools.cached_property
    def first_rest(self) -> np.ndarray:
        """The number of the first range of each record among all ranges, and the number of all ranges."""
        return np.concatenate(([0], np.cumsum(self.rest_counts)))


def join_indices(parts: Sequence[EpisodeIndex]) -> EpisodeIndex:
    """Return the indices of several files as one index."""
    if len(parts) == 1:
        return parts[0]
    return EpisodeIndex(
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.rest_counts for part in parts]),
        np.concatenate([part.rest for part in parts]),
        {name: np.concatenate([part.images[name] for part in parts]) for name in parts[0].images},
    )


def count_stored_steps(values: Values, features: EpisodeFeatures) -> int:
    """Return the number of steps of an episode, from the first leaf whose stored values determine it."""
    counts = (values.count_steps(leaf) for leaf in features.steps)
    return next((count for count in counts if count is not None), 0)


def index_episodes(
    source: JoinedRecords,
    features: EpisodeFeatures,
    *,
    progress: Shown = True,
    cache_dir: Path | None = None,
    storage_options: Options | None = None,
) -> EpisodeIndex:
    """Return the index of all records of a source. The index of a file comes from the cache, or the file is read."""
    folder = folders.open_folder(cache_dir or os.path.join(get_cache_folder(), "rlds"), storage_options)
    files = [source.file(number) for number in range(len(source.paths))]
    names = [f"{_name_index(file, features)}.npz" for file in files]
    known = [_load(folder, name, len(file), features) for name, file in zip(names, files)]
    if all(part is not None for part in known):
        return join_indices([part for part in known if part is not None])
    bar = Progress("index of episodes", len(source), unit="episodes", shown=progress)
    done, indices = 0, []
    with bar, concurrent.futures.ThreadPoolExecutor(min(_THREADS, 2 * (os.cpu_count() or 1))) as pool:
        for file, name, part in zip(files, names, known):
            if part is None:
                part = _read_file(file, features, pool, bar, done)
                _save(folder, name, part)
            done += len(file)
            indices.append(part)
            bar.show(done)
    return join_indices(indices)


def _read_file(
    source: JoinedRecords,
    features: EpisodeFeatures,
    pool: concurrent.futures.ThreadPoolExecutor,
    bar: Progress,
    before: int,
) -> EpisodeIndex:
    """Return the index of one file, from all of its records."""

    def read_record(record: int) -> tuple[int, np.ndarray, list[np.ndarray]]:
        data = source[record]
        located = locate_example(data)
        values = Values(data, located, f"{redact.show(source.paths[0])}, record {record}")
        length = count_stored_steps(values, features)
        images = [values.frames(leaf, length) for leaf in features.images]
        return length, _find_rest(located, {leaf.stored_name for leaf in features.images}), images

    rows = []
    try:
        for row in pool.map(read_record, range(len(source))):
            rows.append(row)
            bar.show(before + len(rows))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    lengths, rests, images = zip(*rows) if rows else ((), (), ())
    return EpisodeIndex(
        np.array(lengths, np.int64),
        np.array([len(rest) for rest in rests], np.int64),
        np.concatenate([_NONE, *rests]),
        {leaf.path: np.concatenate([_NONE, *(row[k] for row in images)]) for k, leaf in enumerate(features.images)},
    )


_NONE = np.zeros((0, 2), np.int64)


def _find_rest(located: Mapping[str, Located], images: set[str]) -> np.ndarray:
    """Return the ranges of a record that hold entries other than images, as (start, size).

    Adjacent ranges are merged.
    """
    spans = sorted((entry.low, entry.high) for name, entry in located.items() if name not in images)
    merged: list[list[int]] = []
    for low, high in spans:
        if merged and merged[-1][1] == low:
            merged[-1][1] = high
        else:
            merged.append([low, high])
    return np.array([[low, high - low] for low, high in merged], np.int64).reshape(-1, 2)


def _name_index(file: JoinedRecords, features: EpisodeFeatures) -> str:
    path = file.paths[0]
    name = redact.identify_path(path) if is_url(path) else os.path.abspath(path)
    facts = [_FORMAT, name, file.versions, dataclasses.asdict(features)]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _save(folder: Folder, name: str, index: EpisodeIndex) -> None:
    data = io.BytesIO()
    arrays: dict[str, Any] = {f"image {name}": places for name, places in index.images.items()}
    np.savez_compressed(data, lengths=index.lengths, rest_counts=index.rest_counts, rest=index.rest, **arrays)
    try:
        with folder.replacing(name) as file:
            checked_files.put_bytes(file, data.getvalue())
    except OSError as error:
        if not folder.on_disk:  # the user has named the store
            warnings.warn(
                f"The index of episodes is not kept, and the next run reads them again: {error}",
                BushelWarning,
                stacklevel=2,
            )


def _load(folder: Folder, name: str, count: int, features: EpisodeFeatures) -> EpisodeIndex | None:
    """Return the index that an earlier run has saved; None if there is none, or if its file is damaged."""
    try:
        with np.load(
            io.BytesIO(checked_files.parse_bytes(folder.read(name), folder.shown(name))), allow_pickle=False
        ) as file:
            index = EpisodeIndex(
                file["lengths"],
                file["rest_counts"],
                file["rest"],
                {leaf.path: file[f"image {leaf.path}"] for leaf in features.images},
            )
    except OSError:
        return None
    except DamagedFile as error:
        warnings.warn(f"{error} Its episodes are read again.", BushelWarning, stacklevel=2)
        return None
    steps = int(index.lengths.sum())
    fits = len(index.lengths) == len(index.rest_counts) == count and len(index.rest) == index.rest_counts.sum()
    return index if fits and all(len(places) == steps for places in index.images.values()) else None


Images = Literal["lazy", "bytes"]


@public("bushel.trajectory")
class RLDSBuilder(EpisodeBuilder):
    """An RLDS data set on disk or in a store.

    Attributes:
      folder: its folder.
      name: its name.
      version: such as "1.0.0".
      splits: the number of episodes of each split.
      info: the content of `dataset_info.json`.
      features: the leaves of an episode.

    Args:
      name: "name" or "name/config", with ":1.0.0" or "/1.0.0" for another version than the newest.
      data_dir: a path or URL. The data set is in data_dir/name[/config]/version, or in data_dir itself.
      storage_options: options of the store.

    >>> RLDSBuilder("bridge", "nowhere")
    Traceback (most recent call last):
    FileNotFoundError: There is no prepared data set 'bridge': nowhere/bridge holds no dataset_info.json.
    """

    def __init__(self, name: str, data_dir: Path, *, storage_options: Options | None = None):
        self.folder = find_folder(name, data_dir, storage_options)
        info = read_json(f"{self.folder}/dataset_info.json", storage_options)
        self.info: dict[str, Any] = info.value
        self._options = redact.Options(storage_options or {})
        self.name = info["name"].text()
        self.version = info["version"].text() if "version" in info else ""
        self.file_format = info["fileFormat"].text() if "fileFormat" in info else "tfrecord"
        if self.file_format not in FORMATS:
            raise ValueError(
                f"{redact.show(self.folder)} holds {self.file_format} files; {' and '.join(FORMATS)} can be read."
            )
        self._entries = split_entries(info)
        self._shards = {split: shard_lengths(entry) for split, entry in self._entries.items()}
        self.splits = {split: sum(counts) for split, counts in self._shards.items()}
        self.features: EpisodeFeatures = parse_features(
            read_json(f"{self.folder}/features.json", storage_options), f"{self.name} in {redact.show(self.folder)}"
        )

    def episodes(self, split: str = "all", *, images: Images = "lazy", unpack: bool = False) -> EpisodeSource:
        """Return the episodes of a split, in the order of the files; see `RLDSEpisodes`.

        Args:
          split: "train", "all", "train[:95%]", "train[10:20]", "train+val" ..., with TFDS's syntax and rounding.
          images: "lazy" returns `Encoded` handles of images in files; "bytes" reads the images with the episode.
          unpack: decodes arrays of steps that are stored as bytes or compressed. dlimp does not decode them, and
            functions written for dlimp expect that.
        """
        checks.choice(images, ("lazy", "bytes"), "images")
        counts: dict[str, int] = {}
        ranges: list[tuple[str, int, int]] = []
        for name, low, high in parse_split(split, self._shards):
            first = 0
            for file, count in zip(shard_names(self.name, self._entries[name], self.file_format), self._shards[name]):
                if first < high and low < first + count:
                    counts[file] = count
                    ranges.append((file, max(low - first, 0), min(high - first, count)))
                first += count
        source = FORMATS[self.file_format]([f"{self.folder}/{file}" for file in counts], storage_options=self._options)
        for number, (file, count) in enumerate(counts.items()):
            if len(source.file(number)) != count:
                raise ValueError(
                    f"{redact.show(self.folder)}/{file} should have {count} episodes, as dataset_info.json says; it "
                    f"has {len(source.file(number))}. Was it copied in full?"
                )
        firsts = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist()))
        records = np.concatenate([np.arange(firsts[file] + low, firsts[file] + high) for file, low, high in ranges])
        return RLDSEpisodes(RecordSpans(source), records, self.features, f"{self.name}/{split}", images, unpack)

    def positions(self, split: str) -> np.ndarray:
        """Return the positions of the episodes of a split among all episodes: int64."""
        firsts = dict(zip(self.splits, np.cumsum([0, *self.splits.values()]).tolist()))
        return np.concatenate(
            [firsts[name] + np.arange(low, high) for name, low, high in parse_split(split, self._shards)]
        )

    def __repr__(self) -> str:
        counts = ", ".join(f"{split}: {count}" for split, count in self.splits.items())
        return f"RLDSBuilder({self.name} {self.version}; {counts})"


@in_states("RLDSEpisodes")
class RLDSEpisodes:
    """Episodes as trajectories, by position: the trees of dlimp's `DLataset.from_rlds`, with NumPy arrays.

    The entries of the steps are at the top (`observation`, `action`, ...). The metadata of the episode are repeated for
    each step under `traj_metadata`. `_len`, `_traj_index` and `_frame_index` are added. All arrays have a leading axis
    of steps. Texts, and images as they are stored, are bytes in object arrays.

    After a call of `index` an episode is read without its images. `RLDSBuilder.episodes` makes these objects.
    """

    def __init__(
        self,
        parts: RecordSpans,
        records: np.ndarray,
        features: EpisodeFeatures,
        name: str,
        images: Images,
        unpack: bool,
    ):
        self._parts, self._records, self._features = parts, records, features
        self._name, self._images, self._unpack = name, images, unpack
        self._index: EpisodeIndex | None = None
        self._lock = threading.Lock()

    @property
    def parts(self) -> RecordSpans:
        """The reader of images by their places."""
        return self._parts

    @property
    def image_paths(self) -> list[str]:
        """The leaves that are one encoded image for each step, such as "observation/image"."""
        return [leaf.path for leaf in self._features.images]

    def describe(self, index: int) -> str:
        """Return the episode and its file, for messages."""
        number, place = self._parts.source.locate(int(self._records[index]))
        return f"episode {index} of {self._name} (record {place} of {redact.show(self._parts.source.paths[number])})"

    def index(
        self, *, progress: Shown = True, cache_dir: Path | None = None, storage_options: Options | None = None
    ) -> Self:
        """Find the length of each episode and the places of its images, once. Return the episodes themselves.

        It reads all records of the files and compares their checksums. The result is kept in `cache_dir`, by default
        beside the indices of TFRecord files. Files that have changed are read again.

        Args:
          progress: whether to show a progress bar on a terminal; or a function of (records done, all records).
          cache_dir: a folder, local or in a store.
          storage_options: options of the store of `cache_dir`.
        """
        with self._lock:
            if self._index is None:
                self._index = index_episodes(
                    self._parts.source,
                    self._features,
                    progress=progress,
                    cache_dir=cache_dir,
                    storage_options=storage_options,
                )
        return self

    def _load_index(self) -> EpisodeIndex:
        index = self.index()._index
        assert index is not None
        return index

    def lengths(self) -> np.ndarray:
        """Return the number of steps of each episode, from the index: int64."""
        return self._load_index().lengths[self._records]

    def frames(self, path: str) -> np.ndarray:
        """Return the place of an image for each step of each episode: (record, start, size), int64, for `parts.read`.

        Args:
          path: the leaf, one of `image_paths`.
        """
        index = self._load_index()
        if path not in index.images:
            raise KeyError(f"{self._name} has no images {path!r}; it has {', '.join(index.images) or 'none'}.")
        lengths = index.lengths[self._records]
        records = np.repeat(self._records, lengths)
        begins = np.cumsum(lengths) - lengths
        rows = np.arange(len(records)) + np.repeat(index.first_frames[self._records] - begins, lengths)
        return np.column_stack([records, index.images[path][rows]])

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = checks.integer(index, "index")
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} episodes")
        return self.__getitems__([place % len(self)])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return the episodes at `indices`, read together."""
        places = checks.positions(indices, len(self))
        records = self._records[places]
        index = self._index if self._images == "lazy" else None
        data = self._parts.source.__getitems__(records) if index is None else self._read_without_images(records, index)
        return [
            self._decode(place, record, values, index)
            for place, record, values in zip(places.tolist(), records.tolist(), data)
        ]

    def _read_without_images(self, records: np.ndarray, index: EpisodeIndex) -> list[bytes]:
        """Return the records without the entries that are images."""
        counts = index.rest_counts[records]
        begins = np.cumsum(counts) - counts
        rows = np.arange(int(counts.sum())) + np.repeat(index.first_rest[records] - begins, counts)
        spans = self._parts.read(np.repeat(records, counts), index.rest[rows, 0], index.rest[rows, 1])
        data = []
        for begin, count in zip(begins.tolist(), counts.tolist()):
            entries = b"".join(spans[begin : begin + count])
            data.append(b"\n" + protocol_buffers.encode_varint(len(entries)) + entries)  # field 1 of an Example
        return data

    def _decode(self, place: int, record: int, data: bytes, index: EpisodeIndex | None) -> dict[str, Any]:
        values = Values(data, locate_example(data), f"{self._name}, episode {place}")
        length = count_stored_steps(values, self._features) if index is None else int(index.lengths[record])
        leaves: dict[tuple[str, ...], Any] = {}
        for leaf in self._features.steps:
            if leaf.is_frame:
                leaves[leaf.keys] = self._find_images(leaf, record, values, length, index)
            else:
                leaves[leaf.keys] = values.read(leaf, length, unpack=self._unpack)
        for leaf in self._features.once:
            value = values.read(leaf, None, unpack=True)
            leaves["traj_metadata", *leaf.keys] = _repeat(value, length)
        tree = nest_leaves(leaves)
        tree.setdefault("traj_metadata", {})
        tree["_len"] = np.full(length, length, np.int32)
        tree["_traj_index"] = np.full(length, place, np.int64)
        tree["_frame_index"] = np.arange(length, dtype=np.int32)
        return tree

    def _find_images(
        self, leaf: FeatureLeaf, record: int, values: Values, length: int, index: EpisodeIndex | None
    ) -> np.ndarray:
        if self._images == "bytes":
            return values.read(leaf, length, unpack=False)
        if index is None:
            places = values.frames(leaf, length)
        else:
            first = int(index.first_frames[record])
            places = index.images[leaf.path][first : first + length]
        return to_objects([Encoded(self._parts, record, start, size) for start, size in places.tolist()])

    def fingerprint(self) -> Any:
        """Return the versions of the files when they were opened, and the numbers of the records."""
        steps = np.flatnonzero(np.diff(self._records) != 1) + 1
        runs = [[int(run[0]), len(run)] for run in np.split(self._records, steps)]
        return ["rlds", self._parts.source.versions, runs, self._images, self._unpack]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RLDSEpisodes({self._name}: {len(self)} episodes)"


def _repeat(value: Any, length: int) -> np.ndarray:
    """Return a value of the episode, once for each of its steps."""
    if isinstance(value, bytes):
        return np.full(length, value, object)
    return np.repeat(np.asarray(value)[None], length, axis=0)
