"""`bushel run`: a program that was written for Grain, on Bushel."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import types

from bushel.base import alias, redact
from bushel.cli.parser import Commands, secrets_of_words


def add_run(commands: Commands) -> None:
    """Adds the parser of `bushel run`."""
    parser = commands.add_parser(
        "run",
        help="runs a program that was written for Grain, on Bushel",
        description="Runs a Python program as `python` would, except that `import grain` gives Bushel, in the program "
        "and in its workers. Grain need not be installed.",
    )
    parser.add_argument("script", help="the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    with open(options.script, "rb") as file:
        code = compile(file.read(), options.script, "exec")
    alias.install()
    os.environ[alias.VARIABLE] = "1"
    sys.argv[:] = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    program = types.ModuleType("__main__")
    program.__dict__.update(__file__=options.script, __builtins__=__builtins__)
    sys.modules["__main__"] = program
    try:
        exec(code, program.__dict__)
    except Exception as error:
        # As Python would print it: the traceback begins with the first frame of the program.
        trace = error.__traceback__
        lines = traceback.format_exception(type(error), error, trace.tb_next if trace else None)
        print(redact.clean("".join(lines), secrets_of_words(options.arguments)), end="", file=sys.stderr)
        return 1
    return 0
