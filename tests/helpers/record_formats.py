"""Record files of every format, each written by the format's own library, and the source that reads it."""

import struct
import threading
from collections.abc import Callable
from pathlib import Path

import bagz
import crc32c
import numpy as np
import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordWriter

from bushel._src.base import blocks
from bushel.sources import ArrayRecordDataSource, BagzDataSource, TFRecordDataSource
from bushel.testing import same


def array_record(options):
    def write(path: Path, records: list[bytes]) -> None:
        writer = ArrayRecordWriter(str(path), options)
        for record in records:
            writer.write(record)
        writer.close()

    return write


def tfrecord(path: Path, records: list[bytes]) -> None:
    """By the specification: there is no writer without TensorFlow. Grain's reader is compared in test_tfrecord.py."""

    def mask(data: bytes) -> bytes:
        crc = crc32c.crc32c(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32)

    with open(path, "wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + mask(length) + record + mask(record))


def bag(path: Path, records: list[bytes]) -> None:
    with bagz.Writer(str(path)) as writer:
        for record in records:
            writer.write(record)


# name: (ending of the file's name, writer, source)
FORMATS = {
    "array_record plain": ("array_record", array_record("group_size:1,uncompressed"), ArrayRecordDataSource),
    "array_record zstd": ("array_record", array_record("group_size:1"), ArrayRecordDataSource),
    "array_record groups": ("array_record", array_record("group_size:7"), ArrayRecordDataSource),
    "array_record plain groups": ("array_record", array_record("group_size:3,uncompressed"), ArrayRecordDataSource),
    "array_record brotli": ("array_record", array_record("group_size:2,brotli:3"), ArrayRecordDataSource),
    "array_record snappy": ("array_record", array_record("group_size:1,snappy"), ArrayRecordDataSource),
    "array_record padded": (
        "array_record",
        array_record("group_size:1,pad_to_block_boundary:true"),
        ArrayRecordDataSource,
    ),
    "tfrecord": ("tfrecord", tfrecord, TFRecordDataSource),
    "bag": ("bag", bag, BagzDataSource),
    "bagz": ("bagz", bag, BagzDataSource),
}


def written(folder: Path, name: str, records: list[bytes], stem: str = "records"):
    """A file of format `name`, as its path."""
    ending, write, _ = FORMATS[name]
    path = folder / f"{stem}.{ending}"
    write(path, records)
    return path


def opened(name: str, paths, **options):
    """The source for format `name`."""
    return FORMATS[name][2](paths, **options)


def in_eight_threads(read: Callable[[int], None]) -> None:
    """Calls `read(seed)` in eight threads at once, each with a seed of its own, until all have ended."""
    failed: list[Exception] = []

    def reading(seed: int) -> None:
        try:
            read(seed)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=reading, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


def read_by_eight_threads(source, expected, reads=20):
    """Eight threads read at once, one record and several; every one is compared."""
    wrong = []

    def read(seed):
        for indices in np.random.default_rng(seed).integers(0, len(expected), (reads, 4)).tolist():
            found = [source[indices[0]]]
            if hasattr(source, "__getitems__"):
                found += blocks.rows_of(source.__getitems__(indices))
                indices = [indices[0], *indices]
            wrong.extend(i for i, record in zip(indices, found) if not same(record, expected[i]))

    in_eight_threads(read)
    assert not wrong


def table(count=53, shift=0):
    """Columns of every kind: numbers, nulls, text, bytes, lists."""
    numbers = range(shift, shift + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "score": pa.array([number / 7 for number in numbers], pa.float32()),
            "flag": pa.array([number % 3 == 0 for number in numbers]),
            "maybe": pa.array([None if number % 5 == 0 else number for number in numbers], pa.int32()),
            "text": [f"row {number}" for number in numbers],
            "raw": [b"x" * (number % 9) for number in numbers],
            "list": pa.array([[number] * (number % 4) for number in numbers], pa.list_(pa.int16())),
        }
    )
