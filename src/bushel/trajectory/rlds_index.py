"""What must be known of every episode once: how many steps it has, where its images lie, and where the rest of it does.

Each file is walked once, its records whole and with their checksums; what was found is kept in a cache folder. From
then on no image is read that nobody asked for.
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

from bushel.base import redact, sealed
from bushel.base.errors import DamagedFile
from bushel.base.progress import Progress
from bushel.sources import stores, writing
from bushel.sources.example import Located, locate_example
from bushel.sources.records import RecordSource
from bushel.sources.stores import Options, Path
from bushel.sources.tfrecord import cache_folder
from bushel.sources.writing import Folder
from bushel.trajectory.rlds_features import Features, Values

_FORMAT = 2
_THREADS = 8


@dataclasses.dataclass(frozen=True)
class EpisodeIndex:
    """Facts about episodes, in the order of their records.

    Attributes:
      lengths: steps of each episode.
      rest_counts: how many stretches of each record are no images.
      rest: where they lie in the record: start and size, int64.
      images: for each leaf that is an image, where that of each step lies in its record: start and size, int64. The
        steps of all episodes one after the other.
    """

    lengths: np.ndarray
    rest_counts: np.ndarray
    rest: np.ndarray
    images: Mapping[str, np.ndarray]

    @functools.cached_property
    def first_frames(self) -> np.ndarray:
        """Which of all steps is the first of each episode, and how many steps there are."""
        return np.concatenate(([0], np.cumsum(self.lengths)))

    @functools.cached_property
    def first_rest(self) -> np.ndarray:
        """Which of all stretches is the first of each record, and how many there are."""
        return np.concatenate(([0], np.cumsum(self.rest_counts)))


def joined(parts: Sequence[EpisodeIndex]) -> EpisodeIndex:
    """Indices of several files as one."""
    if len(parts) == 1:
        return parts[0]
    return EpisodeIndex(
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.rest_counts for part in parts]),
        np.concatenate([part.rest for part in parts]),
        {name: np.concatenate([part.images[name] for part in parts]) for name in parts[0].images},
    )


def length_of(values: Values, features: Features) -> int:
    """How many steps an episode has."""
    told = (values.steps_told(leaf) for leaf in features.steps)
    return next((count for count in told if count is not None), 0)


def index_of(
    source: RecordSource,
    features: Features,
    *,
    progress: bool = True,
    cache_dir: Path | None = None,
    storage_options: Options | None = None,
) -> EpisodeIndex:
    """The index of all records of a source: for each file from the cache, or by a walk through the file."""
    folder = writing.folder(cache_dir or os.path.join(cache_folder(), "rlds"), storage_options)
    files = [source.file(number) for number in range(len(source.paths))]
    names = [f"{_key(file, features)}.npz" for file in files]
    known = [_kept(folder, name, len(file), features) for name, file in zip(names, files)]
    if all(part is not None for part in known):
        return joined([part for part in known if part is not None])
    bar = Progress("index of episodes", len(source)) if progress else None
    done, found = 0, []
    with concurrent.futures.ThreadPoolExecutor(min(_THREADS, 2 * (os.cpu_count() or 1))) as pool:
        for file, name, part in zip(files, names, known):
            if part is None:
                part = _walked(file, features, pool, bar, done)
                _keep(folder, name, part)
            done += len(file)
            found.append(part)
    if bar is not None:
        bar.show(done)
        bar.end()
    return joined(found)


def _walked(
    source: RecordSource,
    features: Features,
    pool: concurrent.futures.ThreadPoolExecutor,
    bar: Progress | None,
    before: int,
) -> EpisodeIndex:
    """Reads every record of a file."""

    def facts(record: int) -> tuple[int, np.ndarray, list[np.ndarray]]:
        data = source[record]
        located = locate_example(data)
        values = Values(data, located, f"{redact.show(source.paths[0])}, record {record}")
        length = length_of(values, features)
        images = [values.frames(leaf, length) for leaf in features.images]
        return length, _rest(located, {leaf.stored_name for leaf in features.images}), images

    found = []
    try:
        for row in pool.map(facts, range(len(source))):
            found.append(row)
            if bar is not None:
                bar.show(before + len(found))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    lengths, rests, images = zip(*found) if found else ((), (), ())
    return EpisodeIndex(
        np.array(lengths, np.int64),
        np.array([len(rest) for rest in rests], np.int64),
        np.concatenate([_NONE, *rests]),
        {leaf.path: np.concatenate([_NONE, *(row[k] for row in images)]) for k, leaf in enumerate(features.images)},
    )


_NONE = np.zeros((0, 2), np.int64)


def _rest(located: Mapping[str, Located], images: set[str]) -> np.ndarray:
    """The stretches of a record that hold entries other than images."""
    spans = sorted((entry.low, entry.high) for name, entry in located.items() if name not in images)
    merged: list[list[int]] = []
    for low, high in spans:
        if merged and merged[-1][1] == low:
            merged[-1][1] = high
        else:
            merged.append([low, high])
    return np.array([[low, high - low] for low, high in merged], np.int64).reshape(-1, 2)


def _key(file: RecordSource, features: Features) -> str:
    path = file.paths[0]
    name = redact.identify_path(path) if stores.is_url(path) else os.path.abspath(path)
    facts = [_FORMAT, name, file.versions, dataclasses.asdict(features)]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _keep(folder: Folder, name: str, index: EpisodeIndex) -> None:
    data = io.BytesIO()
    arrays: dict[str, Any] = {f"image {name}": places for name, places in index.images.items()}
    np.savez_compressed(data, lengths=index.lengths, rest_counts=index.rest_counts, rest=index.rest, **arrays)
    try:
        with folder.replacing(name) as file:
            sealed.put_bytes(file, data.getvalue())
    except OSError as error:
        if not folder.on_disk:  # somebody has named it
            warnings.warn(
                f"The index of episodes is not kept, and the next run reads them again: {error}", stacklevel=2
            )


def _kept(folder: Folder, name: str, count: int, features: Features) -> EpisodeIndex | None:
    """What an earlier walk has found; None where there was none, or where its file is damaged."""
    try:
        with np.load(io.BytesIO(sealed.parse_bytes(folder.read(name), folder.shown(name))), allow_pickle=False) as file:
            found = EpisodeIndex(
                file["lengths"],
                file["rest_counts"],
                file["rest"],
                {leaf.path: file[f"image {leaf.path}"] for leaf in features.images},
            )
    except OSError:
        return None
    except DamagedFile as error:
        warnings.warn(f"{error} The episodes that it belongs to are read again.", stacklevel=2)
        return None
    steps = int(found.lengths.sum())
    fits = len(found.lengths) == len(found.rest_counts) == count and len(found.rest) == found.rest_counts.sum()
    return found if fits and all(len(places) == steps for places in found.images.values()) else None
