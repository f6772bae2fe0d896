"""The command `bushel`: its parser, and one function per subcommand."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bushel.base import alias, redact
from bushel.base.progress import Progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    words = _Parser.words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _Parser(prog="bushel", description="Tools for data sets.")
    parser.add_argument("--version", action="version", version=f"bushel {sys.modules['bushel'].__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_convert(commands)
    _add_reencode(commands)
    _add_run(commands)
    _add_view(commands)
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
        help="record files, or episodes of robots, of one format into another",
        description="Converts between ArrayRecord, TFRecord, Bagz and Parquet; the names say which. Text files are "
        "read line by line. Rows of Parquet files become tf.train.Example records, unless `record` is the only column. "
        "With --to, converts a data set of robot episodes to RLDS or LeRobot v3; a run that was killed is continued by "
        "the same command.",
    )
    parser.add_argument("source", nargs="+", help="files, patterns or URLs; with --to, one data set")
    parser.add_argument(
        "target", help="the file to make, for example train.array_record or s3://bucket/train.bagz; with --to, a folder"
    )
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
    _add_episode_options(parser)
    parser.set_defaults(run=_convert)


def _add_episode_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("episodes of robots")
    group.add_argument("--to", choices=("rlds", "lerobot"), help="converts episodes, to this format")
    group.add_argument("--split", help="only this split of the source, for example train[:10]")
    group.add_argument("--drop", action="append", default=[], metavar="ENTRY", help="leaves out an entry")
    group.add_argument("--state", metavar="A,B", help="entries of the observation that become observation/state")
    group.add_argument(
        "--standardize",
        metavar="MODULE:NAME",
        help="a function that changes each raw trajectory, or STATEMENTS.json",
    )
    group.add_argument("--format-option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    group.add_argument("--file-format", default="tfrecord", choices=("tfrecord", "array_record"), help="of RLDS files")
    group.add_argument("--image-format", default="png", choices=("png", "jpeg"), help="of images in RLDS files")
    group.add_argument("--fps", type=float, help="steps per second, for LeRobot")
    group.add_argument("--task", default="", help="the instruction of steps without one, for LeRobot")
    group.add_argument("--robot", help="the name of the robot, for LeRobot")
    group.add_argument("--no-video", action="store_true", help="images in the rows of LeRobot files, without loss")
    _add_video_options(group)


def _add_video_options(group: Any) -> None:
    group.add_argument("--codec", default="h264", choices=("h264", "hevc", "av1"), help="of videos (default: h264)")
    group.add_argument("--key-frames", type=int, default=2, metavar="N", help="a key frame every N frames (default: 2)")
    group.add_argument("--crf", type=int, default=30, help="the quality of videos; smaller is better (default: 30)")


def _convert_episodes(options: argparse.Namespace) -> int:
    from bushel.trajectory.conversion import convert_episodes
    from bushel.trajectory.statements import read_standardization

    if len(options.source) != 1:
        raise ValueError(f"--to takes one data set, got {len(options.source)} sources.")
    if options.ray:
        raise ValueError("--ray converts record files. Episodes (--to) are converted by processes of this machine.")
    source_options = dict(map(_setting, options.option))
    given = options.target_option
    done = convert_episodes(
        options.source[0],
        options.target,
        to=options.to,
        kind=options.source_format,
        split=options.split,
        standardize_fn=read_standardization(options.standardize) if options.standardize else None,
        drop=options.drop,
        state_keys=options.state.split(",") if options.state else (),
        fps=options.fps,
        task=options.task,
        robot_type=options.robot,
        codec=None if options.no_video else options.codec,
        key_frame_interval=options.key_frames,
        crf=options.crf,
        file_format=options.file_format,
        image_format=options.image_format,
        shards=options.shards,
        workers=_count_workers(options),
        verify=not options.no_verify,
        overwrite=options.overwrite,
        storage_options=source_options,
        target_options=source_options if given is None else dict(map(_setting, given)),
        format_options=dict(map(_setting, options.format_option)),
        progress=not options.quiet,
    )
    left_out = f"; {done.left_out:,} episodes without steps are left out" if done.left_out else ""
    print(f"{done.episodes:,} episodes, {done.frames:,} frames in {redact.show(done.folder)}{left_out}")
    return 0


def _add_reencode(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "reencode",
        help="a LeRobot data set with its videos encoded anew",
        description="Copies a LeRobot folder and encodes its videos anew, for example with more key frames, so that "
        "single frames are read faster. A run that was killed is continued by the same command.",
    )
    parser.add_argument("source", help="the folder of the data set")
    parser.add_argument("target", help="the new folder")
    _add_video_options(parser)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--no-verify", action="store_true", help="do not decode what was written")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_reencode)


def _reencode(options: argparse.Namespace) -> int:
    from bushel.trajectory.conversion import reencode_videos

    count = reencode_videos(
        options.source,
        options.target,
        codec=options.codec,
        key_frame_interval=options.key_frames,
        crf=options.crf,
        workers=options.workers,
        verify=not options.no_verify,
        progress=not options.quiet,
    )
    print(f"{count:,} videos in {redact.show(options.target)}")
    return 0


def _convert(options: argparse.Namespace) -> int:
    if options.to is not None:
        return _convert_episodes(options)
    from bushel.sources import file_access

    source_options = dict(map(_setting, options.option))
    given = options.target_option
    target_options = source_options if given is None else dict(map(_setting, given))
    title = f"converting to {redact.base_name(options.target)}"
    with Progress(title, None, unit="records", shown=not options.quiet) as bar:
        made = _choose_converter(options)(
            options.source,
            options.target,
            source_format=options.source_format,
            verify=not options.no_verify,
            overwrite=options.overwrite,
            round_floats=options.round_floats,
            storage_options=source_options,
            target_options=target_options,
            progress=bar.show,
        )
    size = sum(file_access.open_file(path, target_options).size for path in made)
    print(f"{bar.total:,} records, {size / 1e6:,.1f} MB in {len(made)} {'file' if len(made) == 1 else 'files'}")
    return 0


def _count_workers(options: argparse.Namespace) -> int:
    return (os.cpu_count() or 1) if options.workers is None else options.workers


def _choose_converter(options: argparse.Namespace) -> Callable[..., list[str]]:
    """What converts: processes of this machine, or actors of a Ray cluster."""
    if not options.ray:
        from bushel.sources.conversion import convert

        return functools.partial(convert, shards=options.shards, workers=_count_workers(options))
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


def _add_view(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "view",
        help="shows data in the browser",
        description="Serves a page that shows the elements of a pipeline, a file or a robot data set.",
    )
    parser.add_argument("target", help="train.py:make_dataset, module:ds, or a file or folder that Bushel can read")
    parser.add_argument("--checkpoint", metavar="PATH", help="a state or a checkpoint: the page opens there")
    parser.add_argument("--step", type=int, metavar="N", help="opens what the model saw at step N of training")
    parser.add_argument("--split", help="of a TFDS or robot data set")
    parser.add_argument("--at", type=int, metavar="N", help="the element that the page opens with")
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json that decodes rows of tokens")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the store of the files")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=0, help="the port (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "--rerun", nargs="?", const="", metavar="FILE", help="writes robot data to FILE.rrd for Rerun; serves no page"
    )
    parser.add_argument("--count", type=int, metavar="N", help="with --rerun: how many elements, from --at on")
    parser.set_defaults(run=_view)


def _view(options: argparse.Namespace) -> int:
    from bushel.view.command import run

    return run(options, dict(map(_setting, options.option)))
