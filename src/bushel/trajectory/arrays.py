"""NumPy or JAX: one code for the arrays of both, and draws from a generator of the one or a key of the other.

JAX is never imported here: who has one of its arrays has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_HOST = (np.ndarray, np.generic, int, float, bytes, str, list, tuple, dict, type(None), np.random.Generator)

Rng = Any
"""What random functions take: a generator, a seed, a `jax.random` key, or None for draws that nobody can repeat."""


def is_jax(value: Any) -> bool:
    """Whether a value is an array or a key of JAX, also inside of `jit` and `vmap`.

    >>> is_jax(np.zeros(2)), is_jax([1, 2])
    (False, False)
    """
    if isinstance(value, _HOST):  # JAX's own test takes ten times as long
        return False
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_traced(value: Any) -> bool:
    """Whether a value is one of JAX that is not known yet: inside of `jit` and `vmap`.

    >>> is_traced(np.zeros(2))
    False
    """
    return is_jax(value) and isinstance(value, sys.modules["jax"].core.Tracer)


def namespace(*values: Any) -> Any:
    """The module whose functions take these values: `jax.numpy` if one of them is JAX's, else `numpy`.

    >>> namespace(np.zeros(2), None).__name__
    'numpy'
    """
    return sys.modules["jax.numpy"] if any(map(is_jax, values)) else np


def is_text(leaf: Any) -> bool:
    """Whether an array holds strings, of any of NumPy's kinds, among them encoded images.

    >>> is_text(np.array([b"", b"a"], object)), is_text(np.array(["a"], np.dtypes.StringDType())), is_text(np.zeros(2))
    (True, True, False)
    """
    return leaf.dtype.kind in "OSUT"


def to_numpy(leaf: Any) -> Any:
    """An array of another library, TensorFlow's for example, as NumPy's. Anything else, arrays of JAX too, as it is.

    Such an array is known by its method `numpy()`, or by `__array__`. A scalar text stays a `str` or `bytes`.

    >>> to_numpy(b"lift"), to_numpy(np.zeros(2)).shape
    (b'lift', (2,))
    """
    if isinstance(leaf, np.ndarray | np.generic | bytes | str) or is_jax(leaf):
        return leaf
    if callable(getattr(leaf, "numpy", None)):
        leaf = leaf.numpy()
        return leaf if isinstance(leaf, bytes | str) else np.asarray(leaf)
    return np.asarray(leaf) if hasattr(leaf, "__array__") else leaf


def rows(leaf: Any, times: Any) -> Any:
    """The rows of an array at `times`, integers of any shape.

    >>> rows(np.array([5, 6]), np.array([[1, 0]])).tolist()
    [[6, 5]]
    """
    if is_jax(times) and isinstance(leaf, np.ndarray):
        if is_text(leaf):  # there are no texts in JAX
            times = np.asarray(times)
        else:
            leaf = namespace(times).asarray(leaf)
    return leaf[times]


def running_max(values: Any) -> Any:
    """The largest number up to each one.

    >>> running_max(np.array([1, 3, 2])).tolist()
    [1, 3, 3]
    """
    return sys.modules["jax"].lax.cummax(values) if is_jax(values) else np.maximum.accumulate(values)


def draws(rng: Rng, count: int, dtype: Any = None) -> Any:
    """So many draws from [0, 1): with a key an array of JAX, also inside of `jit` and `vmap`.

    >>> draws(0, 2).shape
    (2,)
    """
    if is_jax(rng):
        return sys.modules["jax"].random.uniform(rng, (count,), dtype or float)
    return np.random.default_rng(rng).random(count, dtype or np.float64)


def as_key(seed: Any) -> Any:
    """A `jax.random` key: one of either kind as it is, or one made of a seed, of several, or by a generator.

    >>> import jax
    >>> bool(as_key([3, 4]) == jax.random.fold_in(jax.random.key(3), 4))
    True
    """
    jax = sys.modules["jax"]
    if is_jax(seed) and jax.numpy.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if np.ndim(seed) == 1 and getattr(seed, "dtype", None) == np.uint32:  # of the old kind
        return jax.numpy.asarray(seed)
    if isinstance(seed, np.random.Generator):
        seed = seed.integers(1 << 32, size=2).tolist()
    first, *others = seed if np.ndim(seed) else [seed]
    if isinstance(first, int) and first >> 32:  # JAX takes 32 bits of an int
        first, others = first & 0xFFFFFFFF, [first >> 32, *others]
    return folded(jax.random.key(first), *others)


def folded(key: Any, *numbers: Any) -> Any:
    """The key that belongs to `numbers` under another key.

    >>> import jax
    >>> bool(folded(jax.random.key(3)) == jax.random.key(3))
    True
    """
    for number in numbers:
        key = sys.modules["jax"].random.fold_in(key, number)
    return key


def generator(rng: Rng) -> np.random.Generator:
    """A generator of NumPy, for functions that run on the host alone; a key is its seed."""
    return np.random.default_rng(np.asarray(sys.modules["jax"].random.key_data(rng)) if is_jax(rng) else rng)
