"""Shapes and dtypes of elements, known without reading an element."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

from bushel._src.base.public import public


@public("bushel.experimental")
@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Anything with a shape and a dtype; an unknown dimension is None."""

    @property
    def shape(self) -> tuple[int | None, ...]: ...

    @property
    def dtype(self) -> Any: ...


@public("bushel.experimental")
@dataclasses.dataclass(slots=True, frozen=True)
class ShapeDtypeStruct:
    """The shape and dtype of one leaf of an element.

    >>> ShapeDtypeStruct(shape=(None, 28, 28), dtype="uint8")
    ShapeDtypeStruct(shape=(None, 28, 28), dtype='uint8')
    """

    shape: tuple[int | None, ...]
    dtype: Any
