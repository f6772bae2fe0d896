"""Encoded images that stay in their files until they are needed: as handles, or as (record, start, size).

`ImageDatasetFiles` is what reads them; each format of episodes has its own. For records, `rlds/reader.py` finds where
in a record an image lies. `pixels.py` decodes the bytes.
"""

from __future__ import annotations

import abc
import collections
import json
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.state_names import in_states, overridable
from bushel._src.sources.record_files import JoinedRecords
from bushel._src.sources.tfrecord import TFRecordDataSource

_KEPT_BYTES = 64 << 20
_KEPT_SOURCES = 256
_REMEMBERED = 1 << 14  # images, of all threads: more than are read before the first of them is decoded


class ImageFiles(abc.ABC):
    """The files that hold the images of a data set. An image is found by three numbers, its address.

    For RLDS the address is (record, start in bytes, size in bytes), for arrays in HDF5 files (array, frame, size). The
    last number is the size in bytes of what is stored; 0 means that there is no image. Any thread may read. Pickles
    hold paths: a process opens the files that it reads itself.
    """

    @abc.abstractmethod
    def read(
        self, records: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray
    ) -> list[bytes]:
        """Return the images at these addresses, encoded, in the given order. Each address occurs once."""

    @abc.abstractmethod
    def select_file(self, record: int) -> tuple[ImageFiles, int]:
        """Return the reader of only the file that holds a record, and the record's number for that reader."""

    @abc.abstractmethod
    def describe(self, record: int, start: int) -> str:
        """Return where an image is, for an error: its file, and which image of the file it is."""

    @overridable
    def for_other_machines(self) -> ImageFiles:
        """Return a reader whose pickles name no file of this machine's cache; by default this reader, which names
        none.
        """
        return self


@in_states(
    "record_parts",
    {"_source": "record_parts.source", "_alone": None, "_kept": None, "_kept_bytes": None, "_lock": None},
)
class RecordSpans(ImageFiles):
    """Reads spans of records. A span is given by the number of its record, its start in bytes, and its size in bytes.

    Of a TFRecord file only the span is read. Other formats can read whole records only; the last ones are kept in a
    cache of 64 MiB. Any thread may read. A pickled object opens its files in the process that unpickles it, and refuses
    files that have changed.
    """

    def __init__(self, source: JoinedRecords):
        # The identity in saved states holds the names of these attributes: with others, older states would be refused.
        self._source = source
        self._alone: dict[int, RecordSpans] = {}
        self._kept: collections.OrderedDict[int, bytes] = collections.OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    @property
    def source(self) -> JoinedRecords:
        """The source of the whole records."""
        return self._source

    def read(
        self, records: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray
    ) -> list[bytes]:
        """Return the spans, in the given order. Spans of a remote file that lie close together are read by one request.

        A checksum covers a whole record, so it cannot be compared for a span of it. A file that was cut short or
        replaced is an error, but a changed bit is not noticed.
        """
        if isinstance(self._source, TFRecordDataSource):
            return self._source.read_parts(records, starts, sizes)
        whole = self._read_whole({int(record) for record in records})
        return [
            _cut_span(whole[int(record)], int(record), int(start), int(size))
            for record, start, size in zip(records, starts, sizes)
        ]

    def _read_whole(self, wanted: set[int]) -> dict[int, bytes]:
        with self._lock:
            records = {record: self._kept[record] for record in wanted if record in self._kept}
            for record in records:
                self._kept.move_to_end(record)
        missing = sorted(wanted - records.keys())
        if not missing:
            return records
        for record, data in zip(missing, self._source.__getitems__(missing)):
            records[record] = data
            self._keep(record, data)
        return records

    def _keep(self, record: int, data: bytes) -> None:
        with self._lock:
            self._kept_bytes += len(data) - len(self._kept.pop(record, b""))
            self._kept[record] = data
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def select_file(self, record: int) -> tuple[RecordSpans, int]:
        """Return the reader of only the file that holds a record, and the record's number in that file."""
        number, row = self._source.locate(record)
        if len(self._source.paths) == 1:
            return self, row
        if number not in self._alone:
            self._alone[number] = RecordSpans(self._source.file(number))
        return self._alone[number], row

    def describe(self, record: int, start: int) -> str:
        """Return the file, the number of the record in it, and the byte in the record."""
        number, row = self._source.locate(record)
        return f"{redact.show(self._source.paths[number])}, record {row}, from its byte {start} on"

    def __reduce__(self) -> tuple[Any, ...]:
        key = json.dumps([type(self._source).__name__, self._source.paths, self._source.versions])
        return _open_once, (key, self._source)

    def __repr__(self) -> str:
        return f"RecordSpans({self._source!r})"


_opened: collections.OrderedDict[str, RecordSpans] = collections.OrderedDict()
_opened_lock = threading.Lock()


def _open_once(key: str, source: JoinedRecords) -> RecordSpans:
    """Return the reader of a source that came from another process.

    One with open files is used again if there is one.
    """
    with _opened_lock:
        spans = _opened.pop(key, None) or RecordSpans(source)
        _opened[key] = spans
        while len(_opened) > _KEPT_SOURCES:
            _opened.popitem(last=False)
    return spans


def _cut_span(data: bytes, record: int, start: int, size: int) -> bytes:
    if start < 0 or size < 0 or start + size > len(data):
        raise ValueError(
            f"Record {record} has {len(data)} bytes; there are no {size} bytes from byte {start} on. "
            "Make the index of its episodes again."
        )
    return data[start : start + size]


@in_states("Encoded")
class Encoded:
    """An encoded image that is still in its file. `len(image)` is its stored size in bytes, `bytes(image)` reads it.

    An image equals its bytes. Arrays of pixels have a header in them (`pixels.py`). It has no hash, since the
    hash of the bytes would need a read. `read_all` reads many images in less time than one by one.
    """

    __slots__ = ("_parts", "_record", "_size", "_start")
    _is_no_data = True  # it never changes: see base/private_elements.py

    def __init__(self, parts: ImageFiles, record: int, start: int, size: int):
        self._parts, self._record, self._start, self._size = parts, record, start, size

    @property
    def parts(self) -> ImageFiles:
        """The reader of its file."""
        return self._parts

    @property
    def address(self) -> tuple[int, int, int]:
        """The number of the record, the start in bytes, and the size in bytes."""
        return self._record, self._start, self._size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        if not self._size:  # padding, for which there is no file
            return b""
        return self._parts.read([self._record], [self._start], [self._size])[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (bytes, Encoded)):
            return NotImplemented
        if isinstance(other, Encoded) and self._parts is other._parts and self.address == other.address:
            return True
        if not self._size or not len(other):
            return self._size == len(other)
        return bytes(self) == bytes(other)

    def __reduce__(self) -> tuple[Any, ...]:
        files, record = self._parts.select_file(self._record)
        return Encoded, (files, record, self._start, self._size)

    def __repr__(self) -> str:
        return f"Encoded({self._size} bytes at byte {self._start} of record {self._record})"


def read_all(values: Sequence[bytes | Encoded]) -> list[bytes]:
    """Return encoded images as bytes. Images that are still in files are read together, and each of them once.

    >>> read_all([b"one", b""])
    [b'one', b'']
    """
    contents: list[Any] = list(values)
    wanted: dict[ImageFiles, dict[tuple[int, int, int], list[int]]] = {}
    for row, value in enumerate(contents):
        if isinstance(value, Encoded) and not len(value):
            contents[row] = b""
        elif isinstance(value, Encoded):
            wanted.setdefault(value.parts, {}).setdefault(value.address, []).append(row)
    for files, addresses in wanted.items():
        records, starts, sizes = np.array(list(addresses), np.int64).T
        read = files.read(records, starts, sizes)
        _remember(files, list(addresses), read)
        for rows, data in zip(addresses.values(), read):
            for row in rows:
                contents[row] = data
    return contents


# Where the last images came from, by the id of their bytes. Bytes know nothing of their file, and an id may belong to
# another object later: so `describe_origin` reads an image again and compares it.
_origins: collections.OrderedDict[int, tuple[weakref.ref[ImageFiles], tuple[int, int, int]]] = collections.OrderedDict()
_origins_lock = threading.Lock()


def _remember(files: ImageFiles, addresses: Sequence[tuple[int, int, int]], contents: Sequence[bytes]) -> None:
    reference = weakref.ref(files)
    with _origins_lock:
        _origins.update((id(data), (reference, address)) for data, address in zip(contents, addresses))
        while len(_origins) > _REMEMBERED:
            _origins.popitem(last=False)


def describe_origin(content: bytes | Encoded) -> str:
    """Return where in which file an image lies: a handle, or bytes that `read_all` returned a moment ago.

    "" if not known.
    """
    if isinstance(content, Encoded):
        return content.parts.describe(*content.address[:2])
    with _origins_lock:
        reference, address = _origins.get(id(content), (None, (0, 0, 0)))
    files = None if reference is None else reference()
    if files is None:
        return ""
    try:
        is_same = files.read(*([number] for number in address))[0] == content
    except Exception:  # the file has changed or is gone: then this error must not hide the first one
        return ""
    return files.describe(address[0], address[1]) if is_same else ""
