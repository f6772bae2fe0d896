"""Whether a function of the user's can do what an operation asks of it: return a value, and take so many arguments.

Both are read from the function itself, before it runs. Only functions written in Python are judged.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def never_returns(function: Callable[..., Any]) -> bool:
    """Whether each call of a function that ends without an error returns None, since no `return` in it has a value.

    >>> def double(batch):
    ...     batch["x"] = batch["x"] * 2
    >>> never_returns(double), never_returns(lambda batch: batch)
    (True, False)
    """
    inner = _find_function(function)
    return inner is not None and _code_never_returns(inner.__code__)


@functools.lru_cache(maxsize=1024)
def _code_never_returns(code: types.CodeType) -> bool:
    if code.co_flags & _GENERATORS:
        return False
    instructions = list(dis.get_instructions(code))
    ends = False
    for place, instruction in enumerate(instructions):
        if instruction.opname == "RETURN_CONST":
            constant = instruction.argval is None
        elif instruction.opname == "RETURN_VALUE":
            # A jump to a `return` brings a value of its own: `return x or None`.
            before = instructions[place - 1]
            constant = not instruction.is_jump_target and before.opname == "LOAD_CONST" and before.argval is None
        else:
            continue
        if not constant:
            return False
        ends = True
    return ends


def explain_arguments(function: Callable[..., Any], count: int) -> str | None:
    """The arguments that a function takes, as a text, if it cannot be called with `count` values; None if it can.

    >>> explain_arguments(lambda index, element: element, 1)
    '(index, element)'
    >>> explain_arguments(lambda element: element, 1)
    """
    inner = getattr(function, "__func__", function)
    if not isinstance(inner, types.FunctionType):
        return None
    code = inner.__code__
    names = code.co_varnames[inspect.ismethod(function) : code.co_argcount]
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    least = len(names) - len(inner.__defaults__ or ())
    most = None if code.co_flags & inspect.CO_VARARGS else len(names)
    lacks = set(keywords) - set(inner.__kwdefaults__ or ())
    if least <= count and (most is None or count <= most) and not lacks:
        return None
    return f"({', '.join([*names, *(f'{name}=' for name in keywords)])})"


def _find_function(function: Any) -> types.FunctionType | None:
    """The function that Python code defines, behind a bound method or a partial; None for any other callable."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if isinstance(function, types.FunctionType) else None
