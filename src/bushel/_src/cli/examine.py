"""`bushel view`, `inspect`, `stats`, `bench` and `report`: what is in data, and how fast a pipeline is."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from bushel._src.base.shown_text import on_progress
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


def add_inspect(commands: Commands) -> None:
    """Add the parser of `bushel inspect`."""
    parser = commands.add_parser(
        "inspect",
        help="shows what is in a file, a folder or a pipeline",
        description="Prints the format, the number of records, sizes, entries with their types, splits and checksums; "
        "of robot data sets the episodes, their lengths, rates and instructions; of a pipeline its steps. Only "
        "metadata and a few records are read, unless --scan is given. The exit code is 1 if something is damaged.",
    )
    parser.add_argument("target", help="a file, a pattern, a folder or a URL; or train.py:make_dataset, module:ds")
    parser.add_argument("--scan", action="store_true", help="read all of it: counts, checksums, each damaged record")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_storage_option(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    from bushel._src.inspection.facts import describe
    from bushel._src.inspection.inspector import inspect_target

    settings = dict(map(parse_setting, options.storage_option))
    with on_progress(None) if options.quiet else contextlib.nullcontext():
        facts = inspect_target(
            options.target, storage_options=settings, scan=options.scan, arguments=options.script_arguments
        )
    print(json.dumps(facts.as_json(), indent=2) if options.json else describe(facts), end="\n" if options.json else "")
    return 1 if facts.damage else 0


def add_stats(commands: Commands) -> None:
    """Add the parser of `bushel stats`."""
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
    from bushel._src.trajectory.dataset_statistics import save_statistics
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


def add_bench(commands: Commands) -> None:
    """Add the parser of `bushel bench`."""
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


if TYPE_CHECKING:
    from bushel._src.inspection.html_report import Picture


def add_report(commands: Commands) -> None:
    """Add the parser of `bushel report`."""
    parser = commands.add_parser(
        "report",
        help="saves what is known of a data set, or of a run, as one HTML file",
        description="Writes one HTML file with tables and plots, which needs nothing else to be shown. TARGET is a "
        "data set or a pipeline, the profile of bushel bench, or the address of a running program "
        "(bushel.serve_report).",
    )
    parser.add_argument("target", help="a file, a folder, train.py:make_dataset, a profile, or an address")
    parser.add_argument("output", nargs="?", default="report.html", help="the file to write (default: report.html)")
    parser.add_argument("--scan", action="store_true", help="read all of it: counts, checksums, each damaged record")
    parser.add_argument("--stats", action="store_true", help="with statistics of all elements")
    parser.add_argument("--bench", action="store_true", help="with measured runs of the pipeline")
    parser.add_argument(
        "--pictures",
        type=int,
        default=8,
        metavar="N",
        help="how many elements to show, if they have pictures (default: 8)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="the time of each measured run (default: 3)")
    parser.add_argument("--limit", type=int, metavar="N", help="statistics of the first N elements only")
    parser.add_argument("--split", help="of a TFDS or robot data set")
    add_storage_option(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from bushel._src.inspection import html_report
    from bushel._src.inspection.benchmark import measure_pipeline
    from bushel._src.inspection.inspector import inspect_pipeline, inspect_target
    from bushel._src.inspection.statistics import measure_target
    from bushel._src.view.attachment import Attachment
    from bushel._src.view.scripts import is_python_target, show_target
    from bushel._src.view.targets import as_dataset, load_target

    settings = dict(map(parse_setting, options.storage_option))
    snapshot = facts = statistics = benchmark = None
    pictures: list[Picture] = []
    if html_report.is_snapshot(options.target):
        snapshot = Attachment(options.target).read()
    else:
        arguments = options.script_arguments
        given = None
        if is_python_target(options.target) or arguments:  # a script runs once, for all parts of the report
            given = load_target(options.target, split=options.split, storage_options=settings, arguments=arguments)
            facts = inspect_pipeline(given, show_target(options.target, arguments))
        else:
            facts = inspect_target(options.target, storage_options=settings, scan=options.scan)
        pictures = _take_pictures(options, given, settings) if options.pictures > 0 else []
        if options.stats or options.bench:
            if given is None:
                given = load_target(options.target, split=options.split, storage_options=settings)
            shown = not options.quiet
            if options.stats:
                statistics = measure_target(given, limit=options.limit, split=options.split, progress=shown)
            if options.bench:
                dataset = as_dataset(given, options.split)
                benchmark = measure_pipeline(dataset, facts.target, seconds=options.seconds, progress=shown)
    page = html_report.build_page(
        facts, statistics=statistics, benchmark=benchmark, snapshot=snapshot, pictures=pictures
    )
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(page)
    print(f"{options.output}: {os.path.getsize(options.output) / 1e3:,.0f} KB")
    return 0


def _take_pictures(options: argparse.Namespace, given: Any, settings: dict[str, Any]) -> list[Picture]:
    """Return pictures of some elements.

    What keeps them from being read is in the report anyway: it is no error here.
    """
    from bushel._src.inspection.file_facts import READ_ERRORS
    from bushel._src.inspection.html_report import take_pictures
    from bushel._src.view.session import Session
    from bushel._src.view.targets import as_dataset, load_target

    try:
        if given is None:
            given = load_target(options.target, split=options.split, storage_options=settings)
        with contextlib.closing(Session(as_dataset(given, options.split))) as session:
            return take_pictures(session, options.pictures)
    except (*READ_ERRORS, ImportError, TypeError):
        return []
