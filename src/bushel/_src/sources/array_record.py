"""ArrayRecord files, read by offset: a read costs the same in a file of a thousand records and of a million.

The container is Riegeli's: chunks of records, with a block header every 64 KiB. ArrayRecord adds a footer with the
offset of each chunk, and a last block that says where the footer begins. The `array_record` package writes such files.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import DamagedFile, TooLarge
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.index import epochs
from bushel._src.sources import checksums, decompression, protocol_buffers, size_limits
from bushel._src.sources.local_files import LARGE_BYTES, File
from bushel._src.sources.paths import Options
from bushel._src.sources.record_files import JoinedRecords, RecordReader, copy_records

BLOCK = 1 << 16
BLOCK_HEADER = 24
HEADER = 40  # of a chunk
FIELDS = struct.Struct("<QQQQQ")  # hash of the header, size of data, hash of data, type and number of records, decoded
SIZES = struct.Struct("<8xQ8xQQ")
SIMPLE, TRANSPOSED = 0x72, 0x74
_MAGIC = 0x71930E704FDAE05E
_LARGEST = 1 << 48  # of offsets, sizes and counts: far above any real file, and low enough that sums cannot overflow
_LONGEST_VARINT = 10
_SIZE_BYTES = 64  # memory for the size of a record and for an empty bytes object
_SIGNATURE = bytes.fromhex("83af70d10d884a3f")
_DECODERS: dict[int, Callable[[Any, int], bytes]] = {
    0x7A: decompression.decompress_zstd,
    0x62: decompression.decompress_brotli,
    0x73: decompression.decompress_snappy,
}


def remove_block_headers(raw: bytes, start: int) -> bytes:
    """Remove the block headers from bytes that were read from byte `start` on."""
    boundary = -start % BLOCK
    if boundary >= len(raw):
        return raw
    parts = [raw[:boundary]]
    for block in range(boundary, len(raw), BLOCK):
        parts.append(raw[block + BLOCK_HEADER : block + BLOCK])
    return b"".join(parts)


def count_header_bytes(start: int, length: int) -> int:
    """Return how many of the `length` bytes from byte `start` on belong to block headers.

    >>> count_header_bytes(65_530, 10), count_header_bytes(65_530, 100), count_header_bytes(100, 200_000)
    (4, 24, 72)
    """
    inside = length - -start % BLOCK
    return 0 if inside <= 0 else inside // BLOCK * BLOCK_HEADER + min(inside % BLOCK, BLOCK_HEADER)


def split_around_headers(start: int, views: list[memoryview]) -> list[Any]:
    """Return buffers for a read from byte `start` on: everything goes into `views`, except block headers."""
    aside = bytearray(BLOCK_HEADER)
    found: list[Any] = []
    place = start
    for view in views:
        low = 0
        while low < len(view):
            room = -place % BLOCK
            if room == 0:
                found.append(aside)
                place += BLOCK_HEADER
                room = BLOCK - BLOCK_HEADER
            part = view[low : low + room]
            found.append(part)
            place += len(part)
            low += len(part)
    return found


def decode_single(data: memoryview, decoded: int) -> bytes:
    """Decompress the only record of a chunk. Its size is known, so the list of sizes is not decoded."""
    length, place = protocol_buffers.decode_varint(data, 1)
    size, place = protocol_buffers.decode_varint(data, place + length)
    if size != decoded:
        raise ValueError(f"it states a size of {size} bytes instead of {decoded}")
    size_limits.check_record(size)
    record = _get_decoder(data[0])(data[place:], size)
    if len(record) != decoded:
        raise ValueError(f"it decompressed to {len(record)} bytes instead of {decoded}")
    return record


def _get_decoder(kind: int) -> Callable[[Any, int], bytes]:
    if kind not in _DECODERS:
        raise ValueError(f"its compression {kind:#x} is unknown")
    return _DECODERS[kind]


def decode_chunk(data: memoryview, decoded: int, count: int) -> tuple[bytes | memoryview, np.ndarray]:
    """Decompress a simple chunk of `count` records. Return their bytes end to end, and where each record ends."""
    kind = data[0]
    length, place = protocol_buffers.decode_varint(data, 1)
    sizes, values = data[place : place + length], data[place + length :]
    if kind:
        decoder = _get_decoder(kind)
        size, place = protocol_buffers.decode_varint(sizes, 0)
        if size > _LONGEST_VARINT * count:
            raise ValueError(f"the sizes of its {count} records would take {size} bytes")
        size_limits.check_record(decoded + _SIZE_BYTES * count)  # empty records take memory, too
        sizes = memoryview(decoder(sizes[place:], size))
        size, place = protocol_buffers.decode_varint(values, 0)
        if size != decoded:
            raise ValueError(f"it states a size of {size} bytes instead of {decoded}")
        values = decoder(values[place:], size)
    lengths = protocol_buffers.decode_varints(sizes)[0]
    if (lengths > len(values)).any() or lengths.sum(dtype=np.float64) != len(values):  # a sum of floats cannot overflow
        raise ValueError(f"the sizes of its {len(lengths)} records do not add up to its {len(values)} bytes")
    return values, np.cumsum(lengths.astype(np.int64))


def read_index(file: File, verify: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read the index: the offset, end, decoded size and number of records of each chunk."""

    def damage_error(why: str) -> DamagedFile:
        return DamagedFile(f"{file.name} is not a complete ArrayRecord file: {why}.")

    def read_chunk(start: int, stop: int, what: str) -> tuple[bytes | memoryview, np.ndarray]:
        data = remove_block_headers(file.read(start, stop - start), start)
        if len(data) < HEADER:
            raise damage_error(f"{what} is damaged")
        size, kind, decoded = SIZES.unpack_from(data)
        if kind & 0xFF != SIMPLE or HEADER + size > len(data):
            raise damage_error(f"{what} is damaged")
        if verify:
            fields = FIELDS.unpack_from(data)
            found = checksums.compute_hashes([data[8:HEADER], data[HEADER : HEADER + size]])
            if found != [fields[0], fields[2]]:
                raise damage_error(f"{what} does not match its hash")
        try:
            return decode_chunk(memoryview(data)[HEADER : HEADER + size], decoded, kind >> 8)
        except ImportError:
            raise
        except Exception as error:
            raise damage_error(f"{what} cannot be decoded ({error})") from error

    if file.size < 2 * BLOCK:
        raise damage_error(f"it has {file.size} bytes, and such a file has at least {2 * BLOCK}")
    if file.read(0, 8) != _SIGNATURE:
        raise damage_error("it does not begin with the signature of the format")
    if file.size % BLOCK:
        raise damage_error(f"its size of {file.size} bytes is not a multiple of {BLOCK}: it was cut short")
    tail, ends = read_chunk(file.size - BLOCK, file.size, "its end")
    fields = dict(_parse_fields(bytes(tail[: int(ends[0])]))) if len(ends) else {}
    footer = fields.get(1, 0)
    if fields.get(2) != _MAGIC or not isinstance(footer, int) or not 0 < footer < file.size - BLOCK:
        raise damage_error(
            "its last 64 KiB do not say where its index is: it was cut short, or its writer was not closed"
        )
    values, ends = read_chunk(footer, file.size - BLOCK, "its index")
    if not len(ends):
        raise damage_error("its index is empty")
    first = int(ends[0])
    stated = dict(_parse_fields(bytes(values[:first]))).get(1)
    totals = dict(_parse_fields(stated)) if isinstance(stated, bytes) else {}
    try:
        numbers, stops = protocol_buffers.decode_varints(bytes(values[first:]))
    except ValueError as error:
        raise damage_error(f"its index holds {error}") from error
    table = _parse_table(numbers, stops, ends[1:] - first)
    if table is None or len(table) != totals.get(2) or table[:, 2].sum(dtype=np.float64) != totals.get(3):
        raise damage_error("its index contradicts itself")
    if (table > _LARGEST).any():
        raise damage_error(f"its index states numbers above {_LARGEST}")
    offsets, decoded, counts = table.T
    stops = np.append(offsets[1:], footer)
    if (offsets < BLOCK_HEADER + HEADER).any() or (stops <= offsets).any() or (decoded < 0).any():
        raise damage_error("its index names places outside the file")
    return offsets.copy(), stops, decoded.copy(), counts.copy()


def _parse_table(numbers: np.ndarray, stops: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Protobuf messages with the integer fields 1 to 3 as rows of a table; None if the messages have another form."""
    if len(numbers) % 2 or (len(ends) and ends[-1] != (stops[-1] if len(stops) else 0)):
        return None
    tags, values = numbers[0::2], numbers[1::2]
    rows = ends.searchsorted(stops[1::2], "left")
    fields = tags >> np.uint64(3)
    if (tags & np.uint64(7)).any() or ((fields < 1) | (fields > 3)).any() or (values >= 1 << 62).any():
        return None
    if (rows >= len(ends)).any():
        return None
    table = np.zeros((len(ends), 3), np.int64)
    table[rows, fields.astype(np.int64) - 1] = values.astype(np.int64)
    return table


def _parse_fields(message: bytes) -> list[tuple[int, Any]]:
    """Return the fields of a small protobuf message: integers and bytes. An invalid message has none."""
    found: list[tuple[int, Any]] = []
    place = 0
    try:
        while place < len(message):
            tag, place = protocol_buffers.decode_varint(message, place)
            value, place = protocol_buffers.decode_varint(message, place)
            if tag & 7 == 2:
                value, place = message[place : place + value], place + value
            found.append((tag >> 3, value))
    except (IndexError, ValueError):
        return []
    return found


T = TypeVar("T")

_BEGINNING = np.dtype(
    {
        "names": ["size", "hash", "kind", "decoded", "compression"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "u1"],
        "offsets": [8, 16, 24, 32, 40],
        "itemsize": HEADER + 1,
    }
)
_ALONE = SIMPLE | 1 << 8  # a chunk of one record
_LONGER = np.array(
    [1 << 7 * count for count in range(1, 9)]
)  # from each of these sizes on, the encoded size takes one more byte


@public("bushel.sources")
@in_states("ArrayRecordDataSource")
class ArrayRecordDataSource(JoinedRecords):
    """Records of ArrayRecord files as bytes, under Grain's name and with Grain's arguments.

    A single read takes microseconds, however large the file is. Paths may be patterns, URLs, "file[3:7]" for a part of
    a file, or TFDS's file instructions.

    Args:
      paths: one or many files.
      reader_options: accepted because Grain accepts them; they have no effect.
      verify: whether to compare records with their hashes. True: in every read. False: never. None: if the package
        `highwayhash-cffi` is installed, the first time that a process reads a record of a local file, and in every read
        of a remote file; without the package never. With True and without that package, NumPy computes the hashes, for
        many records at once: about 6 us for a record of 1 KB in blocks of 512, 500 us for a single record, and about
        10 s for a record of 20 MB. Sizes and positions are always checked.
      storage_options: options of the store that holds the files.

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
        verify: bool | None = None,
        storage_options: Options | None = None,
    ):
        self._reader_options = reader_options
        self._verify = checksums.find_c_function() is not None if verify is None else bool(verify)
        self._verify_again = verify is not None
        super().__init__(paths, storage_options)

    def _repr_in_grain(self) -> str:
        """Return the repr of Grain's source of these files, which Grain's DataLoader compares in states."""
        if type(self).__repr__ is not ArrayRecordDataSource.__repr__:
            return repr(self)  # a subclass has a repr of its own, in Grain too
        paths = hashlib.sha1("".join(self._paths).encode("utf-8", "surrogateescape"), usedforsecurity=False)
        return f"ArrayRecordDataSource(hash_of_paths={paths.hexdigest()})"

    def _make_reader(self, file: File) -> RecordReader:
        return _ArrayRecordFile(file, self._verify, self._verify_again or file.costs_round_trip)


class _ArrayRecordFile(RecordReader):
    """Reads one file. Knows the place, the decoded size and the number of records of each chunk."""

    def __init__(self, file: File, verify: bool, verify_again: bool):
        self._file, self._verify_again = file, verify_again
        self._offsets, self._ends, self._decoded, counts = read_index(file, verify)
        self.count = int(counts.sum())
        self._counts = counts
        self._unchecked = np.full(len(counts), verify)  # which chunks the next read compares with their hashes
        self._single = bool((counts == 1).all())
        # The compression is the same for the whole file. Each chunk is checked again when it is read.
        self._plain = self._single and self.count > 0 and file.read(int(self._offsets[0]) + HEADER, 1) == b"\0"
        self._firsts = np.cumsum(counts) - counts
        # Enough for the whole chunk, unless compression made it larger. A chunk may be padded to a whole block.
        bound = HEADER + 64 + 11 * counts + self._decoded + (self._decoded >> 6)
        bound += (bound // (BLOCK - BLOCK_HEADER) + 2) * BLOCK_HEADER
        self._lengths = np.minimum(self._ends - self._offsets, bound)

    def read(self, position: int) -> bytes:
        if not self._single:
            chunk = int(self._firsts.searchsorted(position, "right")) - 1
            return self._read_records(chunk)[position - int(self._firsts[chunk])]
        start, length = self._offsets.item(position), self._lengths.item(position)
        raw = self._file.read(start, length)
        data = raw if -start % BLOCK >= length else remove_block_headers(raw, start)
        if self._unchecked.item(position):
            self._check_hashes([position], [data])
        return self._decode_single(position, data)

    def read_many(self, positions: np.ndarray) -> list[bytes]:
        at_hand = self._plain and not self._file.costs_round_trip
        if at_hand and self._decoded[positions].max(initial=0) < LARGE_BYTES:
            return self._read_plain(positions)
        if self._single:
            data = self._iterate_chunks(positions)
            return [self._decode_single(chunk, part) for chunk, part in zip(positions.tolist(), data)]
        positions = checks.positions(positions, self.count)
        wanted, back = epochs.find_distinct(self._firsts.searchsorted(positions, "right") - 1)
        parts = [self._decode_records(chunk, data) for chunk, data in zip(wanted.tolist(), self._read_chunks(wanted))]
        within = (positions - self._firsts[wanted[back]]).tolist()
        return [parts[chunk][place] for chunk, place in zip(back.tolist(), within)]

    def read_into(self, positions: np.ndarray, rows: memoryview, size: int) -> None:
        direct = size >= LARGE_BYTES and self._single  # copying a small record takes less time than a read of its own
        if not direct or self._unchecked[positions].any() or (self._decoded[positions] != size).any():
            return copy_records(self.read_many(positions), rows, size, self._file.name, positions)
        # The length of the bytes before the record, in a chunk with one uncompressed record.
        prefix = HEADER + 2 + len(protocol_buffers.encode_varint(size))
        scratch = bytearray(prefix)
        for place, chunk in enumerate(positions.tolist()):
            start, row = self._offsets.item(chunk), rows[place * size : (place + 1) * size]
            if self._ends.item(chunk) - start < prefix + size:  # compressed: the chunk is smaller than its content
                return copy_records(self.read_many(positions), rows, size, self._file.name, positions)
            self._file.read_into(start, split_around_headers(start, [memoryview(scratch), row]))
            if scratch[HEADER] != 0:
                return copy_records(self.read_many(positions), rows, size, self._file.name, positions)
            self._check_header(chunk, scratch, prefix + size)

    def _read_plain(self, chunks: np.ndarray) -> list[bytes]:
        """Read uncompressed records that are alone in their chunks: the place of each byte is known before."""
        starts, sizes = self._offsets[chunks], self._decoded[chunks]
        prefixes = HEADER + 3 + _LONGER.searchsorted(sizes, "right")
        lengths = prefixes + sizes
        room = -starts % BLOCK
        crossing = np.flatnonzero(room < lengths)
        ends = starts + np.minimum(lengths, np.where(room == 0, 0, room))
        data = self._file.read_many(starts.tolist(), (ends - starts).tolist())
        for place in crossing.tolist():  # a block header lies inside the chunk; small chunks rarely have one
            data[place] += self._read_after_header(ends.item(place), lengths.item(place) - len(data[place]))
        fields = np.frombuffer(b"".join([part[: HEADER + 1] for part in data]), _BEGINNING)
        right = (fields["kind"] == _ALONE) & (fields["compression"] == 0) & (fields["decoded"] == sizes)
        right &= fields["size"] == lengths - HEADER
        due = self._unchecked[chunks]
        if due.any():
            places = np.flatnonzero(due & right)
            messages = [data[place][HEADER:] for place in places.tolist()]
            self._compare_hashes(chunks[places], messages, fields["hash"][places].tolist())
        found = [part[prefix:] for part, prefix in zip(data, prefixes.tolist())]
        for place in np.flatnonzero(~right).tolist():
            found[place] = self._decode_single(chunks.item(place), self._read_chunks(chunks[place : place + 1])[0])
        return found

    def _read_after_header(self, block: int, length: int) -> bytes:
        """Read the rest of a chunk, `length` bytes, from the block header at byte `block` on. Leave out headers."""
        return remove_block_headers(self._file.read(block, length + BLOCK_HEADER), block)

    def _iterate_chunks(self, chunks: np.ndarray) -> Iterator[bytes | memoryview]:
        """As `_read_chunks`, but large chunks share one buffer: use each chunk before the next one."""
        lengths, due = self._lengths[chunks], self._unchecked[chunks]
        together = due.any() and checksums.find_c_function() is None  # NumPy hashes many messages side by side
        if together or self._file.costs_round_trip or lengths.max(initial=0) < LARGE_BYTES:
            yield from self._read_chunks(chunks)
            return
        buffer = memoryview(bytearray(int(lengths.max())))
        for chunk, length, unchecked in zip(chunks.tolist(), lengths.tolist(), due.tolist()):
            start = self._offsets.item(chunk)
            part = buffer[: length - count_header_bytes(start, length)]
            self._file.read_into(start, split_around_headers(start, [part]))
            if unchecked:
                self._check_hashes([chunk], [part])
            yield part

    def _read_chunks(self, chunks: np.ndarray) -> list[bytes]:
        """Read whole chunks with their headers, without the block headers inside them."""
        starts, lengths = self._offsets[chunks], self._lengths[chunks]
        crossing = np.flatnonzero(-starts % BLOCK < lengths).tolist()
        firsts = starts.tolist()
        data = self._file.read_many(firsts, lengths.tolist())
        for place in crossing:
            data[place] = remove_block_headers(data[place], firsts[place])
        due = np.flatnonzero(self._unchecked[chunks]).tolist()
        if due:
            self._check_hashes([chunks.item(place) for place in due], [data[place] for place in due])
        return data

    def _decode_single(self, chunk: int, data: bytes | memoryview) -> bytes:
        """Return the record of a chunk with a single record."""
        size = self._check_header(chunk, data, len(data))
        if size < 0:
            return self._decode_records(chunk, self._read_whole_chunk(chunk))[0]
        decoded = self._decoded.item(chunk)
        if data[HEADER] == 0:
            end = HEADER + size
            return bytes(data[end - decoded : end])
        return self._decode(chunk, decode_single, memoryview(data)[HEADER : HEADER + size], decoded)

    def _decode(self, chunk: int, decode: Callable[..., T], *arguments: Any) -> T:
        """Return what `decode` makes of the data of a chunk.

        Its error becomes one that names the file and the records.
        """
        try:
            return decode(*arguments)
        except ImportError:
            raise
        except TooLarge as error:
            raise TooLarge(f"{self._file.name}: {self._name_records(chunk)} is not read: {error}") from None
        except Exception as error:
            raise self._damage_error(chunk, f"it cannot be decoded ({error})") from error

    def _check_header(self, chunk: int, data: bytes | bytearray | memoryview, length: int) -> int:
        """Return the size of a chunk's data; -1 if not all of it was read.

        Checks the header against the index of the file.
        """
        if len(data) <= HEADER:  # the byte after the header names the compression
            raise self._damage_error(chunk, f"the index at the end of the file leaves {len(data)} bytes for it")
        size, kind, decoded = SIZES.unpack_from(data)
        if kind != SIMPLE | self._counts.item(chunk) << 8 or decoded != self._decoded.item(chunk):
            if kind & 0xFF == TRANSPOSED:
                raise self._transposed_error()
            raise self._damage_error(chunk, "its header contradicts the index at the end of the file")
        if HEADER + size > length:
            if HEADER + size > self._ends.item(chunk) - self._offsets.item(chunk):
                raise self._damage_error(chunk, f"its data would take {size} bytes, more than there is room for")
            return -1
        return size

    def _read_whole_chunk(self, chunk: int) -> bytes:
        """Read a whole chunk that compression made larger than its content."""
        start = self._offsets.item(chunk)
        return remove_block_headers(self._file.read(start, self._ends.item(chunk) - start), start)

    def _read_records(self, chunk: int) -> list[bytes]:
        return self._decode_records(chunk, self._read_chunks(np.array([chunk]))[0])

    def _decode_records(self, chunk: int, data: bytes) -> list[bytes]:
        """Return the records of a chunk."""
        size = self._check_header(chunk, data, len(data))
        if size < 0:
            data = self._read_whole_chunk(chunk)
            size = self._check_header(chunk, data, len(data))
        content = memoryview(data)[HEADER : HEADER + size]
        values, ends = self._decode(chunk, decode_chunk, content, self._decoded.item(chunk), self._counts.item(chunk))
        if len(ends) != self._counts.item(chunk) or len(values) != self._decoded.item(chunk):
            raise self._damage_error(chunk, "its records have other sizes than its header says")
        stops = ends.tolist()
        return [bytes(values[low:high]) for low, high in zip([0, *stops], stops)]

    def _check_hashes(self, chunks: Sequence[int], data: Sequence[bytes | memoryview]) -> None:
        """Compare chunks with their hashes.

        The hash of a chunk's header is not compared, because each field of the header is compared with something else:
        the type, the number of records and the decoded size with the index, the size and the hash with the data.
        """
        messages: list[bytes | memoryview] = []
        wanted: list[int] = []
        for chunk, part in zip(chunks, data):
            size = self._check_header(chunk, part, len(part))
            if size < 0:
                part = self._read_whole_chunk(chunk)
                size = self._check_header(chunk, part, len(part))
            messages.append(memoryview(part)[HEADER : HEADER + size])
            wanted.append(FIELDS.unpack_from(part)[2])
        self._compare_hashes(chunks, messages, wanted)

    def _compare_hashes(
        self, chunks: Sequence[int] | np.ndarray, messages: Sequence[bytes | memoryview], wanted: list[int]
    ) -> None:
        """Compare the data of chunks with their hashes, and remember which chunks need no check again."""
        hashes = checksums.compute_hashes(messages)
        if hashes != wanted:
            wrong = next(place for place, value in enumerate(hashes) if value != wanted[place])
            raise self._damage_error(int(chunks[wrong]), "its content does not match its hash")
        if not self._verify_again:
            self._unchecked[chunks] = False

    def _transposed_error(self) -> DamagedFile:
        return DamagedFile(
            f"{self._file.name} was written with the option 'transpose', which only the package array_record can read. "
            "Write it again without this option, or pass array_record's own data source to `MapDataset.source`."
        )

    def _name_records(self, chunk: int) -> str:
        first, count = int(self._firsts[chunk]), int(self._counts[chunk])
        return f"record {first}" if count == 1 else f"the chunk of records {first} to {first + count - 1}"

    def _damage_error(self, chunk: int, why: str) -> DamagedFile:
        return DamagedFile(f"{self._file.name}: {self._name_records(chunk)} is damaged: {why}.")
