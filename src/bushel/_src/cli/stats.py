"""`bushel stats`: statistics of a data set."""

from __future__ import annotations

import argparse
import json

from bushel._src.cli.parser import Commands, add_storage_option, parse_setting


def add_stats(commands: Commands) -> None:
    """Adds the parser of `bushel stats`."""
    parser = commands.add_parser(
        "stats",
        help="computes statistics of a data set",
        description="Computes mean, standard deviation, extremes and quantiles of each entry of a data set, and the "
        "share of numbers that are no padding where rows are packed or padded. Of a robot data set, computes what "
        "training needs to normalize actions and proprioception. With OUTPUT, writes a JSON file; otherwise prints a "
        "table.",
    )
    parser.add_argument("target", help="a file, a folder or a URL; or train.py:make_dataset, module:ds")
    parser.add_argument("output", nargs="?", help="the JSON file to write")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N elements")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes (default: none)")
    parser.add_argument("--split", help="of a TFDS or robot data set")
    add_storage_option(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    group = parser.add_argument_group("episodes of robots")
    group.add_argument("--standardize-fn", metavar="MODULE:NAME", help="a function that changes each raw trajectory")
    group.add_argument(
        "--key", action="append", metavar="NAME", help="an entry of the observation (default: all vectors)"
    )
    parser.set_defaults(run=_stats)


def _stats(options: argparse.Namespace) -> int:
    from bushel._src.inspection.statistics import measure_target, show_table
    from bushel._src.trajectory.statistics import save_statistics
    from bushel._src.view.targets import load_target

    settings = dict(map(parse_setting, options.storage_option))
    found = measure_target(
        load_target(options.target, split=options.split, storage_options=settings, arguments=options.script_arguments),
        limit=options.limit,
        workers=options.workers,
        split=options.split,
        standardize_fn=options.standardize_fn,
        keys=options.key,
        progress=not options.quiet,
    )
    if options.output is not None:
        save_statistics(options.output, found)
    print(json.dumps(found, indent=2, default=lambda value: value.tolist()) if options.json else show_table(found))
    return 0
