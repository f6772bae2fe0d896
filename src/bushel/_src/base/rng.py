"""Random generators that belong to an index, and the seeds that operations get from their position in the pipeline."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base.public import public

_WORD = (1 << 64) - 1


class Generators:
    """One generator that can be set to any index. Two threads must not use it at the same time.

    The stream of index i is Philox with a key from `seed` and the counter (0, 0, op_seed, i). It does not depend on
    earlier draws.
    """

    def __init__(self, seed: int):
        self._bits = np.random.Philox(seed)
        self._rng = np.random.Generator(self._bits)
        # Assigning one prepared state is the cheapest way to set the counter. NumPy copies the state.
        state: Any = dict(self._bits.state)
        self._counter = np.zeros(4, dtype=np.uint64)
        state["state"] = {"counter": self._counter, "key": state["state"]["key"]}
        state["buffer"] = np.zeros(4, dtype=np.uint64)
        state["buffer_pos"] = 4
        state["has_uint32"] = 0
        state["uinteger"] = 0
        self._state = state

    def at(self, index: int, op_seed: int = 0) -> np.random.Generator:
        """Return the generator, set to the start of the stream of `index`."""
        self._counter[2] = op_seed
        self._counter[3] = index & _WORD
        self._bits.state = self._state
        return self._rng


class _Key:
    """A Philox key in the form of a seed sequence: NumPy then uses it as it is, and does not hash it."""

    def __init__(self, key: int):
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.array([self._key & _WORD, self._key >> 64], dtype=np.uint64)


def make_generator(key: int) -> np.random.Generator:
    """Return the same as `Generator(Philox(key=key))` in half the time: Philox would ask the system for a seed first.

    >>> float(make_generator(7).random())
    0.8720734548204873
    """
    _make_keys_known()
    return np.random.Generator(np.random.Philox(_Key(key)))  # type: ignore[arg-type]


@functools.cache
def _make_keys_known() -> None:
    # NumPy loads its generators when they are first used. `import bushel` does not use them, so it is not done there.
    from numpy.random.bit_generator import ISeedSequence

    ISeedSequence.register(_Key)


@public("bushel.experimental")
class RngPool:
    """Generators by index, for several threads, as in Grain.

    >>> pool = RngPool(7)
    >>> rng = pool.acquire_rng(0)
    >>> float(rng.random())
    0.46881748695593284
    >>> pool.release_rng(rng)
    """

    def __init__(self, seed: int):
        self._seed = int(seed)
        self._free: list[Generators] = []
        self._lent: dict[int, Generators] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (RngPool, (self._seed,))

    def _borrow(self) -> Generators:
        """Return generators that only the caller uses, until `give_back`."""
        with self._lock:
            return self._free.pop() if self._free else Generators(self._seed)

    def _give_back(self, generators: Generators) -> None:
        with self._lock:
            self._free.append(generators)

    def acquire_rng(self, index: int, *, op_seed: int = 0) -> np.random.Generator:
        """Return a generator at the start of the stream of `index`, for the caller until `release_rng`."""
        generators = self._borrow()
        rng = generators.at(index, op_seed)
        self._lent[id(rng)] = generators
        return rng

    def release_rng(self, rng: np.random.Generator) -> None:
        """Give a generator back for reuse."""
        generators = self._lent.pop(id(rng), None)
        if generators is None:
            raise ValueError("release_rng takes a generator that acquire_rng of the same pool returned, and only once.")
        self._give_back(generators)


def derive(seeds_and_depths: Sequence[tuple[int, int]]) -> int:
    """Return the seed of an operation, from the seeds above it and how far away they are, nearest first.

    >>> derive([(42, 1)])
    3329053876
    """
    entropy = [number for pair in seeds_and_depths for number in pair]
    return int(np.random.SeedSequence(entropy).generate_state(1, dtype=np.uint32)[0])
