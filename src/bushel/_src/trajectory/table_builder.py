"""Collects trajectories, one after another, into the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.trajectory.data_utils import BadTrajectory, flatten_tree, nest_leaves
from bushel._src.trajectory.encoded_images import Encoded, ImageParts
from bushel._src.trajectory.frame_columns import Column, Columns, Images, Numbers, Texts
from bushel._src.trajectory.numpy_or_jax import is_text, to_numpy, to_objects

_PLACES = "@places"


def replace_handles(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """A trajectory with the places of its images instead of handles: integers, which are cheap to send to a process."""
    replaced: dict[str, Any] = {}
    for name, leaf in trajectory.items():
        if isinstance(leaf, Mapping):
            replaced[name] = replace_handles(leaf)
        elif (
            isinstance(leaf, np.ndarray) and leaf.dtype == object and any(isinstance(v, Encoded) for v in leaf.tolist())
        ):
            replaced[name] = {_PLACES: _locate_images(leaf)}
        else:
            replaced[name] = leaf
    return replaced


def _locate_images(leaf: np.ndarray) -> np.ndarray:
    if not all(isinstance(value, Encoded) or not len(value) for value in leaf.tolist()):
        raise ValueError("Some entries are images in files and others are bytes: read all of them, or none.")
    return np.array([v.place if isinstance(v, Encoded) else (0, 0, 0) for v in leaf.tolist()], dtype=np.int64)


class TableBuilder:
    """The columns and the lengths of the trajectories that were added so far."""

    def __init__(self, parts: ImageParts | None) -> None:
        self._parts = parts
        self._leaves: dict[tuple[str, ...], _ColumnBuilder] = {}
        self._lengths: list[int] = []

    def add(self, trajectory: Mapping[str, Any]) -> None:
        """Adds the frames of one trajectory after `replace_handles`. A trajectory without frames is left out.

        Raises:
          BadTrajectory: it does not fit to those before. Its number is the number of those that were added.
        """
        number = len(self._lengths)
        leaves = {path: to_numpy(leaf) for path, leaf in flatten_tree(trajectory).items()}
        for path, leaf in leaves.items():
            if isinstance(leaf, (str, bytes)) or getattr(leaf, "ndim", None) == 0 or not hasattr(leaf, "__len__"):
                raise BadTrajectory(
                    f"{'/'.join(path)} of trajectory {number} is {leaf!r}; leaves of a trajectory have an entry for "
                    "each step. Repeat it: np.full(length, value).",
                    number,
                )
        sizes = {len(leaf) for leaf in leaves.values()}
        if len(sizes) != 1:
            lengths = ", ".join(f"{'/'.join(path)}: {len(leaf)}" for path, leaf in leaves.items())
            raise BadTrajectory(
                f"The leaves of trajectory {number} differ in length: {lengths or 'it has none'}.", number
            )
        (size,) = sizes
        if not size:
            return
        if not self._lengths:
            self._leaves = {path: _ColumnBuilder() for path in leaves}
        if leaves.keys() != self._leaves.keys():
            other = sorted("/".join(path) for path in leaves.keys() ^ self._leaves.keys())
            raise BadTrajectory(f"Trajectory {number} does not have the same entries as those before: {other}.", number)
        for path, leaf in leaves.items():
            # A view may lie in the shared memory of a worker's result, which is needed for the next results.
            array = np.asarray(leaf)
            try:
                self._leaves[path].add(array if array.base is None else array.copy())
            except ValueError as error:
                raise BadTrajectory(f"{'/'.join(path)} of trajectory {number}: {error}", number) from None
        self._lengths.append(size)

    def columns(self) -> Columns:
        """The columns of all frames so far."""
        columns: dict[tuple[str, ...], Column] = {}
        for path, leaf in self._leaves.items():
            column = leaf.column()
            if path[-1] == _PLACES:
                assert isinstance(column, Numbers) and self._parts is not None
                path, column = path[:-1], Images(self._parts, column.values)
            columns[path] = column
        return nest_leaves(columns)

    def lengths(self) -> np.ndarray:
        """The number of frames of each trajectory."""
        return np.array(self._lengths, dtype=np.int64)


class _ColumnBuilder:
    """One column so far: arrays of numbers, or of codes of texts, one for each trajectory."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray] = []
        self._texts: dict[bytes, int] = {}
        self._is_text = False

    def add(self, values: np.ndarray) -> None:
        textual = is_text(values)
        if self._pieces and textual != self._is_text:
            kinds = ("texts", "numbers") if textual else ("numbers", "texts")
            raise ValueError(f"it has {kinds[0]} ({values.dtype}) here, and {kinds[1]} in the trajectories before.")
        self._is_text = textual
        piece = self._encode_texts(values) if textual else values
        before = self._pieces[0] if self._pieces else piece
        if (before.dtype, before.shape[1:]) != (piece.dtype, piece.shape[1:]):
            raise ValueError(
                f"it has {piece.dtype}{list(piece.shape[1:])} per frame here and "
                f"{before.dtype}{list(before.shape[1:])} before."
            )
        self._pieces.append(piece)

    def _encode_texts(self, values: np.ndarray) -> np.ndarray:
        texts = (value.encode() if isinstance(value, str) else bytes(value) for value in values.ravel().tolist())
        codes = [self._texts.setdefault(text, len(self._texts)) for text in texts]
        return np.array(codes, dtype=np.int32).reshape(values.shape)

    def column(self) -> Column:
        joined = self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces)
        return Texts(joined, to_objects(list(self._texts))) if self._is_text else Numbers(joined)


def make_column(values: Any) -> Column:
    """An array as a column. Numbers are not copied."""
    builder = _ColumnBuilder()
    builder.add(values if isinstance(values, np.ndarray) else np.asarray(values))
    return builder.column()
