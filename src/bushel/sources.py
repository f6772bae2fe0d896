"""Where records come from. A source is any object with a length and `source[i]`; see `RandomAccessDataSource`.

Formats are loaded when they are first used, so that `import bushel` stays light.
"""

import typing as _typing

from bushel._src.base.doors import open_door as _open_door

if _typing.TYPE_CHECKING:
    from bushel._src.base.blocks import Columns
    from bushel._src.sources.array_files import load_arrays
    from bushel._src.sources.array_record import ArrayRecordDataSource
    from bushel._src.sources.arrow import ArrowDataSource
    from bushel._src.sources.bagz import BagzDataSource
    from bushel._src.sources.checksums import check_checksums, write_checksums
    from bushel._src.sources.conversion import convert
    from bushel._src.sources.hdf5 import HDF5DataSource
    from bushel._src.sources.lance import LanceDataSource
    from bushel._src.sources.media import decode_audio, decode_image
    from bushel._src.sources.memory_sources import (
        ArrayDataSource,
        RaggedDataSource,
        RangeDataSource,
        SharedMemoryDataSource,
    )
    from bushel._src.sources.parquet import ParquetDataSource
    from bushel._src.sources.plain_files import FileDataSource, FixedRecords, LineDataSource
    from bushel._src.sources.protocol_buffers import decode_example, encode_example
    from bushel._src.sources.size_limits import Limits, get_limits, set_limits
    from bushel._src.sources.source_by_path import open
    from bushel._src.sources.tfds import TFDSDataSource
    from bushel._src.sources.tfrecord import TFRecordDataSource
    from bushel._src.sources.user_sources import RandomAccessDataSource, file_fingerprint
    from bushel._src.sources.zarr import ZarrDataSource

__all__ = [
    "ArrayDataSource",
    "ArrayRecordDataSource",
    "ArrowDataSource",
    "BagzDataSource",
    "Columns",
    "FileDataSource",
    "FixedRecords",
    "HDF5DataSource",
    "LanceDataSource",
    "Limits",
    "LineDataSource",
    "ParquetDataSource",
    "RaggedDataSource",
    "RandomAccessDataSource",
    "RangeDataSource",
    "SharedMemoryDataSource",
    "TFDSDataSource",
    "TFRecordDataSource",
    "ZarrDataSource",
    "check_checksums",
    "convert",
    "decode_audio",
    "decode_example",
    "decode_image",
    "encode_example",
    "file_fingerprint",
    "get_limits",
    "load_arrays",
    "open",
    "set_limits",
    "write_checksums",
]

_MODULES = {
    "base.blocks": "Columns",
    "sources.array_files": "load_arrays",
    "sources.array_record": "ArrayRecordDataSource",
    "sources.arrow": "ArrowDataSource",
    "sources.bagz": "BagzDataSource",
    "sources.checksums": "check_checksums write_checksums",
    "sources.conversion": "convert",
    "sources.hdf5": "HDF5DataSource",
    "sources.lance": "LanceDataSource",
    "sources.media": "decode_audio decode_image",
    "sources.memory_sources": "ArrayDataSource RaggedDataSource RangeDataSource SharedMemoryDataSource",
    "sources.parquet": "ParquetDataSource",
    "sources.plain_files": "FileDataSource FixedRecords LineDataSource",
    "sources.protocol_buffers": "decode_example encode_example",
    "sources.size_limits": "get_limits Limits set_limits",
    "sources.source_by_path": "open",
    "sources.tfds": "TFDSDataSource",
    "sources.tfrecord": "TFRecordDataSource",
    "sources.user_sources": "file_fingerprint RandomAccessDataSource",
    "sources.zarr": "ZarrDataSource",
}

if not _typing.TYPE_CHECKING:  # so that a type checker reports missing names
    __getattr__, __dir__ = _open_door(__name__, __all__, _MODULES)
