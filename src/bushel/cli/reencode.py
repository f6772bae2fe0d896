"""`bushel reencode`: a LeRobot data set with its videos encoded anew."""

from __future__ import annotations

import argparse
from typing import Any

from bushel.base import redact
from bushel.cli.parser import Commands


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
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_reencode)


def add_video_options(group: Any) -> None:
    """Adds the options of videos that are written."""
    group.add_argument("--codec", default="h264", choices=("h264", "hevc", "av1"), help="of videos (default: h264)")
    group.add_argument("--key-frames", type=int, default=2, metavar="N", help="a key frame every N frames (default: 2)")
    group.add_argument("--crf", type=int, default=30, help="the quality of videos; smaller is better (default: 30)")


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
