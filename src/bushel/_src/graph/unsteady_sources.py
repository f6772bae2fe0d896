"""Notices sources whose records do not follow from the index alone, in their first reads, and warns of each once.

Such a source gives other records in every run, and other ones with other numbers of workers. No record is read twice
for this. Three signs are looked for: a read that draws from a random generator, a record that differs from the one
that the same index gave before, and records that differ although the code of `__getitem__` never uses its index.
"""

from __future__ import annotations

import dis
import hashlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.graph.hidden_randomness import Watch, tell
from bushel._src.sources.protocol import get_batch_reader

READS = 16
"""How many records of each source are kept as digests, and how many reads of their indices are compared."""

_LAST_READ = 4096
"""After so many reads a source is watched no longer: a look at each record costs as much as reading a small one."""

_MOST_BYTES = 1 << 20  # of each array


class SourceWatch:
    """Watches the first reads of a source.

    Args:
      source: the user's source.
      name: how it reads in a message.
    """

    def __init__(self, source: Any, name: Callable[[], str]):
        self._name = name
        self._digests: dict[int, bytes] = {}
        self._reads = self._compared = 0
        self._told = False
        self._ignores_index = get_batch_reader(source) is None and _ignores_index(type(source))
        self._reading = Watch(source, name)

    @property
    def ended(self) -> bool:
        """Whether no more reads are watched."""
        return self._told or self._reading.told or self._compared >= READS or self._reads >= _LAST_READ

    def read(self, read: Callable[[Any], Any], argument: Any) -> Any:
        """The result of `read(argument)`. Warns if it draws from a random generator."""
        return self._reading.call(read, argument, way_out=_WAY_OUT)

    def compare(self, positions: Sequence[int], records: Sequence[Any]) -> None:
        """Compares records with those that were read before."""
        self._reads += len(positions)
        for position, record in zip(positions, records):
            if self.ended:
                return
            known = self._digests.get(position)
            if known is None and len(self._digests) >= READS:
                continue
            found = _digest(record)
            if known is None:
                self._digests[position] = found
                if self._ignores_index and len(set(self._digests.values())) > 1:
                    self._tell("does not use the index that it is given, and its records differ")
            else:
                self._compared += 1
                if found != known:
                    self._tell(f"gave two different records for index {position}")

    def _tell(self, what: str) -> None:
        self._told = True
        tell(f"{self._name()} {what}. {_WAY_OUT}")


_WAY_OUT = (
    "Its records depend on what was read before and on the worker that reads them, so they differ from run to run. "
    "Let a record follow from its index alone, such as with np.random.default_rng((seed, index)), or make random "
    "changes after the source, with random_map."
)


def watch_source(source: Any, name: Callable[[], str]) -> SourceWatch | None:
    """A watch for a source of a class that is written in Python and not in Bushel; None for all others."""
    read = getattr(type(source), "__getitem__", None)
    if not isinstance(read, types.FunctionType) or read.__module__.partition(".")[0] in ("bushel", "collections"):
        return None
    return SourceWatch(source, name)


def _ignores_index(kind: type) -> bool:
    """Whether the code of `__getitem__` never uses its index."""
    read = getattr(kind, "__getitem__", None)
    if not isinstance(read, types.FunctionType) or read.__code__.co_argcount != 2 or hasattr(read, "__wrapped__"):
        return False
    index = read.__code__.co_varnames[1]
    return not any(
        index == one.argval or (isinstance(one.argval, tuple) and index in one.argval)
        for one in dis.get_instructions(read)
        if not one.opname.startswith(("STORE", "DELETE"))
    )


def _digest(record: Any) -> bytes:
    """A digest of the arrays, numbers and texts in a record. Other objects do not count."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in trees.leaves(record):
        if isinstance(leaf, (np.ndarray, np.generic)):
            array = np.asarray(leaf)
            if array.dtype.kind in "biufcmMSU" and array.dtype.char not in "gG":  # these have padding
                digest.update(f"{array.dtype}{array.shape}".encode())
                flat = np.ascontiguousarray(array).reshape(-1)
                digest.update(flat[: _MOST_BYTES // max(array.itemsize, 1)].tobytes())
        elif isinstance(leaf, (bool, int, float, complex, str, bytes)):
            digest.update(repr(leaf).encode(errors="replace"))
    return digest.digest()
