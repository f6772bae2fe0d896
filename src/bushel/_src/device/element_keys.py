"""A key of `jax.random` for each element: augmentation on devices that is the same on any mesh and after restarts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states

_WORD = 0xFFFFFFFF


@public("bushel.device")
def keys(seed: int, *, impl: str | None = None) -> Keys:
    """Return the keys of `jax.random` that belong to the elements of a dataset, by their index.

    Call the result inside a jitted step, with the indices of a batch. An element then has the same key on any mesh, on
    any number of processes and after any restart, since the key depends on the seed and on the index only.

    Args:
      seed: of all keys; another seed gives other keys for all elements.
      impl: the generator, as `jax.random.key` takes it; by default JAX's own.

    >>> import jax, bushel
    >>> augmentation = bushel.device.keys(seed=0)
    >>> ds = bushel.MapDataset.range(8).map_with_index(lambda index, x: {"x": float(x), "index": index}).batch(4)
    >>> @jax.jit
    ... def step(batch):
    ...     noise = jax.vmap(jax.random.normal)(augmentation(batch["index"]))
    ...     return batch["x"] + noise
    >>> [step(batch).shape for batch in ds.to_device()]
    [(4,), (4,)]
    """
    return Keys(checks.seed(seed), impl)


@public("bushel.device")
@in_states("Keys")
@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of `jax.random` by index. It is hashable, so that it may be a static argument of a jitted function.

    The key of index i is `fold_in(fold_in(jax.random.key(seed), i % 2**32), i // 2**32)`.
    """

    seed: int
    impl: str | None = None

    def __call__(self, indices: Any) -> Any:
        """Return an array of keys of the shape of `indices`: integers, of Python, of NumPy or traced.

        JAX has 32-bit integers unless `jax_enable_x64` is set. On a device an index then counts modulo 2**32, so an
        element has the key of the one 2**32 elements before. `for_batch` has no such limit.
        """
        import jax.numpy as jnp

        if not hasattr(indices, "dtype") or isinstance(indices, (np.ndarray, np.generic)):
            numbers = np.asarray(indices)
            _check_integers(numbers.dtype, indices)
            numbers = numbers.astype(np.int64)
            return self._fold(jnp.asarray(np.uint32(numbers & _WORD)), jnp.asarray(np.uint32(numbers >> 32 & _WORD)))
        _check_integers(indices.dtype, indices)
        # A difference and not `zeros_like`, which has no sharding: `vmap` wants both to be sharded alike.
        high = indices >> 32 if indices.dtype.itemsize == 8 else indices - indices
        return self._fold(indices.astype(jnp.uint32), high.astype(jnp.uint32))

    def for_batch(self, number: Any, size: int) -> Any:
        """Return the keys of the rows of batch `number`, where each batch has `size` rows: those of `number * size +
        row`.

        For steps that know their number, so that batches need no leaf for the index. The number may be traced, and is
        below 2**32.

        >>> import jax
        >>> bool((Keys(0).for_batch(3, 4) == Keys(0)(range(12, 16))).all())
        True
        """
        import jax.numpy as jnp

        size = checks.positive(size, "size")
        if not hasattr(number, "dtype") or isinstance(number, (np.ndarray, np.generic)):
            first = checks.not_negative(number, "number") * size
            return self(np.arange(first, first + size, dtype=np.int64))
        _check_integers(number.dtype, number)
        low, high = _multiply(jnp.asarray(number).astype(jnp.uint32), size)
        rows = low + jnp.arange(size, dtype=jnp.uint32)
        return self._fold(rows, high + (rows < low).astype(jnp.uint32))

    def _fold(self, low: Any, high: Any) -> Any:
        import jax

        first = jax.random.key(self.seed, impl=self.impl)

        def fold(low: Any, high: Any) -> Any:
            return jax.random.fold_in(jax.random.fold_in(first, low), high)

        return jax.vmap(fold)(low.ravel(), high.ravel()).reshape(low.shape)


def _check_integers(dtype: Any, indices: Any) -> None:
    if np.dtype(dtype).kind not in "iu":
        raise TypeError(f"The index of an element is an integer, got {indices!r} of dtype {dtype}.")


def _multiply(number: Any, size: int) -> tuple[Any, Any]:
    """Return the lower and the upper 32 bits of `number * size`, both below 2**32, without 64-bit integers."""
    import jax.numpy as jnp

    half = jnp.uint32(0xFFFF)
    parts = [number & half, number >> 16]
    factors = [jnp.uint32(size & 0xFFFF), jnp.uint32(size >> 16)]
    (small, first), (second, large) = ([part * factor for factor in factors] for part in parts)
    middle = (small >> 16) + (first & half) + (second & half)
    low = (small & half) | (middle << 16)
    return low, large + (first >> 16) + (second >> 16) + (middle >> 16)
