"""The operations of `statements.py` on arrays with a leading axis of time. NumPy only; nothing is read from files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.sources.decompression import decompress_zlib
from bushel._src.trajectory.data_utils import binarize_gripper_actions, rel2abs_gripper_actions
from bushel._src.trajectory.numpy_or_jax import to_objects
from bushel._src.trajectory.rotations import convert_quaternions

ALL = -1


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function of arrays and constants.

    Attributes:
      run: the function.
      expressions: how many of its arguments are arrays; `ALL` for any number.
      others: the kinds of the arguments after them, one letter each: bound, integer, number of columns, divisor.
    """

    run: Callable[..., Any]
    expressions: int = 1
    others: str = ""


def _concatenate(*parts: np.ndarray) -> np.ndarray:
    """Arrays joined along the last axis. Nothing is promoted: in the originals arrays of two dtypes fail."""
    dtypes, rows = {part.dtype.name for part in parts}, {len(part) for part in parts}
    if len(dtypes) > 1:
        raise ValueError(
            f'arrays of the dtypes {", ".join(part.dtype.name for part in parts)} are not joined; ["float32", x] casts'
        )
    if len(rows) > 1 or len({part.ndim for part in parts}) > 1:
        raise ValueError(f"arrays of the shapes {', '.join(str(part.shape) for part in parts)} cannot be joined")
    return np.concatenate(parts, axis=-1)


def _binarize(positions: np.ndarray) -> np.ndarray:
    if not len(positions):
        raise ValueError(
            "no step is left, so the gripper has no last state. ignore_errors=True leaves such trajectories out"
        )
    return binarize_gripper_actions(positions)


def _blank(texts: np.ndarray) -> np.ndarray:
    return np.full(texts.shape, b"", object)


def _decode_code_points(rows: np.ndarray) -> np.ndarray:
    """Rows of Unicode code points as UTF-8 texts, up to the first 0. Numbers that are no code point become U+FFFD."""
    texts = []
    for row in np.atleast_2d(rows).tolist():
        points = row[: row.index(0)] if 0 in row else row
        valid = (point if 0 < point <= 0x10FFFF and not 0xD800 <= point < 0xE000 else 0xFFFD for point in points)
        texts.append("".join(map(chr, valid)).encode())
    return to_objects(texts)


def _inflate(values: np.ndarray, width: int) -> np.ndarray:
    """Rows of float32 from zlib data. Numbers, which a reader has decompressed already, stay as they are."""
    if values.dtype.kind not in "OS":
        return values.reshape(len(values), width)
    rows = [np.frombuffer(decompress_zlib(bytes(value)), "<f4") for value in values.tolist()]
    for row in rows:
        if len(row) != width:
            raise ValueError(f"the compressed data have {len(row)} numbers, but should have {width}")
    return np.stack(rows).astype(np.float32) if rows else np.zeros((0, width), np.float32)


OPERATIONS = {
    "cols": Operation(lambda x, begin, end: x[..., begin:end], others="bb"),
    "col": Operation(lambda x, index: x[..., index], others="i"),
    "column": Operation(lambda x: x[..., None]),
    "part": Operation(lambda x, begin, end, step: x[begin:end:step], others="bbb"),
    "concat": Operation(_concatenate, ALL),
    "zeros": Operation(np.zeros_like),
    "ones": Operation(np.ones_like),
    "float32": Operation(lambda x: x.astype(np.float32)),
    "clip01": Operation(lambda x: np.clip(x, 0, 1)),
    "invert": Operation(lambda x: 1 - x),
    "div": Operation(lambda x, divisor: x / divisor, others="d"),
    "diff": Operation(lambda x: x[1:] - x[:-1]),
    "binarize": Operation(_binarize),
    "rel2abs": Operation(rel2abs_gripper_actions),
    "euler": Operation(convert_quaternions),
    "blank": Operation(_blank),
    "utf8": Operation(_decode_code_points),
    "inflate": Operation(_inflate, others="n"),
}
"""The operations by name. `docs/oxe.md` has the table of their meanings."""
