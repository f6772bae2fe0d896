"""Whether a value survives where NumPy would put it: integers in floats, zero bytes at the end of texts.

Batches (`base/blocks.py`) and columns (`graph/column_values.py`) ask here before they convert anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

_FLOAT_BITS = 53  # of the significand of a float64


def find_rounded(integers: np.ndarray) -> np.ndarray:
    """A mask of the integers that a float64 cannot hold exactly.

    >>> find_rounded(np.array([0, 2**53, 2**53 + 1, -(2**62)])).tolist()
    [False, False, True, False]
    """
    if integers.dtype.itemsize < 8:
        return np.zeros(integers.shape, bool)
    flat = np.asarray(integers).reshape(-1)  # arithmetic on arrays wraps around, and warns for single numbers
    bits = flat.astype(np.uint64)
    if flat.dtype.kind == "i":
        bits = np.where(flat < 0, ~bits + np.uint64(1), bits)
    lowest = np.maximum(bits & (~bits + np.uint64(1)), np.uint64(1))
    return ((bits // lowest) >> np.uint64(_FLOAT_BITS) > 0).reshape(integers.shape)


def is_rounded(integer: int) -> bool:
    """Whether a float64 cannot hold this integer exactly."""
    if -(1 << _FLOAT_BITS) <= integer <= 1 << _FLOAT_BITS:
        return False
    try:
        return int(float(integer)) != integer
    except OverflowError:
        return True


def ends_in_zero(text: str | bytes) -> bool:
    """Whether a text ends in a zero, which NumPy's arrays of texts drop without a word."""
    return text[-1:] in ("\0", b"\0")


def find_ending_in_zero(texts: Iterable[str | bytes]) -> int | None:
    """The number of the first text that ends in a zero; None if there is none."""
    return next((number for number, text in enumerate(texts) if ends_in_zero(text)), None)


def show(value: Any, width: int = 60) -> str:
    """A value as it reads in a message, cut if it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, np.generic) and not isinstance(value, (str, bytes, np.void)):
        shown = str(value)
    elif type(value) is np.ndarray:
        shown = f"array({np.array2string(value, threshold=8, separator=', ')}, {value.dtype})"
    else:
        shown = repr(value[: width + 1]) if isinstance(value, (str, bytes)) else repr(value)
    shown = " ".join(shown.split())
    return shown if len(shown) <= width else shown[: width - 3] + "..."


def same_values(converted: np.ndarray, original: np.ndarray) -> bool:
    """Whether `converted` holds the values of `original`: numbers as numbers, texts as texts, times as times.

    >>> same_values(np.array([1.0]), np.array([1])), same_values(np.array(["1"]), np.array([1]))
    (True, False)
    """
    new, old = converted.dtype, original.dtype
    if new == old:
        return True
    if old.names is not None:
        return new.names == old.names and all(same_values(converted[name], original[name]) for name in old.names)
    if old.kind in "iu":
        if new.kind in "iu":
            return bool(np.array_equal(converted, original))
        return new.kind in "fc" and _holds(converted, original)
    if old.kind in "bfc":
        return new.kind in ("biufc" if old.kind == "b" else "fc") and bool(
            np.array_equal(converted.astype(old), original, equal_nan=old.kind != "b")
        )
    if old.kind in "Mm":
        return new.kind == old.kind and bool(
            np.array_equal(np.isnat(converted), np.isnat(original))
            and np.array_equal(converted.astype(old)[~np.isnat(original)], original[~np.isnat(original)])
        )
    return new.kind == old.kind and old.kind in "SU"


def _holds(floats: np.ndarray, integers: np.ndarray) -> bool:
    if floats.dtype.kind == "c":
        floats = np.real(floats)
    if floats.dtype.itemsize >= 8:
        return not find_rounded(integers).any()
    return bool((floats.astype(np.float64) == integers).all())
