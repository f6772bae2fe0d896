"""Whether a user's function may write into its argument, or return an object that it keeps: judged by its bytecode.

The function is not run. If the code does not tell, the answer is yes, which costs a copy and nothing else.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from typing import Any

import numpy as np

from bushel.base.following import globals_of, is_own
from bushel.base.ownership import IMMUTABLE

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
get items keys values decode encode lower upper strip split startswith endswith
"""
_READING_METHODS = frozenset(_METHODS.split())
"""Methods of arrays, dicts and texts that do not change them, by name. The class of an object is not known here."""

_KEYWORDS = "dtype axis order casting subok copy keepdims ddof decimals side min max initial"
_READING_KEYWORDS = frozenset(_KEYWORDS.split())
"""Keywords with which they still change nothing, other than `inplace` in pandas."""

_LOADS_METHODS = sys.version_info >= (3, 12)
"""Whether LOAD_ATTR also loads methods: those that are called at once. In Python 3.11 LOAD_METHOD does."""


def may_write(function: Any) -> bool:
    """Whether a function could write into its argument.

    It cannot if it stores into no object, calls nothing but methods that are known to change nothing, and passes to
    them no part of its argument.

    >>> may_write(lambda x: {"image": x["image"].astype(np.float32) / 255, "label": x["label"] + 1})
    False
    >>> may_write(lambda x: x.fill(0)), may_write(lambda x: x["a"].sum(out=x["b"]))
    (True, True)
    """
    code = getattr(function, "__code__", None)
    return code is None or _code_may_write(code)


@functools.lru_cache(maxsize=1024)
def _code_may_write(code: types.CodeType) -> bool:
    called = 0  # methods whose arguments are being computed
    keywords: Any = ()
    before: Any = None
    for each in dis.get_instructions(code):
        name, number = each.opname, each.arg or 0
        if name == "LOAD_METHOD" or (name == "LOAD_ATTR" and _LOADS_METHODS and number & 1):
            if each.argval not in _READING_METHODS:
                return True
            called += 1
        elif name == "KW_NAMES":
            keywords = code.co_consts[number]
        elif name in ("CALL", "CALL_KW"):
            keywords = before.argval if name == "CALL_KW" else keywords
            if not called or not isinstance(keywords, tuple) or not _READING_KEYWORDS.issuperset(keywords):
                return True
            called -= 1
            keywords = ()
        elif not _only_reads(each) or (called and ("JUMP" in name or "LOAD_FAST" in name)):
            # A method may write into an argument, as `x.sum(out=y)` does. And the object may be one of the user's, such
            # as a module with a function `clip`. So arguments must not be made of local variables, which hold the
            # element. If an argument depends on a condition, the compiler may write the call down twice.
            return True
        before = each
    return False


def _only_reads(instruction: dis.Instruction) -> bool:
    name = instruction.opname
    if name == "LOAD_GLOBAL":
        return not (instruction.arg or 0) & 1  # otherwise it is a function that will be called
    if name == "BINARY_OP":
        return not instruction.argrepr.endswith("=")
    return name in _READING_ONLY


def may_share(function: Any) -> bool:
    """Whether a function could return an object that it keeps: one that it closes over, a global, an attribute.

    Functions of installed packages are trusted to return new objects.

    >>> may_share([[1], [2]].__getitem__), may_share(np.negative)
    (True, False)
    """
    try:
        return _holds(function, set())
    except Exception:  # an object whose attributes cannot be read
        return True


_WITHOUT_PARTS = (
    types.ModuleType,
    types.CodeType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    np.ufunc,
    np.dtype,
)


def _holds(value: Any, seen: set[int]) -> bool:
    """Whether an object refers, directly or not, to an object that can be changed."""
    kind = type(value)
    if kind in IMMUTABLE or id(value) in seen or isinstance(value, _WITHOUT_PARTS):
        return False
    seen.add(id(value))
    if isinstance(value, functools.partial):
        return any(_holds(part, seen) for part in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        function = getattr(value, "__func__", None)
        return _holds(value.__self__, seen) or (function is not None and _holds(function, seen))
    if isinstance(value, (tuple, frozenset)):
        return any(_holds(part, seen) for part in value)
    if isinstance(value, types.FunctionType):
        return is_own(value) and _function_holds(value, seen)
    if isinstance(value, type):
        return any(_holds(part, seen) for part in _parts_of_class(value))
    if isinstance(value, (staticmethod, classmethod)):
        return _holds(value.__func__, seen)
    slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    if slots or not hasattr(value, "__dict__") or not is_own(kind):
        return True
    return any(_holds(part, seen) for part in (*vars(value).values(), kind))


def _function_holds(function: types.FunctionType, seen: set[int]) -> bool:
    if any(each.opname.startswith("IMPORT") for each in dis.get_instructions(function.__code__)):
        return True
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = (function.__defaults__, *(function.__kwdefaults__ or {}).values())
    found = [value for _, value in globals_of(function)]
    return any(_holds(value, seen) for value in (*cells, *defaults, *found))


def _parts_of_class(kind: type) -> list[Any]:
    own = filter(is_own, kind.__mro__)
    return [value for base in own for name, value in vars(base).items() if not name.startswith(("__", "_abc_"))]
