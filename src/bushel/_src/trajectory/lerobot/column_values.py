"""Columns of Parquet files as arrays of the types that `meta/info.json` states. A value that would change is an error.

`rows.py` reads the files and puts the arrays of all files together.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bushel._src.base.errors import DamagedFile
from bushel._src.sources.arrow_rows import to_storage
from bushel._src.sources.optional_packages import import_package
from bushel._src.trajectory.lerobot.dataset_folder import Feature
from bushel._src.trajectory.numpy_or_jax import to_objects


def convert_column(column: Any, feature: Feature, shown: str, episode: np.ndarray | None) -> np.ndarray:
    """A column of Parquet as an array: numbers with dtype and shape of the feature, texts as str in an object array.

    A column of another type is converted where each value stays what it is: 3.0 becomes 3, True becomes 1. float64 is
    rounded to float32 if `meta/info.json` states float32, as lerobot does. Other columns raise DamagedFile.

    Args:
      column: the column as pyarrow has read it.
      feature: what `meta/info.json` says about it.
      shown: the name of the file, for messages.
      episode: the `episode_index` of each row, for messages.
    """
    column = to_storage(column)
    if feature.dtype == "string":
        return _convert_texts(column, feature, shown)
    if feature.dtype == "language":
        return _convert_language(column, feature, shown)
    return _convert_numbers(column, feature, shown, episode)


def _convert_texts(column: Any, feature: Feature, shown: str) -> np.ndarray:
    """Texts as str; a null is an empty text."""
    types: Any = import_package("pyarrow", "parquet", "LeRobot data sets").types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind) or str(kind) == "string_view"):
        raise DamagedFile(
            f"{shown} has another schema than meta/info.json: {feature.name!r} should be text, but the column is "
            f"{column.type}."
        )
    return to_objects([value or "" for value in column.to_pylist()])


def _convert_language(column: Any, feature: Feature, shown: str) -> np.ndarray:
    """The messages of each row as one JSON text: a list of dicts. A null is an empty list."""
    types: Any = import_package("pyarrow", "parquet", "LeRobot data sets").types
    if not types.is_list(column.type) and not types.is_large_list(column.type) and not types.is_null(column.type):
        raise DamagedFile(
            f"{shown} has another schema than meta/info.json: {feature.name!r} is language, which is a list of "
            f"messages in each row, but the column is {column.type}."
        )
    try:
        return to_objects([json.dumps(value or [], ensure_ascii=False) for value in column.to_pylist()])
    except TypeError as error:
        raise DamagedFile(
            f"{shown}: {feature.name!r} is a column of type {column.type}, whose values cannot be read: {error}."
        ) from error


def _convert_numbers(column: Any, feature: Feature, shown: str, episode: np.ndarray | None) -> np.ndarray:
    types: Any = import_package("pyarrow", "parquet", "LeRobot data sets").types
    count = len(column)
    shape = () if feature.shape == (1,) else feature.shape
    size = int(np.prod(shape, dtype=np.int64))
    values = column.combine_chunks()
    values = values.combine_chunks() if hasattr(values, "combine_chunks") else values
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        values = values.flatten()
    if not types.is_primitive(values.type) or len(values) != count * size or values.null_count:
        where = _find_odd_row(column, size, episode)
        raise DamagedFile(
            f"{shown} has another schema than meta/info.json: {feature.name!r} should have {size} numbers in each "
            f"row, shape {list(feature.shape)}, but the column is {column.type} with {len(values)} numbers in {count} "
            f"rows{where}."
        )
    raw = values.to_numpy(zero_copy_only=False)
    if raw.dtype.kind not in "biuf":
        raise DamagedFile(
            f"{shown} has another schema than meta/info.json: {feature.name!r} should be {feature.dtype}, but the "
            f"column is {column.type}."
        )
    numbers, kept = cast_numbers(raw, np.dtype(feature.dtype))
    if not kept.all():
        first = int(np.argmin(kept))
        row = first // max(size, 1)
        raise DamagedFile(
            f"{shown} has another schema than meta/info.json: {feature.name!r} should be {feature.dtype}, but the "
            f"column is {column.type}, and {raw[first]} in row {row}"
            f"{'' if episode is None else f' of episode {episode[row]}'} would become {numbers[first]}. Correct the "
            f"dtype of {feature.name!r} in meta/info.json, or write the rows again."
        )
    return numbers.reshape(count, *shape)


def cast_numbers(raw: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers with another dtype, and a bool for each: whether it is still the same number.

    Floats of another width are rounded, which counts as the same. A finite number that becomes infinite does not.

    >>> cast_numbers(np.array([1.0, 0.5]), np.dtype(np.int64))
    (array([1, 0]), array([ True, False]))
    """
    with np.errstate(all="ignore"):
        numbers = raw.astype(dtype)
        if raw.dtype == dtype:
            return numbers, np.ones(raw.shape, bool)
        if raw.dtype.kind == "f" and dtype.kind == "f":
            return numbers, np.isfinite(numbers) == np.isfinite(raw)
        # There and back again. Two integers of the same size differ in the sign alone. A float beyond the range of
        # integers may become the largest integer, which is rounded back to that float: so the range is looked at.
        kept = (numbers.astype(raw.dtype) == raw) & ((numbers >= 0) == (raw >= 0))
        floats, integers = (raw, dtype) if raw.dtype.kind == "f" else (numbers, raw.dtype)
        if floats.dtype.kind == "f" and integers.kind in "iu":
            kept &= floats < float(np.iinfo(integers).max) + 1.0
    return numbers, kept


def _find_odd_row(column: Any, size: int, episode: np.ndarray | None) -> str:
    """Where the first row with another number of values is, for a message."""
    for row, value in enumerate(column.to_pylist()):
        if value is None or _count(value) != size:
            return f"; the first such row is row {row}" + ("" if episode is None else f" of episode {episode[row]}")
    return ""


def _count(value: Any) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else 1
