"""What each number of an action or of the proprioception is, such as a joint, where the data set says it."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np

from bushel.graph.leaves import Source
from bushel.trajectory.data_utils import flatten_tree
from bushel.trajectory.episodes import Episodes
from bushel.trajectory.lerobot.builder import LeRobotEpisodes
from bushel.trajectory.lerobot.dataset_folder import LeRobotFolder
from bushel.trajectory.lerobot.image_parts import LeRobotImages
from bushel.trajectory.lerobot.source import LeRobotSource
from bushel.trajectory.sample_index import SampleIndex
from bushel.trajectory.samples import SampleOrigins
from bushel.view.session import Session

Names = dict[str, tuple[str, ...]]
"""The names of the numbers of an entry, by the path of the entry without "observation"."""

_COMPARED = 8
"""How many rows of a table are compared with the rows of the data set."""


class JointNames:
    """The names in the data sets of a session. They are looked for when the first sample is shown."""

    def __init__(self, session: Session):
        self._session = session

    def find(self, path: str, width: int) -> tuple[str, ...]:
        """The names of the numbers of an entry of this width, such as "action"; empty if they are not known."""
        fitting = {table[path] for table in self._tables if len(table.get(path, ())) == width}
        return fitting.pop() if len(fitting) == 1 else ()  # two robots may name the same entry differently

    @functools.cached_property
    def _tables(self) -> list[Names]:
        tables = []
        for step in self._session.steps:
            with contextlib.suppress(Exception):  # files may be damaged or gone, and names are no must
                tables.append(_list_names(step.node))
        return tables


def _list_names(node: Any) -> Names:
    if isinstance(node, Source) and isinstance(node.source, LeRobotSource):
        return _by_path(node.source.folder)
    if isinstance(node, Source) and isinstance(node.source, LeRobotEpisodes):
        return _by_path(node.source._folder)
    origins = node.describe_sample if isinstance(node, SampleIndex) else None
    return _compare(origins.samples.episodes) if isinstance(origins, SampleOrigins) else {}


def _by_path(folder: LeRobotFolder) -> Names:
    """The names of the features, by the paths that their entries have in rows and in raw episodes."""
    found = {shorten(name): feature.names for name, feature in folder.features.items() if feature.names}
    return found | ({"action": found["actions"]} if "actions" in found and "action" not in found else {})


def shorten(path: str) -> str:
    """A path without the part that all observations have: "state" for "observation.state" and "observation/state"."""
    return path.removeprefix("observation").lstrip("./")


def _compare(table: Episodes) -> Names:
    """The names of the columns of a table that have the numbers of a feature, whatever a column is called there."""
    parts = [column.parts for column in table._image_columns if isinstance(column.parts, LeRobotImages)]
    if not parts:
        return {}
    folder = LeRobotFolder(parts[0]._folder, storage_options=parts[0]._options)
    named = {name: feature for name, feature in folder.features.items() if feature.names}
    if not named or not folder.data_files:
        return {}
    first = folder.parquet(next(iter(folder.data_files.values())))
    rows = first.read_row_group(0, columns=["episode_index", *named]).slice(0, _COMPARED).to_pydict()
    episode = rows.pop("episode_index")[0]
    own = np.arange(len(table)) if table.numbers is None else table.numbers
    (places,) = np.nonzero(own == episode)
    if not len(places):
        return {}
    frames = table.starts[places[0]] + np.arange(min(_COMPARED, int(table.lengths[places[0]])))
    stored = {name: np.asarray(values)[: len(frames)] for name, values in rows.items()}
    found: Names = {}
    for path, column in flatten_tree(table.columns).items():
        if not column.is_numeric:
            continue
        values = np.asarray(column.take(frames))
        equal = [name for name in named if _is_equal(values, stored[name])]
        if len(equal) == 1:
            found[shorten("/".join(path))] = named[equal[0]].names
    return found


def _is_equal(values: np.ndarray, stored: np.ndarray) -> bool:
    return values.shape == stored.shape and bool(np.allclose(values, stored.astype(values.dtype), equal_nan=True))


def choose_names(names: tuple[str, ...], dimensions: list[int]) -> list[str]:
    """What the page calls some dimensions: by their names, or by their numbers where there are none.

    >>> choose_names(("shoulder", "elbow"), [1]), choose_names((), [0, 3])
    (['elbow'], ['0', '3'])
    """
    return [names[dimension] if names else str(dimension) for dimension in dimensions]
