"""The command `bushel`. Each subcommand has a module here, whose `add_...` adds its parser."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from bushel._src.base import redact
from bushel._src.base.code_inspection import is_users_frame
from bushel._src.cli.convert import add_convert, add_reencode
from bushel._src.cli.examine import add_bench, add_inspect, add_report, add_stats
from bushel._src.cli.parser import (
    SCRIPT_COMMANDS,
    Parser,
    become_program,
    explain_unknown,
    list_names,
    resolve_paths,
    secrets_of_words,
    split_arguments,
)
from bushel._src.cli.run_program import add_run
from bushel._src.cli.view import add_view

COMMANDS = (add_view, add_inspect, add_stats, add_bench, add_report, add_convert, add_reencode, add_run)
"""The functions that add the parsers of the commands, in the order of `bushel --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = Parser.words = sys.argv[1:] if arguments is None else list(arguments)
    own_words, script_arguments = split_arguments(words)
    parser = Parser(prog="bushel", description="Tools for data sets.")
    parser.add_argument("--version", action="version", version=f"bushel {sys.modules['bushel'].__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_command in COMMANDS:
        add_command(commands)
    for name in SCRIPT_COMMANDS:
        commands.choices[
            name
        ].epilog = f"Arguments of a script stand behind two dashes: bushel {name} train.py:make_dataset -- --batch 8"
    options, unknown = parser.parse_known_args(own_words)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{explain_unknown(options, unknown)}")
    options.script_arguments = script_arguments
    try:
        if options.command in SCRIPT_COMMANDS:
            if arguments is None:  # this process is the command
                become_program(options.target)
            resolve_paths(options)
            if list_names(options):
                return 0
        return options.run(options)
    except KeyboardInterrupt:
        print("bushel: interrupted.", file=sys.stderr)
        return 130
    except (Exception, SystemExit) as error:
        text = _describe_failure(error, is_program=options.command == "run")
        if text is None:
            raise
        print(redact.clean(text, secrets_of_words(words)), file=sys.stderr)
        return 1


def _describe_failure(error: BaseException, *, is_program: bool) -> str | None:
    """Return an error as text: a sentence, or for an error in the user's code its traceback, from that code on.

    None if Python should print it: an error that we did not expect, or the end of a program that `bushel run` runs.
    """
    if isinstance(error, SystemExit) and is_program:
        return None
    trace = error.__traceback__
    while trace is not None and not is_users_frame(trace.tb_frame):
        trace = trace.tb_next
    if trace is not None:
        return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    if isinstance(error, SyntaxError):  # the script cannot be compiled: the error itself shows its line
        return "".join(traceback.format_exception_only(error)).rstrip()
    if isinstance(error, (OSError, ValueError, TypeError, ImportError)):
        notes = [note for note in getattr(error, "__notes__", []) if "\n" not in note]  # no tracebacks of workers
        return "\n".join([f"bushel: {error}", *notes])
    return None
