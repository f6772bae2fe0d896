"""Rows of a Parquet file as records of bytes, for `bushel convert`. A value that would change is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bushel._src.base.errors import DamagedFile
from bushel._src.sources import file_access
from bushel._src.sources.arrow_rows import get_storage_type, to_storage
from bushel._src.sources.optional_packages import import_package
from bushel._src.sources.parquet import check_columns, get_group_lengths, open_parquet, read_group
from bushel._src.sources.paths import Options
from bushel._src.sources.tf_example import encode_example

_ROWS = 64
_LARGEST = (1 << 63) - 1


class ParquetRecords:
    """The rows of one Parquet file as records of bytes.

    If the only column is `record`, of bytes or text, its values are the records. Other rows become a
    `tf.train.Example`, in which nulls are left out. The type of a column decides what it becomes, so that all rows and
    files agree.
    """

    def __init__(self, path: str, options: Options | None, round_floats: bool):
        file = file_access.open_file(path, options)
        self._path, self._round = file.name, round_floats
        self._file = open_parquet(file, {})
        check_columns(self._file, self._path, None)
        schema = self._file.schema_arrow
        self._ends = np.cumsum(get_group_lengths(self._file), dtype=int)
        self._dtypes = {field.name: self._choose_dtype(field) for field in schema}
        self._bare = self._dtypes == {"record": object} and not _is_list(get_storage_type(schema.types[0]))

    def count(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read_blocks(self, low: int, high: int) -> Iterator[list[bytes]]:
        """The records from `low` to `high` - 1, in blocks."""
        first, last = self._ends.searchsorted([low, high - 1], "right").tolist()
        for number in range(first, last + 1) if low < high else ():
            found = read_group(self._file, self._path, number, None)
            table = found.from_arrays([to_storage(column) for column in found.columns], names=found.schema.names)
            end = int(self._ends[number])
            if table.num_rows != end - (begin := int(self._ends[number - 1]) if number else 0):
                raise DamagedFile(
                    f"{self._path}: row group {number} has {table.num_rows} rows instead of {end - begin}."
                )
            self._check_values(table, begin)
            for start in range(max(low, begin), min(high, end), _ROWS):
                rows = table.slice(start - begin, min(_ROWS, high - start))
                yield self._encode_rows({name: column.to_pylist() for name, column in zip(table.schema.names, rows)})

    def _encode_rows(self, columns: dict[str, list[Any]]) -> list[bytes]:
        if self._bare:
            return [value.encode() if isinstance(value, str) else value for value in columns["record"]]
        rows = zip(*columns.values())
        with np.errstate(over="ignore"):  # if floats are rounded, large ones become infinite
            return [
                encode_example(
                    {name: np.array(v, self._dtypes[name]) for name, v in zip(columns, row) if v is not None}
                )
                for row in rows
            ]

    def _choose_dtype(self, field: Any) -> Any:
        """The type of a column in a `tf.train.Example`: int64, float32, or object for bytes and text."""
        types = import_package("pyarrow", "parquet", "Parquet files").types
        plain = get_storage_type(field.type)
        kind = plain.value_type if _is_list(plain) else plain
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_integer(kind) or types.is_boolean(kind):
            return np.int64
        if types.is_floating(kind) or types.is_null(kind):
            return np.float32
        texts = types.is_string, types.is_large_string
        if any(fits(kind) for fits in (*texts, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)):
            return object
        raise self._refusal_error(
            field.name,
            f"is of type {plain}, but a tf.train.Example holds only numbers, bytes, text and lists of these. Cast "
            "the column with pyarrow, or leave it out, and convert that file",
        )

    def _check_values(self, table: Any, begin: int) -> None:
        """Raises an error for values that a record cannot hold."""
        compute = import_package("pyarrow.compute", "parquet", "Parquet files")
        types = import_package("pyarrow", "parquet", "Parquet files").types
        for name, column in zip(table.schema.names, table.columns):
            if self._bare and column.null_count:
                row = begin + compute.index(column.is_null(), True).as_py()
                raise self._refusal_error(name, f"is null in row {row}, so this row has no record. Leave the row out")
            values = compute.list_flatten(column) if _is_list(column.type) else column
            if values is not column and values.null_count:
                raise self._refusal_error(
                    name, "has nulls inside lists, which a tf.train.Example cannot hold. Fill them"
                )
            kind = values.type.value_type if types.is_dictionary(values.type) else values.type
            if types.is_uint64(kind) and (largest := compute.max(values.cast(kind)).as_py() or 0) > _LARGEST:
                raise self._refusal_error(
                    name,
                    f"holds {largest}, which does not fit into int64, the type of a tf.train.Example. Cast it to text",
                )
            if types.is_float64(kind) and not self._round:
                numbers = values.cast(kind).drop_null().to_numpy()
                with np.errstate(over="ignore"):
                    lost = numbers[(numbers.astype(np.float32) != numbers) & ~np.isnan(numbers)]
                if len(lost):
                    raise self._refusal_error(
                        name,
                        f"holds float64 numbers such as {lost[0]}, but a tf.train.Example has float32 numbers. To "
                        "round them, pass round_floats=True (--round-floats)",
                    )

    def _refusal_error(self, column: str, why: str) -> ValueError:
        return ValueError(f"{self._path}: column {column!r} {why}.")


def _is_list(kind: Any) -> bool:
    types = import_package("pyarrow", "parquet", "Parquet files").types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
