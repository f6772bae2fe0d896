"""The rows of a LeRobot data set as arrays of the types that `meta/info.json` states, ordered by episode and frame.

The rows themselves say what an episode is. A value that would change is an error.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import BushelWarning, DamagedFile
from bushel._src.base.late_imports import import_package
from bushel._src.base.shown_text import Progress
from bushel._src.sources.parquet import check_sizes
from bushel._src.sources.table_rows import to_storage
from bushel._src.trajectory.data_utils import to_objects
from bushel._src.trajectory.lerobot.dataset_folder import DEFAULT_COLUMNS, LeRobotFeature, LeRobotFolder


def convert_column(column: Any, feature: LeRobotFeature, shown: str, episode: np.ndarray | None) -> np.ndarray:
    """Return a column of Parquet as an array: numbers with dtype and shape of the feature, texts as str in an object
    array.

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


def _convert_texts(column: Any, feature: LeRobotFeature, shown: str) -> np.ndarray:
    """Return texts as str; a null is an empty text."""
    types: Any = import_package("pyarrow", "parquet", "LeRobot data sets").types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind) or str(kind) == "string_view"):
        raise DamagedFile(
            f"{shown} has another schema than meta/info.json: {feature.name!r} should be text, but the column is "
            f"{column.type}."
        )
    return to_objects([value or "" for value in column.to_pylist()])


def _convert_language(column: Any, feature: LeRobotFeature, shown: str) -> np.ndarray:
    """Return the messages of each row as one JSON text: a list of dicts. A null is an empty list."""
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


def _convert_numbers(column: Any, feature: LeRobotFeature, shown: str, episode: np.ndarray | None) -> np.ndarray:
    types: Any = import_package("pyarrow", "parquet", "LeRobot data sets").types
    count = len(column)
    shape = () if feature.shape == (1,) else feature.shape
    size = int(np.prod(shape, dtype=np.int64))
    values = column.combine_chunks()
    values = values.combine_chunks() if hasattr(values, "combine_chunks") else values
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        values = values.flatten()
    if not types.is_primitive(values.type) or len(values) != count * size or values.null_count:
        raise DamagedFile(
            f"{shown} has another schema than meta/info.json: {feature.name!r} should have {size} numbers in each "
            f"row, shape {list(feature.shape)}, but the column is {column.type} with {len(values)} numbers in {count} "
            f"rows. {_find_odd_row(column, size, episode)}".rstrip()
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
    """Return numbers with another dtype, and a bool for each: whether it is still the same number.

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
    """Return where the first row with another number of values is, for a message."""
    for row, value in enumerate(column.to_pylist()):
        if value is None or _count(value) != size:
            if episode is None:
                return f"The first such row is row {row}."
            return f"The first such row is row {row} of episode {episode[row]}."
    return ""


def _count(value: Any) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else 1


@dataclasses.dataclass(frozen=True, eq=False)
class LeRobotRows:
    """All rows, ordered by episode and frame.

    Attributes:
      columns: an array for each feature that is not a picture; texts are str in object arrays.
      episodes: the `episode_index` of each episode, ascending.
      lengths: how many rows each episode has.
      file_rows: the number of each row among the rows of all files, in the order of the files.
      files: the number of the file of each episode's first row.
      faults: by `episode_index`, what is wrong with the rows of an episode, with the key and the file.
      lost_files: files that could not be read, with the reason.
    """

    columns: Mapping[str, np.ndarray]
    episodes: np.ndarray
    lengths: np.ndarray
    file_rows: np.ndarray
    files: np.ndarray
    faults: dict[int, str]
    lost_files: dict[str, str]


def read_rows(folder: LeRobotFolder, tolerance_s: float) -> LeRobotRows:
    """Return the rows of all files. A file that cannot be read is reported in `lost_files`."""
    wanted = [feature for feature in folder.features.values() if not feature.is_picture]
    known = {feature.name for feature in wanted}
    wanted += [LeRobotFeature(name, _DEFAULT_DTYPES[name], (1,)) for name in DEFAULT_COLUMNS if name not in known]
    of_files: list[dict[str, np.ndarray]] = []
    counts: list[int] = []
    lost: dict[str, str] = {}
    extra: dict[str, None] = {}
    names = list(folder.data_files.values())
    progress = Progress("rows of the data set", len(names), unit="files")
    for number, name in enumerate(names):
        count = 0
        try:
            of_file = _read_file(folder, name, wanted, extra)
            count = len(of_file["episode_index"])
            of_files.append(of_file)
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise  # a store that fails for a while
            lost[name] = str(error)
        counts.append(count)
        progress.show(number + 1)
    progress.end()
    if extra:
        warnings.warn(
            f"{redact.show(folder.path)}: the files of rows have the columns {', '.join(map(repr, extra))}, which "
            "meta/info.json does not name. They are left out.",
            BushelWarning,
            stacklevel=5,
        )
    if not of_files:
        first = next(iter(lost.values()), "there is no Parquet file in the folder data")
        raise DamagedFile(f"{redact.show(folder.path)}: no file of rows can be read: {first}")
    columns = {feature.name: np.concatenate([of_file[feature.name] for of_file in of_files]) for feature in wanted}
    files = np.repeat(np.arange(len(names)), counts)
    file_rows = np.arange(len(files))
    episode, frame = columns["episode_index"], columns["frame_index"]
    steps = np.diff(episode)
    if np.any(steps < 0) or np.any((steps == 0) & (np.diff(frame) <= 0)):
        order = np.lexsort((file_rows, frame, episode))
        columns = {name: values[order] for name, values in columns.items()}
        files, file_rows, episode, frame = files[order], file_rows[order], episode[order], frame[order]
    episodes, starts, lengths = np.unique(episode, return_index=True, return_counts=True)
    rows = LeRobotRows(columns, episodes, lengths, file_rows, files[starts], {}, lost)
    _find_faults(rows, folder, names, tolerance_s, starts)
    return rows


_DEFAULT_DTYPES = dict(zip(DEFAULT_COLUMNS, ("float32", "int64", "int64", "int64", "int64")))


def _read_file(
    folder: LeRobotFolder, name: str, wanted: list[LeRobotFeature], extra: dict[str, None]
) -> dict[str, np.ndarray]:
    """Return the wanted columns of a file. Columns that `meta/info.json` does not name are added to `extra`."""
    arrow: Any = import_package("pyarrow", "parquet", "LeRobot data sets")
    shown = f"{redact.show(folder.path)}/{name}"
    try:
        file = folder.parquet(name)
    except FileNotFoundError:
        raise FileNotFoundError(f"{shown} is missing.") from None
    there = file.schema_arrow.names
    stated = {*folder.info["features"], *DEFAULT_COLUMNS}
    extra |= dict.fromkeys(column for column in there if column not in stated)
    if twice := next((feature.name for feature in wanted if there.count(feature.name) > 1), None):
        raise DamagedFile(f"{shown} has {there.count(twice)} columns {twice!r}, of which only one can be read.")
    missing = [feature.name for feature in wanted if feature.name not in there]
    if missing:
        raise DamagedFile(
            f"{shown} has another schema than meta/info.json: it has no column {', '.join(map(repr, missing))}; it "
            f"has {', '.join(map(repr, there))}."
        )
    for number in range(file.metadata.num_row_groups):
        check_sizes(file, shown, number, [feature.name for feature in wanted])
    try:
        table = file.read(columns=[feature.name for feature in wanted])
    except (arrow.ArrowException, OSError) as error:
        raise DamagedFile(f"{shown} cannot be read: {error}") from error
    episode = convert_column(table["episode_index"], _INDEX, shown, None)
    return {feature.name: convert_column(table[feature.name], feature, shown, episode) for feature in wanted}


_INDEX = LeRobotFeature("episode_index", "int64", (1,))


def _find_faults(
    rows: LeRobotRows, folder: LeRobotFolder, names: list[str], tolerance_s: float, starts: np.ndarray
) -> None:
    """Note episodes whose frames are not numbered 0, 1, 2, ..., or whose rows are not 1 / fps seconds apart."""
    frame, seconds = rows.columns["frame_index"], rows.columns["timestamp"].astype(np.float64)
    expected = np.arange(len(frame)) - np.repeat(starts, rows.lengths)
    steps = np.diff(seconds, prepend=0.0)
    rounding = 2 * np.spacing(np.abs(seconds).astype(np.float32)).astype(np.float64)
    uneven = ~(np.abs(steps - 1 / folder.fps) <= tolerance_s + rounding)
    uneven[starts] = False
    for wrong, describe in (
        (frame != expected, lambda row: f"frame_index is {frame[row]} where {expected[row]} should come."),
        (
            uneven,
            lambda row: (
                f"timestamp goes from {seconds[row - 1]:.6g} to {seconds[row]:.6g} s, but meta/info.json says "
                f"{folder.fps:g} fps. The tolerance is tolerance_s={tolerance_s:g}."
            ),
        ),
    ):
        found = np.flatnonzero(wrong)
        owners = np.searchsorted(starts, found, "right") - 1
        firsts = np.unique(owners, return_index=True)[1]
        for place, row in zip(owners[firsts].tolist(), found[firsts].tolist()):
            file = f"{redact.show(folder.path)}/{names[int(rows.files[place])]}"
            episode = int(rows.episodes[place])
            rows.faults.setdefault(episode, f"Episode {episode} in {file}: {describe(row)}")
