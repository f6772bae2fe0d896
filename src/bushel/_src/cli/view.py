"""`bushel view`: data in the browser."""

from __future__ import annotations

import argparse
import contextlib

from bushel._src.base.progress import on_progress
from bushel._src.cli.parser import Commands, add_storage_option, parse_setting


def add_view(commands: Commands) -> None:
    """Add the parser of `bushel view`."""
    parser = commands.add_parser(
        "view",
        help="shows data, or a running program, in the browser",
        description="Serves a page that shows the elements of a pipeline, a file or a robot data set, and where the "
        "time of a running program goes.",
    )
    parser.add_argument(
        "target", nargs="?", help="train.py:make_dataset, module:ds, or a file, folder or URL that Bushel can read"
    )
    parser.add_argument(
        "--attach",
        metavar="URL|FILE",
        help="also shows a running program: the url of bushel.serve_report(it), or a profile of bushel bench",
    )
    parser.add_argument("--checkpoint", metavar="PATH", help="a state or a checkpoint: the page opens there")
    parser.add_argument("--training-step", type=int, metavar="N", help="opens what the model saw at step N of training")
    parser.add_argument("--split", help="of a TFDS or robot data set")
    parser.add_argument("--index", type=int, metavar="N", help="the element that the page opens with")
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json that decodes rows of tokens")
    add_storage_option(parser)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=0, help="the port (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "--rerun", nargs="?", const="", metavar="FILE", help="writes robot data to FILE.rrd for Rerun; serves no page"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="with --rerun: how many elements, from --index on")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_view)


def _view(options: argparse.Namespace) -> int:
    from bushel._src.view.show_page import run

    with on_progress(None) if options.quiet else contextlib.nullcontext():
        return run(options, dict(map(parse_setting, options.storage_option)))
