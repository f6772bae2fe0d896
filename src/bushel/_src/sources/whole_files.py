"""Whole files as records: images, sounds and texts in folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.joined_files import name_files
from bushel._src.sources.paths import Options, Paths, is_url
from bushel._src.sources.record_files import map_in_threads


@public("bushel.sources")
@in_states("FileDataSource")
class FileDataSource:
    """One record per file: a dict of its path and its content as bytes. The name of the folder is often the label.

    The path in a record has no query and no password, so that the record is the same when its URL is signed again.

    >>> import os, tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.mkdtemp()
    >>> os.mkdir(os.path.join(folder, "cat"))
    >>> _ = Path(folder, "cat", "1.txt").write_text("meow")
    >>> record = FileDataSource(f"{folder}/*/*.txt")[0]
    >>> record["content"], record["path"].split("/")[-2:]
    (b'meow', ['cat', '1.txt'])
    """

    def __init__(self, paths: Paths, *, storage_options: Options | None = None):
        self._options = redact.Options(storage_options or {})
        self._paths = file_access.find_files(paths, self._options)
        self.costs_round_trip = any(map(is_url, self._paths)) and "cache_dir" not in self._options

    @property
    def paths(self) -> list[str]:
        """The files, in order."""
        return list(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._read_file(self._paths[checks.integer(index, "index")])

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """The files at `indices`. Remote files are read at the same time, since each costs round trips."""
        paths = [self._paths[index] for index in checks.positions(indices, len(self)).tolist()]
        return list((map_in_threads if any(map(is_url, paths)) else map)(self._read_file, paths))

    def _read_file(self, path: str) -> dict[str, Any]:
        file = file_access.open_file(path, self._options)
        return {"path": redact.remove_query(path), "content": file.read(0, file.size)}

    def fingerprint(self) -> Any:
        return [redact.object_name(path) for path in self._paths]

    def fingerprint_in_full(self) -> Any:
        """The version of each file, for what is kept on disk: a request per file, which is too much for a state."""
        versions = map_in_threads if any(map(is_url, self._paths)) else map
        return list(versions(lambda path: file_access.fingerprint_files([path], self._options), self._paths))

    def __repr__(self) -> str:
        return f"FileDataSource({name_files(self._paths)})"
