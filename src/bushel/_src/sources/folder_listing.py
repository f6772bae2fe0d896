"""The names of the files in a folder: on disk, in a store, or behind a web server, which cannot list them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bushel._src.base import redact
from bushel._src.sources import file_access, output_folders
from bushel._src.sources.output_folders import join_path
from bushel._src.sources.paths import Options, is_url


def is_web(path: str) -> bool:
    """Whether a URL is that of a web server, which cannot list its files."""
    return path.lower().startswith(("http://", "https://"))


def explain_web_folder(path: str) -> FileNotFoundError:
    """The error to raise for a web address that is not a file, nor a folder that can be read without listing it."""
    return FileNotFoundError(
        f"{redact.show(path)} is not a file of a known format, and a web server cannot list the files of a folder. "
        "Behind http:// and https:// Bushel reads single files, LeRobot data sets, RLDS and TFDS data sets by the "
        "folder of their version (such as .../1.0.0), and what ds.save wrote. Copy any other folder to this machine, "
        "or to a store such as s3://bucket/folder."
    )


def file_exists(path: str, options: Options | None = None) -> bool:
    """Whether there is a file at a path or URL."""
    try:
        file_access.open_file(path, options)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
    return True


def is_folder(path: str, options: Options | None) -> bool:
    """Whether there is a folder at a path; at a URL, one with files."""
    return bool(Listing(path, options).names(2)) if is_url(path) else os.path.isdir(path)


class Listing:
    """The names of files in a folder, on disk, in a store, or behind a web server, which cannot list them.

    Attributes:
      place: the path or URL of the folder.
      refusal: the last error of a store that has refused to answer. A store that does not allow listing refuses to say
        that a file is missing.
    """

    def __init__(self, place: str, options: Options | None):
        self.place, self.options = place, options
        self.refusal: PermissionError | None = None
        self._names: dict[int, list[str]] = {}

    def has(self, name: str) -> bool:
        """Whether the folder has a file of this name."""
        try:
            return file_exists(join_path(self.place, name), self.options)
        except PermissionError as error:
            self.refusal = error
            return False

    def names(self, depth: int = 0) -> list[str]:
        """The sorted names of the files, and of those in folders up to a depth, without hidden ones."""
        if depth not in self._names:
            try:
                found = self._list_store(depth) if is_url(self.place) else list(_list_local(self.place, depth))
            except PermissionError as error:
                found, self.refusal = [], error
            self._names[depth] = sorted(name for name in found if not name.rpartition("/")[2].startswith("."))
        return self._names[depth]

    def _list_store(self, depth: int) -> list[str]:
        if is_web(self.place):
            return []
        found = output_folders.open_folder(self.place, self.options).names(deep=depth > 0)
        return [name for name in found if name.count("/") <= depth]

    def find(self, *endings: str) -> list[str]:
        """The files with these endings, in the folder, or else in its folders, which are splits."""
        here = [name for name in self.names() if name.lower().endswith(endings)]
        return here or [name for name in self.names(1) if name.lower().endswith(endings)]


def _list_local(place: str, depth: int, above: str = "") -> Iterator[str]:
    try:
        entries = list(os.scandir(place or "."))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not entry.is_dir():
            yield above + entry.name
        elif depth:
            yield from _list_local(entry.path, depth - 1, f"{above}{entry.name}/")
