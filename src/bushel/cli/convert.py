"""`bushel convert`: record files, or episodes of robots, in another format."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable

from bushel.base import redact
from bushel.base.progress import Progress
from bushel.cli.parser import Commands, parse_setting
from bushel.cli.reencode import add_video_options


def add_convert(commands: Commands) -> None:
    """Adds the parser of `bushel convert`."""
    parser = commands.add_parser(
        "convert",
        help="converts record files, or episodes of robots, to another format",
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
    parser.add_argument(
        "--shards", type=int, help="how many files to make (default: one; of episodes, one for each 50,000 frames)"
    )
    parser.add_argument(
        "--workers", type=int, help="processes (default: one per core, at most one per file), or actors"
    )
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
    parser.add_argument(
        "--ray", action="store_true", help="write the shards on a Ray cluster: see docs/many_machines.md"
    )
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
    add_video_options(group)


def _convert(options: argparse.Namespace) -> int:
    if options.to is not None:
        return _convert_episodes(options)
    from bushel.sources import file_access

    source_options = dict(map(parse_setting, options.option))
    given = options.target_option
    target_options = source_options if given is None else dict(map(parse_setting, given))
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


def _choose_converter(options: argparse.Namespace) -> Callable[..., list[str]]:
    """What converts: processes of this machine, or actors of a Ray cluster."""
    if not options.ray:
        from bushel.sources.conversion import convert

        return functools.partial(
            convert, shards=1 if options.shards is None else options.shards, workers=options.workers
        )
    from bushel import ray

    actors = ray.RayOptions(num_workers=options.workers)
    return functools.partial(ray.convert, shards=_count_shards(options), options=actors)


def _count_shards(options: argparse.Namespace) -> int:
    """How many files a cluster writes."""
    shards = options.shards or options.workers
    if shards is None:
        raise ValueError("--ray needs --shards: an actor writes one shard at a time, so make more shards than actors.")
    return shards


def _open_cluster(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """A block whose jobs run on a cluster, if the user asks for it."""
    if not options.ray:
        return contextlib.nullcontext()
    from bushel import ray

    return ray.jobs_on_cluster(ray.RayOptions(num_workers=options.workers))


def _convert_episodes(options: argparse.Namespace) -> int:
    from bushel.trajectory.conversion import convert_episodes
    from bushel.trajectory.statements import read_standardization

    if len(options.source) != 1:
        raise ValueError(f"--to takes one data set, got {len(options.source)} sources.")
    source_options = dict(map(parse_setting, options.option))
    given = options.target_option
    run = functools.partial(
        convert_episodes,
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
        shards=_count_shards(options) if options.ray else options.shards,
        workers=options.workers,
        verify=not options.no_verify,
        overwrite=options.overwrite,
        storage_options=source_options,
        target_options=source_options if given is None else dict(map(parse_setting, given)),
        format_options=dict(map(parse_setting, options.format_option)),
        progress=not options.quiet,
    )
    with _open_cluster(options):
        done = run()
    left_out = f"; {done.left_out:,} episodes without steps are left out" if done.left_out else ""
    print(f"{done.episodes:,} episodes, {done.frames:,} frames in {redact.show(done.folder)}{left_out}")
    return 0
