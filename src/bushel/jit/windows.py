"""Windows over sequences: pieces of successive rows, as arithmetic on their number. Nothing is copied in advance."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bushel.base import checks
from bushel.jit.arrays import Arrays, columns
from bushel.jit.nodes import child, node
from bushel.jit.order import order_of
from bushel.jit.protocol import Address, Tree, stacked_spec
from bushel.jit.records import Records, Store


class Window(NamedTuple):
    """Successive rows of one episode. Where `mask` is False the episode was over, and its last row is repeated."""

    steps: Tree
    mask: Any
    episode: Any


@node
class Windows(Store):
    """Windows by their number. Episode e has windows up to `ends[e]` and rows from `first_row[e]` on."""

    rows: Arrays = child()
    ends: jax.Array = child()
    first_row: jax.Array = child()
    length: int = 1
    stride: int = 1

    @property
    def groups(self) -> int:
        return 1

    def spec(self) -> Tree:
        mask = jax.ShapeDtypeStruct((self.length,), bool)
        return Window(stacked_spec(self.rows.spec(), self.length), mask, jax.ShapeDtypeStruct((), jnp.int32))

    def take(self, address: Address) -> Tree:
        episode = jnp.searchsorted(self.ends, address.record, side="right").astype(jnp.int32)
        before = jnp.where(episode > 0, self.ends[episode - 1], 0)
        start = self.first_row[episode] + (address.record - before) * self.stride
        wanted = start[:, None] + jnp.arange(self.length)
        last = self.first_row[episode + 1] - 1
        row = jnp.minimum(wanted, last[:, None])
        steps = jax.tree.map(lambda leaf: leaf.reshape(*row.shape, *leaf.shape[1:]), self.rows.rows(row.reshape(-1)))
        return Window(steps, wanted <= last[:, None], episode)


def WindowSource(
    data: Tree,
    length: int,
    *,
    stride: int = 1,
    episode_lengths: Any = None,
    partial: bool = False,
    ordering: str = "shuffle",
) -> Records:
    """Windows of `length` successive rows, none of them across the end of an episode.

    Args:
      data: a tree of arrays with one row per step, all episodes one after the other.
      stride: how many steps lie between the beginnings of two windows.
      episode_lengths: how many rows each episode has; by default all rows are one.
      partial: whether windows may begin near the end of an episode and be filled up, which the mask tells.

    >>> source = WindowSource(np.arange(5), 2, episode_lengths=[3, 2], ordering="sequential")
    >>> state = source.init_state()
    >>> for _ in range(source.steps_per_epoch):
    ...     window, _, state = source.next(state)
    ...     print(window.steps, window.episode)
    [0 1] 0
    [1 2] 0
    [3 4] 1
    """
    length, stride = checks.positive(length, "length"), checks.positive(stride, "stride")
    stored, count = columns(data)
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
            f"No episode has a window of {length} steps: the longest has {lengths.max()}. "
            "Pass partial=True for windows that are filled up."
        )
    first_row = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    order = order_of(ordering, int(ends[-1]))
    store = Windows(Arrays(stored), jnp.asarray(ends.astype(np.int32)), jnp.asarray(first_row), length, stride)
    return Records(store, order)
