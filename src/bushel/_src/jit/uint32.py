"""Seeds, keys and positions as 32-bit unsigned integers, so that the loader does not need JAX's 64-bit types.

This module has no data and no state. The same arithmetic in 64 bits, for the host, is in bushel._src.index.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bushel._src.base import checks

LIMIT = 1 << 31
"""The most elements that one epoch may have."""

_MULTIPLIER = 0x931E8875
_POOL_SIZE = 4


def to_uint32(value: Any) -> jax.Array:
    """Convert an integer, of Python or traced, to uint32. Larger integers of Python lose their upper bits."""
    if isinstance(value, int):
        value = np.uint32(value & 0xFFFFFFFF)
    return jnp.asarray(value).astype(jnp.uint32)


def to_seed(key: Any) -> jax.Array:
    """Convert what the user gave as `key` to a 32-bit seed.

    The int s and `jax.random.key(s)` both give the seed s. Any other key gives a seed that is drawn from it, and
    `None` gives 0. Keys may be traced, and of the old or the new style.

    >>> int(to_seed(7)), int(to_seed(jax.random.key(7)))
    (7, 7)
    """
    if key is None:
        key = 0
    if isinstance(key, (int, np.integer)):
        return to_uint32(checks.seed(key, below=1 << 32))
    if not isinstance(key, (jax.Array, np.ndarray)):
        raise TypeError(f"A key must be an int or a key of jax.random, got {key!r} of type {type(key).__name__}.")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape:
            raise ValueError(
                f"A loader takes one key, got keys of shape {key.shape}. Use jax.vmap(loader.init_state) for many."
            )
        return _fold_key(jax.random.key_data(key), key)
    if key.ndim == 0 and jnp.issubdtype(key.dtype, jnp.integer):
        return to_uint32(key)
    if key.ndim == 1 and key.dtype == jnp.uint32:
        return _fold_key(jnp.asarray(key), key)
    raise ValueError(
        f"A key must be an int or one key of jax.random, got {key.dtype}{list(key.shape)}. "
        "Use jax.vmap(loader.init_state) for many loaders."
    )


def to_key(key: Any) -> jax.Array:
    """Convert an int, `None` (which means 0) or a key of either style to a key of the new style."""
    if key is None or isinstance(key, (int, np.integer)):
        return jax.random.key(to_seed(key))
    return jax.random.wrap_key_data(key) if key.dtype == jnp.uint32 and key.ndim == 1 else key


def _fold_key(data: jax.Array, key: Any) -> jax.Array:
    """Return the seed that a key was made from, or else a number drawn from the key.

    `jax.random.key(s)` holds the numbers (0, s), once or twice, depending on the implementation.
    """
    halves = data.reshape(-1, 2)
    is_seed = (halves[:, 0] == 0).all() & (halves[:, 1] == halves[0, 1]).all()
    return jnp.where(is_seed, halves[0, 1], jax.random.bits(key, dtype=jnp.uint32))


def derive_seed(seed: Any, depth: int = 1) -> jax.Array:
    """Compute `index.seeds.derive([(seed, depth)])` for a traced seed: the first word of NumPy's `SeedSequence`.

    >>> int(derive_seed(jnp.uint32(42)))
    3329053876
    """
    constant = 0x43B0D7E5
    pool = []
    for value in (seed, depth, 0, 0):
        hashed, constant = _hash(to_uint32(value), constant)
        pool.append(hashed)
    for source in range(_POOL_SIZE):
        for target in range(_POOL_SIZE):
            if source != target:
                hashed, constant = _hash(pool[source], constant)
                pool[target] = _combine(pool[target], hashed)
    constant = 0x8B51F9DD
    value = pool[0] ^ to_uint32(constant)
    value = value * to_uint32(constant * 0x58F38DED)
    return value ^ (value >> 16)


def _hash(value: jax.Array, constant: int) -> tuple[jax.Array, int]:
    value = value ^ to_uint32(constant)
    constant = constant * _MULTIPLIER & 0xFFFFFFFF
    value = value * to_uint32(constant)
    return value ^ (value >> 16), constant


def _combine(x: jax.Array, y: jax.Array) -> jax.Array:
    result = x * to_uint32(0xCA01F9DD) - y * to_uint32(0x4973F715)
    return result ^ (result >> 16)


def multiply_divide(x: Any, factor: int, divisor: int, plus: Any = 0) -> tuple[jax.Array, jax.Array]:
    """Divide `x * factor + plus` by `divisor`: quotient and remainder, even if the product needs more than 32 bits.

    `factor` and `divisor` are Python integers below 2**31; `x` and `plus` are uint32. The quotient must fit 32 bits.

    >>> [int(n) for n in multiply_divide(jnp.uint32(4_000_000_000), 1000, 1_999_999_999)]
    [2000, 2000]
    """
    bound = to_uint32(divisor)
    whole, part = to_uint32(x) // bound, to_uint32(x) % bound
    quotient = remainder = to_uint32(0)
    for bit in bin(factor)[2:]:
        quotient, remainder = _carry(quotient * 2, remainder * 2, bound)
        if bit == "1":
            quotient, remainder = _carry(quotient + whole, remainder + part, bound)
    plus = to_uint32(plus)
    return _carry(quotient + plus // bound, remainder + plus % bound, bound)


def _carry(quotient: jax.Array, remainder: jax.Array, bound: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Move one `bound` from the remainder to the quotient if the remainder is too large.

    Once is enough: the caller adds or doubles remainders that are below `bound`, which is below 2**31.
    """
    over = remainder >= bound
    return quotient + over, jnp.where(over, remainder - bound, remainder)


def count_epochs(count: int, length: int) -> int:
    """Return how many epochs of `length` positions `count` consecutive positions can touch, wherever they begin.

    >>> count_epochs(1, 10), count_epochs(2, 10), count_epochs(11, 10), count_epochs(12, 10)
    (1, 2, 2, 3)
    """
    return (count + length - 2) // length + 1
