"""Where records come from. A source is anything with a length and `source[i]`; see `RandomAccessDataSource`."""

from bushel.base.blocks import Columns
from bushel.base.errors import DamagedFile
from bushel.sources.array_record import ArrayRecordDataSource
from bushel.sources.arrow import ArrowDataSource
from bushel.sources.bagz import BagzDataSource
from bushel.sources.example import decode_example, encode_example
from bushel.sources.fixed import FixedRecords
from bushel.sources.memory import ArrayDataSource, RangeDataSource
from bushel.sources.parquet import ParquetDataSource
from bushel.sources.protocol import RandomAccessDataSource, file_fingerprint
from bushel.sources.tfrecord import TFRecordDataSource

__all__ = [
    "ArrayDataSource",
    "ArrayRecordDataSource",
    "ArrowDataSource",
    "BagzDataSource",
    "Columns",
    "DamagedFile",
    "FixedRecords",
    "ParquetDataSource",
    "RandomAccessDataSource",
    "RangeDataSource",
    "TFRecordDataSource",
    "decode_example",
    "encode_example",
    "file_fingerprint",
]
