"""The command `bushel`: its parser, and one function per subcommand."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bushel.base import alias, redact


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    words = _Parser.words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _Parser(prog="bushel", description="Tools for data sets.")
    parser.add_argument("--version", action="version", version=f"bushel {sys.modules['bushel'].__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_convert(commands)
    _add_run(commands)
    options = parser.parse_args(words)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print("bushel: interrupted.", file=sys.stderr)
        return 130
    except (OSError, ValueError, TypeError, ImportError) as error:
        print(f"bushel: {redact.clean(str(error), _secrets(words))}", file=sys.stderr)
        return 1


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages show arguments without the secrets in them."""

    words: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        values = [part for word in _Parser.words if "://" not in word for part in word.split("=")[1:]]
        super().error(redact.clean(message, [*redact.secrets_of(options=values), *_secrets(_Parser.words)]))


def _secrets(words: Sequence[str]) -> list[str]:
    """The secrets in the URLs of a command line, which no message may show."""
    return [secret for word in words for secret in redact.secrets_of(word)]


def _add_convert(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "convert",
        help="record files of one format into another",
        description="Converts between ArrayRecord, TFRecord, Bagz and Parquet; the names say which. Text files are "
        "read line by line. Rows of Parquet files become tf.train.Example records, unless `record` is the only column.",
    )
    parser.add_argument("source", nargs="+", help="files, patterns or URLs")
    parser.add_argument("target", help="the file to make, for example train.array_record or s3://bucket/train.bagz")
    parser.add_argument("--from", dest="source_format", metavar="FORMAT", help="if the names do not show it")
    parser.add_argument("--shards", type=int, help="how many files to make (default: one per worker)")
    parser.add_argument("--workers", type=int, help="processes (default: one per core), or actors")
    parser.add_argument("--no-verify", action="store_true", help="do not read back what was written")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    parser.add_argument("--round-floats", action="store_true", help="float64 columns of Parquet files become float32")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the store of the sources",
    )
    parser.add_argument(
        "--target-option",
        action="append",
        metavar="NAME=VALUE",
        help="of the store where the target lies (default: those of --option)",
    )
    parser.add_argument("--ray", action="store_true", help="write the shards on a Ray cluster: see bushel.ray.convert")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_convert)


def _convert(options: argparse.Namespace) -> int:
    from bushel.sources import stores

    source_options = dict(map(_setting, options.option))
    given = options.target_option
    target_options = source_options if given is None else dict(map(_setting, given))
    progress = Progress(quiet=options.quiet)
    made = _choose_converter(options)(
        options.source,
        options.target,
        source_format=options.source_format,
        verify=not options.no_verify,
        overwrite=options.overwrite,
        round_floats=options.round_floats,
        storage_options=source_options,
        target_options=target_options,
        report=progress,
    )
    progress.end()
    size = sum(stores.open_file(path, target_options).size for path in made)
    print(f"{progress.total:,} records, {size / 1e6:,.1f} MB in {len(made)} {'file' if len(made) == 1 else 'files'}")
    return 0


def _choose_converter(options: argparse.Namespace) -> Callable[..., list[str]]:
    """What converts: processes of this machine, or actors of a Ray cluster."""
    if not options.ray:
        from bushel.sources.conversion import convert

        workers = (os.cpu_count() or 1) if options.workers is None else options.workers
        return functools.partial(convert, shards=options.shards, workers=workers)
    from bushel import ray

    shards = options.shards or options.workers
    if shards is None:
        raise ValueError("--ray needs --shards: an actor writes one shard at a time, so make more shards than actors.")
    return functools.partial(ray.convert, shards=shards, options=ray.RayOptions(num_workers=options.workers))


def _setting(text: str) -> tuple[str, Any]:
    """Splits NAME=VALUE. A value that is JSON (a number, true) is parsed; any other is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("--option takes NAME=VALUE, for example --option region=us-east-1, got a text without =.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


class Progress:
    """A progress bar on the terminal."""

    def __init__(self, *, quiet: bool):
        self._shown = not quiet and sys.stderr.isatty()
        self._begun = time.monotonic()
        self._last = 0.0
        self.total = 0

    def __call__(self, done: int, total: int) -> None:
        self.total = total
        now = time.monotonic()
        if self._shown and (now - self._last > 0.1 or done == total):
            self._last = now
            share = done / total if total else 1.0
            rate = done / max(now - self._begun, 1e-6)
            bar = "#" * int(30 * share)
            print(f"\r[{bar:<30}] {done:,}/{total:,} records, {rate:,.0f}/s", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print(file=sys.stderr)


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "run",
        help="a program that was written for Grain, on Bushel",
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
        print(redact.clean("".join(lines), _secrets(options.arguments)), end="", file=sys.stderr)
        return 1
    return 0
