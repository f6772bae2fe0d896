"""Splits arrays into arrays without padding, so that equal values have equal bytes. For digests: state/digest.py."""

from __future__ import annotations

import numpy as np


def remove_padding(array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Splits an array into named arrays whose bytes are all values.

    The bytes between the fields of a structured array, and those at the end of a `longdouble`, are padding. Nobody
    sets them, so two arrays of equal values may differ in them. Ordinary arrays come back as they are, named "".

    >>> points = np.zeros(2, np.dtype([("id", "i1"), ("x", "f8")], align=True))
    >>> points.itemsize, [(name, part.itemsize) for name, part in remove_padding(points)]
    (16, [('.id', 1), ('.x', 8)])
    """
    kind = array.dtype
    if kind.names is not None:
        return [(f".{name}{rest}", part) for name in kind.names for rest, part in remove_padding(array[name])]
    if kind.char == "G":
        return [
            (f" {side}{rest}", part)
            for side, half in (("real", np.real(array)), ("imaginary", np.imag(array)))
            for rest, part in remove_padding(half)
        ]
    if kind.char == "g" and kind.itemsize > 8:
        return _split_longdouble(array)
    return [("", array)]


def _split_longdouble(array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The values as three float64 numbers and an exponent: no format of a longdouble has more than 159 bits."""
    finite = np.isfinite(array)
    rest, exponent = np.frexp(np.where(finite, array, 0))
    parts = [("", np.where(finite, 0.0, array).astype(np.float64)), (" exponent", exponent.astype(np.int32))]
    for number in range(3):
        high = rest.astype(np.float64)
        rest = rest - high
        parts.append((f" part {number}", high))
    return parts
