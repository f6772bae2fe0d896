"""Where records come from. A source is any object with a length and `source[i]`; see `RandomAccessDataSource`.

Formats are loaded when they are first used, so that `import bushel` stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bushel.base import hints as _hints
from bushel.base.blocks import Columns
from bushel.sources.memory_sources import ArrayDataSource, RangeDataSource
from bushel.sources.protocol import RandomAccessDataSource, file_fingerprint
from bushel.sources.ragged_arrays import RaggedDataSource

if TYPE_CHECKING:
    from bushel.sources.array_files import load_arrays
    from bushel.sources.array_record import ArrayRecordDataSource
    from bushel.sources.arrow import ArrowDataSource
    from bushel.sources.bagz import BagzDataSource
    from bushel.sources.checksums import check_checksums, write_checksums
    from bushel.sources.conversion import convert
    from bushel.sources.fixed_records import FixedRecords
    from bushel.sources.hdf5 import HDF5DataSource
    from bushel.sources.lance import LanceDataSource
    from bushel.sources.media import decode_audio, decode_image
    from bushel.sources.parquet import ParquetDataSource
    from bushel.sources.shared_list import SharedMemoryDataSource
    from bushel.sources.size_limits import Limits, get_limits, set_limits
    from bushel.sources.source_by_path import open
    from bushel.sources.text_lines import LineDataSource
    from bushel.sources.tf_example import decode_example, encode_example
    from bushel.sources.tfds import TFDSDataSource
    from bushel.sources.tfrecord import TFRecordDataSource
    from bushel.sources.whole_files import FileDataSource
    from bushel.sources.zarr import ZarrDataSource

_FORMATS = {
    "array_files": ("load_arrays",),
    "array_record": ("ArrayRecordDataSource",),
    "arrow": ("ArrowDataSource",),
    "bagz": ("BagzDataSource",),
    "checksums": ("check_checksums", "write_checksums"),
    "conversion": ("convert",),
    "fixed_records": ("FixedRecords",),
    "hdf5": ("HDF5DataSource",),
    "lance": ("LanceDataSource",),
    "media": ("decode_audio", "decode_image"),
    "parquet": ("ParquetDataSource",),
    "shared_list": ("SharedMemoryDataSource",),
    "size_limits": ("Limits", "get_limits", "set_limits"),
    "source_by_path": ("open",),
    "text_lines": ("LineDataSource",),
    "tf_example": ("decode_example", "encode_example"),
    "tfds": ("TFDSDataSource",),
    "tfrecord": ("TFRecordDataSource",),
    "whole_files": ("FileDataSource",),
    "zarr": ("ZarrDataSource",),
}
_WHERE = {name: module for module, names in _FORMATS.items() for name in names}


if not TYPE_CHECKING:  # so that a type checker reports missing names

    def __getattr__(name: str) -> Any:
        """Loads the module of a name when the name is first used."""
        if name not in _WHERE:
            raise _hints.no_attribute(_hints.missing_in_module(__name__, name, __all__), name)
        value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
