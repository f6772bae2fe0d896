"""Rotations as angles about the fixed axes x, y, z, in radians (matrix = Rz Ry Rx): the numbers of two libraries.

Both functions work in the dtype of their input. A conversion by another formula differs by up to 1e-6 in float32, and
near the poles, where y is 90 degrees, by much more.
"""

from __future__ import annotations

import numpy as np

_POLE = 1e-6
_STRAIGHT = 1e-7


def convert_quaternions(quaternions: np.ndarray) -> np.ndarray:
    """The angles of quaternions (x, y, z, w), by the formulas of tensorflow_graphics.

    They scale each product by 1 - 2 eps, which keeps it in the domain of asin: 90 degrees is 1.5707959 in float32. The
    quaternions are not normalised, and those that are too long give nan.

    >>> convert_quaternions(np.array([[0.0, 0.0, 0.6, 0.8]])).round(3).tolist()
    [[0.0, 0.0, 1.287]]
    """
    values = np.asarray(quaternions)
    dtype = values.dtype.type
    margin = dtype(2 * np.finfo(values.dtype).eps)
    scale = dtype(1) - margin
    x, y, z, w = (values[..., axis] for axis in range(4))
    tx, ty, tz = (scale * (2 * part) for part in (x, y, z))
    r00, r22 = scale * (1 - (ty * y + tz * z)), scale * (1 - (tx * x + ty * y))
    r01, r10 = scale * (ty * x - tz * w), scale * (ty * x + tz * w)
    r02, r20 = scale * (tz * x + ty * w), scale * (tz * x - ty * w)
    r21 = scale * (tz * y + tx * w)

    def shift(entry: np.ndarray) -> np.ndarray:
        return entry + margin * _get_sign(entry)

    with np.errstate(invalid="ignore"):
        ry = -np.arcsin(r20)
        sign = _get_sign(np.cos(ry))
        general = np.arctan2(sign * r21, sign * shift(r22)), ry, np.arctan2(sign * r10, sign * shift(r00))
        turn = -_get_sign(r20)
        at_pole = np.arctan2(turn * r01, turn * shift(r02)), turn * dtype(np.pi / 2), np.zeros_like(ry)
        is_pole = np.abs(np.abs(r20) - 1) < _POLE
    return np.where(is_pole[..., None], np.stack(at_pole, axis=-1), np.stack(general, axis=-1)) + dtype(0)


def _get_sign(values: np.ndarray) -> np.ndarray:
    """1 for zero and above, -1 for all others, also for nan."""
    return np.where(values >= 0, 1, -1).astype(values.dtype)


def convert_matrices(matrices: np.ndarray) -> np.ndarray:
    """The angles of rotation matrices [T, 3, 3], by the formulas of scipy's and JAX's `Rotation`: by quaternions.

    >>> convert_matrices(np.array([[[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]])).round(3).tolist()
    [[0.0, 0.0, 0.644]]
    """
    x, y, z, w = np.moveaxis(_find_quaternions(np.asarray(matrices)), -1, 0)
    half_sum, half_difference = np.arctan2(x + z, w - y), np.arctan2(z - x, y + w)
    middle = 2 * np.arctan2(np.hypot(y + w, z - x), np.hypot(w - y, x + z))
    dtype = middle.dtype.type
    # Where the first and the third axis coincide, only the sum of their angles is known: the third is 0.
    down, up = np.abs(middle) <= dtype(_STRAIGHT), np.abs(middle - dtype(np.pi)) <= dtype(_STRAIGHT)
    first = np.where(down, 2 * half_sum, np.where(up, -2 * half_difference, half_sum - half_difference))
    third = np.where(down | up, 0, half_sum + half_difference)
    angles = np.stack([first, middle - dtype(np.pi / 2), third], axis=-1).astype(dtype)
    turn = dtype(2 * np.pi)
    return np.where(angles < -np.pi, angles + turn, np.where(angles > np.pi, angles - turn, angles)) + dtype(0)


def _find_quaternions(matrices: np.ndarray) -> np.ndarray:
    """Unit quaternions (x, y, z, w). The largest of the four numbers is computed first, which avoids small divisors."""
    diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
    trace = diagonal.sum(axis=-1)
    largest = np.concatenate([diagonal, trace[..., None]], axis=-1).argmax(axis=-1)
    quaternions = np.empty((len(matrices), 4), matrices.dtype)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        rows = largest == i
        m = matrices[rows]
        quaternions[rows, i] = 1 - trace[rows] + 2 * m[:, i, i]
        quaternions[rows, j] = m[:, j, i] + m[:, i, j]
        quaternions[rows, k] = m[:, k, i] + m[:, i, k]
        quaternions[rows, 3] = m[:, k, j] - m[:, j, k]
    rows = largest == 3
    m = matrices[rows]
    parts = m[:, 2, 1] - m[:, 1, 2], m[:, 0, 2] - m[:, 2, 0], m[:, 1, 0] - m[:, 0, 1], 1 + trace[rows]
    quaternions[rows] = np.stack(parts, axis=-1)
    return quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)
