"""Files, folders and URLs that the viewer opens: sources, robot data sets, folders of pictures."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

from bushel import sources
from bushel.base import redact
from bushel.sources.compressed_files import ENDINGS
from bushel.sources.output_folders import join_path
from bushel.sources.paths import expand_path, is_url
from bushel.sources.saved_elements import MANIFEST
from bushel.sources.shard_journals import final_name
from bushel.sources.source_by_path import TEXTS, UnknownFormat
from bushel.sources.tfds import TFDSDataSource
from bushel.sources.whole_files import FileDataSource
from bushel.trajectory import episode_paths
from bushel.trajectory.episode_paths import Listing, file_exists

_WHOLE_FILES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".wav", ".flac", ".mp3", ".mp4", ".json")
_RECORD_FILES = (".array_record", ".tfrecord", ".bagz", ".parquet", ".arrow", *TEXTS)


def open_path(path: str, *, split: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """The source of a file, folder or URL, or the `EpisodeBuilder` of a robot data set."""
    path = expand_path(path)
    kind = episode_paths.find_kind(path, options)
    if kind is not None:
        return episode_paths.open_path(path, kind, options)
    if split is not None and file_exists(join_path(path, "dataset_info.json"), options):
        return TFDSDataSource(path, split, storage_options=options)
    path = _find_pattern(path, options) or path
    if redact.remove_query(path).lower().endswith(_WHOLE_FILES):
        return FileDataSource(path, storage_options=options)
    try:
        return sources.open(path, storage_options=options)
    except UnknownFormat:
        if episode_paths.is_web(path):
            raise episode_paths.explain_web_folder(path) from None
        names = Listing(path, options).names(2)
        if names or (not is_url(path) and os.path.isdir(path)):
            raise explain_folder(path, names) from None
        if not (file_exists(path, options) if is_url(path) else os.path.exists(path)):
            raise FileNotFoundError(
                f"{redact.show(path)} does not exist. Name a file, a folder, a pattern, or train.py:make_dataset."
            ) from None
        raise


def explain_folder(folder: str, names: Sequence[str]) -> ValueError:
    """The error to raise for a folder whose files cannot be read together."""
    endings = sorted(set(map(_get_ending, names)) - {""})
    known = [ending for ending in endings if ending in (*_WHOLE_FILES, *_RECORD_FILES)]
    if len(known) > 1:
        return ValueError(
            f"{redact.show(folder)} has files of several formats ({', '.join(known)}). Name those to read, with a "
            f"pattern such as '{redact.show(folder.rstrip('/'))}/*{known[0]}'."
        )
    count = "no files" if not names else "1 file" if len(names) == 1 else f"{len(names):,} files"
    return ValueError(
        f"{redact.show(folder)} has {count}{', and none of a format that Bushel reads' if names else ''}. Name a file, "
        "or a pattern such as 'data/*.tfrecord*'."
    )


def _get_ending(name: str) -> str:
    """The ending of a name: ".parquet", ".jsonl.gz"."""
    base, ending = os.path.splitext(name.lower())
    return os.path.splitext(base)[1] + ending if ending in ENDINGS else ending


def _find_pattern(folder: str, options: dict[str, Any] | None) -> str | None:
    """The pattern of the files in a folder, if all that Bushel reads have the same ending."""
    names = Listing(folder, options).names()
    if "dataset_info.json" in names or MANIFEST in names:
        return None
    endings = {_get_ending(final_name(name)) for name in names}
    found = sorted(endings.intersection((*_WHOLE_FILES, *_RECORD_FILES)))
    plain = folder.rstrip("/") if is_url(folder) else glob.escape(folder)
    return join_path(plain, f"*{found[0]}") if len(found) == 1 else None
