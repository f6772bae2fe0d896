"""Where the files of a data set lie, and in which order its episodes come."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.sources import file_access, paths
from bushel._src.sources.output_folders import join_path


def sort_by_number(names: Iterable[str]) -> list[str]:
    """Names in the order of the numbers in them: "demo_2" comes before "demo_10".

    >>> sort_by_number(["demo_10", "demo_2"])
    ['demo_2', 'demo_10']
    """
    return sorted(names, key=lambda name: [int(p) if k % 2 else p for k, p in enumerate(re.split(r"(\d+)", name))])


def find_file(name: str, data_dir: Any, options: Any, endings: Sequence[str]) -> str:
    """The file of a data set: data_dir/name with or without an ending, or `data_dir` if that is a file."""
    above = paths.expand_path(data_dir)
    if redact.remove_query(above).endswith(tuple(endings)):
        candidates = [above]
    elif name.endswith(tuple(endings)):
        candidates = [join_path(above, name)]
    else:
        candidates = [join_path(above, name + ending) for ending in endings]
    for path in candidates:
        if _exists(path, options):
            return path
    raise FileNotFoundError(
        f"There is no data set {name!r}: there is no file {' or '.join(map(redact.show, candidates))}."
    )


def _exists(path: str, options: Any) -> bool:
    try:
        file_access.open_file(path, options)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


def find_episode_files(name: str, data_dir: Any, options: Any, endings: Sequence[str]) -> dict[str, list[str]]:
    """The files of a data set with one file per episode, for each split, in the order of the numbers in their names.

    They lie in data_dir/name, or in `data_dir` itself: all in one folder, which is then the split "train", or in one
    folder for each split. `data_dir` may also be a single file.
    """
    above = paths.expand_path(data_dir).rstrip("/")
    if redact.remove_query(above).endswith(tuple(endings)) and _exists(above, options):
        return {"train": [above]}
    for folder in (join_path(above, name), above):
        files = _list_files(folder, options, endings)
        if files:
            return {"train": files}
        below = {
            path.rpartition("/")[2]: _list_files(path, options, endings)
            for path in _list_folders(folder, options, endings)
        }
        splits = {split: found for split, found in below.items() if found}
        if splits:
            return splits
    raise FileNotFoundError(
        f"There is no data set {name!r}: neither {redact.show(join_path(above, name))} nor {redact.show(above)} has "
        f"files that end in {' or '.join(endings)}, or folders with such files."
    )


def _list_files(folder: str, options: Any, endings: Sequence[str]) -> list[str]:
    found: list[str] = []
    for ending in endings:
        if paths.is_url(folder):
            try:
                found += file_access.find_files(f"{folder}/*{ending}", options)
            except FileNotFoundError:
                continue
        elif os.path.isdir(folder):
            found += [entry.path for entry in os.scandir(folder) if entry.name.endswith(ending) and entry.is_file()]
    return sort_by_number(found)


def _list_folders(folder: str, options: Any, endings: Sequence[str]) -> list[str]:
    if not paths.is_url(folder):
        return sorted(entry.path for entry in os.scandir(folder) if entry.is_dir()) if os.path.isdir(folder) else []
    below: set[str] = set()
    for ending in endings:
        try:
            below |= {path.rpartition("/")[0] for path in file_access.find_files(f"{folder}/*/*{ending}", options)}
        except FileNotFoundError:
            continue
    return sorted(below)


def number_files(splits: dict[str, list[str]]) -> tuple[list[str], dict[str, np.ndarray]]:
    """All files of all splits, and the numbers of those of each split."""
    paths = [path for files in splits.values() for path in files]
    ends = np.cumsum([len(files) for files in splits.values()]).tolist()
    ranges = zip(splits, [0, *ends], ends)
    return paths, {split: np.arange(low, high) for split, low, high in ranges}
