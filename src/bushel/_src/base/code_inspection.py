"""Finds out what the code of a function does, reads and returns, and whether it is the user's or a library's.

For digests (state/digest.py), warnings and messages. It runs nothing of the user's.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
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
    """Return the instructions and the constants that they use. They are the same with and without a docstring.

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
    """Return the same of the body of a class or module, without what it says about itself: words, its name, line
    numbers.
    """
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
    """Return the globals that a code object reads, and the modules that it imports.

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


INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders that packages are installed in."""


def is_installed_library(file: str, module: str) -> bool:
    """Return whether the file of a module is a part of a distribution that was not made from a local folder or a
    repository.

    >>> import numpy
    >>> is_installed_library(numpy.__file__, "numpy")
    True
    >>> is_installed_library("/home/me/train.py", "train")
    False
    """
    folder = _find_root(os.path.abspath(file), module)
    if not _list_distributions(folder):
        return False
    path = os.path.relpath(os.path.abspath(file), folder).replace(os.sep, "/")
    return any(not _is_users_distribution(folder, name) for name in _find_owners(folder, path))


def _find_root(path: str, module: str) -> str:
    """Return the folder from which Python imports a module: the one that holds its outermost package."""
    package = os.path.splitext(os.path.basename(path))[0] == "__init__"
    folder = os.path.dirname(path)
    for _ in range(module.count(".") + package):
        folder = os.path.dirname(folder)
    for installed in sorted(INSTALLED, reverse=True):  # also where the name of the module does not say how deep it lies
        marker = f"{os.sep}{installed}{os.sep}"
        if marker in path:
            return path[: path.rindex(marker) + len(marker) - 1]
    return folder


@functools.lru_cache(maxsize=256)
def _list_distributions(folder: str) -> tuple[str, ...]:
    """Return the names of the folders that describe what is installed in a folder."""
    # Beside modules that are nowhere installed, an .egg-info says that somebody works on them.
    kinds = (".dist-info", ".egg-info") if os.path.basename(folder) in INSTALLED else (".dist-info",)
    try:
        return tuple(sorted(name for name in os.listdir(folder) if name.endswith(kinds)))
    except OSError:
        return ()


def _find_owners(folder: str, path: str) -> Iterator[str]:
    """Yield the distributions that have installed a file, those with a similar name first."""
    top = path.partition("/")[0].partition(".")[0]
    wanted = _plain_name(top)
    similar = [name for name in _list_distributions(folder) if _plain_name(name.partition("-")[0]) == wanted]
    yield from _keep_owners(folder, path, similar)
    yield from _keep_owners(folder, path, _find_distributions_with(folder, path.partition("/")[0]))


def _keep_owners(folder: str, path: str, names: Iterable[str]) -> Iterator[str]:
    top = path.partition("/")[0].partition(".")[0]
    for name in names:
        files = _list_files(folder, name)
        # A distribution of the operating system has no list of its files.
        if path in files if files else top in _read(os.path.join(folder, name, "top_level.txt")).split():
            yield name


@functools.lru_cache(maxsize=1024)
def _find_distributions_with(folder: str, first: str) -> tuple[str, ...]:
    """Return the distributions that have installed something under a name. Read the records of all: some 100 ms."""
    found = []
    for name in _list_distributions(folder):
        record = _read(os.path.join(folder, name, "RECORD"))
        if not record or f"\n{first}/" in record or f"\n{first}," in record:
            found.append(name)
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _list_files(folder: str, name: str) -> frozenset[str]:
    """Return the paths in the RECORD of a distribution, as it has them: relative to the folder, with slashes."""
    lines = _read(os.path.join(folder, name, "RECORD")).splitlines()
    return frozenset(line.rsplit(",", 2)[0].strip('"') for line in lines if line)


def _read(path: str) -> str:
    """Return the text of a file after an empty line; nothing if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return f"\n{file.read()}"
    except OSError:
        return ""


@functools.lru_cache(maxsize=1024)
def _is_users_distribution(folder: str, name: str) -> bool:
    """Return whether a distribution was installed from a local folder or a repository (PEP 610)."""
    origin = _read_origin(folder, name)
    if "dir_info" in origin or "vcs_info" in origin:
        # conda leaves in its packages in which folder it has built them.
        return _read(os.path.join(folder, name, "INSTALLER")).strip() != "conda"
    return False


def _read_origin(folder: str, name: str) -> dict[str, Any]:
    text = _read(os.path.join(folder, name, "direct_url.json"))
    try:
        origin = json.loads(text) if text else {}
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}


@functools.lru_cache(maxsize=1024)
def find_build(file: str, module: str) -> str:
    """Return what tells the content of a library from other versions, if it was installed from an archive on this
    machine.

    That may be a library, or the user's own package that was built as a wheel. Empty for all others.
    """
    folder = _find_root(os.path.abspath(file), module)
    if not _list_archives(folder):
        return ""
    path = os.path.relpath(os.path.abspath(file), folder).replace(os.sep, "/")
    for name in _find_owners(folder, path):
        if name in _list_archives(folder):
            lines = _read(os.path.join(folder, name, "RECORD")).splitlines()
            code = sorted(line for line in lines if "sha256=" in line and not line.startswith(name))
            return hashlib.blake2b("\n".join(code).encode(), digest_size=8).hexdigest()
    return ""


@functools.lru_cache(maxsize=256)
def _list_archives(folder: str) -> frozenset[str]:
    """Return the distributions that were installed from an archive on this machine."""
    names = _list_distributions(folder)
    origins = {name: _read_origin(folder, name) for name in names}
    return frozenset(
        name
        for name, origin in origins.items()
        if "archive_info" in origin and str(origin.get("url")).startswith("file:")
    )


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the globals that a function and its inner functions read, by name; for a module, the attribute that is
    read.

    >>> def area(radius):
    ...     return math.pi * radius ** SQUARED
    >>> area = types.FunctionType(area.__code__, {"math": __import__("math"), "SQUARED": 2})
    >>> globals_of(area)
    [('SQUARED', 2), ('math.pi', 3.141592653589793)]
    """
    found: dict[str, Any] = {}
    for path in find_reads(function.__code__).paths:
        name, *rest = path
        if name not in function.__globals__:
            continue  # a built-in
        value = function.__globals__[name]
        while rest and isinstance(value, types.ModuleType) and hasattr(value, rest[0]):
            value, name = getattr(value, rest[0]), f"{name}.{rest.pop(0)}"
        found[name] = value
    return sorted(found.items())


def is_users_code(function_or_class: Any) -> bool:
    """Return whether a function or class is the user's own: not of the standard library, an installed library, or
    Bushel.

    What was installed from a local folder or a repository is the user's own, and so is a module that belongs to no
    distribution, wherever it lies.

    >>> is_users_code(types.SimpleNamespace), is_users_code(functools.wraps)
    (False, False)
    """
    if isinstance(function_or_class, types.FunctionType):
        module = function_or_class.__globals__
    else:
        name = function_or_class.__module__
        # A class of Bushel has the name of a public module, which may not be loaded: `bushel.transforms`, for example.
        module = vars(sys.modules[name]) if name in sys.modules else {"__name__": name}
    return _is_users_module(module.get("__name__") or "", module.get("__file__"))


def is_users_file(module: str, file: str | None) -> bool:
    """Return whether a module, by its name and file, is the user's own. A notebook has no file."""
    return _is_users_module(module, file)


def is_users_frame(frame: types.FrameType) -> bool:
    """Return whether a frame of a traceback runs the user's own code."""
    names = frame.f_globals
    is_import = frame.f_code.co_filename.startswith("<frozen ")  # Python's own machinery of imports
    return not is_import and _is_users_module(names.get("__name__") or "", names.get("__file__"))


@functools.lru_cache(maxsize=4096)
def _is_users_module(name: str, file: str | None) -> bool:
    top = name.partition(".")[0]
    if top in ("bushel", *sys.builtin_module_names):
        return False
    if file is None:  # a notebook, or code that was made at run time
        return top not in sys.stdlib_module_names or top == "__main__"
    path = os.path.abspath(file)
    if not INSTALLED & set(path.split(os.sep)):
        import sysconfig  # here: every worker imports this module, and few look at a function

        folders = [os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib")]
        if path.startswith(tuple(folders)):
            return False
    return not is_installed_library(path, name)


_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def never_returns(function: Callable[..., Any]) -> bool:
    """Return whether each call of a function that ends without an error returns None, since no `return` in it has a
    value.

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
    """Return the arguments that a function takes, as a text, if it cannot be called with `count` values; None if it
    can.

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
    """Return the function that Python code defines, behind a bound method or a partial; None for any other callable."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if isinstance(function, types.FunctionType) else None
