"""The rows of a LeRobot data set as arrays, ordered by episode and frame. The rows themselves say what an episode is.

`meta` names files and lengths that are wrong in many data sets, so only the columns `episode_index` and `frame_index`
of the rows count. Images in rows are not read here. `column_values.py` converts the columns.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import BushelWarning, DamagedFile
from bushel._src.base.progress import Progress
from bushel._src.sources.optional_packages import import_package
from bushel._src.sources.parquet_sizes import check_sizes
from bushel._src.trajectory.lerobot.column_values import convert_column
from bushel._src.trajectory.lerobot.dataset_folder import DEFAULT_COLUMNS, Feature, LeRobotFolder


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """All rows, ordered by episode and frame.

    Attributes:
      columns: an array for each feature that is not a picture; texts are str in object arrays.
      episodes: the `episode_index` of each episode, ascending.
      lengths: how many rows each episode has.
      places: the number of each row among the rows of all files, in the order of the files.
      files: the number of the file of each episode's first row.
      faults: by `episode_index`, what is wrong with the rows of an episode, with the key and the file.
      lost_files: files that could not be read, with the reason.
    """

    columns: Mapping[str, np.ndarray]
    episodes: np.ndarray
    lengths: np.ndarray
    places: np.ndarray
    files: np.ndarray
    faults: dict[int, str]
    lost_files: dict[str, str]


def read_rows(folder: LeRobotFolder, tolerance_s: float) -> Rows:
    """The rows of all files. A file that cannot be read is reported in `lost_files`."""
    wanted = [feature for feature in folder.features.values() if not feature.is_picture]
    known = {feature.name for feature in wanted}
    wanted += [Feature(name, _DEFAULT_DTYPES[name], (1,)) for name in DEFAULT_COLUMNS if name not in known]
    pieces: list[dict[str, np.ndarray]] = []
    counts: list[int] = []
    lost: dict[str, str] = {}
    extra: dict[str, None] = {}
    names = list(folder.data_files.values())
    progress = Progress("rows of the data set", len(names), unit="files")
    for number, name in enumerate(names):
        count = 0
        try:
            piece = _read_file(folder, name, wanted, extra)
            count = len(piece["episode_index"])
            pieces.append(piece)
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
    if not pieces:
        first = next(iter(lost.values()), "there is no Parquet file in the folder data")
        raise DamagedFile(f"{redact.show(folder.path)}: no file of rows can be read: {first}")
    columns = {feature.name: np.concatenate([piece[feature.name] for piece in pieces]) for feature in wanted}
    files = np.repeat(np.arange(len(names)), counts)
    places = np.arange(len(files))
    episode, frame = columns["episode_index"], columns["frame_index"]
    steps = np.diff(episode)
    if np.any(steps < 0) or np.any((steps == 0) & (np.diff(frame) <= 0)):
        order = np.lexsort((places, frame, episode))
        columns = {name: values[order] for name, values in columns.items()}
        files, places, episode, frame = files[order], places[order], episode[order], frame[order]
    episodes, starts, lengths = np.unique(episode, return_index=True, return_counts=True)
    rows = Rows(columns, episodes, lengths, places, files[starts], {}, lost)
    _find_faults(rows, folder, names, tolerance_s, starts)
    return rows


_DEFAULT_DTYPES = dict(zip(DEFAULT_COLUMNS, ("float32", "int64", "int64", "int64", "int64")))


def _read_file(
    folder: LeRobotFolder, name: str, wanted: list[Feature], extra: dict[str, None]
) -> dict[str, np.ndarray]:
    """The wanted columns of a file. Columns that `meta/info.json` does not name are added to `extra`."""
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


_INDEX = Feature("episode_index", "int64", (1,))


def _find_faults(rows: Rows, folder: LeRobotFolder, names: list[str], tolerance_s: float, starts: np.ndarray) -> None:
    """Notes episodes whose frames are not numbered 0, 1, 2, ..., or whose rows are not 1 / fps seconds apart."""
    frame, seconds = rows.columns["frame_index"], rows.columns["timestamp"].astype(np.float64)
    expected = np.arange(len(frame)) - np.repeat(starts, rows.lengths)
    steps = np.diff(seconds, prepend=0.0)
    rounding = 2 * np.spacing(np.abs(seconds).astype(np.float32)).astype(np.float64)
    uneven = ~(np.abs(steps - 1 / folder.fps) <= tolerance_s + rounding)
    uneven[starts] = False
    for wrong, describe in (
        (frame != expected, lambda row: f"frame_index is {frame[row]} where {expected[row]} should come"),
        (
            uneven,
            lambda row: (
                f"timestamp goes from {seconds[row - 1]:.6g} to {seconds[row]:.6g} s, but meta/info.json says "
                f"{folder.fps:g} fps, and tolerance_s is {tolerance_s:g}"
            ),
        ),
    ):
        found = np.flatnonzero(wrong)
        owners = np.searchsorted(starts, found, "right") - 1
        firsts = np.unique(owners, return_index=True)[1]
        for place, row in zip(owners[firsts].tolist(), found[firsts].tolist()):
            key = "frame_index" if wrong is not uneven else "timestamp"
            file = f"{redact.show(folder.path)}/{names[int(rows.files[place])]}"
            episode = int(rows.episodes[place])
            rows.faults.setdefault(episode, f"episode {episode}, {key} in {file}: {describe(row)}")
