"""Where records come from. A source is anything with a length and `source[i]`; see `RandomAccessDataSource`."""

from bushel.base.blocks import Columns
from bushel.base.errors import DamagedFile
from bushel.sources.array_files import load_arrays
from bushel.sources.array_record import ArrayRecordDataSource
from bushel.sources.array_stores import HDF5DataSource, ZarrDataSource
from bushel.sources.arrow import ArrowDataSource
from bushel.sources.bagz import BagzDataSource
from bushel.sources.checksums import check_checksums, write_checksums
from bushel.sources.example import decode_example, encode_example
from bushel.sources.fixed import FixedRecords
from bushel.sources.folders import FileDataSource
from bushel.sources.lance import LanceDataSource
from bushel.sources.lines import LineDataSource
from bushel.sources.media import decode_audio, decode_image
from bushel.sources.memory import ArrayDataSource, RangeDataSource
from bushel.sources.parquet import ParquetDataSource
from bushel.sources.protocol import RandomAccessDataSource, file_fingerprint
from bushel.sources.tfds import TFDSDataSource
from bushel.sources.tfrecord import TFRecordDataSource

__all__ = [
    "ArrayDataSource",
    "ArrayRecordDataSource",
    "ArrowDataSource",
    "BagzDataSource",
    "Columns",
    "DamagedFile",
    "FileDataSource",
    "FixedRecords",
    "HDF5DataSource",
    "LanceDataSource",
    "LineDataSource",
    "ParquetDataSource",
    "RandomAccessDataSource",
    "RangeDataSource",
    "TFDSDataSource",
    "TFRecordDataSource",
    "ZarrDataSource",
    "check_checksums",
    "decode_audio",
    "decode_example",
    "decode_image",
    "encode_example",
    "file_fingerprint",
    "load_arrays",
    "write_checksums",
]
