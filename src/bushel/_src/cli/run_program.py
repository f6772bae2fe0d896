"""`bushel run`: a program that was written for Grain, on Bushel."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import traceback
import types
from collections.abc import Callable

from bushel._src.base import grain_names, redact
from bushel._src.cli.parser import Commands, secrets_of_words


def add_run(commands: Commands) -> None:
    """Add the parser of `bushel run`."""
    parser = commands.add_parser(
        "run",
        help="runs a program that was written for Grain, on Bushel",
        description="Runs a Python program as `python` would, except that `import grain` gives Bushel, in the program "
        "and in its workers. Grain need not be installed.",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in `python -m`")
    parser.add_argument("script", help="the program: a file, or with -m the name of a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        return _run_module(options) if options.module else _run_file(options)
    except Exception as error:
        if not _is_of_program(error):
            raise
        # As Python would print it: the traceback begins with the first frame of the program.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _LIBRARY_FILES:
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace)
        print(redact.clean("".join(lines), secrets_of_words(options.arguments)), end="", file=sys.stderr)
        return 1


_LIBRARY_FILES = (__file__, runpy.__file__, "<frozen runpy>")


def _is_of_program(error: Exception) -> bool:
    """Return whether the program was running when the error was raised."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is _execute.__code__ for frame, _ in frames)


def _run_file(options: argparse.Namespace) -> int:
    with open(options.script, "rb") as file:
        code = compile(file.read(), options.script, "exec")
    _install(options, os.path.dirname(os.path.abspath(options.script)))
    program = types.ModuleType("__main__")
    program.__dict__.update(__file__=options.script, __builtins__=__builtins__)
    sys.modules["__main__"] = program
    return _execute(lambda: exec(code, program.__dict__))


def _run_module(options: argparse.Namespace) -> int:
    name = options.script
    _install(options, os.getcwd())
    if not _is_module(name):
        print(f"bushel run: there is no module {name!r} in this folder or among the installed ones.", file=sys.stderr)
        return 1
    return _execute(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # its package is missing, or the name is relative
        return False


def _install(options: argparse.Namespace, folder: str) -> None:
    """Let `import grain` give Bushel, here and in the program's processes. The program sees its own arguments."""
    grain_names.install()
    os.environ[grain_names.VARIABLE] = "1"
    sys.argv[:] = [options.script, *options.arguments]
    sys.path[0] = folder


def _execute(program: Callable[[], object]) -> int:
    program()
    return 0
