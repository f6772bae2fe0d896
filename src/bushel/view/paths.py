"""Files, folders and URLs that the viewer opens: sources, robot data sets, folders of pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bushel import sources
from bushel.base import redact
from bushel.base.errors import UnknownFormat
from bushel.sources import file_access, output_folders
from bushel.sources.file_formats import FileFormat, choose_files, find_format, is_array_file, is_whole_file
from bushel.sources.memory_sources import ArrayDataSource
from bushel.sources.output_folders import join_path
from bushel.sources.paths import Options, expand_path, is_url
from bushel.sources.tfds import TFDSDataSource
from bushel.sources.whole_files import FileDataSource
from bushel.trajectory import episode_paths
from bushel.trajectory.episode_paths import Listing, file_exists


def open_path(path: str, *, split: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """The source of a file, folder or URL, or the `EpisodeBuilder` of a robot data set."""
    path = expand_path(path)
    kind = episode_paths.find_kind(path, options)
    if kind is not None:
        return episode_paths.open_path(path, kind, options)
    if split is not None and file_exists(join_path(path, "dataset_info.json"), options):
        return TFDSDataSource(path, split, storage_options=options)
    if find_format(path) is None and is_whole_file(path):
        return FileDataSource(path, storage_options=options)
    try:
        return sources.open(path, storage_options=options)
    except UnknownFormat:
        if episode_paths.is_web(path):
            raise episode_paths.explain_web_folder(path) from None
        if is_folder(path, options):
            return _open_files(*find_folder_files(path, options), options)
        if not (file_exists(path, options) if is_url(path) else os.path.exists(path)):
            raise FileNotFoundError(
                f"{redact.show(path)} does not exist. Name a file, a folder, a pattern, or train.py:make_dataset."
            ) from None
        raise


def is_folder(path: str, options: Options | None) -> bool:
    """Whether there is a folder at a path; at a URL, one with files."""
    return bool(Listing(path, options).names(2)) if is_url(path) else os.path.isdir(path)


def find_folder_files(path: str, options: Options | None) -> tuple[FileFormat | None, list[str]]:
    """The format of the files in a folder and in its folders, and the files; None for images and other whole files.

    Raises:
      ValueError: if there are no files that Bushel reads, or files of several formats.
    """
    folder = output_folders.open_folder(path, options)
    there = file_access.resolve_shards(map(folder.path, folder.names(deep=True)), options)
    formats, names = choose_files(there)
    if not names or len(formats) > 1:
        raise explain_folder(path, names or list(there))
    return formats[0] if formats else None, [there.get(name, name) for name in names]


def _open_files(found: FileFormat | None, files: list[str], options: dict[str, Any] | None) -> Any:
    """The source of some files of one format."""
    if found is None:
        return FileDataSource(files, storage_options=options)
    if found.source is None:
        raise UnknownFormat(
            f"{redact.show(files[0])} is a file of the format {found.name}, which can only be read in order: write a "
            "function that returns a dataset of it, and view that, or convert the files (bushel convert)."
        )
    if not is_array_file(found):
        return found.load_source()(files, storage_options=options)
    return (
        ArrayDataSource(found.load_source()(files[0], storage_options=options))
        if len(files) == 1
        else ArrayFiles(files, options)
    )


class ArrayFiles:
    """One record for each file of arrays: a dict of the file's path and its arrays.

    Args:
      paths: the files.
      options: of the store that holds them.
    """

    def __init__(self, paths: Sequence[str], options: Options | None = None):
        self._paths, self._options = list(paths), redact.Options(options or {})

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self._paths[index]
        arrays = sources.load_arrays(path, storage_options=self._options)
        return {"path": redact.remove_query(path)} | (arrays if isinstance(arrays, dict) else {"array": arrays})

    def __repr__(self) -> str:
        return f"ArrayFiles({redact.show(self._paths[0])}, ...)"


def explain_folder(folder: str, names: Sequence[str]) -> ValueError:
    """The error to raise for a folder whose files cannot be read together."""
    known = sorted({_get_ending(name, found) for name in names if (found := find_format(name)) is not None})
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


def _get_ending(name: str, found: FileFormat) -> str:
    """The ending of a name: ".parquet", ".jsonl.gz", and ".tfrecord*" of a shard."""
    lowered = name.rstrip("/").lower()
    fitting = [ending for ending in found.endings if lowered.endswith(ending)]
    return max(fitting, key=len) if fitting else f"{found.endings[0]}*"
