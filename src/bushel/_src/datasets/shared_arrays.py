"""Arrays in shared memory, under Grain's names. Bushel's own workers do not use them: see `engine/shared_memory.py`."""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bushel._src.base.options import MultiprocessingOptions
from bushel._src.base.public import public

__all__ = ["MultiprocessingOptions", "SharedMemoryArray", "SharedMemoryArrayMetadata"]


@public("bushel.multiprocessing")
@dataclasses.dataclass(slots=True, frozen=True)
class SharedMemoryArrayMetadata:
    """What another process needs to open an array in shared memory."""

    name: str
    shape: Iterable[int]
    dtype: npt.DTypeLike

    def close_and_unlink_shm(self) -> None:
        """Remove the memory of an array that no process has opened."""
        memory = _open(self.name)
        memory.close()
        memory.unlink()


@public("bushel.multiprocessing")
class SharedMemoryArray(np.ndarray):
    """An array in named shared memory. It is pickled by its name, so that another process sees the same bytes.

    The last process that uses it calls `unlink_on_del`; otherwise the memory stays until the machine restarts.

    >>> array = SharedMemoryArray((2, 3), dtype=np.int32)
    >>> array[:] = 7
    >>> other = SharedMemoryArray.from_metadata(array.metadata)
    >>> int(other.sum())
    42
    >>> array.unlink_on_del()
    """

    shm: Any
    _unlinks: bool

    def __new__(cls, shape: Iterable[int], dtype: npt.DTypeLike = float) -> Self:
        from multiprocessing import shared_memory

        sizes = tuple(shape)
        size = math.prod(sizes) * np.dtype(dtype).itemsize
        return cls.from_shared_memory(shared_memory.SharedMemory(create=True, size=max(1, size)), sizes, dtype)

    @classmethod
    def from_shared_memory(cls, shm: Any, shape: Any, dtype: npt.DTypeLike) -> Self:
        """Return an array whose elements are in shared memory that is already open."""
        array = super().__new__(cls, shape, dtype, buffer=shm.buf)
        array.shm = shm
        array._unlinks = False
        return array

    @classmethod
    def from_metadata(cls, metadata: SharedMemoryArrayMetadata) -> Self:
        """Open the array that another process has made."""
        return cls.from_shared_memory(_open(metadata.name), metadata.shape, metadata.dtype)

    @property
    def metadata(self) -> SharedMemoryArrayMetadata:
        """Name, shape and dtype, for `from_metadata` in another process."""
        return SharedMemoryArrayMetadata(name=self.shm.name, shape=self.shape, dtype=self.dtype)

    @classmethod
    def enable_async_del(cls, num_threads: int = 1, max_outstanding_requests: int = 50) -> None:
        """Do nothing. Grain has it; here memory is released at once, which takes microseconds."""

    @classmethod
    def close_shm_async(cls, shm: Any, unlink: bool) -> None:
        """Close shared memory, and remove it if `unlink` is True."""
        shm.close()
        if unlink:
            shm.unlink()

    def unlink_on_del(self) -> None:
        """Make this array remove its memory when it is deleted."""
        self._unlinks = True

    def __array_finalize__(self, obj: Any) -> None:
        shares = hasattr(obj, "shm") and np.may_share_memory(self, obj)
        self.shm = obj.shm if shares else None
        self._unlinks = False

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:
            return array
        return array[()] if return_scalar else array.view(np.ndarray)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.shm is None or not isinstance(self.base, mmap.mmap):  # a copy, or a part
            return np.array(self).__reduce_ex__(protocol)
        return type(self).from_shared_memory, (self.shm, self.shape, self.dtype)

    def __del__(self) -> None:
        # A view keeps a reference to its array. Only the array itself, whose base is the mapping, closes the memory.
        if isinstance(self.base, mmap.mmap) and self.shm is not None:
            self.close_shm_async(self.shm, self._unlinks)


def _open(name: str) -> Any:
    from multiprocessing import shared_memory

    return shared_memory.SharedMemory(name)
