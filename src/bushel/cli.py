"""The command `bushel`: one function for each of its commands, and the parser that finds them."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import types
from collections.abc import Sequence

from bushel.base import alias


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="bushel", description="Tools for data sets.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print("bushel: interrupted.", file=sys.stderr)
        return 130
    except (OSError, ValueError, ImportError) as error:
        print(f"bushel: {error}", file=sys.stderr)
        return 1


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="a program that was written for Grain, on Bushel",
        description="Runs a Python program as `python` would, except that `import grain` gives Bushel, in the program "
        "and in its workers. Grain need not be installed.",
    )
    parser.add_argument("script", help="the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is called with")
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
        # As Python would show it, from the program's first frame on.
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace.tb_next if trace else None)
        return 1
    return 0
