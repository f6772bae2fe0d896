"""`bushel reencode`: a LeRobot data set with its videos encoded anew."""

from __future__ import annotations

import argparse
from typing import Any

from bushel._src.base import redact
from bushel._src.cli.parser import Commands, add_storage_option, parse_setting


def add_reencode(commands: Commands) -> None:
    """Adds the parser of `bushel reencode`."""
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
    """Adds the options of videos that are written; `without` says what `--codec none` means, where it may be given."""
    codecs = ("h264", "hevc", "av1", *(("none",) if without else ()))
    more = f"; {without}" if without else ""
    group.add_argument("--codec", default="h264", choices=codecs, help=f"of videos (default: h264{more})")
    group.add_argument(
        "--key-frame-interval", type=int, default=2, metavar="N", help="a key frame every N frames (default: 2)"
    )
    group.add_argument("--crf", type=int, default=30, help="the quality of videos; smaller is better (default: 30)")


def _reencode(options: argparse.Namespace) -> int:
    from bushel._src.trajectory.conversion.video_reencoding import reencode_videos

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
