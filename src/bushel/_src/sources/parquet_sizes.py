"""How much memory the columns of a Parquet file would take, by its metadata, before any of them is decoded."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from bushel._src.base.errors import TooLarge
from bushel._src.sources.local_files import File
from bushel._src.sources.size_limits import SMALL_BYTES, check_expansion, get_limits

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_WIDEST = 8
_TRAILER_BYTES = 8  # the length of the footer, and the name of the format

_files: weakref.WeakKeyDictionary[Any, File] = weakref.WeakKeyDictionary()


def remember_footer(parquet_file: Any, file: File) -> None:
    """Remembers which file pyarrow has opened as `parquet_file`, for `check_sizes`."""
    _files[parquet_file] = file


def check_sizes(parquet_file: Any, path: str, number: int, columns: Sequence[str] | None) -> None:
    """Raises TooLarge if a column of a row group would take far more memory than it takes in the file.

    Args:
      parquet_file: an open `pyarrow.parquet.ParquetFile`.
      path: its name, for messages.
      number: the row group.
      columns: the wanted columns; all if None.
    """
    schema, group = parquet_file.schema, parquet_file.metadata.row_group(number)
    wanted = [place for place in range(len(schema)) if _is_wanted(schema.column(place).path, columns)]
    most = min(SMALL_BYTES, get_limits().record_bytes)
    if max(group.total_byte_size, _WIDEST * group.num_rows) <= most and not any(
        schema.column(place).max_repetition_level or schema.column(place).length > _WIDEST for place in wanted
    ):
        return
    if _is_signed(parquet_file):
        return
    for place in wanted:
        chunk, column = group.column(place), schema.column(place)
        width = _WIDTHS.get(chunk.physical_type) or max(0, column.length)
        size = max(chunk.total_uncompressed_size, chunk.num_values * width)
        try:
            check_expansion(size, chunk.total_compressed_size, group.num_rows)
        except TooLarge as error:
            raise TooLarge(f"{path}: the column {column.path!r} of row group {number} is not read: {error}.") from None


def _is_wanted(name: str, columns: Sequence[str] | None) -> bool:
    return columns is None or any(name == one or name.startswith(f"{one}.") for one in columns)


def _is_signed(parquet_file: Any) -> bool:
    """Whether some columns may be encrypted: their footer is signed, so it is longer than its content.

    pyarrow ends the process if it is asked about the size of an encrypted column.
    """
    file = _files[parquet_file]
    trailer = file.read(file.size - _TRAILER_BYTES, _TRAILER_BYTES)
    return int.from_bytes(trailer[:4], "little") != parquet_file.metadata.serialized_size
