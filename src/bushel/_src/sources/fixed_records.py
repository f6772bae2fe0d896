"""Records of one size as arrays, read directly into the rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, memory
from bushel._src.base.blocks import Columns
from bushel._src.base.hints import explains_arguments
from bushel._src.base.public import public
from bushel._src.base.specs import ShapeDtypeStruct
from bushel._src.base.state_names import in_states
from bushel._src.sources.record_files import RecordSource


@public("bushel.sources")
@in_states("FixedRecords")
class FixedRecords:
    """Records of one size as arrays. The bytes of each record are taken as an array of `dtype` and `shape`.

    Records are read from the file directly into the batch, without another copy.

    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "x.bag")
    >>> from bushel.sources import BagzDataSource, FixedRecords
    >>> data = np.arange(6, dtype="<i4").tobytes()
    >>> _ = path.write_bytes(data + np.array([12, 24], "<u8").tobytes())
    >>> FixedRecords(BagzDataSource(path), dtype=np.int32, shape=(3,))[1]
    array([3, 4, 5], dtype=int32)
    """

    gives_new_records = True
    reads_in_place = True
    """`__getitems__` makes its arrays with `memory.output`, and no function of the user's sees them meanwhile."""

    @explains_arguments("Write `FixedRecords(source, dtype=np.int32, shape=(3,))`.")
    def __init__(self, source: RecordSource, *, dtype: Any, shape: Sequence[int] = ()):
        self._source = source
        self._dtype = np.dtype(dtype)
        self._shape = tuple(checks.integer(size, "an axis of shape") for size in shape)
        if self._dtype.hasobject or self._dtype.itemsize == 0:
            raise TypeError(f"Bytes of records cannot be interpreted as dtype {self._dtype}.")
        if not callable(getattr(source, "read_into", None)):
            raise TypeError(f"FixedRecords needs a source of record files, got {type(source).__name__}.")

    @property
    def costs_round_trip(self) -> bool:
        """Whether the records are in files behind URLs."""
        return getattr(self._source, "costs_round_trip", False)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> np.ndarray:
        place = checks.position(index, len(self))
        out = memory.empty((1, *self._shape), self._dtype)
        self._source.read_into([place], out)
        return out[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Columns:
        """The records at `indices` as one array. Each record is read directly into its row."""
        out = memory.output((len(indices), *self._shape), self._dtype)
        self._source.read_into(indices, out)
        return Columns(out, len(indices))

    def element_spec(self) -> ShapeDtypeStruct:
        """Shape and dtype of a record."""
        return ShapeDtypeStruct(self._shape, self._dtype)

    def fingerprint(self) -> Any:
        return [self._source.fingerprint(), self._dtype.str, list(self._shape)]

    def __repr__(self) -> str:
        return f"FixedRecords({self._source!r}, {self._dtype}{list(self._shape)})"
