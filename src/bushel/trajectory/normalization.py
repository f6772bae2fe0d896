"""Actions and proprioception on one scale, and back. The statistics come from `statistics.py` or a file."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bushel.trajectory.data_utils import Tree, entry

_EPSILON = 1e-8


class NormalizationType(str, enum.Enum):  # noqa: UP042  the members print and compare as the original's
    """How values are scaled."""

    NORMAL = "normal"
    """To mean 0 and standard deviation 1."""
    BOUNDS = "bounds"
    """The first to the ninety-ninth percentile to [-1, 1]; what is outside is clipped."""


def normalize(x: Any, stats: Mapping[str, Any], type: NormalizationType | str, mask: ArrayLike | None = None) -> Any:
    """An array scaled by the statistics of its last axes; where `mask` is false it stays as it is.

    Without a `mask` it is that of the statistics, if they have one.

    `x` is an array of NumPy or JAX, also inside `jax.jit`; the statistics are numbers of the host.

    >>> normalize(np.array([[1.0, 5.0]]), {"mean": [0.0, 1.0], "std": [1.0, 2.0]}, "normal", [True, False]).round(6)
    array([[1., 5.]])
    """
    x = x if hasattr(x, "dtype") else np.asarray(x)
    center, scale = _scale(x, stats, type)
    if NormalizationType(type) is NormalizationType.NORMAL:
        return _where(stats, mask, (x - center) / scale, x)
    return _where(stats, mask, (2 * (x - center) / scale - 1).clip(-1, 1), x)


def unnormalize(x: Any, stats: Mapping[str, Any], type: NormalizationType | str, mask: ArrayLike | None = None) -> Any:
    """The inverse of `normalize`, for the actions of a policy. What was clipped comes back as the percentile.

    >>> unnormalize(np.array([[-1.0, 1.0]]), {"p01": [0.0, 4.0], "p99": [1.0, 6.0]}, "bounds").round(6).tolist()
    [[0.0, 6.0]]
    """
    x = x if hasattr(x, "dtype") else np.asarray(x)
    center, scale = _scale(x, stats, type)
    if NormalizationType(type) is NormalizationType.NORMAL:
        return _where(stats, mask, x * scale + center, x)
    return _where(stats, mask, (x + 1) / 2 * scale + center, x)


def _scale(x: Any, stats: Mapping[str, Any], type: NormalizationType | str) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted and what is divided by: formed in float64, then rounded to the type of `x`."""
    if np.dtype(x.dtype).kind in "biu":
        raise TypeError(f"Only floating point numbers can be normalised, got {x.dtype}. Cast them first.")
    low, high = ("mean", "std") if NormalizationType(type) is NormalizationType.NORMAL else ("p01", "p99")
    center, spread = (np.asarray(entry(stats, name, of="Statistics"), np.float64) for name in (low, high))
    if low == "p01":
        spread = spread - center
    if center.shape != x.shape[x.ndim - center.ndim :] or spread.shape != center.shape:
        raise ValueError(
            f"Statistics of shape {list(center.shape)} do not fit an array of shape {list(x.shape)}. "
            "Were they made from other data?"
        )
    scale = (spread + _EPSILON).astype(x.dtype)
    if scale.dtype == np.float16:
        scale = np.maximum(scale, np.finfo(np.float16).tiny)  # in which the epsilon is nothing
    return center.astype(x.dtype), scale


def _where(stats: Mapping[str, Any], mask: ArrayLike | None, changed: Any, x: Any) -> Any:
    mask = stats.get("mask") if mask is None else mask
    if mask is None:
        return changed
    mask = np.asarray(mask, bool)
    if mask.shape != x.shape[x.ndim - mask.ndim :]:
        raise ValueError(f"A mask of shape {list(mask.shape)} does not fit an array of shape {list(x.shape)}.")
    return x.__array_namespace__().where(mask, changed, x)


def normalize_action_and_proprio(
    traj: Mapping[str, Any],
    metadata: Mapping[str, Any],
    normalization_type: NormalizationType | str,
    proprio_keys: Collection[str] | None = None,
    skip_norm_keys: Collection[str] = (),
) -> Tree:
    """A trajectory with `action` and these entries of the observation scaled by the statistics under their names.

    Without `proprio_keys` the entry is `proprio`, if the observation has it, as in Octo. Numbers for which the
    statistics' "mask" is false stay as they are.

    >>> traj = {"observation": {}, "action": np.array([[3.0]])}
    >>> normalize_action_and_proprio(traj, {"action": {"mean": [1.0], "std": [2.0]}}, "normal", [])["action"].round(6)
    array([[1.]])
    """
    return _each(normalize, traj, metadata, normalization_type, proprio_keys, skip_norm_keys)


def unnormalize_action_and_proprio(
    traj: Mapping[str, Any],
    metadata: Mapping[str, Any],
    normalization_type: NormalizationType | str,
    proprio_keys: Collection[str] | None = None,
    skip_norm_keys: Collection[str] = (),
) -> Tree:
    """The inverse of `normalize_action_and_proprio`, but for what BOUNDS has clipped.

    >>> traj = {"observation": {}, "action": np.array([[1.0]])}
    >>> unnormalize_action_and_proprio(traj, {"action": {"mean": [1.0], "std": [2.0]}}, "normal", [])["action"].round(6)
    array([[3.]])
    """
    return _each(unnormalize, traj, metadata, normalization_type, proprio_keys, skip_norm_keys)


def _each(
    function: Callable[..., Any],
    traj: Mapping[str, Any],
    metadata: Mapping[str, Any],
    type: NormalizationType | str,
    proprio_keys: Collection[str] | None,
    skip_norm_keys: Collection[str],
) -> Tree:
    def scaled(tree: Mapping[str, Any], name: str, of: str) -> Any:
        stats = entry(metadata, name, of="Normalisation by these statistics")
        return function(entry(tree, name, of=of), stats, type)

    changed: Tree = dict(traj)
    if "action" not in skip_norm_keys:
        changed["action"] = scaled(traj, "action", "A trajectory")
    if proprio_keys is None:
        proprio_keys = ["proprio"] if "proprio" in traj.get("observation", {}) else []
    names = [name for name in proprio_keys if name not in skip_norm_keys]
    if names:
        observation = entry(traj, "observation")
        changed["observation"] = {
            **observation,
            **{name: scaled(observation, name, "An observation") for name in names},
        }
    return changed
