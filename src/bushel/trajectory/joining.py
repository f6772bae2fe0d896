"""Samples of several data sets as those of one: one table, one index space, one gather for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel.trajectory.columns import flat
from bushel.trajectory.episodes import Episodes
from bushel.trajectory.samples import Samples

Normalization = Callable[[np.ndarray, str, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class NormalizeEach:
    """Normalises each row by what its data set has; `ends` are those of the data sets, in episodes."""

    parts: tuple[Normalization | None, ...]
    ends: np.ndarray

    def __call__(self, values: np.ndarray, name: str, episode: np.ndarray) -> np.ndarray:
        """`values` of the entry `name`, a row for each `episode`; they are changed in place."""
        which = np.searchsorted(self.ends, episode, side="right")
        for number, part in enumerate(self.parts):
            here = which == number
            if part is not None and here.any():
                values[here] = part(values[here], name, episode[here])
        return values


def joined(parts: Sequence[Samples]) -> Samples | None:
    """All samples in one index space, those of each data set after those of the one before.

    Draws are by the seed of the first. None where it cannot be: transforms or the layouts of tables differ.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        same = (part.transforms, part.row_functions, part.compat, part.labelled_only)
        if same != (first.transforms, first.row_functions, first.compat, first.labelled_only):
            return None
        if _layout(part.episodes) != _layout(first.episodes):
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
    return dataclasses.replace(first, episodes=Episodes.joined(tables), chosen=chosen, kept=kept, normalize=normalize)


def _layout(table: Episodes) -> list[Any]:
    """What must agree: the leaves, and what an entry of numbers looks like."""
    return sorted(
        (path, str(column.take(np.zeros(1, np.int64)).dtype), column.entry_shape if column.is_numeric else None)
        for path, column in flat(table.columns).items()
    )
