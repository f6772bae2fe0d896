"""Which file holds a record of a source, for people who look for it."""

from __future__ import annotations

from typing import Any

from bushel._src.base import redact
from bushel._src.sources.joined_files import JoinedFiles
from bushel._src.sources.saved_elements import SavedDataSource
from bushel._src.sources.tfds import TFDSDataSource
from bushel._src.sources.whole_files import FileDataSource


def find_file(source: Any, record: int) -> tuple[str, int] | None:
    """The file that holds a record, without secrets in its address, and the record's position in it.

    None for sources that do not know it, such as arrays in memory. Nothing is read.

    >>> find_file(["a", "b"], 1) is None
    True
    """
    if isinstance(source, (SavedDataSource, TFDSDataSource)):
        source = source._records
    if isinstance(source, JoinedFiles):
        number, place = source.locate(record)
        return redact.show(source.paths[number]), place
    if isinstance(source, FileDataSource):
        return redact.show(source.paths[record]), 0
    return None
