"""What the parsers of all commands share: errors without secrets, and options of the form NAME=VALUE."""

from __future__ import annotations

import argparse
import json
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
    """The secrets in the URLs of a command line, which no message may show."""
    return [secret for word in words for secret in redact.secrets_of(word)]


def add_storage_option(parser: argparse.ArgumentParser, of: str = "of the store of the files") -> None:
    """Adds `--storage-option`, which stands for `storage_options` of the Python call."""
    parser.add_argument("--storage-option", action="append", default=[], metavar="NAME=VALUE", help=of)


def parse_setting(text: str) -> tuple[str, Any]:
    """Splits NAME=VALUE. A value that is JSON (a number, true) is parsed; any other is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(
            "--storage-option takes NAME=VALUE, for example --storage-option region=us-east-1, got a text without =."
        )
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
