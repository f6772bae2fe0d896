"""Seeds and positions in 32-bit words, so that nothing here needs JAX's 64-bit types. No data, no state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bushel.base import checks

LIMIT = 1 << 31
"""The most elements that one epoch may have."""

_MULTIPLIER = 0x931E8875
_POOL = 4


def word(value: Any) -> jax.Array:
    """An integer, Python's or traced, as a 32-bit word."""
    if isinstance(value, int):
        value = np.uint32(value & 0xFFFFFFFF)
    return jnp.asarray(value).astype(jnp.uint32)


def seed_of(key: Any) -> jax.Array:
    """The 32-bit seed that a key stands for: an int is itself, and so is `jax.random.key(s)`; others are folded.

    `None` is seed 0. Keys may be traced, old-style or new-style.

    >>> int(seed_of(7)), int(seed_of(jax.random.key(7)))
    (7, 7)
    """
    if key is None:
        key = 0
    if isinstance(key, (int, np.integer)):
        return word(checks.seed(key, below=1 << 32))
    if not isinstance(key, (jax.Array, np.ndarray)):
        raise TypeError(f"A key is an int or a key of jax.random, got {key!r} of type {type(key).__name__}.")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape:
            raise ValueError(f"A loader takes one key, got {key.shape}: use jax.vmap(loader.init_state) for many.")
        return _folded(jax.random.key_data(key), key)
    if key.ndim == 0 and jnp.issubdtype(key.dtype, jnp.integer):
        return word(key)
    if key.ndim == 1 and key.dtype == jnp.uint32:
        return _folded(jnp.asarray(key), key)
    raise ValueError(
        f"A key is an int or one key of jax.random, got {key.dtype}{list(key.shape)}. "
        "For many loaders use jax.vmap(loader.init_state)."
    )


def as_key(key: Any) -> jax.Array:
    """A key of jax.random for what a user may give as one: an int, None for 0, or a key."""
    if key is None:
        key = 0
    if isinstance(key, (int, np.integer)):
        return jax.random.key(word(checks.seed(key, below=1 << 32)))
    return jax.random.wrap_key_data(key) if key.dtype == jnp.uint32 and key.ndim == 1 else key


def _folded(data: jax.Array, key: Any) -> jax.Array:
    """A key made from a seed s is the words (0, s), once or twice; any other is folded by drawing from it."""
    halves = data.reshape(-1, 2)
    plain = (halves[:, 0] == 0).all() & (halves[:, 1] == halves[0, 1]).all()
    return jnp.where(plain, halves[0, 1], jax.random.bits(key, dtype=jnp.uint32))


def derive(seed: Any, depth: int = 1) -> jax.Array:
    """`index.seeds.derive([(seed, depth)])` for a traced seed: the first word of NumPy's `SeedSequence`.

    >>> int(derive(jnp.uint32(42)))
    3329053876
    """
    hash_constant = 0x43B0D7E5
    entropy = [word(seed), word(depth), word(0), word(0)]
    pool = []
    for value in entropy:
        mixed, hash_constant = _hashed(value, hash_constant)
        pool.append(mixed)
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                mixed, hash_constant = _hashed(pool[source], hash_constant)
                pool[target] = _stirred(pool[target], mixed)
    constant = 0x8B51F9DD
    value = pool[0] ^ word(constant)
    value = value * word(constant * 0x58F38DED)
    return value ^ (value >> 16)


def _hashed(value: jax.Array, constant: int) -> tuple[jax.Array, int]:
    value = value ^ word(constant)
    constant = constant * _MULTIPLIER & 0xFFFFFFFF
    value = value * word(constant)
    return value ^ (value >> 16), constant


def _stirred(x: jax.Array, y: jax.Array) -> jax.Array:
    result = x * word(0xCA01F9DD) - y * word(0x4973F715)
    return result ^ (result >> 16)


def multiply_divide(x: Any, factor: int, divisor: int, plus: Any = 0) -> tuple[jax.Array, jax.Array]:
    """Quotient and remainder of `x * factor + plus` by `divisor`, though the product may need more than 32 bits.

    `factor` and `divisor` are Python integers below 2**31, `x` and `plus` words; the quotient must fit a word.

    >>> [int(n) for n in multiply_divide(jnp.uint32(4_000_000_000), 1000, 1_999_999_999)]
    [2000, 2000]
    """
    bound = word(divisor)
    whole, part = word(x) // bound, word(x) % bound
    quotient = remainder = word(0)
    for bit in bin(factor)[2:]:
        quotient, remainder = _carried(quotient * 2, remainder * 2, bound)
        if bit == "1":
            quotient, remainder = _carried(quotient + whole, remainder + part, bound)
    plus = word(plus)
    return _carried(quotient + plus // bound, remainder + plus % bound, bound)


def _carried(quotient: jax.Array, remainder: jax.Array, bound: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both halves stay below 2**31, so that their sum or double is at most one divisor too large."""
    over = remainder >= bound
    return quotient + over, jnp.where(over, remainder - bound, remainder)


def epochs_touched(count: int, length: int) -> int:
    """How many epochs `count` consecutive positions may touch, wherever they begin.

    >>> epochs_touched(1, 10), epochs_touched(2, 10), epochs_touched(11, 10), epochs_touched(12, 10)
    (1, 2, 2, 3)
    """
    return (count + length - 2) // length + 1
