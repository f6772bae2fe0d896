"""Arrays in shared memory, under Grain's names. Bushel's own workers do not use them: see `engine/shared_memory.py`."""

from bushel._src.base.options import MultiprocessingOptions
from bushel._src.datasets.shared_arrays import SharedMemoryArray, SharedMemoryArrayMetadata

__all__ = [
    "MultiprocessingOptions",
    "SharedMemoryArray",
    "SharedMemoryArrayMetadata",
]
