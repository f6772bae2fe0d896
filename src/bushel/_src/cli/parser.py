"""What all commands share: parsers whose errors show no secrets, options NAME=VALUE, and targets in Python files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from bushel._src.base import redact


class Parser(argparse.ArgumentParser):
    """A parser whose error messages show arguments without the secrets in them."""

    words: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        values = [part for word in Parser.words if "://" not in word for part in word.split("=")[1:]]
        super().error(redact.clean(message, [*redact.secrets_of(options=values), *secrets_of_words(Parser.words)]))


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""To which each command adds its parser."""


def secrets_of_words(words: Sequence[str]) -> list[str]:
    """Return the secrets in the URLs of a command line, which no message may show."""
    return [secret for word in words for secret in redact.secrets_of(word)]


def add_storage_option(parser: argparse.ArgumentParser, of: str = "of the store of the files") -> None:
    """Add `--storage-option`, which stands for `storage_options` of the Python call."""
    parser.add_argument("--storage-option", action="append", default=[], metavar="NAME=VALUE", help=of)


def parse_setting(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE. A value that is JSON (a number, true) is parsed; any other is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(
            "--storage-option takes NAME=VALUE, for example --storage-option region=us-east-1, got a text without =."
        )
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


SCRIPT_COMMANDS = ("view", "inspect", "stats", "bench", "report")
"""The commands whose target may be a Python file. What stands behind `--` are the arguments of that file."""


def split_arguments(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the command, and the arguments of its script.

    >>> split_arguments(["view", "train.py:ds", "--", "--batch", "8"])
    (['view', 'train.py:ds'], ['--batch', '8'])
    >>> split_arguments(["run", "train.py", "--", "x"])  # this command hands over all words itself
    (['run', 'train.py', '--', 'x'], [])
    """
    if not words or words[0] not in SCRIPT_COMMANDS or "--" not in words:
        return list(words), []
    place = list(words).index("--")
    return list(words[:place]), list(words[place + 1 :])


def explain_unknown(options: argparse.Namespace, unknown: Sequence[str]) -> str:
    """Return what to add to an error about words that a command does not know: they may be meant for its script."""
    from bushel._src.view.scripts import (  # here: `bushel --help` does not need it
        is_python_target,
        is_script,
        show_target,
    )

    target = getattr(options, "target", None) or ""
    if options.command not in SCRIPT_COMMANDS or not (is_script(target) or is_python_target(target)):
        return ""
    words = show_target(target, unknown)
    return f"\nArguments of the script stand behind two dashes: bushel {options.command} {words}"


def become_program(target: str | None) -> None:
    """Let a script find in this process what it finds under `python train.py`: its folder, and itself as `__main__`.

    At the front of `sys.path` is now the folder of the command `bushel`, which `python train.py` would not search.
    """
    path = (target or "").rpartition(":")[0] or target or ""
    if path.endswith(".py") and os.path.isfile(path):
        from bushel._src.view import scripts  # here: `bushel --help` does not need it

        scripts.is_program = True
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(path))


def resolve_paths(options: argparse.Namespace) -> None:
    """Make the paths in the options of a command absolute if its target is a script, which may change the folder."""
    if ".py:" not in (options.target or ""):
        return
    for name in ("output", "profile", "checkpoint", "tokenizer", "attach", "rerun"):
        path = getattr(options, name, None)
        if path and "://" not in path:
            setattr(options, name, os.path.abspath(path))


def list_names(options: argparse.Namespace) -> bool:
    """Return whether the target is a Python file without a name in it.

    If so, this prints the names that the user can add.
    """
    from bushel._src.view.scripts import is_script, list_script  # here: `bushel --help` does not need it

    if options.target is None or not is_script(options.target):
        return False
    print(list_script(options.target, options.command, options.script_arguments))
    return True
