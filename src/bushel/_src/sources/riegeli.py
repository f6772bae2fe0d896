"""The container of ArrayRecord files: blocks, chunks, and the index at the end of a file.

The container is Riegeli's: chunks of records, with a block header every 64 KiB. ArrayRecord adds a footer with the
offset of each chunk, and a last block that says where the footer begins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base.errors import DamagedFile
from bushel._src.sources import decompression, highway_hash, size_limits, varints
from bushel._src.sources.local_files import File

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
    """Removes the block headers from bytes that were read from byte `start` on."""
    boundary = -start % BLOCK
    if boundary >= len(raw):
        return raw
    parts = [raw[:boundary]]
    for block in range(boundary, len(raw), BLOCK):
        parts.append(raw[block + BLOCK_HEADER : block + BLOCK])
    return b"".join(parts)


def count_header_bytes(start: int, length: int) -> int:
    """How many of the `length` bytes from byte `start` on belong to block headers.

    >>> count_header_bytes(65_530, 10), count_header_bytes(65_530, 100), count_header_bytes(100, 200_000)
    (4, 24, 72)
    """
    inside = length - -start % BLOCK
    return 0 if inside <= 0 else inside // BLOCK * BLOCK_HEADER + min(inside % BLOCK, BLOCK_HEADER)


def split_around_headers(start: int, views: list[memoryview]) -> list[Any]:
    """Buffers for a read from byte `start` on: everything goes into `views`, except block headers."""
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
    """Decompresses the only record of a chunk. Its size is known, so the list of sizes is not decoded."""
    length, place = varints.decode(data, 1)
    size, place = varints.decode(data, place + length)
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
    """Decompresses a simple chunk of `count` records. Returns their bytes end to end, and where each record ends."""
    kind = data[0]
    length, place = varints.decode(data, 1)
    sizes, values = data[place : place + length], data[place + length :]
    if kind:
        decoder = _get_decoder(kind)
        size, place = varints.decode(sizes, 0)
        if size > _LONGEST_VARINT * count:
            raise ValueError(f"the sizes of its {count} records would take {size} bytes")
        size_limits.check_record(decoded + _SIZE_BYTES * count)  # empty records take memory, too
        sizes = memoryview(decoder(sizes[place:], size))
        size, place = varints.decode(values, 0)
        if size != decoded:
            raise ValueError(f"it states a size of {size} bytes instead of {decoded}")
        values = decoder(values[place:], size)
    lengths = varints.decode_many(sizes)[0]
    if (lengths > len(values)).any() or lengths.sum(dtype=np.float64) != len(values):  # a sum of floats cannot overflow
        raise ValueError(f"the sizes of its {len(lengths)} records do not add up to its {len(values)} bytes")
    return values, np.cumsum(lengths.astype(np.int64))


def read_index(file: File, verify: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads the index: the offset, end, decoded size and number of records of each chunk."""

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
            found = highway_hash.compute_hashes([data[8:HEADER], data[HEADER : HEADER + size]])
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
        numbers, stops = varints.decode_many(bytes(values[first:]))
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
    """The fields of a small protobuf message: integers and bytes. An invalid message has none."""
    found: list[tuple[int, Any]] = []
    place = 0
    try:
        while place < len(message):
            tag, place = varints.decode(message, place)
            value, place = varints.decode(message, place)
            if tag & 7 == 2:
                value, place = message[place : place + value], place + value
            found.append((tag >> 3, value))
    except (IndexError, ValueError):
        return []
    return found
