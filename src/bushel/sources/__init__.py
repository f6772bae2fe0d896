"""Where records come from. A source is anything with a length and `source[i]`; see `RandomAccessDataSource`."""

from bushel.base.blocks import Columns
from bushel.sources.memory import ArrayDataSource, RangeDataSource
from bushel.sources.protocol import RandomAccessDataSource, file_fingerprint
from bushel.sources.ragged import RaggedDataSource

__all__ = [
    "ArrayDataSource",
    "Columns",
    "RaggedDataSource",
    "RandomAccessDataSource",
    "RangeDataSource",
    "file_fingerprint",
]
