"""The one command: `python -m benchmarks.run`. Runs the workloads and prints one table; writes only with --save.

It exits with 1 if a target is missed, if a workload fails, or if a row is slower than in a kept table (--check). A
workload that fails is named below the table, and the others run. A quick run judges no speed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import readme_table
from benchmarks.libraries import machine, refuse_monitoring
from benchmarks.measure import OutputsDiffer, Row, Settings

RESULTS = Path(__file__).parent / "results"
HEADINGS = ("workload", "contender", "Grain", "contender's", "ratio [min..max]", "CPU ratio", "target", "met?", "note")


def main() -> int:
    refuse_monitoring()
    from benchmarks import (
        access,
        building,
        columns,
        files,
        images,
        indices,
        jpeg,
        lifecycle,
        loader,
        packing,
        records,
        trajectories,
        workers,
    )

    workloads = {
        "w1a": images.w1a,
        "w1b": images.w1b,
        "w2": records.w2,
        "ra": access.ra,
        "index": indices.index,
        "mix": indices.mix,
        "w4-pack": columns.w4_pack,
        "mix-3": columns.mix_of_three,
        "import": lifecycle.importing,
        "state": lifecycle.state,
        "building": building.building,
        "w4": packing.w4,
        "windows": packing.windows,
        "w5": trajectories.w5,
        "interleave": packing.interleave,
        "w6": workers.w6,
        "w2-workers": workers.w2_workers,
        "w1-workers": workers.w1_workers,
        "w3": jpeg.w3,
        "first-batch": workers.first_batch,
        "memory": workers.memory,
        "array-record": files.array_record_single,
        "array-record-batches": files.array_record_batches,
        "tfrecord": files.tfrecord_in_order,
        "blocks": files.block_reads,
        "remote": files.remote,
        "w1-loader": loader.w1_loader,
        "w1-loader-workers": loader.w1_loader_workers,
    }
    options = _options(list(workloads))
    settings = Settings(repetitions=options.repetitions or 7)
    if options.quick:
        settings = Settings(repetitions=options.repetitions or 2, base_s=0.02, other_s=0.01, quick=True)
    warnings.filterwarnings("ignore", "This shuffled dataset was read to its end before")  # as each pass does
    kept = None if options.check is None else _kept_ratios(options.check)  # before the run, which takes long
    begun, where = time.perf_counter(), machine()
    chosen = {name: workloads[name] for name in options.only or workloads}
    rows, failures, seconds = run_workloads(chosen, settings)
    where["load_average_after"] = machine()["load_average"]
    where["seconds"] = round(time.perf_counter() - begun)
    text = report(rows, settings, where, failures)
    print(text)
    slower = [] if kept is None else slower_than_kept(rows, kept, options.band)
    print("".join(f"SLOWER: {line}\n" for line in slower), end="")
    if options.save:
        _save(options.save, text, rows, settings, {**where, "seconds_of_workloads": seconds})
    if options.readme:
        readme_table.write_table([dataclasses.asdict(row) for row in rows])
    return exit_code(rows, slower, settings, failures)


def run_workloads(
    workloads: Mapping[str, Callable[[Settings], list[Row]]], settings: Settings
) -> tuple[list[Row], list[str], dict[str, int]]:
    """The rows of all workloads, a sentence for each one that failed, and how many seconds each took."""
    rows: list[Row] = []
    failures: list[str] = []
    seconds: dict[str, int] = {}
    for name, run in workloads.items():
        print(f"{name} ...", end="", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        try:
            rows += run(settings)
        except OutputsDiffer as error:
            failures.append(f"{name}: Grain and Bushel do not give the same output, so no times are shown. {error}")
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{name}: {type(error).__name__}: {error}")
        seconds[name] = round(time.perf_counter() - begun)
        print(f" {seconds[name]} s", file=sys.stderr, flush=True)
    return rows, failures, seconds


def exit_code(rows: list[Row], slower: list[str], settings: Settings, failures: Sequence[str] = ()) -> int:
    """1 where a workload failed, a target is missed or a row is slower than it was; a quick run judges no speed."""
    missed = any(row.met is False for row in rows)
    return int(bool(failures) or ((missed or bool(slower)) and not settings.quick))


def slower_than_kept(rows: list[Row], kept: dict[tuple[str, str], float], band: float) -> list[str]:
    """A sentence for each row of Bushel whose ratio is below the kept one by more than `band`, a share."""
    sentences = []
    for row in rows:
        before = kept.get((row.workload, row.contender))
        if before is not None and row.contender.startswith("bushel") and row.ratio < before * (1 - band):
            sentences.append(
                f"{row.workload}, {row.contender}: {row.ratio:.2f} x Grain, and {before:.2f} x in the kept table; "
                f"the band is {band:.0%}."
            )
    return sentences


def _kept_ratios(name: str) -> dict[tuple[str, str], float]:
    try:
        kept = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SystemExit(f"--check {name}: there is no {RESULTS / name}.json. Write one with --save {name}.") from None
    return {(row["workload"], row["contender"]): row["ratio"] for row in kept["rows"]}


def report(rows: list[Row], settings: Settings, where: dict[str, Any], failures: Sequence[str] = ()) -> str:
    """The table in markdown, what it was measured on, which targets were missed, and which workloads failed."""
    lines = [", ".join(f"{name} {value}" for name, value in where.items()), ""]
    lines.append(
        f"{settings.repetitions} repetitions. Times are per element, on the wall; ratio above 1: faster than Grain."
    )
    if settings.quick or settings.repetitions < 5:
        lines.append("**A short run: it shows that everything works, the numbers are not to be quoted.**")
    cells = [_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *cells)]
    lines += ["", _line(HEADINGS, widths), _line(["-" * width for width in widths], widths)]
    lines += [_line(row, widths) for row in cells]
    missed = [row for row in rows if row.met is False]
    with_target = [row for row in rows if row.target is not None]
    lines += ["", f"Targets met: {len(with_target) - len(missed)} of {len(with_target)}."]
    lines += [f"MISSED: {row.workload}: {row.ratio:.2f} x Grain, the target is {row.target:g} x." for row in missed]
    lines += [f"FAILED: {failure}" for failure in failures]
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    return [
        row.workload,
        row.contender,
        _duration(row.grain_s),
        _duration(row.contender_s),
        f"{_number(row.ratio)} [{_number(row.ratio_min)}..{_number(row.ratio_max)}]",
        _number(row.cpu_ratio),
        "" if row.target is None else f"{row.target:g}",
        {None: "", True: "yes", False: "NO"}[row.met],
        row.note,
    ]


def _line(cells: Any, widths: list[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{_number(seconds / size)} {unit}"
    return f"{_number(seconds / 1e-9)} ns"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


HEAD = """\
# Bushel beside Grain

{date}, `make bench`.

A ratio above 1 means that Bushel is faster; a row named "floor" or "plain loop" shows what is left to gain. Only rows
with a target are claims. [The README of the benchmarks](../README.md#reading-the-table) says what each workload does,
and what is not the same on both sides.

"""


def _save(name: str, text: str, rows: list[Row], settings: Settings, where: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    found = {
        "machine": where,
        "settings": dataclasses.asdict(settings),
        "rows": [{**dataclasses.asdict(row), "met": row.met} for row in rows],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(f"{HEAD.format(date=time.strftime('%Y-%m-%d'))}{text}\n")


def _options(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Bushel against Grain, in turns.")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"some of: {', '.join(names)}")
    parser.add_argument("--repetitions", type=int, metavar="N", help="how often each timing is taken (7; quick: 2)")
    parser.add_argument("--quick", action="store_true", help="little data, short timings: only to see that it works")
    parser.add_argument("--save", metavar="NAME", help="write benchmarks/results/NAME.json and NAME.md")
    parser.add_argument("--readme", action="store_true", help="write the table of README.md")
    parser.add_argument("--check", metavar="NAME", help="compare with benchmarks/results/NAME.json")
    parser.add_argument("--band", type=float, default=0.25, help="with --check: by which share a row may be slower")
    options = parser.parse_args()
    if options.readme and (options.only or options.quick):
        parser.error("--readme needs a whole run: leave out --only and --quick.")
    if not 0 <= options.band < 1:
        parser.error(f"--band is a share between 0 and 1, got {options.band}.")
    if options.repetitions is not None and options.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {options.repetitions}.")
    return options


if __name__ == "__main__":
    sys.exit(main())
