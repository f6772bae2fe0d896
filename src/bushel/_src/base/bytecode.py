"""What a code object does, as plain data that is the same wherever the code stands. For digests: state/digest.py."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import re
import types
from typing import Any

_KINDS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
"""The flags of a code object that say how it is called, and what a call returns."""

_NOT_BEHAVIOUR = {"__doc__", "__firstlineno__", "__static_attributes__", "__qualname__", "__module__"}
"""Names that the body of a class, or of a module, sets to words, line numbers or its own name."""

_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_READS_OF_MODULES = {"LOAD_ATTR", "LOAD_METHOD"}


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """A code object without its line numbers, words and file."""

    instructions: bytes
    constants: tuple[Any, ...]
    """The constants that the instructions use, in the order of use. Code objects are among them."""
    names: tuple[Any, ...]
    """The names of variables and attributes, and how the code is called."""


def read_behaviour(code: types.CodeType) -> Behaviour:
    """The instructions and the constants that they use. They are the same with and without a docstring.

    A docstring is a constant that no instruction uses. It takes the first place, which otherwise may belong to None, to
    the first constant of the function, or to nothing; so it can move the others. The constants are therefore numbered
    anew, in the order in which they are used. An instruction is two bytes: what to do, and with what. A place above 255
    needs an instruction more: in such a large function, a docstring counts.
    """
    if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class or module
        instructions, constants, used_names = _read_body(code)
    else:
        instructions, constants, used_names = *_renumber(code), code.co_names
    names = (
        used_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags & _KINDS,
        getattr(code, "co_exceptiontable", b""),
    )
    return Behaviour(instructions, constants, names)


def _renumber(code: types.CodeType) -> tuple[bytes, tuple[Any, ...]]:
    instructions = bytearray(code.co_code)
    numbers: dict[int, int] = {}
    for found in _USES_CONSTANT.finditer(instructions[::2]):
        at = 2 * found.start()
        place = instructions[at + 1]
        if at and instructions[at - 2] == dis.EXTENDED_ARG:
            place += instructions[at - 1] << 8
        instructions[at + 1] = numbers.setdefault(place, len(numbers)) & 255
    return bytes(instructions), tuple(code.co_consts[place] for place in numbers)


def _read_body(code: types.CodeType) -> tuple[bytes, tuple[Any, ...], tuple[str, ...]]:
    """The same of the body of a class or module, without what it says about itself: words, its name, line numbers."""
    instructions = list(dis.get_instructions(code))
    kept: list[dis.Instruction] = []
    for instruction in instructions:
        if instruction.opname == "STORE_NAME" and instruction.argval in _NOT_BEHAVIOUR:
            if kept and kept[-1].opname.startswith("LOAD_"):
                kept.pop()
        elif instruction.opname not in ("EXTENDED_ARG", "RESUME", "NOP"):
            kept.append(instruction)
    constants: list[Any] = []
    lines = []
    for each in kept:
        if each.opcode in dis.hasconst:
            constants.append(each.argval)
            lines.append(each.opname)
        elif each.opcode in dis.hasname:
            lines.append(f"{each.opname} {each.argval}")
        else:
            lines.append(f"{each.opname} {each.arg}")
    return "\n".join(lines).encode(), tuple(constants), ()


_USES_CONSTANT = re.compile(b"[%s]" % b"".join(re.escape(bytes([operation])) for operation in dis.hasconst))


@dataclasses.dataclass(frozen=True)
class Reads:
    """What a code object, and the functions inside it, read from outside."""

    paths: tuple[tuple[str, ...], ...]
    """Names of globals, each followed by the attributes that are read from it."""
    imports: tuple[tuple[str, int, tuple[str, ...]], ...]
    """Modules that are imported when the code runs: name, level of a relative import, names taken from it."""


@functools.lru_cache(maxsize=2048)
def find_reads(code: types.CodeType) -> Reads:
    """The globals that a code object reads, and the modules that it imports.

    >>> find_reads(compile("import a.b; math.pi * SIZE", "", "exec"))
    Reads(paths=(('math', 'pi'), ('SIZE',)), imports=(('a.b', 0, ()),))
    """
    paths: dict[tuple[str, ...], None] = {}
    imports: dict[tuple[str, int, tuple[str, ...]], None] = {}
    _collect(code, paths, imports)
    return Reads(tuple(paths), tuple(imports))


def _collect(
    code: types.CodeType,
    paths: dict[tuple[str, ...], None],
    imports: dict[tuple[str, int, tuple[str, ...]], None],
) -> None:
    path: tuple[str, ...] = ()
    recent: list[Any] = []
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name == "IMPORT_NAME":
            level, taken = recent[-2:]
            imports[instruction.argval, level or 0, taken or ()] = None
        if name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            recent = [*recent[-1:], instruction.argval]
        if path and name in _READS_OF_MODULES:
            path = (*path, instruction.argval)
            continue
        if path:
            paths[path] = None
        path = (instruction.argval,) if name in _READS else ()
    if path:
        paths[path] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _collect(constant, paths, imports)
