"""TFRecord files, read at any position by an index of offsets, or in order. TensorFlow is not needed.

A file is a row of records, each with its length and checksums. A record is usually a `tf.train.Example`, which
`protocol_buffers.py` decodes. A file that is compressed with gzip or zlib can only be read in order.
"""

from __future__ import annotations

import abc
import array
import bisect
import dataclasses
import hashlib
import itertools
import json
import operator
import os
import struct
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import checked_files, checks, redact
from bushel._src.base.errors import BushelWarning, DamagedFile, StateMismatch, TooLarge
from bushel._src.base.public import public
from bushel._src.base.shown_text import Progress
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access, size_limits
from bushel._src.sources.checksums import Checksum, compute_length_checksums, decide_verify, get_fast_checksum, mask
from bushel._src.sources.local_files import File, LocalFile
from bushel._src.sources.paths import Options, Paths, get_cache_folder
from bushel._src.sources.record_files import JoinedRecords, RecordReader, copy_records
from bushel._src.sources.user_sources import SequentialReader

HEADER = 12  # length (8 bytes) and its checksum
FOOTER = 4  # checksum of the data
_LENGTH = struct.Struct("<QI")
_WORTH_KEEPING = 1 << 20
_FAR = 4 << 20  # to reach a record this far away, a new request is faster than reading the bytes between
_FORMAT = 2  # version of the files of offsets; a part of their names


def frame_record(record: bytes, crc32c: Checksum) -> bytes:
    """Return a record with its length and checksums, as a file holds it."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, struct.pack("<I", mask(crc32c(length))), record, struct.pack("<I", mask(crc32c(record)))))


@public("bushel.sources")
@in_states("TFRecordDataSource")
class TFRecordDataSource(JoinedRecords):
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
        self._verify = decide_verify(verify)  # decided here, so that workers do the same as this process
        super().__init__(paths, storage_options)

    def _make_reader(self, file: File) -> RecordReader:
        return _TFRecordFile(file, get_fast_checksum() if self._verify else None)

    def read_parts(
        self, indices: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray
    ) -> list[bytes]:
        """Read parts of records: of each record in `indices`, `sizes` bytes from `starts` on, and nothing else.

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
        """Return parts of records, in the given order."""
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
    """Return the offset of each record, and the end of the last one. Read from the cache folder if they are there."""
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
            checked_files.write_bytes(path, known.astype("<i8").tobytes())
        except OSError:
            pass  # they cannot be kept: the next run scans the file again
    return known


def _read_offsets(path: str, size: int) -> np.ndarray | None:
    """Return the offsets that an earlier run has kept; None if there are none, or if their file is damaged."""
    try:
        data = checked_files.read_bytes(path)
    except OSError:
        return None
    except DamagedFile as error:
        warnings.warn(f"{error} The TFRecord file that it belongs to is scanned again.", BushelWarning, stacklevel=2)
        return None
    bounds = np.frombuffer(data, "<i8").astype(np.int64)
    return bounds if len(bounds) and bounds[-1] == size else None


def _scan_offsets(file: File, crc32c: Checksum | None) -> np.ndarray:
    """Find the offsets of all records: goes from length to length through the whole file."""
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
    """Return the error to raise for a length that does not match its checksum."""
    if beginning == b"\x1f\x8b" or beginning[:1] == b"\x78":
        return DamagedFile(
            f"{name} is compressed, so it can only be read in order: use TFRecordIterDataset, or convert it."
        )
    what = "It is not a TFRecord file." if record == 0 else "The file is damaged."
    return DamagedFile(f"{name}: the length of record {record} does not match its checksum. {what}")


_WINDOW = 1 << 20
_CHUNK = 4 << 20  # the most bytes that are decompressed at once
_GIVEN_UP = -1  # the position after a damaged length: the place of the next record is unknown
_ONLY_LENGTH = struct.Struct("<Q")


@in_states("tfrecord_stream")
@dataclasses.dataclass(frozen=True)
class TFRecordStream:
    """The records of one TFRecord file, in order, as bytes."""

    path: str
    verify: bool | None = None
    storage_options: Options | None = None

    def open(self) -> TFRecordReader:
        file = file_access.open_file(self.path, self.storage_options)
        return TFRecordReader(file, get_fast_checksum() if decide_verify(self.verify) else None)

    def fingerprint(self) -> Any:
        return file_access.fingerprint_files([self.path], self.storage_options)

    def __repr__(self) -> str:
        return f"TFRecordStream({redact.base_name(self.path)})"


class _FileBytes(abc.ABC):
    """The bytes of a file, after decompression."""

    @abc.abstractmethod
    def fill(self, start: int, wanted: int) -> bytes:
        """Return at least `wanted` bytes from byte `start` on, and fewer only at the end."""


class _PlainBytes(_FileBytes):
    def __init__(self, file: File):
        self._file = file

    def fill(self, start: int, wanted: int) -> bytes:
        return self._file.read(start, max(0, min(max(wanted, _WINDOW), self._file.size - start)))


class _InflatedBytes(_FileBytes):
    """Decompresses a file while it is read. To go back, it begins again at the start of the file."""

    def __init__(self, file: File):
        self._file = file
        self._restart()

    def _restart(self) -> None:
        self._inflate = zlib.decompressobj(wbits=47)  # detects gzip or zlib from the data
        self._read = 0  # how many bytes of the file were read
        self._waiting = b""  # bytes that were read, and not decompressed yet
        self._held_back = False  # whether zlib may return more bytes without more input
        self._at = 0  # the position of `_ahead` in the decompressed data
        self._ahead = b""

    def fill(self, start: int, wanted: int) -> bytes:
        if start < self._at:
            self._restart()
        skipped = min(start - self._at, len(self._ahead))
        self._ahead, self._at = self._ahead[skipped:], self._at + skipped
        chunks, have = [self._ahead], len(self._ahead)
        while self._at < start or have < wanted:
            try:
                chunk = self._decompress_more()
            except BaseException:
                self._restart()  # otherwise the chunks so far would be missing in the next call
                raise
            if chunk is None:
                break
            if self._at < start:  # all bytes before this chunk were skipped already
                skipped = min(start - self._at, len(chunk))
                chunk, self._at = chunk[skipped:], self._at + skipped
            chunks.append(chunk)
            have += len(chunk)
        self._ahead = b"".join(chunks)
        return self._ahead

    def _decompress_more(self) -> bytes | None:
        """Return the next chunk of the decompressed data, of bounded size; None at the end."""
        file = self._file
        if not self._waiting and not self._held_back:
            if self._read == file.size:
                if not self._inflate.eof:
                    raise DamagedFile(f"{file.name} ends in the middle of its compressed data: it was cut short.")
                return None
            self._waiting = file.read(self._read, min(_WINDOW, file.size - self._read))
            self._read += len(self._waiting)
        if self._inflate.eof:  # a file may consist of several compressed files, one after the other
            self._inflate = zlib.decompressobj(wbits=47)
        try:
            chunk = self._inflate.decompress(self._waiting, _CHUNK)
        except zlib.error as error:
            near = self._read - len(self._waiting)
            raise DamagedFile(f"{file.name}: its compressed data is damaged near byte {near} ({error}).") from error
        self._waiting = self._inflate.unused_data or self._inflate.unconsumed_tail
        self._held_back = len(chunk) == _CHUNK and not self._inflate.eof
        return chunk


class TFRecordReader(SequentialReader):
    """Reads a TFRecord file in order. Its position is the offset of the next record, as in Grain's state.

    The reader takes a window of the file and cuts it into records at once, so that a single record costs little.
    """

    def __init__(self, file: File, crc32c: Checksum | None):
        self._name, self._crc32c = file.name, crc32c
        beginning = file.read(0, min(HEADER, file.size))
        compressed = _is_compressed(beginning) and not _begins_with_length(
            beginning
        )  # the length of an uncompressed record may begin with the same bytes
        self._bytes: _FileBytes = _InflatedBytes(file) if compressed else _PlainBytes(file)
        self._size = None if compressed else file.size
        self._bounds, self._first, self._after = [0], 0, _GIVEN_UP
        self._set_records([], [0])

    def _set_records(self, records: list[bytes], bounds: list[int], failure: DamagedFile | None = None) -> None:
        self._first = self._find_number(bounds[0])  # the number of the first record in the file
        self.at_hand = iter(records)
        self._bounds = bounds  # where each record begins, and where the last one ends
        self._failure = failure  # the error of the record after these

    def _find_offset(self) -> int:
        """Return where the next record begins. The iterator knows how many records it has left."""
        return self._bounds[-1 - operator.length_hint(self.at_hand)]

    def read(self, count: int) -> list[bytes]:
        rows = list(itertools.islice(self.at_hand, count))
        if not rows and self._read_window():
            rows = list(itertools.islice(self.at_hand, count))
        return rows

    def _read_window(self) -> bool:
        """Read the next window and cuts it into records. Return False at the end."""
        if self._failure is not None:
            raise self._failure
        start, self._after = self._bounds[-1], _GIVEN_UP
        self._set_records([], [start])
        if start == _GIVEN_UP:
            return False
        data = self._bytes.fill(start, HEADER + FOOTER)
        if not data:
            return False
        around, unpack = HEADER + FOOTER, _ONLY_LENGTH.unpack_from
        bounds, place, last = [0], 0, len(data) - around
        while place <= last:
            place += unpack(data, place)[0] + around
            bounds.append(place)
        if bounds[-1] > len(data):
            bounds.pop()
        places = np.array(bounds)
        del bounds[self._count_good_lengths(data, places) + 1 :]
        if len(bounds) == 1:
            data = self._read_large_record(start, data)
            bounds = [0, len(data)]
            places = np.array(bounds)
        records = [data[low + HEADER : high - FOOTER] for low, high in itertools.pairwise(bounds)]
        good, failure = self._count_good_records(records, data, places[1 : len(bounds)] - FOOTER), None
        if good < len(records):
            where = self._describe_place(start + bounds[good], good)
            failure = DamagedFile(f"{self._name} is damaged: a record does not match its checksum ({where}).")
            self._after = start + bounds[good + 1]
            if not good:
                raise failure
        self._set_records(records[:good], [start + bound for bound in bounds[: good + 1]], failure)
        return True

    def _read_large_record(self, start: int, data: bytes) -> bytes:
        """Read the one record at `start`, which did not fit into the window."""
        where = self._describe_place(start)
        if len(data) < HEADER + FOOTER:
            raise DamagedFile(
                f"{self._name} ends with {len(data)} bytes, too few for a record: it was cut short ({where})."
            )
        (length,) = _ONLY_LENGTH.unpack_from(data)
        if self._crc32c is not None and not _begins_with_length(data):
            if start == 0:
                raise length_error(self._name, 0, b"")
            raise DamagedFile(
                f"{self._name} is damaged: a length does not match its checksum, so the next record cannot be found "
                f"({where})."
            )
        wanted = HEADER + length + FOOTER
        if self._size is None:
            try:
                size_limits.check_record(length)
            except TooLarge as error:
                self._after = start + wanted
                raise TooLarge(f"{self._name} ({where}) is not read: {error}") from None
        if self._size is None or start + wanted <= self._size:
            data = self._bytes.fill(start, wanted)[:wanted]
        if len(data) < wanted:
            raise DamagedFile(
                f"{self._name} ends in the middle of a record of {length} bytes: it was cut short ({where})."
            )
        return data

    def _count_good_lengths(self, data: bytes, bounds: np.ndarray) -> int:
        """Return how many lengths, from the first on, match their checksums."""
        if self._crc32c is None:
            return len(bounds) - 1
        return _count_equal(compute_length_checksums(np.diff(bounds) - HEADER - FOOTER), data, bounds[:-1] + 8)

    def _count_good_records(self, records: list[bytes], data: bytes, places: np.ndarray) -> int:
        """Return how many records, from the first on, match their checksums, which are at `places`."""
        if self._crc32c is None:
            return len(records)
        found = np.fromiter(map(self._crc32c, records), np.uint32, len(records))
        found = (found >> 15 | found << 17) + np.uint32(0xA282EAD8)
        return _count_equal(found, data, places)

    def _describe_place(self, offset: int, after: int = 0) -> str:
        record = "" if self._first is None else f"record {self._first + after}, "
        return f"{record}at byte {offset}"

    def _find_number(self, offset: int) -> int | None:
        """Return the number of the record that begins at a byte.

        Unknown (None) after a restore: a state has only the byte.
        """
        place = bisect.bisect_left(self._bounds, offset)
        if offset == 0 or self._first is None or self._bounds[place : place + 1] != [offset]:
            return None if offset else 0
        return self._first + place

    def skip(self) -> int:
        number = self._find_number(self._bounds[-1])
        self._set_records([], [self._after])
        self._first = None if number is None else number + 1
        return 1

    @property
    def compressed(self) -> bool:
        """Whether the file is compressed, so that it can only be read in order."""
        return self._size is None

    def get_state(self) -> dict[str, Any]:
        return {"reader_offset": self._find_offset()}

    def set_state(self, state: dict[str, Any]) -> None:
        offset = state["reader_offset"]
        if offset < _GIVEN_UP or (self._size is not None and offset > self._size):
            raise StateMismatch(
                f"The state is at byte {offset} of {self._name}, which has {self._size} bytes.", "reader_offset"
            )
        self._set_records([], [offset])

    def close(self) -> None:
        self._set_records([], [self._find_offset()])


def _count_equal(checksums: np.ndarray, data: bytes, places: np.ndarray) -> int:
    """Return how many checksums, from the first on, are equal to those at `places` of the data."""
    if not len(places):
        return 0
    words = np.ndarray(len(data) - 3, "<u4", data, strides=(1,))  # a 4-byte number at every byte
    wrong = np.flatnonzero(checksums != words[places])
    return int(wrong[0]) if len(wrong) else len(places)


def _is_compressed(beginning: bytes) -> bool:
    """Return whether bytes begin like a gzip or zlib file."""
    zlib_header = beginning[:1] == b"\x78" and int.from_bytes(beginning[:2], "big") % 31 == 0
    return beginning[:2] == b"\x1f\x8b" or zlib_header


def _begins_with_length(beginning: bytes) -> bool:
    """Return whether bytes begin with a length and its checksum."""
    if len(beginning) < HEADER:
        return False
    length, crc = np.frombuffer(beginning, "<u8", 1), np.frombuffer(beginning, "<u4", 1, offset=8)
    return bool(compute_length_checksums(length) == crc)
