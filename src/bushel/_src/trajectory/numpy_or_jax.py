"""One code for arrays of NumPy and of JAX, and random draws from a NumPy generator or a `jax.random` key.

This module never imports JAX: a caller that has an array of JAX has imported it already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_HOST = (np.ndarray, np.generic, int, float, bytes, str, list, tuple, dict, type(None), np.random.Generator)

Rng = Any
"""What random functions take: a generator, a seed, a `jax.random` key, or None for draws that cannot be repeated."""


def is_jax(value: Any) -> bool:
    """Whether a value is an array or a key of JAX, also inside `jit` and `vmap`.

    >>> is_jax(np.zeros(2)), is_jax([1, 2])
    (False, False)
    """
    if isinstance(value, _HOST):  # a shortcut: isinstance with jax.Array takes ten times as long
        return False
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_traced(value: Any) -> bool:
    """Whether a value is an array of JAX whose numbers are not known yet, inside `jit` or `vmap`.

    >>> is_traced(np.zeros(2))
    False
    """
    return is_jax(value) and isinstance(value, sys.modules["jax"].core.Tracer)


def get_namespace(*values: Any) -> Any:
    """The module for these values: `jax.numpy` if one of them is an array of JAX, else `numpy`.

    >>> get_namespace(np.zeros(2), None).__name__
    'numpy'
    """
    return sys.modules["jax.numpy"] if any(map(is_jax, values)) else np


def is_text(leaf: Any) -> bool:
    """Whether an array holds strings, in any of NumPy's dtypes. Encoded images are strings too.

    >>> is_text(np.array([b"", b"a"], object)), is_text(np.array(["a"])), is_text(np.zeros(2))
    (True, True, False)
    """
    return leaf.dtype.kind in "OSUT"


def to_numpy(leaf: Any) -> Any:
    """A NumPy array in place of an array of another library, such as TensorFlow.

    An array of another library has a method `numpy()` or `__array__`. A scalar text stays a `str` or `bytes`. All other
    values, arrays of JAX too, are returned as they are.

    >>> to_numpy(b"lift"), to_numpy(np.zeros(2)).shape
    (b'lift', (2,))
    """
    if isinstance(leaf, np.ndarray | np.generic | bytes | str) or is_jax(leaf):
        return leaf
    if callable(getattr(leaf, "numpy", None)):
        leaf = leaf.numpy()
        return leaf if isinstance(leaf, bytes | str) else np.asarray(leaf)
    return np.asarray(leaf) if hasattr(leaf, "__array__") else leaf


def take_rows(leaf: Any, times: Any) -> Any:
    """The rows of an array at `times`, integers of any shape.

    >>> take_rows(np.array([5, 6]), np.array([[1, 0]])).tolist()
    [[6, 5]]
    """
    if is_jax(times) and isinstance(leaf, np.ndarray):
        if is_text(leaf):  # JAX has no texts, so the index moves to the host
            times = np.asarray(times)
        else:
            leaf = get_namespace(times).asarray(leaf)
    return leaf[times]


def to_objects(values: Sequence[Any]) -> np.ndarray:
    """A one-dimensional array whose elements are these objects, also where the objects are arrays or lists.

    >>> to_objects([b"a", b""])
    array([b'a', b''], dtype=object)
    """
    return np.fromiter(values, object, len(values))


def running_max(values: Any) -> Any:
    """For each element the maximum of all elements up to it.

    >>> running_max(np.array([1, 3, 2])).tolist()
    [1, 3, 3]
    """
    return sys.modules["jax"].lax.cummax(values) if is_jax(values) else np.maximum.accumulate(values)


def draw_uniform(rng: Rng, count: int, dtype: Any = None) -> Any:
    """`count` draws from [0, 1). With a `jax.random` key they are an array of JAX, also inside `jit` and `vmap`.

    >>> draw_uniform(0, 2).shape
    (2,)
    """
    if is_jax(rng):
        return sys.modules["jax"].random.uniform(rng, (count,), dtype or float)
    return np.random.default_rng(rng).random(count, dtype or np.float64)


def make_key(seed: Any) -> Any:
    """A `jax.random` key from a key of either kind, a seed, a sequence of seeds, or a NumPy generator.

    >>> import jax
    >>> bool(make_key([3, 4]) == jax.random.fold_in(jax.random.key(3), 4))
    True
    """
    jax = sys.modules["jax"]
    if is_jax(seed) and jax.numpy.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if np.ndim(seed) == 1 and getattr(seed, "dtype", None) == np.uint32:  # a raw key, as jax.random.PRNGKey makes it
        return jax.numpy.asarray(seed)
    if isinstance(seed, np.random.Generator):
        seed = seed.integers(1 << 32, size=2).tolist()
    first, *others = seed if np.ndim(seed) else [seed]
    if isinstance(first, int) and first >> 32:  # JAX keeps only the lower 32 bits of an int
        first, others = first & 0xFFFFFFFF, [first >> 32, *others]
    return fold_in(jax.random.key(first), *others)


def fold_in(key: Any, *numbers: Any) -> Any:
    """A key derived from another key and `numbers`.

    >>> import jax
    >>> bool(fold_in(jax.random.key(3)) == jax.random.key(3))
    True
    """
    for number in numbers:
        key = sys.modules["jax"].random.fold_in(key, number)
    return key


def make_generator(rng: Rng) -> np.random.Generator:
    """A NumPy generator, for functions that run on the host only. A `jax.random` key is used as its seed."""
    return np.random.default_rng(np.asarray(sys.modules["jax"].random.key_data(rng)) if is_jax(rng) else rng)
