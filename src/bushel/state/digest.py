"""Digests of parameters, functions and data that are the same in every process and on every machine.

Addresses, line numbers and hash seeds do not count, and nothing is unpickled or executed. There are two kinds: the
quick digest, for states, reads samples of long values; the whole digest, for caches, reads all of them. A cache may be
used again years later.
"""

from __future__ import annotations

import collections.abc
import copyreg
import dataclasses
import dis
import enum
import functools
import hashlib
import logging
import os
import re
import sys
import types
from typing import Any

import numpy as np

from bushel.base.clean_python import SCRIPT_MODULE
from bushel.base.contents import remove_padding
from bushel.base.following import globals_of, is_own

_SAMPLES = 64  # elements of a long sequence, or rows of a large array, that the quick digest reads
_SAMPLE_BYTES = 1024
_DEPTH = 8
_WHOLE_DEPTH = 64


class _Sink:
    """A hash, and the objects that went into it. An object that comes again counts by its number, so cycles end.

    `whole` reads all of long values. It also puts the globals that functions read into `pending`.
    """

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole
        self.depth = _WHOLE_DEPTH if whole else _DEPTH
        self.pending: collections.deque[Any] = collections.deque()
        hashed = hashlib.blake2b(digest_size=8)
        self.update, self.hexdigest = hashed.update, hashed.hexdigest
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # no other object can get the id of an object that is kept

    def some(self, values: Any) -> Any:
        """The elements of a list that are digested: all of them, or samples."""
        if self.whole or len(values) <= 2 * _SAMPLES:
            return values
        last = len(values) - 1
        step = last / (_SAMPLES - 1)
        return [values[int(number * step)] for number in range(_SAMPLES - 1)] + [values[last]]

    def seen(self, value: Any) -> int | None:
        number = self._numbers.get(id(value))
        if number is None:
            self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        return number


def digest(*values: Any) -> str:
    """A short hexadecimal digest of values. Of long lists and large arrays it reads samples, so it is quick."""
    return _digest(_Sink(), values)


@functools.lru_cache(maxsize=4096)
def _name_digest(name: str) -> str:
    return digest(name)


def _key_digest(key: Any) -> str:
    """The digest of a key of a mapping. Most keys are names, which come again and again."""
    return _name_digest(key) if type(key) is str else digest(key)


def whole_digest(*values: Any) -> str:
    """A digest of all elements of all values, for the names of files in a cache.

    A function counts with everything that it reads: functions, classes and values of the user's own modules, what those
    read, and so on. Installed packages count by name. Imports inside a function are not followed, nor are attributes
    whose name is only known at run time.
    """
    return _digest(_Sink(whole=True), values)


def _digest(sink: _Sink, values: tuple[Any, ...]) -> str:
    for value in values:
        _feed(sink, value, 0)
    while sink.pending:
        name, value = sink.pending.popleft()
        _put(sink, "global", name)
        _feed(sink, value, 0)
    return sink.hexdigest()


def class_digest(kind: type) -> str:
    """A digest of what a user's class does."""
    sink = _Sink()
    _put(sink, "class", kind.__qualname__)
    _feed_class(sink, kind)
    return sink.hexdigest()


def code_digest(function: Any) -> str:
    """A digest of what a callable does: qualified name, bytecode, constants, defaults and what it closes over."""
    sink = _Sink()
    _feed_callable(sink, function, 0)
    return sink.hexdigest()


def _put(sink: _Sink, tag: str, data: bytes | str = b"") -> None:
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    sink.update(f"{tag}:{len(raw)}:".encode() + raw)


def _feed(sink: _Sink, value: Any, depth: int) -> None:
    kind = type(value)
    if depth > sink.depth:
        _put(sink, "deep", kind.__qualname__)
    elif value is None or kind in (bool, int, float, complex, str):
        _put(sink, kind.__name__, repr(value))
    elif kind in (bytes, bytearray):
        _put(sink, "bytes", bytes(value))
    elif _is_masked(value):
        _feed_masked(sink, value, depth)
    elif isinstance(value, (np.ndarray, np.generic)):
        _feed_array(sink, np.asarray(value), depth)
    elif (number := sink.seen(value)) is not None:
        _put(sink, "seen", str(number))
    elif isinstance(value, logging.Logger):
        _put(sink, "logger", value.name)
    elif isinstance(value, enum.Enum):
        _put(sink, "enum", f"{kind.__qualname__}.{value.name}")
        if sink.whole:
            _feed(sink, value.value, depth + 1)
    elif isinstance(value, (list, tuple)):
        _feed_sequence(sink, value, depth)
    elif isinstance(value, collections.abc.Mapping):
        _put(sink, "mapping", str(len(value)))
        entries = sink.some(list(value.items()))
        for key, entry in sorted(((_key_digest(key), entry) for key, entry in entries), key=lambda pair: pair[0]):
            _put(sink, "key", key)
            _feed(sink, entry, depth + 1)
    elif isinstance(value, (str, int, float, complex)):
        base: Any = next(base for base in (str, int, float, complex) if isinstance(value, base))
        _put(sink, kind.__qualname__, repr(base(value)))
    elif isinstance(value, os.PathLike):
        _put(sink, kind.__qualname__, os.fspath(value))
    elif isinstance(value, (set, frozenset)):
        _put(sink, "set", ",".join(sorted(digest(entry) for entry in value)))
    elif isinstance(value, (np.dtype, range, slice)):
        _put(sink, kind.__name__, repr(value))
    elif isinstance(value, types.CodeType):
        _feed_code(sink, value, depth)
    elif isinstance(value, (type, types.ModuleType)):
        _put(sink, "named", getattr(value, "__qualname__", value.__name__))
        if sink.whole and isinstance(value, type):
            _feed_whole_class(sink, value)
    elif callable(value):
        _feed_callable(sink, value, depth)
    elif hasattr(value, "__array__") and hasattr(value, "dtype"):
        _feed_array(sink, np.asarray(value), depth)
    else:
        _feed_object(sink, value, depth)


def _feed_sequence(sink: _Sink, values: Any, depth: int) -> None:
    _put(sink, type(values).__name__, str(len(values)))
    for value in sink.some(values):
        _feed(sink, value, depth + 1)


def _feed_array(sink: _Sink, array: np.ndarray, depth: int) -> None:
    _put(sink, "array", f"{array.dtype.str}{array.shape}")
    parts = remove_padding(array)
    if len(parts) != 1 or parts[0][1] is not array:
        for name, part in parts:
            _put(sink, "part", name)
            _feed_array(sink, part, depth)
        return
    if array.dtype.hasobject:
        _feed_sequence(sink, array.ravel().tolist(), depth + 1)
        return
    if sink.whole or array.nbytes <= _SAMPLES * _SAMPLE_BYTES or array.ndim == 0:
        _put(sink, "data", np.ascontiguousarray(array).tobytes())
        return
    for place in np.linspace(0, len(array) - 1, _SAMPLES):
        row = np.ascontiguousarray(array[int(place)])
        _put(sink, "row", row.tobytes()[:_SAMPLE_BYTES])


def _is_masked(value: Any) -> bool:
    """Whether a value is a masked array. Before anyone has loaded numpy.ma, which takes 10 ms, no value can be one."""
    return "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray)


def _feed_masked(sink: _Sink, array: Any, depth: int) -> None:
    """Masked elements count as masked, whatever the values under the mask are."""
    _put(sink, "masked")
    _feed_array(sink, np.ma.getmaskarray(array), depth)
    _feed_array(sink, array.filled(np.zeros((), array.dtype)[()]), depth)


def _feed_callable(sink: _Sink, function: Any, depth: int) -> None:
    if depth > sink.depth:
        _put(sink, "deep")
    elif isinstance(function, functools.partial):
        _put(sink, "partial")
        (_feed if sink.whole else _feed_callable)(sink, function.func, depth + 1)
        _feed(sink, function.args, depth + 1)
        _feed(sink, function.keywords, depth + 1)
    elif isinstance(function, types.MethodType):
        _put(sink, "method")
        _feed_callable(sink, function.__func__, depth + 1)
        (_feed if sink.whole else _feed_object)(sink, function.__self__, depth + 1)
    elif isinstance(function, types.FunctionType):
        _put(sink, "function", function.__qualname__)
        _feed_code(sink, function.__code__, depth + 1)
        _feed(sink, function.__defaults__, depth + 1)
        _feed(sink, function.__kwdefaults__, depth + 1)
        for cell in function.__closure__ or ():
            try:
                _feed(sink, cell.cell_contents, depth + 1)
            except ValueError:  # a cell that is still empty
                _put(sink, "empty")
        if sink.whole and is_own(function):
            _feed(sink, vars(function), depth + 1)
            sink.pending += globals_of(function)
    elif isinstance(function, type) or _is_builtin(function):
        # Before NumPy 2.2, a ufunc such as np.sin has a name, but no qualified one.
        name = getattr(function, "__name__", type(function).__qualname__)
        _put(sink, "named", getattr(function, "__qualname__", name))
        owner = getattr(function, "__self__", None)  # of a method such as {...}.get
        if owner is not None and not isinstance(owner, types.ModuleType):
            _feed(sink, owner, depth + 1)
    else:
        _feed_object(sink, function, depth)


def _is_builtin(function: Any) -> bool:
    return isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc)) or (
        type(function).__module__ == "builtins"
    )


def _feed_code(sink: _Sink, code: types.CodeType, depth: int) -> None:
    instructions, constants = _without_docstring(code)
    _put(sink, "code", instructions)
    _put(sink, "names", repr((code.co_names, code.co_varnames, code.co_freevars)))
    for constant in constants:
        _feed(sink, constant, depth + 1)


def _without_docstring(code: types.CodeType) -> tuple[bytes, list[Any]]:
    """The instructions and the constants that they use. They are the same with and without a docstring.

    A docstring is a constant that no instruction uses. It takes the first place, which otherwise may belong to None, to
    the first constant of the function, or to nothing; so it can move the others. The constants are therefore numbered
    anew, in the order in which they are used. An instruction is two bytes: what to do, and with what. A place above 255
    needs an instruction more: in such a large function, a docstring counts.
    """
    instructions = bytearray(code.co_code)
    numbers: dict[int, int] = {}
    for found in _USES_CONSTANT.finditer(instructions[::2]):
        at = 2 * found.start()
        place = instructions[at + 1]
        if at and instructions[at - 2] == dis.EXTENDED_ARG:
            place += instructions[at - 1] << 8
        instructions[at + 1] = numbers.setdefault(place, len(numbers)) & 255
    return bytes(instructions), [code.co_consts[place] for place in numbers]


_USES_CONSTANT = re.compile(b"[%s]" % b"".join(re.escape(bytes([operation])) for operation in dis.hasconst))
_BEHAVIOUR = {"__call__", "__getitem__", "__getitems__", "__iter__", "__next__", "__len__"}


def _feed_class(sink: _Sink, kind: type) -> None:
    """Digests the code and the plain values of a user's class and its bases, except the classes of libraries."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("builtins", "abc", "typing", "collections", "bushel", "grain"):
            continue
        for name, value in sorted(vars(base).items()):
            if name.startswith(("__", "_abc_")) and name not in _BEHAVIOUR:
                continue
            code = getattr(getattr(value, "__func__", value), "__code__", None)
            if code is not None or value is None or isinstance(value, (bool, int, float, str, bytes, tuple)):
                _put(sink, "member", name)
                _feed(sink, value if code is None else code, 1)


def _feed_whole_class(sink: _Sink, kind: type) -> None:
    """Digests all attributes of a user's class and its bases, and the globals that their methods read."""
    for base in filter(is_own, kind.__mro__):
        for name, value in sorted(vars(base).items()):
            parts = [value, *(getattr(value, part, None) for part in ("__func__", "fget", "fset", "fdel", "func"))]
            functions = [part for part in parts if isinstance(part, types.FunctionType)]
            if functions or not name.startswith(("__", "_abc_")):
                sink.pending += [(f"{base.__qualname__}.{name}", part) for part in functions or [value]]


def _feed_object(sink: _Sink, value: Any, depth: int) -> None:
    kind = type(value)
    _put(sink, "object", kind.__qualname__)
    if sink.whole:
        _feed(sink, kind, depth + 1)
    elif depth <= 1:  # the transformation or dataset itself. Of the objects in it only the values count
        _feed_class(sink, kind)
    attributes = dict(vars(value)) if hasattr(value, "__dict__") else {}
    if dataclasses.is_dataclass(value):
        attributes = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    slots = {name for base in kind.__mro__ for name in _names(getattr(base, "__slots__", ()))}
    attributes |= {name: getattr(value, name) for name in slots if hasattr(value, name) and not name.startswith("__")}
    for name in sorted(attributes):
        _put(sink, "field", name)
        _feed(sink, attributes[name], depth + 1)
    # `bushel view train.py:ds` runs a script under another name: its digests are those of `python train.py`.
    if not attributes and kind.__module__ != "__main__" and not kind.__module__.startswith(SCRIPT_MODULE):
        _feed_reduced(sink, value, depth)


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _feed_reduced(sink: _Sink, value: Any, depth: int) -> None:
    """Digests what pickle would keep of an object without attributes, such as a compiled pattern or a date."""
    try:
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(2) if reducer is None else reducer(value)
    except Exception:  # it cannot be pickled: only its type counts
        return
    if isinstance(reduced, tuple):
        for part in reduced[1:]:
            plain = part if part is None or isinstance(part, (tuple, dict)) else list(part)
            _feed(sink, plain, depth + 1)
