"""`WindowSource`: windows of successive rows, located by arithmetic on their number. No window is copied in advance."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bushel.base import checks
from bushel.jit.device_columns import get_row_spec, make_columns, take_rows
from bushel.jit.pytree import child, pytree_dataclass, set_attributes
from bushel.jit.record_order import Ordering, RecordOrder, make_order
from bushel.jit.record_source import RecordSource
from bushel.jit.source import Address, Tree, stack_spec


class Window(NamedTuple):
    """Successive rows of one episode. Where `mask` is False the episode has ended, and its last row is repeated."""

    steps: Tree
    mask: Any
    episode: Any


@pytree_dataclass
class WindowSource(RecordSource):
    """Windows of `length` successive rows. No window crosses the end of an episode.

    Args:
      data: a tree of arrays with one row per step, one episode after the other.
      length: the number of steps in a window.
      stride: the number of steps from the start of a window to the start of the next.
      episode_lengths: the number of rows of each episode; by default all rows are one episode.
      partial: whether a window may begin so late that the episode ends inside it. The mask is False for the missing
        steps.
      ordering: "shuffle" or "sequential".

    >>> source = WindowSource(np.arange(5), 2, episode_lengths=[3, 2], ordering="sequential")
    >>> state = source.init_state()
    >>> for _ in range(source.steps_per_epoch):
    ...     window, _, state = source.next(state)
    ...     print(window.steps, window.episode)
    [0 1] 0
    [1 2] 0
    [3 4] 1
    """

    columns: Tree = child()
    ends: jax.Array = child()
    """Episode e has the windows from `ends[e - 1]` up to, and without, `ends[e]`."""
    first_row: jax.Array = child()
    """Episode e has the rows from `first_row[e]` up to, and without, `first_row[e + 1]`."""
    order: RecordOrder = child()
    window_length: int
    stride: int

    def __init__(
        self,
        data: Tree,
        length: int,
        *,
        stride: int = 1,
        episode_lengths: Any = None,
        partial: bool = False,
        ordering: Ordering = "shuffle",
    ):
        length, stride = checks.positive(length, "length"), checks.positive(stride, "stride")
        columns, count = make_columns(data)
        lengths = np.array([count]) if episode_lengths is None else np.asarray(episode_lengths)
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any() or lengths.sum() != count:
            raise ValueError(
                f"episode_lengths must be integers that add up to the {count} rows of the data, "
                f"got {lengths.tolist()[:10]}."
            )
        lengths = lengths.astype(np.int64)
        windows = -(-lengths // stride) if partial else np.maximum(0, (lengths - length) // stride + 1)
        ends = np.cumsum(windows)
        if not ends[-1]:
            raise ValueError(
                f"No episode has a window of {length} steps: the longest episode has {lengths.max()}. "
                "Pass partial=True for windows that are longer than their episode."
            )
        first_row = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        set_attributes(
            self,
            columns=columns,
            ends=jnp.asarray(ends.astype(np.int32)),
            first_row=jnp.asarray(first_row),
            order=make_order(ordering, int(ends[-1])),
            window_length=length,
            stride=stride,
        )

    def _get_record_spec(self) -> Tree:
        steps = stack_spec(get_row_spec(self.columns), self.window_length)
        mask = jax.ShapeDtypeStruct((self.window_length,), bool)
        return Window(steps, mask, jax.ShapeDtypeStruct((), jnp.int32))

    def _read_records(self, address: Address) -> Tree:
        episode = jnp.searchsorted(self.ends, address.record, side="right").astype(jnp.int32)
        before = jnp.where(episode > 0, self.ends[episode - 1], 0)
        start = self.first_row[episode] + (address.record - before) * self.stride
        wanted = start[:, None] + jnp.arange(self.window_length)
        last = self.first_row[episode + 1] - 1
        row = jnp.minimum(wanted, last[:, None])
        rows = take_rows(self.columns, row.reshape(-1))
        steps = jax.tree.map(lambda leaf: leaf.reshape(*row.shape, *leaf.shape[1:]), rows)
        return Window(steps, wanted <= last[:, None], episode)
