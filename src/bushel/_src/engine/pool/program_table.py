"""Pipelines on their way to workers: pickled once for all, with errors that say which value cannot be pickled."""

from __future__ import annotations

import dis
import functools
import itertools
import os
import queue
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import cloudpickle

from bushel._src.base import code_inspection, transforms
from bushel._src.base.errors import PipelineNotSent
from bushel._src.engine.pool import wire
from bushel._src.engine.program import Program
from bushel._src.engine.stream_program import StreamProgram

_DEPTH = 4
"""So many functions and objects are followed, one inside the other."""


def find_unpicklable(value: Any) -> str:
    """Return where in a function or object the value is that cannot be pickled, as part of a sentence; "" if nobody
    knows.

    >>> import threading
    >>> lock = threading.Lock()
    >>> def count(element, kept=lock): ...
    >>> find_unpicklable(count)
    'the default of `kept` in count is a lock'
    """
    return _find(value, _DEPTH)


def _find(value: Any, depth: int) -> str:
    if not depth or is_picklable(value):
        return ""
    for part, place in _list_held(value):
        if not is_picklable(part):
            return _find(part, depth - 1) or f"{place} is {_describe(part)}"
    return ""


def _list_held(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield the values that a function or object holds, each with the place where the user wrote it."""
    if isinstance(value, functools.partial):
        yield value.func, f"the function of {transforms.short_name(value)}"
        for number, argument in enumerate(value.args):
            yield argument, f"argument {number} of {transforms.short_name(value)}"
        for name, argument in value.keywords.items():
            yield argument, f"the argument `{name}` of {transforms.short_name(value)}"
    elif isinstance(value, types.MethodType):
        yield value.__self__, f"the object of {value.__qualname__}"
    elif isinstance(value, types.FunctionType):
        yield from _list_variables(value)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield part, f"the entry {key!r}"
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield part, f"item {number}"
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for name, part in vars(value).items():
            yield part, f"`self.{name}` of {type(value).__name__}"


def _list_variables(function: types.FunctionType) -> Iterator[tuple[Any, str]]:
    name = function.__name__
    code = function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
        yield value, f"the variable `{variable}`{_find_line(code, variable)}"
    for variable, value in code_inspection.globals_of(function):
        yield value, f"the variable `{variable}`{_find_line(code, variable.partition('.')[0])}"
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for variable, value in [*zip(names, defaults), *(function.__kwdefaults__ or {}).items()]:
        yield value, f"the default of `{variable}` in {name}"


def _find_line(code: types.CodeType, variable: str) -> str:
    """Return where a function reads a variable: ", in line 12 of train.py,"; "" if that is not known."""
    for inner in _list_code(code):
        for instruction in dis.get_instructions(inner):
            line = None if instruction.positions is None else instruction.positions.lineno
            if line is not None and instruction.argval == variable and instruction.opname.startswith("LOAD"):
                return f", which {code.co_name} reads in line {line} of {os.path.basename(code.co_filename)},"
    return ""


def _list_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_code(constant)


def _describe(value: Any) -> str:
    """Return a value in a sentence: "a lock", "an object of type Connection"."""
    kind = type(value)
    if kind.__module__ in ("_thread", "threading") and "lock" in kind.__name__.lower():
        return "a lock"
    if kind.__module__ == "_io":
        return "an open file"
    if isinstance(value, types.GeneratorType):
        return "a generator"
    return f"an object of type {kind.__qualname__}"


def is_picklable(value: Any) -> bool:
    """Return whether an object can be sent to workers."""
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


T = TypeVar("T")


_MAKE_THERE = "Make it inside the function when the function first needs it, or in `worker_init_fn` of `mp_prefetch`."


def pickle_or_explain(put: Callable[[Any], T], value: Any, describe: Callable[[], str]) -> T:
    """Return `put(value)`, which pickles an object for workers, or raise an error that says what cannot be sent."""
    try:
        return put(value)
    except (OSError, MemoryError):  # the machine has no room: the object itself is not at fault
        raise
    except Exception as error:
        cause = _find_cause(value)
        reason = f"{cause}. {_MAKE_THERE} ({error})" if cause else str(error)
        raise PipelineNotSent(f"{describe()} cannot be sent to worker processes: {reason}") from error


class ProgramTable(Generic[T]):
    """The programs that a pool's workers run, numbered, each in a memory that the workers can read.

    A program is kept only as long as somebody else holds it. Call `remove_collected` now and then.

    Args:
      put: puts a program into that memory.
    """

    def __init__(self, put: Callable[[Program | StreamProgram], T]):
        self._put = put
        self._stored: dict[int, T] = {}
        self._numbers: weakref.WeakKeyDictionary[Program | StreamProgram, int] = weakref.WeakKeyDictionary()
        self._unused_numbers = itertools.count()
        # A program is collected on any thread, at any moment. All that may be done there is to put its number here.
        self._collected: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._classes: list[type] = []

    def add(self, program: Program | StreamProgram) -> int:
        """Return the number of a program, which is added if it is new; or an error that names what cannot be sent."""
        number = self._numbers.get(program)
        if number is None:
            stored = pickle_or_explain(self._put, program, lambda: _find_operation(program)[0])
            number = next(self._unused_numbers)
            self._stored[number] = stored
            # cloudpickle holds them weakly. Without this list a class could be gone when a result names it.
            self._classes = wire.list_sent_classes()
            self._numbers[program] = number
            weakref.finalize(program, self._collected.put, number).atexit = False
        return number

    def get(self, number: int) -> T:
        return self._stored[number]

    def remove_collected(self) -> list[int]:
        """Remove the programs that nobody holds any more. Return their numbers."""
        numbers = []
        while not self._collected.empty():
            numbers.append(self._collected.get())
            del self._stored[numbers[-1]]
        return numbers

    def clear(self) -> None:
        """Free the shared memory."""
        self._stored.clear()


def _find_operation(program: Program | StreamProgram) -> tuple[str, Any]:
    """Return the first operation that cannot be pickled, as the user wrote it, and the argument that cannot."""
    for node in program.list_operations():
        for value in node.parameters().values():
            if not is_picklable(value):
                return node.call(), value
    return "The pipeline", None


def _find_cause(value: Any) -> str:
    """Return which value of the user's cannot be pickled, with its place in the user's code; "" where that is not
    known.
    """
    if isinstance(value, (Program, StreamProgram)):
        return find_unpicklable(_find_operation(value)[1])
    return find_unpicklable(value) if callable(value) else ""


def explain_import_error(program: Program | StreamProgram, error: ImportError) -> str:
    """Say which operation needs a module that workers cannot import, and what to do about it."""
    name = (error.name or "").encode()

    def pickle_parameters(node: Any) -> bytes:
        return cloudpickle.dumps(list(node.parameters().values()), protocol=5, buffer_callback=lambda _: False)

    calls = [node.call() for node in program.list_operations() if name in pickle_parameters(node)]
    needs = f"{calls[0] if calls else 'the pipeline'} needs {error.name or 'a module'}"
    return (
        f"bushel: {needs}, which workers cannot import. Workers search sys.path as it was when the iterator was made: "
        "add the folder of the module to sys.path before that. If the module has no file, call "
        "cloudpickle.register_pickle_by_value(module); then it is sent along."
    )
