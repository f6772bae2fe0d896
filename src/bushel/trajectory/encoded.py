"""Encoded images that stay in their files until they are needed: a handle for each, or three integers.

Where in a record an image lies is found by `rlds_index.py`; what its bytes mean is the business of decoders.
"""

from __future__ import annotations

import collections
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.sources.records import RecordSource
from bushel.sources.tfrecord import TFRecordDataSource

_KEPT_BYTES = 64 << 20
_KEPT_SOURCES = 256


class RecordParts:
    """Parts of records, by the number of the record, where the part begins in it, and its size.

    A part of a TFRecord is read alone. Other formats give whole records only, of which a few are kept. Reads may come
    from any thread; a pickled one opens its files where it is used, and refuses files that have changed.
    """

    def __init__(self, source: RecordSource):
        self._source = source
        self._alone: dict[int, RecordParts] = {}
        self._kept: collections.OrderedDict[int, bytes] = collections.OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    @property
    def source(self) -> RecordSource:
        """The records themselves."""
        return self._source

    def read(
        self, records: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray
    ) -> list[bytes]:
        """The parts, in the order asked for; near ones of a remote file come by one request.

        The checksum of a record holds for the whole of it, so that parts come unchecked: a file that was cut short or
        replaced is noticed, a bit that has turned is not.
        """
        if isinstance(self._source, TFRecordDataSource):
            return self._source.read_parts(records, starts, sizes)
        whole = self._whole({int(record) for record in records})
        return [
            _part(whole[int(record)], int(record), int(start), int(size))
            for record, start, size in zip(records, starts, sizes)
        ]

    def _whole(self, wanted: set[int]) -> dict[int, bytes]:
        with self._lock:
            found = {record: self._kept[record] for record in wanted if record in self._kept}
            for record in found:
                self._kept.move_to_end(record)
        missing = sorted(wanted - found.keys())
        if not missing:
            return found
        for record, data in zip(missing, self._source.__getitems__(missing)):
            found[record] = data
            self._keep(record, data)
        return found

    def _keep(self, record: int, data: bytes) -> None:
        with self._lock:
            self._kept_bytes += len(data) - len(self._kept.pop(record, b""))
            self._kept[record] = data
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def alone(self, record: int) -> tuple[RecordParts, int]:
        """The parts of the one file that holds a record, and the record's number there."""
        number, place = self._source.locate(record)
        if len(self._source.paths) == 1:
            return self, place
        if number not in self._alone:
            self._alone[number] = RecordParts(self._source.file(number))
        return self._alone[number], place

    def __reduce__(self) -> tuple[Any, ...]:
        key = json.dumps([type(self._source).__name__, self._source.paths, self._source.versions])
        return _opened_once, (key, self._source)

    def __repr__(self) -> str:
        return f"RecordParts({self._source!r})"


_opened: collections.OrderedDict[str, RecordParts] = collections.OrderedDict()
_opened_lock = threading.Lock()


def _opened_once(key: str, source: RecordSource) -> RecordParts:
    """The parts of a source that came from another process: those of the last time, with open files, if there are."""
    with _opened_lock:
        found = _opened.pop(key, None) or RecordParts(source)
        _opened[key] = found
        while len(_opened) > _KEPT_SOURCES:
            _opened.popitem(last=False)
    return found


def _part(data: bytes, record: int, start: int, size: int) -> bytes:
    if start < 0 or size < 0 or start + size > len(data):
        raise ValueError(
            f"Record {record} has {len(data)} bytes; there are no {size} bytes from byte {start} on. "
            "Make the index of its episodes again."
        )
    return data[start : start + size]


class Encoded:
    """An encoded image that is still in its file. `len(image)` is its size in bytes, `bytes(image)` reads it.

    It equals its content, and has no hash, since that would have to be the content's. What is read in one go
    (`read_all`) costs less than image by image.
    """

    __slots__ = ("_parts", "_record", "_size", "_start")

    def __init__(self, parts: RecordParts, record: int, start: int, size: int):
        self._parts, self._record, self._start, self._size = parts, record, start, size

    @property
    def parts(self) -> RecordParts:
        """What reads it."""
        return self._parts

    @property
    def place(self) -> tuple[int, int, int]:
        """The number of the record, where the image begins in it, and its size."""
        return self._record, self._start, self._size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return self._parts.read([self._record], [self._start], [self._size])[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (bytes, Encoded)):
            return NotImplemented
        if isinstance(other, Encoded) and self._parts is other._parts and self.place == other.place:
            return True
        return self._size == len(other) and bytes(self) == bytes(other)

    def __reduce__(self) -> tuple[Any, ...]:
        parts, record = self._parts.alone(self._record)
        return Encoded, (parts, record, self._start, self._size)

    def __repr__(self) -> str:
        return f"Encoded({self._size} bytes at byte {self._start} of record {self._record})"


def read_all(values: Sequence[bytes | Encoded]) -> list[bytes]:
    """Encoded images as bytes: those still in files are read together, and each only once.

    >>> read_all([b"one", b""])
    [b'one', b'']
    """
    found: list[Any] = list(values)
    wanted: dict[RecordParts, dict[tuple[int, int, int], list[int]]] = {}
    for row, value in enumerate(found):
        if isinstance(value, Encoded):
            wanted.setdefault(value.parts, {}).setdefault(value.place, []).append(row)
    for parts, places in wanted.items():
        records, starts, sizes = np.array(list(places), np.int64).T
        for rows, data in zip(places.values(), parts.read(records, starts, sizes)):
            for row in rows:
                found[row] = data
    return found
