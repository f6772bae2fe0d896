"""TFRecord files read in order, plain or compressed with gzip or zlib."""

from __future__ import annotations

import abc
import bisect
import dataclasses
import itertools
import operator
import struct
import zlib
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, StateMismatch, TooLarge
from bushel._src.base.state_names import in_states
from bushel._src.sources import crc, file_access, size_limits
from bushel._src.sources.crc import Checksum, compute_length_checksums
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options
from bushel._src.sources.protocol import SequentialReader
from bushel._src.sources.tfrecord import FOOTER, HEADER, length_error

_WINDOW = 1 << 20
_PIECE = 4 << 20  # the most bytes that are decompressed at once
_GIVEN_UP = -1  # the position after a damaged length: the place of the next record is unknown
_LENGTH = struct.Struct("<Q")


@in_states("tfrecord_stream")
@dataclasses.dataclass(frozen=True)
class TFRecordStream:
    """The records of one TFRecord file, in order, as bytes."""

    path: str
    verify: bool | None = None
    storage_options: Options | None = None

    def open(self) -> TFRecordReader:
        file = file_access.open_file(self.path, self.storage_options)
        return TFRecordReader(file, crc.get_fast_checksum() if crc.decide_verify(self.verify) else None)

    def fingerprint(self) -> Any:
        return file_access.fingerprint_files([self.path], self.storage_options)

    def __repr__(self) -> str:
        return f"TFRecordStream({redact.base_name(self.path)})"


class _Bytes(abc.ABC):
    """The bytes of a file, after decompression."""

    @abc.abstractmethod
    def fill(self, start: int, wanted: int) -> bytes:
        """Returns at least `wanted` bytes from byte `start` on, and fewer only at the end."""


class _Plain(_Bytes):
    def __init__(self, file: File):
        self._file = file

    def fill(self, start: int, wanted: int) -> bytes:
        return self._file.read(start, max(0, min(max(wanted, _WINDOW), self._file.size - start)))


class _Inflated(_Bytes):
    """Decompresses a file while it is read. To go back, it begins again at the start of the file."""

    def __init__(self, file: File):
        self._file = file
        self._restart()

    def _restart(self) -> None:
        self._inflate = zlib.decompressobj(wbits=47)  # detects gzip or zlib from the data
        self._read = 0  # how many bytes of the file were read
        self._waiting = b""  # bytes that were read, and not decompressed yet
        self._held_back = False  # whether zlib may return more bytes without more input
        self._at = 0  # the place of `_ahead` in the decompressed data
        self._ahead = b""

    def fill(self, start: int, wanted: int) -> bytes:
        if start < self._at:
            self._restart()
        skipped = min(start - self._at, len(self._ahead))
        self._ahead, self._at = self._ahead[skipped:], self._at + skipped
        pieces, have = [self._ahead], len(self._ahead)
        while self._at < start or have < wanted:
            try:
                piece = self._decompress_more()
            except BaseException:
                self._restart()  # otherwise the pieces so far would be missing in the next call
                raise
            if piece is None:
                break
            if self._at < start:  # all bytes before this piece were skipped already
                skipped = min(start - self._at, len(piece))
                piece, self._at = piece[skipped:], self._at + skipped
            pieces.append(piece)
            have += len(piece)
        self._ahead = b"".join(pieces)
        return self._ahead

    def _decompress_more(self) -> bytes | None:
        """The next piece of the decompressed data, of bounded size; None at the end."""
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
            piece = self._inflate.decompress(self._waiting, _PIECE)
        except zlib.error as error:
            near = self._read - len(self._waiting)
            raise DamagedFile(f"{file.name}: its compressed data is damaged near byte {near} ({error}).") from error
        self._waiting = self._inflate.unused_data or self._inflate.unconsumed_tail
        self._held_back = len(piece) == _PIECE and not self._inflate.eof
        return piece


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
        self._bytes: _Bytes = _Inflated(file) if compressed else _Plain(file)
        self._size = None if compressed else file.size
        self._bounds, self._first, self._after = [0], 0, _GIVEN_UP
        self._set_records([], [0])

    def _set_records(self, records: list[bytes], bounds: list[int], failure: DamagedFile | None = None) -> None:
        self._first = self._find_number(bounds[0])  # the number of the first record in the file
        self.at_hand = iter(records)
        self._bounds = bounds  # where each record begins, and where the last one ends
        self._failure = failure  # the error of the record after these

    def _find_offset(self) -> int:
        """Where the next record begins. The iterator knows how many records it has left."""
        return self._bounds[-1 - operator.length_hint(self.at_hand)]

    def read(self, count: int) -> list[bytes]:
        rows = list(itertools.islice(self.at_hand, count))
        if not rows and self._read_window():
            rows = list(itertools.islice(self.at_hand, count))
        return rows

    def _read_window(self) -> bool:
        """Reads the next window and cuts it into records. Returns False at the end."""
        if self._failure is not None:
            raise self._failure
        start, self._after = self._bounds[-1], _GIVEN_UP
        self._set_records([], [start])
        if start == _GIVEN_UP:
            return False
        data = self._bytes.fill(start, HEADER + FOOTER)
        if not data:
            return False
        around, unpack = HEADER + FOOTER, _LENGTH.unpack_from
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
            failure = self._damage_error("is damaged: a record does not match its checksum", start + bounds[good], good)
            self._after = start + bounds[good + 1]
            if not good:
                raise failure
        self._set_records(records[:good], [start + bound for bound in bounds[: good + 1]], failure)
        return True

    def _read_large_record(self, start: int, data: bytes) -> bytes:
        """Reads the one record at `start`, which did not fit into the window."""
        if len(data) < HEADER + FOOTER:
            raise self._damage_error(f"ends with {len(data)} bytes, too few for a record: it was cut short", start)
        (length,) = _LENGTH.unpack_from(data)
        if self._crc32c is not None and not _begins_with_length(data):
            if start == 0:
                raise length_error(self._name, 0, b"")
            raise self._damage_error(
                "is damaged: a length does not match its checksum, so the next record cannot be found", start
            )
        wanted = HEADER + length + FOOTER
        if self._size is None:
            try:
                size_limits.check_record(length)
            except TooLarge as error:
                self._after = start + wanted
                raise TooLarge(f"{self._name} ({self._describe_place(start)}) is not read: {error}.") from None
        if self._size is None or start + wanted <= self._size:
            data = self._bytes.fill(start, wanted)[:wanted]
        if len(data) < wanted:
            raise self._damage_error(f"ends in the middle of a record of {length} bytes: it was cut short", start)
        return data

    def _count_good_lengths(self, data: bytes, bounds: np.ndarray) -> int:
        """How many lengths, from the first on, match their checksums."""
        if self._crc32c is None:
            return len(bounds) - 1
        return _count_equal(compute_length_checksums(np.diff(bounds) - HEADER - FOOTER), data, bounds[:-1] + 8)

    def _count_good_records(self, records: list[bytes], data: bytes, places: np.ndarray) -> int:
        """How many records, from the first on, match their checksums, which are at `places`."""
        if self._crc32c is None:
            return len(records)
        found = np.fromiter(map(self._crc32c, records), np.uint32, len(records))
        found = (found >> 15 | found << 17) + np.uint32(0xA282EAD8)
        return _count_equal(found, data, places)

    def _describe_place(self, offset: int, after: int = 0) -> str:
        record = "" if self._first is None else f"record {self._first + after}, "
        return f"{record}at byte {offset}"

    def _damage_error(self, what: str, offset: int, after: int = 0) -> DamagedFile:
        return DamagedFile(f"{self._name} {what} ({self._describe_place(offset, after)}).")

    def _find_number(self, offset: int) -> int | None:
        """The number of the record that begins at a byte. Unknown (None) after a restore: a state has only the byte."""
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
    """How many checksums, from the first on, are equal to those at `places` of the data."""
    if not len(places):
        return 0
    words = np.ndarray(len(data) - 3, "<u4", data, strides=(1,))  # a 4-byte number at every byte
    wrong = np.flatnonzero(checksums != words[places])
    return int(wrong[0]) if len(wrong) else len(places)


def _is_compressed(beginning: bytes) -> bool:
    """Whether bytes begin like a gzip or zlib file."""
    zlib_header = beginning[:1] == b"\x78" and int.from_bytes(beginning[:2], "big") % 31 == 0
    return beginning[:2] == b"\x1f\x8b" or zlib_header


def _begins_with_length(beginning: bytes) -> bool:
    """Whether bytes begin with a length and its checksum."""
    if len(beginning) < HEADER:
        return False
    length, crc = np.frombuffer(beginning, "<u8", 1), np.frombuffer(beginning, "<u4", 1, offset=8)
    return bool(compute_length_checksums(length) == crc)
