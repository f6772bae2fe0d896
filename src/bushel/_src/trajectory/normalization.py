"""Normalisation of actions and proprioception, and its inverse. `statistics.py` computes the statistics."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.trajectory.data_utils import Tree, get_entry

_EPSILON = 1e-8


@public("bushel.trajectory")
class NormalizationType(str, enum.Enum):  # noqa: UP042  the members print and compare as the original's
    """How values are scaled."""

    NORMAL = "normal"
    """To mean 0 and standard deviation 1."""
    BOUNDS = "bounds"
    """From the 1st and 99th percentile to [-1, 1]; values outside are clipped."""


Scaling = Literal["normal", "bounds"]
"""The values of NormalizationType."""


@public("bushel.trajectory")
def normalize(
    x: Any, stats: Mapping[str, Any], type: NormalizationType | Scaling, mask: ArrayLike | None = None
) -> Any:
    """Return an array scaled by the statistics of its last axes. Where `mask` is false, the values stay as they are.

    By default the mask of the statistics is used, if they have one.

    `x` is an array of NumPy or JAX, also inside `jax.jit`. The statistics must be NumPy arrays or lists.

    >>> normalize(np.array([[1.0, 5.0]]), {"mean": [0.0, 1.0], "std": [1.0, 2.0]}, "normal", [True, False]).round(6)
    array([[1., 5.]])
    """
    x = x if hasattr(x, "dtype") else np.asarray(x)
    center, scale = _find_scale(x, stats, type)
    if read_normalization_type(type) is NormalizationType.NORMAL:
        return _apply_mask(stats, mask, (x - center) / scale, x)
    return _apply_mask(stats, mask, (2 * (x - center) / scale - 1).clip(-1, 1), x)


@public("bushel.trajectory")
def unnormalize(
    x: Any, stats: Mapping[str, Any], type: NormalizationType | Scaling, mask: ArrayLike | None = None
) -> Any:
    """Return the inverse of `normalize`, for the actions of a policy. Values that were clipped become the percentile.

    >>> unnormalize(np.array([[-1.0, 1.0]]), {"p01": [0.0, 4.0], "p99": [1.0, 6.0]}, "bounds").round(6).tolist()
    [[0.0, 6.0]]
    """
    x = x if hasattr(x, "dtype") else np.asarray(x)
    center, scale = _find_scale(x, stats, type)
    if read_normalization_type(type) is NormalizationType.NORMAL:
        return _apply_mask(stats, mask, x * scale + center, x)
    return _apply_mask(stats, mask, (x + 1) / 2 * scale + center, x)


def read_normalization_type(type: NormalizationType | Scaling) -> NormalizationType:
    """Return the member that a word stands for.

    >>> read_normalization_type("bounds").name
    'BOUNDS'
    """
    return NormalizationType(checks.choice(type, Scaling, "The type of normalization"))


def _find_scale(x: Any, stats: Mapping[str, Any], type: NormalizationType | Scaling) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset and the divisor, computed in float64 and rounded to the dtype of `x`."""
    if np.dtype(x.dtype).kind in "biu":
        raise TypeError(f"Only floating point numbers can be normalised, got {x.dtype}. Cast them first.")
    low, high = ("mean", "std") if read_normalization_type(type) is NormalizationType.NORMAL else ("p01", "p99")
    center, spread = (
        np.asarray(get_entry(stats, name, of="The dict of statistics"), np.float64) for name in (low, high)
    )
    if low == "p01":
        spread = spread - center
    if center.shape != x.shape[x.ndim - center.ndim :] or spread.shape != center.shape:
        raise ValueError(
            f"Statistics of shape {list(center.shape)} do not fit an array of shape {list(x.shape)}. "
            "Were they computed from other data?"
        )
    scale = (spread + _EPSILON).astype(x.dtype)
    if scale.dtype == np.float16:
        scale = np.maximum(scale, np.finfo(np.float16).tiny)  # the epsilon is 0 in float16: this avoids a division by 0
    return center.astype(x.dtype), scale


def _apply_mask(stats: Mapping[str, Any], mask: ArrayLike | None, changed: Any, x: Any) -> Any:
    mask = stats.get("mask") if mask is None else mask
    if mask is None:
        return changed
    mask = np.asarray(mask, bool)
    if mask.shape != x.shape[x.ndim - mask.ndim :]:
        raise ValueError(f"A mask of shape {list(mask.shape)} does not fit an array of shape {list(x.shape)}.")
    return _get_namespace(x).where(mask, changed, x)


def _get_namespace(x: Any) -> Any:
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    return sys.modules["jax"].numpy  # JAX before 0.4.32: its arrays inside `jax.jit` do not name their namespace


@public("bushel.trajectory")
def normalize_action_and_proprio(
    traj: Mapping[str, Any],
    metadata: Mapping[str, Any],
    normalization_type: NormalizationType | Scaling,
    proprio_keys: Collection[str] | None = None,
    skip_norm_keys: Collection[str] = (),
) -> Tree:
    """Return a trajectory with `action` and these entries of the observation scaled by the statistics under their
    names.

    By default the only entry is `proprio`, if the observation has it, as in Octo. Where the "mask" of the statistics is
    false, numbers stay as they are.

    >>> traj = {"observation": {}, "action": np.array([[3.0]])}
    >>> normalize_action_and_proprio(traj, {"action": {"mean": [1.0], "std": [2.0]}}, "normal", [])["action"].round(6)
    array([[1.]])
    """
    return _scale_entries(normalize, traj, metadata, normalization_type, proprio_keys, skip_norm_keys)


@public("bushel.trajectory")
def unnormalize_action_and_proprio(
    traj: Mapping[str, Any],
    metadata: Mapping[str, Any],
    normalization_type: NormalizationType | Scaling,
    proprio_keys: Collection[str] | None = None,
    skip_norm_keys: Collection[str] = (),
) -> Tree:
    """Return the inverse of `normalize_action_and_proprio`, except for values that BOUNDS has clipped.

    >>> traj = {"observation": {}, "action": np.array([[1.0]])}
    >>> unnormalize_action_and_proprio(traj, {"action": {"mean": [1.0], "std": [2.0]}}, "normal", [])["action"].round(6)
    array([[3.]])
    """
    return _scale_entries(unnormalize, traj, metadata, normalization_type, proprio_keys, skip_norm_keys)


def _scale_entries(
    function: Callable[..., Any],
    traj: Mapping[str, Any],
    metadata: Mapping[str, Any],
    type: NormalizationType | Scaling,
    proprio_keys: Collection[str] | None,
    skip_norm_keys: Collection[str],
) -> Tree:
    def scale(tree: Mapping[str, Any], name: str, of: str) -> Any:
        stats = get_entry(metadata, name, of="The dict of statistics")
        return function(get_entry(tree, name, of=of), stats, type)

    changed: Tree = dict(traj)
    if "action" not in skip_norm_keys:
        changed["action"] = scale(traj, "action", "A trajectory")
    if proprio_keys is None:
        proprio_keys = ["proprio"] if "proprio" in traj.get("observation", {}) else []
    names = [name for name in proprio_keys if name not in skip_norm_keys]
    if names:
        observation = get_entry(traj, "observation")
        changed["observation"] = {
            **observation,
            **{name: scale(observation, name, "An observation") for name in names},
        }
    return changed
