"""TFRecord files, read at any position by an index of offsets. TensorFlow is not needed.

A file is a row of records, each with its length and checksums. A record is usually a `tf.train.Example`, which
`tf_example.py` decodes. For files that are read in order see `tfrecord_stream.py`.
"""

from __future__ import annotations

import array
import hashlib
import json
import os
import struct
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, redact, sealed
from bushel._src.base.errors import BushelWarning, DamagedFile
from bushel._src.base.progress import Progress
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import crc
from bushel._src.sources.crc import Checksum, mask
from bushel._src.sources.local_files import File, LocalFile
from bushel._src.sources.paths import Options, Paths, get_cache_folder
from bushel._src.sources.record_files import RecordReader, RecordSource, copy_records

HEADER = 12  # length (8 bytes) and its checksum
FOOTER = 4  # checksum of the data
_LENGTH = struct.Struct("<QI")
_WORTH_KEEPING = 1 << 20
_FAR = 4 << 20  # to reach a record this far away, a new request is faster than reading the bytes between
_FORMAT = 2  # version of the files of offsets; a part of their names


def frame_record(record: bytes, crc32c: Checksum) -> bytes:
    """A record with its length and checksums, as a file holds it."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, struct.pack("<I", mask(crc32c(length))), record, struct.pack("<I", mask(crc32c(record)))))


@public("bushel.sources")
@in_states("TFRecordDataSource")
class TFRecordDataSource(RecordSource):
    """Records of TFRecord files as bytes, at any position.

    The files are scanned once for the offsets of their records. The offsets of a large file are kept in a cache folder
    ($BUSHEL_CACHE_DIR, or bushel in $XDG_CACHE_HOME or ~/.cache). Compressed files can only be read in order: see
    `bushel.experimental.TFRecordIterDataset`.

    Args:
      paths: one or many files, patterns or URLs.
      verify: whether to compare every record with its checksum. By default records are compared if a package that
        computes the checksums is installed; otherwise there is a warning.
      storage_options: options of the store that holds the files.

    >>> import os, tempfile
    >>> from bushel.sources import convert
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "rows.jsonl"), "w") as file:
    ...     _ = file.write('{"x": 1}\\n{"x": 2}\\n')
    >>> (path,) = convert(os.path.join(folder, "rows.jsonl"), os.path.join(folder, "rows.tfrecord")).files
    >>> TFRecordDataSource(path)[1]
    b'{"x": 2}'
    """

    def __init__(self, paths: Paths, *, verify: bool | None = None, storage_options: Options | None = None):
        self._verify = crc.decide_verify(verify)  # decided here, so that workers do the same as this process
        super().__init__(paths, storage_options)

    def _make_reader(self, file: File) -> RecordReader:
        return _TFRecordFile(file, crc.get_fast_checksum() if self._verify else None)

    def read_parts(
        self, indices: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray
    ) -> list[bytes]:
        """Reads parts of records: of each record in `indices`, `sizes` bytes from `starts` on, and nothing else.

        Parts are not compared with a checksum, because the checksum belongs to the whole record.
        """
        places, begins = checks.positions(indices, len(self)), np.asarray(starts, np.int64)
        lengths = np.asarray(sizes, np.int64)
        found: list[Any] = [None] * len(places)
        for number, positions, rows in self._split_by_file(places):
            reader = self._get_reader(number)
            assert isinstance(reader, _TFRecordFile)
            for row, part in zip(rows.tolist(), reader.read_parts(positions, begins[rows], lengths[rows])):
                found[row] = part
        return found


class _TFRecordFile(RecordReader):
    def __init__(self, file: File, crc32c: Checksum | None):
        self._file, self._crc32c = file, crc32c
        bounds = _load_offsets(file, crc32c)
        self.count = len(bounds) - 1
        self._starts, self._sizes = bounds[:-1], np.diff(bounds)

    def read(self, position: int) -> bytes:
        return self._unframe(position, self._file.read(self._starts.item(position), self._sizes.item(position)))

    def read_many(self, positions: np.ndarray) -> list[bytes]:
        data = self._file.read_many(self._starts[positions].tolist(), self._sizes[positions].tolist())
        return [self._unframe(position, part) for position, part in zip(positions.tolist(), data)]

    def read_parts(self, positions: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> list[bytes]:
        """Parts of records, in the given order."""
        room = self._sizes[positions] - HEADER - FOOTER
        outside = np.flatnonzero((starts < 0) | (sizes < 0) | (starts + sizes > room))
        if len(outside):
            row = outside[0]
            raise self._damage_error(
                positions.item(row),
                f"it has {room[row]} bytes, but {sizes[row]} bytes from byte {starts[row]} on should be read",
            )
        return self._file.read_many((self._starts[positions] + HEADER + starts).tolist(), sizes.tolist())

    def read_into(self, positions: np.ndarray, rows: memoryview, size: int) -> None:
        if (self._sizes[positions] != size + HEADER + FOOTER).any():
            return copy_records(self.read_many(positions), rows, size, self._file.name, positions)
        head, foot = bytearray(HEADER), bytearray(FOOTER)
        for place, position in enumerate(positions.tolist()):
            row = rows[place * size : (place + 1) * size]
            self._file.read_into(self._starts.item(position), [head, row, foot])
            self._check_record(position, head, row, foot)

    def _unframe(self, position: int, data: bytes) -> bytes:
        record = data[HEADER:-FOOTER]
        self._check_record(position, data, record, data[-FOOTER:])
        return record

    def _check_record(self, position: int, head: Any, record: Any, foot: Any) -> None:
        length, _ = _LENGTH.unpack_from(head)
        if length != len(record):
            raise self._damage_error(position, f"its length is {len(record)} in the index and {length} in the file")
        if self._crc32c is not None and mask(self._crc32c(record)) != int.from_bytes(foot, "little"):
            raise self._damage_error(position, "its content does not match its checksum")

    def _damage_error(self, position: int, why: str) -> DamagedFile:
        return DamagedFile(f"{self._file.name}: record {position} is damaged: {why}.")


def _load_offsets(file: File, crc32c: Checksum | None) -> np.ndarray:
    """The offset of each record, and the end of the last one. Read from the cache folder if they are there."""
    if file.size < _WORTH_KEEPING:
        return _scan_offsets(file, crc32c)
    name = os.path.abspath(file.name) if isinstance(file, LocalFile) else file.name
    digest = hashlib.blake2b(json.dumps([_FORMAT, name, *file.version()]).encode(), digest_size=16).hexdigest()
    path = os.path.join(get_cache_folder(), "tfrecord", f"{digest}.offsets")
    known = _read_offsets(path, file.size)
    if known is None:
        known = _scan_offsets(file, crc32c)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            sealed.write_bytes(path, known.astype("<i8").tobytes())
        except OSError:
            pass  # they cannot be kept: the next run scans the file again
    return known


def _read_offsets(path: str, size: int) -> np.ndarray | None:
    """The offsets that an earlier run has kept; None if there are none, or if their file is damaged."""
    try:
        data = sealed.read_bytes(path)
    except OSError:
        return None
    except DamagedFile as error:
        warnings.warn(f"{error} The TFRecord file that it belongs to is scanned again.", BushelWarning, stacklevel=2)
        return None
    bounds = np.frombuffer(data, "<i8").astype(np.int64)
    return bounds if len(bounds) and bounds[-1] == size else None


def _scan_offsets(file: File, crc32c: Checksum | None) -> np.ndarray:
    """Finds the offsets of all records: goes from length to length through the whole file."""
    bounds = array.array("q", [0])
    place, size = 0, file.size
    bar = Progress(f"offsets of {redact.base_name(file.name)}", size, unit="B", delay_s=1)
    while place < size:
        # If records are longer than a window, each costs one request. A small request is then the cheapest.
        small = isinstance(file, LocalFile) or place > (len(bounds) - 1) * _FAR
        window = 1 << 16 if small else 8 << 20
        if size - place < HEADER + FOOTER:
            raise _cut_short_error(file, len(bounds) - 1, size - place)
        data = file.read(place, min(window, size - place))
        base, last = place, place + len(data) - HEADER
        while place <= last:
            length, crc = _LENGTH.unpack_from(data, place - base)
            if crc32c is not None and mask(crc32c(data[place - base : place - base + 8])) != crc:
                raise length_error(file.name, len(bounds) - 1, data[:2] if not base else b"")
            place += length + HEADER + FOOTER
            if place > size:
                raise _cut_short_error(file, len(bounds) - 1, length)
            bounds.append(place)
        bar.show(place)
    bar.end()
    return np.array(bounds, np.int64)


def _cut_short_error(file: File, record: int, length: int) -> DamagedFile:
    return DamagedFile(
        f"{file.name} ends in the middle of record {record} ({length} bytes of a file of {file.size} bytes): it was "
        "cut short, or it is not a TFRecord file."
    )


def length_error(name: str, record: int, beginning: bytes) -> DamagedFile:
    """The error to raise for a length that does not match its checksum."""
    if beginning == b"\x1f\x8b" or beginning[:1] == b"\x78":
        return DamagedFile(
            f"{name} is compressed, so it can only be read in order: use TFRecordIterDataset, or convert it."
        )
    what = "it is not a TFRecord file" if record == 0 else "it is damaged"
    return DamagedFile(f"{name}: the length of record {record} does not match its checksum: {what}.")
