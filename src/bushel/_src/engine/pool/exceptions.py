"""Exceptions on their way from a worker to the consumer, with their notes and the user's part of their traceback."""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import types
from typing import Any

from bushel._src.base.errors import add_note, is_ours
from bushel._src.engine.pool import wire


def pack_error(error: BaseException) -> tuple[bytes, str]:
    """An exception as a pickle, empty if it cannot be pickled, and as text with the user's part of the traceback."""
    add_note(error, f"bushel: in worker process {os.getpid()}.")
    import traceback  # here: errors are rare, and a worker process begins sooner without it

    stack = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
    frames = [(frame.filename, frame.name, frame.lineno or 0) for frame in stack]
    text = "".join([*traceback.format_exception_only(error), *traceback.format_list(stack)]).rstrip()
    for cause in (error.__cause__, None):
        for reduce_first in (None, _reduce_exception):
            with contextlib.suppress(Exception):
                value = (error, getattr(error, "__notes__", []), cause, frames)
                pickled = wire.dumps(value, reduce_first=reduce_first)
                # Some exceptions can be pickled, but their pickle cannot be loaded, or gives a different exception.
                again = unpack_error(pickled, text)
                if type(again) is type(error) and _format(again) == _format(error):
                    return pickled, text
    return b"", text


def unpack_error(pickled: bytes, text: str) -> BaseException:
    """The exception that a worker has raised; a RuntimeError with its text if the exception cannot be rebuilt here."""
    substitute = RuntimeError(f"An exception in a worker process could not be sent. It said:\n{text}")
    if not pickled:
        return substitute
    try:
        error, notes, cause, frames = pickle.loads(pickled)
    except Exception:
        return substitute
    for note in notes:
        if note not in getattr(error, "__notes__", []):
            add_note(error, note)
    BaseException.__setattr__(error, "__cause__", cause)  # the class itself may refuse to set attributes
    return BaseException.with_traceback(error, _build_traceback(frames))


def _build_traceback(frames: list[tuple[str, str, int]]) -> types.TracebackType | None:
    """A traceback through frames of another process: (file, function, line) each, the outermost first.

    Python makes traceback frames only from code that runs. So for each frame a statement is compiled under the right
    file, function and line, and raises StopIteration there. These frames have no local variables.
    """
    trace = None
    for filename, name, line in reversed(frames):
        code = compile(_parse_raise(line), filename, "exec").replace(co_name=name, co_qualname=name)
        try:
            exec(code, {"__file__": filename})
        except StopIteration as stopped:
            assert stopped.__traceback__ is not None and stopped.__traceback__.tb_next is not None
            inner = stopped.__traceback__.tb_next
            trace = types.TracebackType(trace, inner.tb_frame, inner.tb_lasti, inner.tb_lineno)
    return trace


def _parse_raise(line: int) -> ast.Module:
    """The statement `raise StopIteration` in a given line. It has no columns, so that Python underlines nothing."""
    tree = ast.parse("raise StopIteration")
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno = node.end_lineno = max(1, line)
            node.col_offset = node.end_col_offset = -1
    return tree


def _format(error: BaseException) -> str | None:
    try:
        return str(error)
    except Exception:
        return None


def _reduce_exception(obj: Any) -> Any:
    """Pickles an exception so that it is rebuilt without its own `__init__`, whose arguments it may not have kept.

    Attributes and arguments that cannot be pickled are left out, and a note names them.
    """
    if not isinstance(obj, BaseException):
        return NotImplemented
    attributes, lost = {}, []
    for name, value in vars(obj).items():
        try:
            wire.dumps(value)
            attributes[name] = value
        except Exception:
            lost.append(name)
    args = list(_find_builtin_base(type(obj)).__reduce__(obj)[1])
    for number, value in enumerate(args):
        try:
            wire.dumps(value, reduce_first=_reduce_exception)  # the arguments of an ExceptionGroup are exceptions
        except Exception:
            args[number] = str(value)
            lost.append(f"args[{number}]")
    return _rebuild_exception, (type(obj), tuple(args), attributes, lost)


def _find_builtin_base(kind: Any) -> Any:
    """The base class of an exception that is Python's own and says what its objects look like in memory.

    Of several bases, as of a RuntimeError that is an OSError too, only this one can make such an object.
    """
    while kind.__module__ != "builtins":
        kind = kind.__base__
    return kind


def _rebuild_exception(kind: Any, args: tuple[Any, ...], attributes: dict[str, Any], lost: list[str]) -> BaseException:
    base = _find_builtin_base(kind)
    error = base.__new__(kind, *args)
    base.__init__(error, *args)
    error.__dict__.update(attributes)
    if lost:
        add_note(error, f"bushel: of this exception, {', '.join(lost)} could not be sent.")
    return error
