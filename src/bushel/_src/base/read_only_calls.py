"""Proves that calls of a user's function only read: by its code, its globals, and the types of the elements."""

from __future__ import annotations

import builtins
import dataclasses
import dis
import functools
import itertools
import operator
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base.private_elements import IMMUTABLE

_READING = """
RESUME NOP CACHE PRECALL EXTENDED_ARG COPY SWAP POP_TOP NOT_TAKEN TO_BOOL GET_LEN
LOAD_CONST LOAD_SMALL_INT LOAD_GLOBAL LOAD_DEREF COPY_FREE_VARS LOAD_ATTR
LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW
STORE_FAST STORE_FAST_STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_MAYBE_NULL UNPACK_SEQUENCE
BINARY_OP BINARY_SUBSCR BINARY_SLICE BUILD_SLICE COMPARE_OP IS_OP CONTAINS_OP
UNARY_NOT UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT
BUILD_TUPLE BUILD_LIST BUILD_MAP BUILD_SET BUILD_CONST_KEY_MAP BUILD_STRING LIST_TO_TUPLE
DICT_UPDATE DICT_MERGE LIST_EXTEND LIST_APPEND MAP_ADD SET_ADD SET_UPDATE
FORMAT_VALUE FORMAT_SIMPLE CONVERT_VALUE RETURN_VALUE RETURN_CONST
JUMP_FORWARD POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE
JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP
"""
_READING_ONLY = frozenset(_READING.split())
"""Instructions of Python 3.11 to 3.14 that call no function, and store into local variables alone."""

_METHODS = """
astype copy reshape transpose ravel flatten squeeze swapaxes view tolist tobytes item nonzero argsort searchsorted conj
sum mean std var prod cumsum cumprod clip max min argmax argmin all any round dot
get decode encode lower upper strip split startswith endswith
"""
_READING_METHODS = frozenset(_METHODS.split())
"""Methods of arrays, dicts and texts that do not change them, by name. They count only for objects of known types."""

_KEYWORDS = "dtype axis order casting subok copy keepdims ddof decimals side min max initial"
_READING_KEYWORDS = frozenset(_KEYWORDS.split())
"""Keywords with which they still change nothing, other than `out`."""

_LOADS_METHODS = sys.version_info >= (3, 12)
"""Whether LOAD_ATTR also loads methods: those that are called at once. In Python 3.11 LOAD_METHOD does."""

_TYPES = frozenset(IMMUTABLE | {int, float, bool, complex})
"""Types that a function may name, as in `x.astype(np.float32)`."""

_Path = tuple[str, ...]
"""The name of a global, and the attributes that are read from it at once: `("np", "float32")`."""


@dataclasses.dataclass(frozen=True)
class _Loads:
    """The objects beside its arguments that the code of a function uses."""

    globals: tuple[tuple[_Path, bool], ...]
    """Each with whether it is an argument of a method."""
    cells: tuple[tuple[str, bool], ...]


class ReadOnlyFunction:
    """A function whose code only reads, if all that it meets is of known types."""

    def __init__(self, function: types.FunctionType, loads: _Loads):
        self._function, self._loads = function, loads
        self.has_loads = bool(loads.globals or loads.cells or function.__defaults__)
        """Whether the function uses anything beside its arguments."""

    def proves(self, rows: Sequence[Any]) -> bool:
        """Return whether calls with these elements only read.

        It looks at all of them, and at the globals as they are now.
        """
        return self.knows_loads() and are_known(rows)

    def knows_loads(self) -> bool:
        """Return whether all that the function uses beside its arguments is of known types now."""
        if not self.has_loads:
            return True
        function, loads = self._function, self._loads
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        if not all(type(value) in IMMUTABLE for value in defaults):
            return False
        for path, in_call in loads.globals:
            value = function.__globals__.get(path[0], _UNKNOWN)
            if value is np:
                if not _is_known_of_numpy(path[1:], in_call):
                    return False
            elif not _is_known_value(vars(builtins).get(path[0], value) if value is _UNKNOWN else value, in_call):
                return False
        try:
            cells = dict(
                zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()))
            )
        except ValueError:  # an empty cell
            return False
        return all(name in cells and _is_known_value(cells[name], in_call) for name, in_call in loads.cells)


@functools.lru_cache(maxsize=1024)
def _is_known_of_numpy(path: _Path, in_call: bool) -> bool:
    """Return whether a function may use the object that these attributes of NumPy lead to.

    NumPy's names do not change.
    """
    value: Any = np
    for name in path:
        if type(value) is not types.ModuleType or value.__name__.partition(".")[0] != "numpy":
            break
        value = getattr(value, name, _UNKNOWN)
    return _is_known_value(value, in_call)


_UNKNOWN = object()


def _is_known_value(value: Any, in_call: bool) -> bool:
    """Return whether a function may use an object beside its arguments.

    A method may write into an array that it gets.
    """
    kind = type(value)  # not `isinstance`, which asks the object
    if kind in IMMUTABLE or (kind is type and value in _TYPES) or issubclass(kind, np.dtype):
        return True
    return not in_call and kind is np.ndarray and not value.dtype.hasobject


def find_reading(function: Any) -> ReadOnlyFunction | None:
    """Return the proof that a function only reads, for elements of known types; None if its code does not tell.

    >>> reading = find_reading(lambda x: {"image": x["image"].astype(np.float32) / 255, "label": x["label"] + 1})
    >>> reading.proves([{"image": np.zeros(2, np.uint8), "label": 3}])
    True
    >>> reading.proves([{"image": object(), "label": 3}])
    False
    >>> find_reading(lambda x: x.fill(0)), find_reading(lambda x: x["a"].sum(out=x["b"]))
    (None, None)
    """
    if type(function) is not types.FunctionType or function.__kwdefaults__:
        return None  # the object of a method may be of any class
    loads = _find_loads(function.__code__)
    return None if loads is None else ReadOnlyFunction(function, loads)


@functools.lru_cache(maxsize=1024)
def _find_loads(code: types.CodeType) -> _Loads | None:
    """Return what code loads beside its arguments; None if it may do more than read."""
    called = 0  # methods whose arguments are being computed
    keywords: Any = ()
    before: Any = None
    path: _Path = ()
    paths: list[tuple[_Path, bool]] = []
    cells: list[tuple[str, bool]] = []
    for each in dis.get_instructions(code):
        name, number = each.opname, each.arg or 0
        if path and (name in ("LOAD_ATTR", "LOAD_METHOD")):
            paths[-1] = ((*paths[-1][0], each.argval), paths[-1][1])
        elif name not in ("CACHE", "EXTENDED_ARG"):
            path = ()
        if name == "LOAD_METHOD" or (name == "LOAD_ATTR" and _LOADS_METHODS and number & 1):
            if each.argval not in _READING_METHODS:
                return None
            called += 1
        elif name == "KW_NAMES":
            keywords = code.co_consts[number]
        elif name in ("CALL", "CALL_KW"):
            keywords = before.argval if name == "CALL_KW" else keywords
            if not called or not isinstance(keywords, tuple) or not _READING_KEYWORDS.issuperset(keywords):
                return None
            called -= 1
            keywords = ()
        elif not _only_reads(each) or (called and ("JUMP" in name or "LOAD_FAST" in name)):
            # A method may write into an argument, as `x.sum(out=y)` does. So arguments must not be made of local
            # variables, which hold the element. If an argument depends on a condition, the compiler may write the call
            # down twice.
            return None
        if name == "LOAD_GLOBAL":
            path = (each.argval,)
            paths.append((path, called > 0))
        elif name == "LOAD_DEREF":
            cells.append((each.argval, called > 0))
        before = each
    return _Loads(tuple(paths), tuple(cells))


def _only_reads(instruction: dis.Instruction) -> bool:
    name = instruction.opname
    if name == "LOAD_GLOBAL":
        return not (instruction.arg or 0) & 1  # otherwise it is a function that will be called
    if name == "BINARY_OP":
        return not instruction.argrepr.endswith("=")
    return name in _READING_ONLY


class RowsOfKnownTypes(list[Any]):
    """Rows that consist of known types alone, because functions that only read have made them of such. It never grows.

    A slice or a copy of it is a plain list, of which nothing is known.
    """

    __slots__ = ()


def are_known(rows: Sequence[Any]) -> bool:
    """Return whether elements consist of numbers, texts, arrays of such, dicts, lists and tuples alone.

    Keys do not count.

    >>> are_known([{"a": np.zeros(2)}, {"a": [1, 2]}]), are_known([{"a": np.zeros(1, object)}])
    (True, False)
    """
    if type(rows) is RowsOfKnownTypes:
        return True
    kinds = set(map(type, rows))
    # The usual case first: dicts of numbers and texts.
    if kinds == _DICTS and _are_immutable(map(type, itertools.chain.from_iterable(map(_VALUES, rows)))):
        return True
    while not kinds <= _KNOWN_LEAVES:
        others = kinds - _KNOWN_LEAVES
        if len(kinds) > 1 and kinds != others:
            if np.ndarray in kinds and _has_objects(rows):
                return False
            rows = [row for row in rows if type(row) in others]
        if len(others) > 1:
            return all(are_known([row for row in rows if type(row) is kind]) for kind in others)
        (kind,) = others
        if kind is dict:
            # Keys may be of any class: they pass the gate as they are, and do not count as parts of the element.
            rows = list(itertools.chain.from_iterable(map(_VALUES, rows)))
        elif kind is list or kind is tuple:
            rows = list(itertools.chain.from_iterable(rows))
        else:
            return False
        kinds = set(map(type, rows))
    return np.ndarray not in kinds or not _has_objects(rows)


_KNOWN_LEAVES = IMMUTABLE | {np.ndarray}
_DICTS = {dict}
_are_immutable = IMMUTABLE.issuperset
_find_objects = operator.attrgetter("dtype.hasobject")


def _has_objects(rows: Sequence[Any]) -> bool:
    """Return whether one of the arrays among `rows` holds Python objects."""
    are_arrays = map(operator.is_, map(type, rows), itertools.repeat(np.ndarray))
    return any(map(_find_objects, itertools.compress(rows, are_arrays)))


_VALUES: Callable[[Any], Any] = dict.values
