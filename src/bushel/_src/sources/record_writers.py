"""Writers of record files, for `bushel convert` and `ds.save`. Each writes one local file, record by record."""

from __future__ import annotations

import abc
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO

from bushel._src.base.late_imports import import_package
from bushel._src.sources import checksums
from bushel._src.sources.tfrecord import frame_record

_ROWS_PER_GROUP = 1000


class RecordWriter(abc.ABC):
    """Writes records to one file."""

    @abc.abstractmethod
    def write(self, record: bytes) -> None: ...

    @abc.abstractmethod
    def close(self) -> None:
        """Complete the file."""


class ArrayRecordWriter(RecordWriter):
    """Writes an ArrayRecord file with the `array_record` package. Each chunk has one record, for fast random access."""

    def __init__(self, path: str, compress: bool):
        module = import_package(
            "array_record.python.array_record_module", "array-record", "Writers of ArrayRecord files"
        )
        self._writer = module.ArrayRecordWriter(path, f"group_size:1{'' if compress else ',uncompressed'}")

    def write(self, record: bytes) -> None:
        self._writer.write(record)

    def close(self) -> None:
        self._writer.close()


class TFRecordWriter(RecordWriter):
    """Writes a TFRecord file."""

    def __init__(self, path: str, compress: bool):
        del compress  # a compressed file can only be read in order
        self._crc32c = checksums.get_checksum()
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115

    def write(self, record: bytes) -> None:
        self._file.write(frame_record(record, self._crc32c))

    def close(self) -> None:
        self._file.close()


class BagWriter(RecordWriter):
    """Writes a Bagz file: records end to end, then the end offset of each."""

    def __init__(self, path: str, compress: bool):
        self._pack = _get_zstd_compress() if compress else None
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115
        self._ends: list[int] = []
        self._place = 0

    def write(self, record: bytes) -> None:
        data = self._pack(record) if self._pack and record else record
        self._file.write(data)
        self._place += len(data)
        self._ends.append(self._place)

    def close(self) -> None:
        self._file.write(struct.pack(f"<{len(self._ends)}Q", *self._ends))
        self._file.close()


def _get_zstd_compress() -> Callable[[bytes], bytes]:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.compress
    return import_package("zstandard", "zstd", "Compressed Bagz files").ZstdCompressor().compress


class ParquetWriter(RecordWriter):
    """Writes a Parquet file with one column `record` of bytes, in row groups of 1000 rows."""

    def __init__(self, path: str, compress: bool):
        self._arrow = import_package("pyarrow", "parquet", "Writers of Parquet files")
        parquet = import_package("pyarrow.parquet", "parquet", "Writers of Parquet files")
        self._schema = self._arrow.schema([("record", self._arrow.binary())])
        self._writer = parquet.ParquetWriter(
            path, self._schema, compression="zstd" if compress else "none", write_page_checksum=True
        )
        self._rows: list[bytes] = []

    def write(self, record: bytes) -> None:
        self._rows.append(record)
        if len(self._rows) == _ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.table({"record": self._rows}, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()
