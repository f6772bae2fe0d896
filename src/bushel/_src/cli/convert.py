"""`bushel convert` and `bushel reencode`: record files, episodes of robots, or their videos in another format."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from bushel._src.base import redact
from bushel._src.base.shown_text import Progress, Written
from bushel._src.cli.parser import Commands, add_storage_option, parse_setting


def add_reencode(commands: Commands) -> None:
    """Add the parser of `bushel reencode`."""
    parser = commands.add_parser(
        "reencode",
        help="writes a LeRobot data set again, with its videos encoded anew",
        description="Copies a LeRobot folder and encodes its videos anew, for example with more key frames, so that "
        "single frames are read faster. A run that was killed is continued by the same command.",
    )
    parser.add_argument("source", help="the folder of the data set")
    parser.add_argument("target", help="the new folder")
    add_video_options(parser)
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--no-verify", action="store_true", help="do not decode what was written")
    add_storage_option(parser, "of the store of the source")
    parser.add_argument(
        "--target-storage-option",
        action="append",
        metavar="NAME=VALUE",
        help="of the store where the target lies (default: those of --storage-option)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_reencode)


def add_video_options(group: Any, without: str = "") -> None:
    """Add the options of videos that are written; `without` says what `--codec none` means, where it may be given."""
    codecs = ("h264", "hevc", "av1", *(("none",) if without else ()))
    more = f"; {without}" if without else ""
    group.add_argument("--codec", default="h264", choices=codecs, help=f"of videos (default: h264{more})")
    group.add_argument(
        "--key-frame-interval", type=int, default=2, metavar="N", help="a key frame every N frames (default: 2)"
    )
    group.add_argument("--crf", type=int, default=30, help="the quality of videos; smaller is better (default: 30)")


def _reencode(options: argparse.Namespace) -> int:
    from bushel._src.trajectory.episode_conversion import reencode_videos

    settings, given = dict(map(parse_setting, options.storage_option)), options.target_storage_option
    written = reencode_videos(
        options.source,
        options.target,
        codec=options.codec,
        key_frame_interval=options.key_frame_interval,
        crf=options.crf,
        workers=options.workers,
        verify=not options.no_verify,
        storage_options=settings,
        target_storage_options=settings if given is None else dict(map(parse_setting, given)),
        progress=not options.quiet,
    )
    print(f"{written.elements:,} videos in {redact.show(options.target)}")
    return 0


EPISODE_FORMATS = ("rlds", "lerobot")
"""The formats of episodes, which `convert_episodes` writes. The others are written by `bushel.sources.convert`."""


def add_convert(commands: Commands) -> None:
    """Add the parser of `bushel convert`."""
    parser = commands.add_parser(
        "convert",
        help="converts record files, or episodes of robots, to another format",
        description="Converts between ArrayRecord, TFRecord, Bagz and Parquet; the names say which. Text files are "
        "read line by line. Rows of Parquet files become tf.train.Example records, unless `record` is the only column. "
        "With --to rlds or --to lerobot, converts a data set of robot episodes to RLDS or LeRobot v3; a run that was "
        "killed is continued by the same command.",
    )
    parser.add_argument("source", nargs="+", help="files, patterns or URLs; of episodes, one data set")
    parser.add_argument(
        "target",
        help="the file to make, for example train.array_record or s3://bucket/train.bagz; of episodes, a folder",
    )
    parser.add_argument(
        "--from", dest="source_format", metavar="FORMAT", help="the format to read, if the names do not show it"
    )
    parser.add_argument(
        "--to",
        dest="format",
        metavar="FORMAT",
        help="the format to write, if the name of the target does not show it; rlds or lerobot for episodes of robots",
    )
    parser.add_argument(
        "--shards", type=int, help="how many files to make (default: one; of episodes, one for each 50,000 frames)"
    )
    parser.add_argument(
        "--workers", type=int, help="processes (default: one per core, at most one per file), or actors"
    )
    parser.add_argument("--no-verify", action="store_true", help="do not read back what was written")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    parser.add_argument("--round-floats", action="store_true", help="float64 columns of Parquet files become float32")
    add_storage_option(parser, "of the store of the sources")
    parser.add_argument(
        "--target-storage-option",
        action="append",
        metavar="NAME=VALUE",
        help="of the store where the target lies (default: those of --storage-option)",
    )
    parser.add_argument(
        "--ray", action="store_true", help="write the shards on a Ray cluster: see docs/many_machines.md"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_episode_options(parser)
    parser.set_defaults(run=_convert)


def _add_episode_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("episodes of robots")
    group.add_argument("--split", help="only this split of the source, for example train[:10]")
    group.add_argument("--drop", action="append", default=[], metavar="ENTRY", help="leaves out an entry")
    group.add_argument("--state-keys", metavar="A,B", help="entries of the observation that become observation/state")
    group.add_argument(
        "--standardize-fn",
        metavar="MODULE:NAME",
        help="a function that changes each raw trajectory, or STATEMENTS.json",
    )
    group.add_argument("--format-option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    group.add_argument("--file-format", default="tfrecord", choices=("tfrecord", "array_record"), help="of RLDS files")
    group.add_argument("--image-format", default="png", choices=("png", "jpeg"), help="of images in RLDS files")
    group.add_argument("--fps", type=float, help="steps per second, for LeRobot")
    group.add_argument("--task", default="", help="the instruction of steps without one, for LeRobot")
    group.add_argument("--robot-type", help="the name of the robot, for LeRobot")
    add_video_options(group, "none keeps images in the rows of LeRobot files, without loss")


def _convert(options: argparse.Namespace) -> int:
    if options.format in EPISODE_FORMATS:
        return _convert_episodes(options)
    from bushel._src.sources import file_access

    source_options = dict(map(parse_setting, options.storage_option))
    given = options.target_storage_option
    target_storage_options = source_options if given is None else dict(map(parse_setting, given))
    title = f"converting to {redact.base_name(options.target)}"
    with Progress(title, None, unit="records", shown=not options.quiet) as bar:
        made = _choose_converter(options)(
            options.source,
            options.target,
            format=options.format,
            source_format=options.source_format,
            verify=not options.no_verify,
            overwrite=options.overwrite,
            round_floats=options.round_floats,
            storage_options=source_options,
            target_storage_options=target_storage_options,
            progress=bar.show,
        )
    size = sum(file_access.open_file(path, target_storage_options).size for path in made.files)
    print(f"{made.elements:,} records, {size / 1e6:,.1f} MB in {_count_files(made)}")
    return 0


def _choose_converter(options: argparse.Namespace) -> Callable[..., Written]:
    """Return what converts: processes of this machine, or actors of a Ray cluster."""
    if not options.ray:
        from bushel._src.sources.conversion import convert

        return functools.partial(
            convert, shards=1 if options.shards is None else options.shards, workers=options.workers
        )
    from bushel._src.datasets import cluster_jobs as ray

    actors = ray.RayOptions(num_workers=options.workers)
    return functools.partial(ray.convert, shards=_count_shards(options), workers=actors)


def _count_shards(options: argparse.Namespace) -> int:
    """Return how many files a cluster writes."""
    shards = options.shards or options.workers
    if shards is None:
        raise ValueError("--ray needs --shards: an actor writes one shard at a time, so make more shards than actors.")
    return shards


def _open_cluster(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Return a block whose jobs run on a cluster, if the user asks for it."""
    if not options.ray:
        return contextlib.nullcontext()
    from bushel._src.datasets import cluster_jobs as ray

    return ray.jobs_on_cluster(ray.RayOptions(num_workers=options.workers))


def _convert_episodes(options: argparse.Namespace) -> int:
    from bushel._src.trajectory.episode_conversion import convert_episodes
    from bushel._src.trajectory.standardization_steps import read_standardization

    if len(options.source) != 1:
        raise ValueError(f"--to {options.format} takes one data set, got {len(options.source)} sources.")
    source_options = dict(map(parse_setting, options.storage_option))
    given = options.target_storage_option
    run = functools.partial(
        convert_episodes,
        options.source[0],
        options.target,
        format=options.format,
        source_format=options.source_format,
        split=options.split,
        standardize_fn=read_standardization(options.standardize_fn) if options.standardize_fn else None,
        drop=options.drop,
        state_keys=options.state_keys.split(",") if options.state_keys else (),
        fps=options.fps,
        task=options.task,
        robot_type=options.robot_type,
        codec=None if options.codec == "none" else options.codec,
        key_frame_interval=options.key_frame_interval,
        crf=options.crf,
        file_format=options.file_format,
        image_format=options.image_format,
        shards=_count_shards(options) if options.ray else options.shards,
        workers=options.workers,
        verify=not options.no_verify,
        overwrite=options.overwrite,
        storage_options=source_options,
        target_storage_options=source_options if given is None else dict(map(parse_setting, given)),
        format_options=dict(map(parse_setting, options.format_option)),
        progress=not options.quiet,
    )
    with _open_cluster(options):
        done = run()
    left_out = f"; {done.skipped:,} episodes without steps are left out" if done.skipped else ""
    print(f"{done.elements:,} episodes in {_count_files(done)} in {redact.show(done.path)}{left_out}")
    return 0


def _count_files(written: Written) -> str:
    return f"{len(written.files):,} {'file' if len(written.files) == 1 else 'files'}"
