"""Fills rows with the pieces of sequences. index/packing.py says where each piece goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import memory
from bushel.index.packing import Layout


def fill_rows(laid: Layout, pieces: Sequence[np.ndarray], like: np.ndarray, padding: Any = None) -> np.ndarray:
    """The rows of one feature: all pieces are copied to their places at once, with `padding` (or zeros) in the gaps.

    >>> from bushel.index.packing import layout
    >>> laid = layout(np.array([1, 0]), np.array([0, 1]), np.array([2, 2]), np.array([1, 1]), count=2, length=4)
    >>> pieces = [np.array([7, 8]), np.array([5, 6])]
    >>> fill_rows(laid, pieces, pieces[0]).tolist()
    [[0, 5, 6, 0], [7, 8, 0, 0]]

    Args:
      laid: where the pieces go.
      pieces: arrays with as many entries along the first axis as `laid` says, in the order it was made from.
      like: an array whose dtype and axes after the first are those of the rows; other dtypes are cast to it.
      padding: what fills the gaps; zeros if None.
    """
    inner = like.shape[1:]
    gaps = laid.runs[::2].tolist()
    pad = np.zeros((max(gaps), *inner), like.dtype)
    if padding is not None:
        pad[...] = padding
    parts: list[np.ndarray] = []
    for gap, number in zip(gaps, laid.order.tolist()):
        if gap:
            parts.append(pad[:gap])
        parts.append(pieces[number])
    parts.append(pad[: gaps[-1]])
    out = memory.empty((laid.rows, laid.length, *inner), like.dtype)
    np.concatenate(parts, out=out.reshape(-1, *inner), casting="unsafe")
    return out
