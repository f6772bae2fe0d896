"""Samples of several data sets as samples of one: one table, one numbering, one gather for a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base.state_names import in_states
from bushel._src.trajectory.data_utils import flatten_tree
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.samples import Samples

Normalization = Callable[[np.ndarray, str, np.ndarray], np.ndarray]


@in_states("normalize_each")
@dataclasses.dataclass(frozen=True, eq=False)
class NormalizeEach:
    """Normalises each row with the statistics of its data set. `ends` are the ends of the data sets, in episodes."""

    parts: tuple[Normalization | None, ...]
    ends: np.ndarray

    def __call__(self, values: np.ndarray, name: str, episode: np.ndarray) -> np.ndarray:
        """Normalises `values` of the entry `name` in place. Row i belongs to `episode[i]`."""
        which = np.searchsorted(self.ends, episode, side="right")
        for number, part in enumerate(self.parts):
            here = which == number
            if part is not None and here.any():
                values[here] = part(values[here], name, episode[here])
        return values


def join_samples(parts: Sequence[Samples]) -> Samples | None:
    """The samples of all data sets, one data set after another, or None if transforms or layouts of tables differ.

    All draws use the seed of the first data set.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        same = (part.transforms, part.row_functions, part.compat, part.labelled_only)
        if same != (first.transforms, first.row_functions, first.compat, first.labelled_only):
            return None
        if _describe_layout(part.episodes) != _describe_layout(first.episodes):
            return None
    tables = [part.episodes for part in parts]
    ends = np.cumsum([len(table) for table in tables])
    chosen = np.concatenate([part.chosen + end - len(part.episodes) for part, end in zip(parts, ends)])
    kept = None
    if any(part.kept is not None for part in parts):
        all_of = [np.ones(table.frames, dtype=bool) for table in tables]
        kept = np.concatenate([every if part.kept is None else part.kept for part, every in zip(parts, all_of)])
    normalize = None
    if any(part.normalize is not None for part in parts):
        normalize = NormalizeEach(tuple(part.normalize for part in parts), ends)
    return dataclasses.replace(first, episodes=Episodes.join(tables), chosen=chosen, kept=kept, normalize=normalize)


def _describe_layout(table: Episodes) -> list[Any]:
    """What must be equal in tables that are joined: the leaves, their dtypes, and the shapes of numbers."""
    return sorted(
        (path, str(column.take(np.zeros(1, np.int64)).dtype), column.entry_shape if column.is_numeric else None)
        for path, column in flatten_tree(table.columns).items()
    )
