"""`bushel bench`: how fast a pipeline is."""

from __future__ import annotations

import argparse
import json

from bushel._src.cli.parser import Commands, add_storage_option, parse_setting


def add_bench(commands: Commands) -> None:
    """Adds the parser of `bushel bench`."""
    parser = commands.add_parser(
        "bench",
        help="measures how fast a pipeline is, and with how many workers",
        description="Runs a pipeline with several numbers of workers, and nothing else, for some seconds each. Prints "
        "the elements per second, the best number of workers and where the time goes. The best number is the smallest "
        "one with at least 95 % of the highest rate.",
    )
    parser.add_argument("target", help="train.py:make_dataset, module:ds, or a file or folder that Bushel can read")
    parser.add_argument("--seconds", type=float, default=3.0, help="the time of each run (default: 3)")
    parser.add_argument("--workers", metavar="A,B,...", help="the numbers of workers (default: 0,1,2,4 ... cores)")
    parser.add_argument("--profile", metavar="FILE", help="writes where the time went: bushel view --attach FILE")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--split", help="of a TFDS or robot data set")
    add_storage_option(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    from bushel._src.inspection.benchmark import measure_pipeline
    from bushel._src.view.scripts import show_target
    from bushel._src.view.targets import as_dataset, load_target

    try:
        numbers = [int(number) for number in options.workers.split(",")] if options.workers else None
    except ValueError:
        raise ValueError(f"--workers takes numbers such as 0,2,4; got {options.workers!r}.") from None
    settings, arguments = dict(map(parse_setting, options.storage_option)), options.script_arguments
    given = load_target(options.target, split=options.split, storage_options=settings, arguments=arguments)
    found = measure_pipeline(
        as_dataset(given, options.split),
        show_target(options.target, arguments),
        seconds=options.seconds,
        workers=numbers,
        progress=not options.quiet,
    )
    if options.profile is not None:
        with open(options.profile, "w", encoding="utf-8") as file:
            json.dump(found.profile, file)
    print(json.dumps(found.as_json(), indent=2) if options.json else found)
    return 0
