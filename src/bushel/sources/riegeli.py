"""The container of ArrayRecord files: blocks, chunks, and the index at the end of a file.

It is Riegeli's: chunks of records, interrupted by a block header every 64 KiB. ArrayRecord adds a footer with the
offset of each chunk, and a last block that says where the footer is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.base.errors import DamagedFile
from bushel.sources import codecs, highway, limits, varints
from bushel.sources.stores import File

BLOCK = 1 << 16
BLOCK_HEADER = 24
HEADER = 40  # of a chunk
FIELDS = struct.Struct("<QQQQQ")  # hash of the header, size of data, hash of data, type and number of records, decoded
SIZES = struct.Struct("<8xQ8xQQ")
SIMPLE, TRANSPOSED = 0x72, 0x74
_MAGIC = 0x71930E704FDAE05E
_LARGEST = 1 << 48  # offsets, sizes and counts: larger by far than any file, so that sums of them cannot overflow
_LONGEST_VARINT = 10
_SIZE_BYTES = 64  # what the size of a record, and the record itself without its content, take in memory
_SIGNATURE = bytes.fromhex("83af70d10d884a3f")
_DECODERS: dict[int, Callable[[Any, int], bytes]] = {
    0x7A: codecs.unzstd,
    0x62: codecs.unbrotli,
    0x73: codecs.unsnappy,
}


def joined(raw: bytes, start: int) -> bytes:
    """What was read from `start` on, without block headers."""
    boundary = -start % BLOCK
    if boundary >= len(raw):
        return raw
    parts = [raw[:boundary]]
    for block in range(boundary, len(raw), BLOCK):
        parts.append(raw[block + BLOCK_HEADER : block + BLOCK])
    return b"".join(parts)


def in_headers(start: int, length: int) -> int:
    """How many of the `length` bytes from `start` on are of block headers.

    >>> in_headers(65_530, 10), in_headers(65_530, 100), in_headers(100, 200_000)
    (4, 24, 72)
    """
    inside = length - -start % BLOCK
    return 0 if inside <= 0 else inside // BLOCK * BLOCK_HEADER + min(inside % BLOCK, BLOCK_HEADER)


def around_headers(start: int, views: list[memoryview]) -> list[Any]:
    """Buffers for a read from `start` on that puts block headers aside and everything else into `views`."""
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


def alone(data: memoryview, decoded: int) -> bytes:
    """The only record of a compressed chunk: its size is known, so the list of sizes need not be decoded."""
    length, place = varints.one(data, 1)
    size, place = varints.one(data, place + length)
    if size != decoded:
        raise ValueError(f"{size} bytes where {decoded} were announced")
    limits.check_record(size)
    record = _decoder(data[0])(data[place:], size)
    if len(record) != decoded:
        raise ValueError(f"{len(record)} bytes came out where {decoded} were announced")
    return record


def _decoder(kind: int) -> Callable[[Any, int], bytes]:
    if kind not in _DECODERS:
        raise ValueError(f"compression {kind:#x} is not known")
    return _DECODERS[kind]


def unpacked(data: memoryview, decoded: int, count: int) -> tuple[bytes | memoryview, np.ndarray]:
    """The values of a simple chunk of `count` records, and where each record of it ends."""
    kind = data[0]
    length, place = varints.one(data, 1)
    sizes, values = data[place : place + length], data[place + length :]
    if kind:
        decoder = _decoder(kind)
        size, place = varints.one(sizes, 0)
        if size > _LONGEST_VARINT * count:
            raise ValueError(f"the sizes of its {count} records would take {size} bytes")
        limits.check_record(decoded + _SIZE_BYTES * count)  # also many records without content take memory
        sizes = memoryview(decoder(sizes[place:], size))
        size, place = varints.one(values, 0)
        if size != decoded:
            raise ValueError(f"{size} bytes where {decoded} were announced")
        values = decoder(values[place:], size)
    lengths = varints.many(sizes)[0]
    if (lengths > len(values)).any() or lengths.sum(dtype=np.float64) != len(values):  # as floats: no sum overflows
        raise ValueError(f"the sizes of its {len(lengths)} records do not add up to the {len(values)} bytes there are")
    return values, np.cumsum(lengths.astype(np.int64))


def index(file: File, verify: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Offset, end, decoded size and number of records of each chunk, from the footer."""

    def wrong(why: str) -> DamagedFile:
        return DamagedFile(f"{file.name} is not a complete ArrayRecord file: {why}.")

    def chunk(start: int, stop: int, what: str) -> tuple[bytes | memoryview, np.ndarray]:
        data = joined(file.read(start, stop - start), start)
        if len(data) < HEADER:
            raise wrong(f"{what} is damaged")
        size, kind, decoded = SIZES.unpack_from(data)
        if kind & 0xFF != SIMPLE or HEADER + size > len(data):
            raise wrong(f"{what} is damaged")
        if verify:
            fields = FIELDS.unpack_from(data)
            found = highway.hashes([data[8:HEADER], data[HEADER : HEADER + size]])
            if found.tolist() != [fields[0], fields[2]]:
                raise wrong(f"{what} does not fit its hash")
        try:
            return unpacked(memoryview(data)[HEADER : HEADER + size], decoded, kind >> 8)
        except ImportError:
            raise
        except Exception as error:
            raise wrong(f"{what} cannot be decoded ({error})") from error

    if file.size < 2 * BLOCK:
        raise wrong(f"it has {file.size} bytes, the smallest has {2 * BLOCK}")
    if file.read(0, 8) != _SIGNATURE:
        raise wrong("it does not begin with the signature of one")
    if file.size % BLOCK:
        raise wrong(f"its size of {file.size} bytes is not a multiple of {BLOCK}; it was cut short")
    tail, ends = chunk(file.size - BLOCK, file.size, "its end")
    fields = dict(_fields(bytes(tail[: int(ends[0])]))) if len(ends) else {}
    footer = fields.get(1, 0)
    if fields.get(2) != _MAGIC or not isinstance(footer, int) or not 0 < footer < file.size - BLOCK:
        raise wrong("the last 64 KiB do not say where its index is; it was cut short, or never closed")
    values, ends = chunk(footer, file.size - BLOCK, "its index")
    if not len(ends):
        raise wrong("its index is empty")
    first = int(ends[0])
    stated = dict(_fields(bytes(values[:first]))).get(1)
    totals = dict(_fields(stated)) if isinstance(stated, bytes) else {}
    try:
        numbers, stops = varints.many(bytes(values[first:]))
    except ValueError as error:
        raise wrong(f"its index holds {error}") from error
    table = _table(numbers, stops, ends[1:] - first)
    if table is None or len(table) != totals.get(2) or table[:, 2].sum(dtype=np.float64) != totals.get(3):
        raise wrong("its index contradicts itself")
    if (table > _LARGEST).any():
        raise wrong(f"its index states numbers above {_LARGEST}")
    offsets, decoded, counts = table.T
    stops = np.append(offsets[1:], footer)
    if (offsets < BLOCK_HEADER + HEADER).any() or (stops <= offsets).any() or (decoded < 0).any():
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
    if (rows >= len(ends)).any():
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
