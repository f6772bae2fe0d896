"""ArrayRecord files, read by offset: a record costs the same in a file of a thousand and of a million.

The container is Riegeli's: chunks of records, interrupted by a block header every 64 KiB, and at the end a footer with
the offset of each chunk. Writing is left to the `array_record` package.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel.base.errors import DamagedFile
from bushel.sources import codecs, highway, varints
from bushel.sources.records import RecordReader, RecordSource, copied_into
from bushel.sources.stores import File, Options

_BLOCK = 1 << 16
_BLOCK_HEADER = 24
_HEADER = 40
_FIELDS = struct.Struct("<QQQQQ")  # hash of the header, size of data, hash of data, type and number of records, decoded
_SIZES = struct.Struct("<8xQ8xQQ")
_BEGINNING = np.dtype(
    {
        "names": ["size", "kind", "decoded", "compression"],
        "formats": ["<u8", "<u8", "<u8", "u1"],
        "offsets": [8, 24, 32, 40],
        "itemsize": _HEADER + 1,
    }
)
_SIMPLE, _TRANSPOSED = 0x72, 0x74
_ALONE = _SIMPLE | 1 << 8  # a chunk of one record
_MAGIC = 0x71930E704FDAE05E
_SIGNATURE = bytes.fromhex("83af70d10d884a3f")
_LONGER = np.array([1 << 7 * count for count in range(1, 9)])  # from these sizes on a size takes one byte more
_DECODERS: dict[int, Callable[[Any, int], bytes]] = {
    0x7A: codecs.unzstd,
    0x62: codecs.unbrotli,
    0x73: codecs.unsnappy,
}


class ArrayRecordDataSource(RecordSource):
    """Records of ArrayRecord files as bytes, under Grain's name and with Grain's arguments.

    Reads by offset, so a single read takes microseconds however large the file is. Paths may be patterns, URLs,
    "file[3:7]" for a part of a file, or TFDS's file instructions.

    Args:
      paths: one or many files.
      reader_options: accepted for Grain's sake; they change nothing here.
      verify: checks the hashes of what is read. The hash is computed with NumPy, for many records at once: about 6 us
        for a record of 1 KB in blocks of 512, 500 us for one alone. Sizes and positions are always checked.
      storage_options: of the store where the files lie.

    >>> from bushel.sources import ArrayRecordDataSource
    >>> ArrayRecordDataSource("nothing-*.array_record")
    Traceback (most recent call last):
    FileNotFoundError: No file matches 'nothing-*.array_record'.
    """

    def __init__(
        self,
        paths: Any,
        reader_options: dict[str, str] | None = None,
        *,
        verify: bool = False,
        storage_options: Options | None = None,
    ):
        self._reader_options = reader_options
        self._verify = bool(verify)
        super().__init__(paths, storage_options)

    def _reader(self, file: File) -> RecordReader:
        return _ArrayRecordFile(file, self._verify)


class _ArrayRecordFile(RecordReader):
    """One file: for each chunk its place, its decoded size and how many records it holds."""

    def __init__(self, file: File, verify: bool):
        self._file, self._verify = file, verify
        self._offsets, self._ends, self._decoded, counts = _index(file, verify)
        self.count = int(counts.sum())
        self._counts = counts
        self._single = bool((counts == 1).all())
        # One setting holds for a whole file; each chunk is asked again when it is read.
        self._plain = self._single and self.count > 0 and file.read(int(self._offsets[0]) + _HEADER, 1) == b"\0"
        self._firsts = np.cumsum(counts) - counts
        # Enough for the whole chunk unless compression made it larger; chunks may be padded to a whole block.
        bound = _HEADER + 64 + 11 * counts + self._decoded + (self._decoded >> 6)
        bound += (bound // (_BLOCK - _BLOCK_HEADER) + 2) * _BLOCK_HEADER
        self._lengths = np.minimum(self._ends - self._offsets, bound)

    def read(self, position: int) -> bytes:
        if not self._single:
            chunk = int(self._firsts.searchsorted(position, "right")) - 1
            return self._records(chunk)[position - int(self._firsts[chunk])]
        start, length = self._offsets.item(position), self._lengths.item(position)
        raw = self._file.read(start, length)
        data = raw if -start % _BLOCK >= length else _joined(raw, start)
        if self._verify:
            self._check([position], [data])
        return self._only(position, data)

    def read_many(self, positions: np.ndarray) -> list[bytes]:
        if self._plain and not self._verify:
            return self._plain_records(positions)
        if self._single:
            data = self._chunks(positions)
            return [self._only(chunk, part) for chunk, part in zip(positions.tolist(), data)]
        wanted, back = np.unique(self._firsts.searchsorted(positions, "right") - 1, return_inverse=True)
        parts = [self._parts(chunk, data) for chunk, data in zip(wanted.tolist(), self._chunks(wanted))]
        within = (positions - self._firsts[wanted[back]]).tolist()
        return [parts[chunk][place] for chunk, place in zip(back.tolist(), within)]

    def read_into(self, positions: np.ndarray, rows: memoryview, size: int) -> None:
        prefix = _HEADER + 2 + len(varints.encoded(size))  # of a chunk with one record that is not compressed
        if self._verify or not self._single or (self._decoded[positions] != size).any():
            return copied_into(self.read_many(positions), rows, size, self._file.name)
        scratch = bytearray(prefix)
        for place, chunk in enumerate(positions.tolist()):
            start, row = self._offsets.item(chunk), rows[place * size : (place + 1) * size]
            if self._ends.item(chunk) - start < prefix + size:  # compressed, so smaller than its content
                return copied_into(self.read_many(positions), rows, size, self._file.name)
            self._file.read_into(start, _around_headers(start, [memoryview(scratch), row]))
            if scratch[_HEADER] != 0:
                return copied_into(self.read_many(positions), rows, size, self._file.name)
            self._header(chunk, scratch, prefix + size)

    def _plain_records(self, chunks: np.ndarray) -> list[bytes]:
        """Records that are alone in their chunks and not compressed: where each byte lies is known beforehand."""
        starts, sizes = self._offsets[chunks], self._decoded[chunks]
        prefixes = _HEADER + 3 + _LONGER.searchsorted(sizes, "right")
        lengths = prefixes + sizes
        room = -starts % _BLOCK
        crossing = np.flatnonzero(room < lengths)
        ends = starts + np.minimum(lengths, np.where(room == 0, 0, room))
        firsts = self._file.read_many(starts.tolist(), (ends - starts).tolist())
        found = [data[prefix:] for data, prefix in zip(firsts, prefixes.tolist())]
        for place in crossing.tolist():  # rare for small records, few pieces for large ones
            found[place] = self._crossing(starts.item(place), prefixes.item(place), sizes.item(place), firsts, place)
        heads = b"".join([data[: _HEADER + 1] for data in firsts])
        if len(heads) == len(firsts) * (_HEADER + 1):
            fields = np.frombuffer(heads, _BEGINNING)
            right = (fields["kind"] == _ALONE) & (fields["compression"] == 0) & (fields["decoded"] == sizes)
            right &= fields["size"] == lengths - _HEADER
            doubtful = np.flatnonzero(~right)
        else:  # a block begins inside of a header
            doubtful = np.arange(len(firsts))
        for place in doubtful.tolist():
            found[place] = self._only(chunks.item(place), self._chunks(chunks[place : place + 1])[0])
        return found

    def _crossing(self, start: int, prefix: int, size: int, firsts: list[bytes], place: int) -> bytes:
        """A record that goes over the end of a block: the pieces between block headers, joined."""
        first = firsts[place]
        left, block = prefix + size - len(first), start + len(first)
        begins: list[int] = []
        lengths: list[int] = []
        while left > 0:
            lengths.append(min(left, _BLOCK - _BLOCK_HEADER))
            begins.append(block + _BLOCK_HEADER)
            left -= lengths[-1]
            block += _BLOCK
        pieces = self._file.read_many(begins, lengths)
        if len(first) >= prefix:
            return b"".join((memoryview(first)[prefix:], *pieces))
        return b"".join((first, *pieces))[prefix:]

    def _chunks(self, chunks: np.ndarray) -> list[bytes]:
        """Whole chunks, headers first, without the block headers between."""
        starts, lengths = self._offsets[chunks], self._lengths[chunks]
        crossing = np.flatnonzero(-starts % _BLOCK < lengths).tolist()
        firsts = starts.tolist()
        data = self._file.read_many(firsts, lengths.tolist())
        for place in crossing:
            data[place] = _joined(data[place], firsts[place])
        if self._verify:
            self._check(chunks.tolist(), data)
        return data

    def _only(self, chunk: int, data: bytes) -> bytes:
        """The record of a chunk that has one."""
        size = self._header(chunk, data, len(data))
        if size < 0:
            return self._parts(chunk, self._whole(chunk))[0]
        decoded = self._decoded.item(chunk)
        if data[_HEADER] == 0:
            end = _HEADER + size
            return data[end - decoded : end]
        try:
            return _alone(memoryview(data)[_HEADER : _HEADER + size], decoded)
        except ImportError:
            raise
        except Exception as error:
            raise self._damaged(chunk, f"it cannot be decoded ({error})") from error

    def _header(self, chunk: int, data: bytes | bytearray, length: int) -> int:
        """The size of a chunk's data; -1 where not all of it was read. Its header must say what the footer says."""
        size, kind, decoded = _SIZES.unpack_from(data)
        if kind != _SIMPLE | self._counts.item(chunk) << 8 or decoded != self._decoded.item(chunk):
            if kind & 0xFF == _TRANSPOSED:
                raise self._transposed()
            raise self._damaged(chunk, "its header contradicts the index at the end of the file")
        if _HEADER + size > length:
            if _HEADER + size > self._ends.item(chunk) - self._offsets.item(chunk):
                raise self._damaged(chunk, f"its data would be {size} bytes, more than there is room for")
            return -1
        return size

    def _whole(self, chunk: int) -> bytes:
        """A chunk that compression made larger than its content."""
        start = self._offsets.item(chunk)
        return _joined(self._file.read(start, self._ends.item(chunk) - start), start)

    def _records(self, chunk: int) -> list[bytes]:
        return self._parts(chunk, self._chunks(np.array([chunk]))[0])

    def _parts(self, chunk: int, data: bytes) -> list[bytes]:
        """The records of a chunk."""
        size = self._header(chunk, data, len(data))
        if size < 0:
            data = self._whole(chunk)
            size = self._header(chunk, data, len(data))
        try:
            values, ends = _unpacked(memoryview(data)[_HEADER : _HEADER + size], self._decoded.item(chunk))
        except ImportError:
            raise
        except Exception as error:
            raise self._damaged(chunk, f"it cannot be decoded ({error})") from error
        if len(ends) != self._counts.item(chunk) or len(values) != self._decoded.item(chunk):
            raise self._damaged(chunk, "it holds other sizes than its header says")
        stops = ends.tolist()
        return [bytes(values[low:high]) for low, high in zip([0, *stops], stops)]

    def _check(self, chunks: Sequence[int], data: list[bytes]) -> None:
        """Compares the hashes of chunks."""
        messages: list[memoryview] = []
        wanted: list[int] = []
        for chunk, part in zip(chunks, data):
            size = self._header(chunk, part, len(part))
            if size < 0:
                part = self._whole(chunk)
                size = self._header(chunk, part, len(part))
            fields = _FIELDS.unpack_from(part)
            view = memoryview(part)
            messages += [view[8:_HEADER], view[_HEADER : _HEADER + size]]
            wanted += [fields[0], fields[2]]
        wrong = np.flatnonzero(highway.hashes(messages) != np.array(wanted, np.uint64))
        if len(wrong):
            raise self._damaged(chunks[int(wrong[0]) // 2], "its content does not fit its hash")

    def _transposed(self) -> DamagedFile:
        return DamagedFile(
            f"{self._file.name} was written with the option 'transpose', which only the array_record package reads. "
            "Write it again without, or pass array_record's own data source to `MapDataset.source`."
        )

    def _damaged(self, chunk: int, why: str) -> DamagedFile:
        first, count = int(self._firsts[chunk]), int(self._counts[chunk])
        which = f"record {first}" if count == 1 else f"the chunk of records {first} to {first + count - 1}"
        return DamagedFile(f"{self._file.name}: {which} is damaged: {why}.")


def _joined(raw: bytes, start: int) -> bytes:
    """What was read from `start` on, without block headers."""
    boundary = -start % _BLOCK
    if boundary >= len(raw):
        return raw
    parts = [raw[:boundary]]
    for block in range(boundary, len(raw), _BLOCK):
        parts.append(raw[block + _BLOCK_HEADER : block + _BLOCK])
    return b"".join(parts)


def _around_headers(start: int, views: list[memoryview]) -> list[Any]:
    """Buffers for a read from `start` on that puts block headers aside and everything else into `views`."""
    aside = bytearray(_BLOCK_HEADER)
    found: list[Any] = []
    place = start
    for view in views:
        low = 0
        while low < len(view):
            room = -place % _BLOCK
            if room == 0:
                found.append(aside)
                place += _BLOCK_HEADER
                room = _BLOCK - _BLOCK_HEADER
            part = view[low : low + room]
            found.append(part)
            place += len(part)
            low += len(part)
    return found


def _alone(data: memoryview, decoded: int) -> bytes:
    """The only record of a compressed chunk: its size is known, so the list of sizes need not be decoded."""
    length, place = varints.one(data, 1)
    size, place = varints.one(data, place + length)
    if size != decoded:
        raise ValueError(f"{size} bytes where {decoded} were announced")
    record = _decoder(data[0])(data[place:], size)
    if len(record) != decoded:
        raise ValueError(f"{len(record)} bytes came out where {decoded} were announced")
    return record


def _decoder(kind: int) -> Callable[[Any, int], bytes]:
    if kind not in _DECODERS:
        raise ValueError(f"compression {kind:#x} is not known")
    return _DECODERS[kind]


def _unpacked(data: memoryview, decoded: int) -> tuple[bytes | memoryview, np.ndarray]:
    """The values of a simple chunk, and where each record of it ends."""
    kind = data[0]
    length, place = varints.one(data, 1)
    sizes, values = data[place : place + length], data[place + length :]
    if kind:
        decoder = _decoder(kind)
        size, place = varints.one(sizes, 0)
        sizes = memoryview(decoder(sizes[place:], size))
        size, place = varints.one(values, 0)
        if size != decoded:
            raise ValueError(f"{size} bytes where {decoded} were announced")
        values = decoder(values[place:], size)
    return values, np.cumsum(varints.many(sizes)[0].astype(np.int64))


def _index(file: File, verify: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Offset, end, decoded size and number of records of each chunk, from the footer."""

    def wrong(why: str) -> DamagedFile:
        return DamagedFile(f"{file.name} is no complete ArrayRecord file: {why}.")

    def chunk(start: int, stop: int, what: str) -> tuple[bytes | memoryview, np.ndarray]:
        data = _joined(file.read(start, stop - start), start)
        size, kind, decoded = _SIZES.unpack_from(data)
        if kind & 0xFF != _SIMPLE or _HEADER + size > len(data):
            raise wrong(f"{what} is damaged")
        if verify:
            fields = _FIELDS.unpack_from(data)
            found = highway.hashes([data[8:_HEADER], data[_HEADER : _HEADER + size]])
            if found.tolist() != [fields[0], fields[2]]:
                raise wrong(f"{what} does not fit its hash")
        try:
            return _unpacked(memoryview(data)[_HEADER : _HEADER + size], decoded)
        except ImportError:
            raise
        except Exception as error:
            raise wrong(f"{what} cannot be decoded ({error})") from error

    if file.size < 2 * _BLOCK:
        raise wrong(f"it has {file.size} bytes, the smallest has {2 * _BLOCK}")
    if file.read(0, 8) != _SIGNATURE:
        raise wrong("it does not begin with the signature of one")
    if file.size % _BLOCK:
        raise wrong(f"its size of {file.size} bytes is no multiple of {_BLOCK}; it was cut short")
    tail, ends = chunk(file.size - _BLOCK, file.size, "its end")
    fields = dict(_fields(bytes(tail[: int(ends[0])]))) if len(ends) else {}
    footer = fields.get(1, 0)
    if fields.get(2) != _MAGIC or not 0 < footer < file.size - _BLOCK:
        raise wrong("the last 64 KiB do not say where its index is; it was cut short, or never closed")
    values, ends = chunk(footer, file.size - _BLOCK, "its index")
    if not len(ends):
        raise wrong("its index is empty")
    first = int(ends[0])
    totals = dict(_fields(dict(_fields(bytes(values[:first]))).get(1, b"")))
    try:
        numbers, stops = varints.many(bytes(values[first:]))
    except ValueError as error:
        raise wrong(f"its index holds {error}") from error
    table = _table(numbers, stops, ends[1:] - first)
    if table is None or len(table) != totals.get(2) or int(table[:, 2].sum()) != totals.get(3):
        raise wrong("its index contradicts itself")
    offsets, decoded, counts = table.T
    stops = np.append(offsets[1:], footer)
    if (offsets < _BLOCK_HEADER + _HEADER).any() or (stops <= offsets).any() or (decoded < 0).any():
        raise wrong("its index points outside of it")
    return offsets.copy(), stops, decoded.copy(), counts.copy()


def _table(numbers: np.ndarray, stops: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Messages of integer fields 1 to 3 as rows; None where they are something else."""
    if len(numbers) % 2 or (len(ends) and ends[-1] != (stops[-1] if len(stops) else 0)):
        return None
    tags, values = numbers[0::2], numbers[1::2]
    rows = ends.searchsorted(stops[1::2], "left")
    fields = tags >> np.uint64(3)
    if (tags & np.uint64(7)).any() or ((fields < 1) | (fields > 3)).any() or (values >= 1 << 62).any():
        return None
    table = np.zeros((len(ends), 3), np.int64)
    table[rows, fields.astype(np.int64) - 1] = values.astype(np.int64)
    return table


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """The fields of a small message: integers and bytes."""
    found: list[tuple[int, Any]] = []
    place = 0
    try:
        while place < len(message):
            tag, place = varints.one(message, place)
            value, place = varints.one(message, place)
            if tag & 7 == 2:
                value, place = message[place : place + value], place + value
            found.append((tag >> 3, value))
    except (IndexError, ValueError):
        return []
    return found
