"""Checks of arguments. Each error names the argument and shows the value."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, get_args

import numpy as np

from bushel._src.base.hints import nearest

_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
INFINITE = (1 << 63) - 1
"""The length of an endless data set: `sys.maxsize` of a 64-bit Python, as in Grain."""


def is_endless(length: int) -> bool:
    """Return whether so many elements mean no end.

    Batches and shards of an endless dataset have fewer than INFINITE.
    """
    return length >= INFINITE >> 16


def show_length(length: int) -> str:
    """Return a number of elements as people read it.

    >>> show_length(12345), show_length(INFINITE // 32)
    ('12,345', 'endless')
    """
    return "endless" if is_endless(length) else f"{length:,}"


def integer(value: Any, what: str) -> int:
    """Return `value` as an int. Floats, bools and strings raise TypeError."""
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{what} must be an integer, got {value!r} of type {type(value).__name__}.")


def integers(values: Any) -> np.ndarray:
    """Return the indices of many records as int64. Floats, bools and more than one axis raise TypeError."""
    if type(values) is np.ndarray and values.dtype is _INT64 and values.ndim == 1:  # what pipelines pass: no copy
        return values
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(f"Indices must be integers on one axis, got {found.dtype} of shape {found.shape}: {values!r}.")
    if found.dtype.kind == "u" and found.size and found.max() > INFINITE:
        raise IndexError(f"index {found.max()} is out of range")
    return found.astype(np.int64)


def positions(indices: Any, length: int) -> np.ndarray:
    """Return the positions that `indices` mean among `length` records.

    As in a list, negative ones count from the end.
    """
    places = integers(indices)
    bits = places.view(_UINT64)  # seen so, negative numbers are the largest: one comparison checks both ends
    if not len(places) or bits.item(bits.argmax()) < length:
        return places
    for extreme in (places.max(), places.min()):
        if not -length <= extreme < length:
            raise IndexError(f"index {extreme} is out of range for {length} records")
    return places % length


def position(index: Any, length: int) -> int:
    """Return the position that one `index` means among `length` records.

    As in a list, a negative one counts from the end.
    """
    place = integer(index, "index")
    if not -length <= place < length:
        raise IndexError(f"index {place} is out of range for {length} records")
    return place % length


def positive(value: Any, what: str) -> int:
    """Return `value` as an int above zero."""
    number = integer(value, what)
    if number <= 0:
        raise ValueError(f"{what} must be positive, but got {number}.")
    return number


def not_negative(value: Any, what: str) -> int:
    """Return `value` as an int, zero or above."""
    number = integer(value, what)
    if number < 0:
        raise ValueError(f"{what} must be greater than or equal to 0, got {number}.")
    return number


def number(value: Any, what: str) -> float:
    """Return `value` as a float. Bools and strings raise TypeError."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number, got {value!r} of type {type(value).__name__}.")
    return float(value)


def choice(value: Any, words: Any, what: str) -> Any:
    """Return `value`, if it is one of `words`: a Literal, or a sequence. Else a ValueError that lists them.

    >>> from typing import Literal
    >>> choice("drpo", Literal["keep", "drop"], "remainder")
    Traceback (most recent call last):
    ValueError: remainder must be "keep" or "drop", got 'drpo'. Did you mean "drop"?
    """
    known = get_args(words) or tuple(words)
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(f"{what} must be {list_words(known)}, got {value!r}.{suggest(value, known)}")


def list_words(words: Iterable[str]) -> str:
    """Words to choose from, as in a sentence.

    >>> list_words(["a"]), list_words(["a", "b", "c"])
    ('"a"', '"a", "b" or "c"')
    """
    *others, last = [f'"{word}"' for word in words]
    return f"{', '.join(others)} or {last}" if others else last


def suggest(value: Any, words: Iterable[str]) -> str:
    """Return the end of an error about a word that is none of `words`: the nearest one, if there is one.

    >>> suggest("lerobt", ["rlds", "lerobot"]), suggest(3, ["rlds"])
    (' Did you mean "lerobot"?', '')
    """
    near = nearest(value, words) if isinstance(value, str) else None
    return "" if near is None else f' Did you mean "{near}"?'


def unused(given: Mapping[str, bool], why: str, way_out: str) -> None:
    """Raise ValueError if one of these arguments was given, though it has no effect.

    >>> unused({"seed": True, "noise": False}, "without noise", "Leave it out")
    Traceback (most recent call last):
    ValueError: seed has no effect without noise. Leave it out.
    """
    names = [name for name, is_given in given.items() if is_given]
    if names:
        raise ValueError(f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no effect {why}. {way_out}.")


def instance(value: Any, kind: type, what: str, way_out: str) -> None:
    """Raise TypeError unless `value` is a `kind`. The error ends with `way_out`, which says what to write."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be {kind.__name__}, got {value!r} of type {type(value).__name__}: {way_out}.")


def seed(value: Any, *, what: str = "Seed", below: int | None = None) -> int:
    """Return `value` as a seed: a non-negative integer, optionally below a bound."""
    number = integer(value, what)
    if number < 0 or (below is not None and number >= below):
        upper = "" if below is None else f" and 2**{below.bit_length() - 1}-1"
        wanted = f"between 0{upper}" if upper else "that is not negative"
        raise ValueError(f"{what} must be an integer {wanted} (got seed={number}).")
    return number


def weights(values: Sequence[float] | None, count: int, *, zero_allowed: bool = False) -> list[float] | None:
    """Return the weights of a mixture of `count` data sets as floats: finite, and above zero unless `zero_allowed`."""
    if values is None:
        return None
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        raise TypeError(f"Weights for mixing must be numbers, got {values!r}.") from None
    if len(numbers) != count:
        raise ValueError(f"A mixture of {count} datasets needs {count} weights, got {len(numbers)}: {numbers}.")
    for number in numbers:
        if math.isnan(number) or math.isinf(number):
            raise ValueError(f"Weights for mixing must be finite numbers, got {numbers}.")
        if number == 0 and not zero_allowed:
            raise ValueError(
                f"Must specify all non-zero proportions for mixing, got {numbers}. Leave the dataset out instead."
            )
        if number < 0:
            raise ValueError(f"Weights for mixing must be positive, got {numbers}.")
    if not any(numbers):
        raise ValueError(f"At least one weight of a mixture must be above zero, got {numbers}.")
    return numbers
