"""The index of the episodes of RLDS files: their lengths, and the places of images and of all other entries.

Each file is read once, with checksums. The index is kept in a cache folder. Later runs read an episode without its
images.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact, sealed
from bushel._src.base.errors import BushelWarning, DamagedFile
from bushel._src.base.progress import Progress, Shown
from bushel._src.sources import output_folders
from bushel._src.sources.output_folders import Folder
from bushel._src.sources.paths import Options, Path, get_cache_folder, is_url
from bushel._src.sources.record_files import RecordSource
from bushel._src.sources.tf_example import Located, locate_example
from bushel._src.trajectory.rlds.features import Features, Values

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
    """The indices of several files as one index."""
    if len(parts) == 1:
        return parts[0]
    return EpisodeIndex(
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.rest_counts for part in parts]),
        np.concatenate([part.rest for part in parts]),
        {name: np.concatenate([part.images[name] for part in parts]) for name in parts[0].images},
    )


def count_stored_steps(values: Values, features: Features) -> int:
    """The number of steps of an episode, from the first leaf whose stored values determine it."""
    counts = (values.count_steps(leaf) for leaf in features.steps)
    return next((count for count in counts if count is not None), 0)


def index_episodes(
    source: RecordSource,
    features: Features,
    *,
    progress: Shown = True,
    cache_dir: Path | None = None,
    storage_options: Options | None = None,
) -> EpisodeIndex:
    """The index of all records of a source. The index of a file comes from the cache, or the file is read."""
    folder = output_folders.open_folder(cache_dir or os.path.join(get_cache_folder(), "rlds"), storage_options)
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
    source: RecordSource,
    features: Features,
    pool: concurrent.futures.ThreadPoolExecutor,
    bar: Progress,
    before: int,
) -> EpisodeIndex:
    """The index of one file, from all of its records."""

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
    """The ranges of a record that hold entries other than images, as (start, size). Adjacent ranges are merged."""
    spans = sorted((entry.low, entry.high) for name, entry in located.items() if name not in images)
    merged: list[list[int]] = []
    for low, high in spans:
        if merged and merged[-1][1] == low:
            merged[-1][1] = high
        else:
            merged.append([low, high])
    return np.array([[low, high - low] for low, high in merged], np.int64).reshape(-1, 2)


def _name_index(file: RecordSource, features: Features) -> str:
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
            sealed.put_bytes(file, data.getvalue())
    except OSError as error:
        if not folder.on_disk:  # the user has named the store
            warnings.warn(
                f"The index of episodes is not kept, and the next run reads them again: {error}",
                BushelWarning,
                stacklevel=2,
            )


def _load(folder: Folder, name: str, count: int, features: Features) -> EpisodeIndex | None:
    """The index that an earlier run has saved; None if there is none, or if its file is damaged."""
    try:
        with np.load(io.BytesIO(sealed.parse_bytes(folder.read(name), folder.shown(name))), allow_pickle=False) as file:
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
