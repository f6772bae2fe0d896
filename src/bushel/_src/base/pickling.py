"""What pickles of elements need beyond Python's own: NumPy's texts with all of their zeros.

Messages between processes are in `engine/pool/wire.py`, caches on disk in `graph/cache_stores.py`.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any, ClassVar

import numpy as np


def whole_text(text: np.str_ | np.bytes_) -> str | bytes:
    r"""Return NumPy's text or bytes as Python's, with the zeros at its end, which `str`, `item` and arrays leave out.

    >>> whole_text(np.bytes_(b"a\0"))
    b'a\x00'
    """
    return bytes(text) if isinstance(text, bytes) else str.__str__(text)


def _reduce_text(text: np.str_ | np.bytes_) -> Any:
    return type(text), (whole_text(text),)


TEXT_REDUCERS: dict[Any, Any] = {np.str_: _reduce_text, np.bytes_: _reduce_text}
"""How NumPy's texts are pickled. NumPy's own way loses the zeros at their end."""


class DispatchTable(dict[Any, Any]):
    """Functions that reduce types for pickle: those given here, otherwise those registered with `copyreg`."""

    def __missing__(self, kind: Any) -> Any:
        return copyreg.dispatch_table[kind]


class _ElementPickler(pickle.Pickler):
    dispatch_table: ClassVar[Any] = DispatchTable(TEXT_REDUCERS)


def dump_elements(value: Any) -> bytes:
    """Pickle elements like `pickle.dumps`, and keeps the zeros at the end of NumPy's texts."""
    with io.BytesIO() as file:
        _ElementPickler(file, protocol=5).dump(value)
        return file.getvalue()
