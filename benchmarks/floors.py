"""CPU time of works that run in one process, beside their floor, Grain, and an older version of Bushel.

    python -m benchmarks.floors                                  # this version, Grain, and the floors
    python -m benchmarks.floors --base /path/to/old/checkout     # an older version beside it
    python -m benchmarks.floors --only w1b w2 --repetitions 9

The floor of a work is the user's own code alone: reading the records and calling the functions. Each version of Bushel
runs in a process of its own, since only one can be imported. The processes take turns within a repetition, and CPU time
is measured. So the ratios also hold on a machine that is busy with other things. Outputs are compared before anything
is timed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.modules["prometheus_client"] = None  # type: ignore[assignment]  # with it Grain would count every element

import numpy as np

from benchmarks import building, images, lifecycle, packing, records, trajectories
from benchmarks.libraries import BUSHEL, GRAIN, exhaust, forget_epoch_tables, machine, read_inline

ROOT = Path(__file__).parents[1]
TIMING_S = 0.15
"""How long one timing lasts at least."""

Run = Callable[[], int]
"""One pass, which returns how many elements it went through."""

Output = Callable[[], Iterable[Any]]
"""The elements of a work, to be compared."""

Work = dict[str, tuple[Run, Output | None]]
"""Who does it: "bushel", "grain" or "floor"; a pass, and the output where it can be compared."""


def _pass_of(build: Callable[[], Any], elements: int) -> Run:
    def run() -> int:
        forget_epoch_tables()
        exhaust(build())
        return elements

    return run


def _images(by_column: bool, on_batches: bool) -> Work:
    arrays = images.make_images(images.RECORDS)
    source = images.Images(arrays)

    def stream(library: Any) -> Any:
        ours = by_column and library is BUSHEL
        ds = library.MapDataset.source(BUSHEL.sources.ArrayDataSource(arrays) if ours else source).seed(0).shuffle()
        ds = (
            ds.batch(images.BATCH).map(images.normalise) if on_batches else ds.map(images.normalise).batch(images.BATCH)
        )
        return ds.to_iter_dataset(read_inline(library))

    def order() -> list[int]:
        return np.random.default_rng(0).permutation(len(source)).tolist()

    def read_and_call() -> int:
        for index in order():
            images.normalise(source[index])
        return len(source)

    def read_and_stack() -> int:
        """The records one by one, into arrays, and f on each batch."""
        indices = order()
        for start in range(0, len(indices), images.BATCH):
            rows = [source[index] for index in indices[start : start + images.BATCH]]
            images.normalise({name: np.array([row[name] for row in rows]) for name in arrays})
        return len(source)

    def gather() -> int:
        chosen = np.random.default_rng(0).permutation(len(source))
        for start in range(0, len(chosen), images.BATCH):
            part = chosen[start : start + images.BATCH]
            images.normalise({name: array[part] for name, array in arrays.items()})
        return len(source)

    floor = (gather if by_column else read_and_stack) if on_batches else read_and_call
    return {
        **{
            name: (
                _pass_of(lambda library=library: stream(library), len(source)),
                lambda library=library: stream(library),
            )
            for name, library in (("bushel", BUSHEL), ("grain", GRAIN))
        },
        "floor": (floor, None),
    }


def _records() -> Work:
    rows = records.make_records(records.RECORDS)

    def stream(library: Any) -> Any:
        ds = library.MapDataset.source(rows)
        for function in records.MAPS:
            ds = ds.map(function)
        return ds.filter(records.keep).to_iter_dataset(read_inline(library)).batch(records.BATCH)

    def calls_alone() -> int:
        for record in rows:
            for function in records.MAPS:
                record = function(record)
            records.keep(record)
        return len(rows)

    return {
        **{
            name: (
                _pass_of(lambda library=library: stream(library), len(rows)),
                lambda library=library: stream(library),
            )
            for name, library in (("bushel", BUSHEL), ("grain", GRAIN))
        },
        "floor": (calls_alone, None),
    }


def _packed(name: str) -> Work:
    source = packing.Tokens(packing.SEQUENCES)

    def sequences(library: Any) -> Any:
        return library.MapDataset.source(source).seed(1).shuffle().to_iter_dataset(read_inline(library))

    def stream(library: Any) -> Any:
        more = {} if name.startswith("Concat") else {"num_packing_bins": packing.BINS}
        packer = getattr(library.experimental, name)
        return packer(sequences(library), length_struct={"tokens": packing.LENGTH}, **more).batch(packing.BATCH)

    rows = sum(len(batch["tokens"]) for batch in stream(BUSHEL))
    return {
        **{
            name: (_pass_of(lambda library=library: stream(library), rows), lambda library=library: stream(library))
            for name, library in (("bushel", BUSHEL), ("grain", GRAIN))
        },
        "floor": (_pass_of(lambda: sequences(BUSHEL), rows), None),
    }


def _times(count: int, action: Callable[[], Any]) -> Run:
    def run() -> int:
        for _ in range(count):
            action()
        return count

    return run


def _opening() -> Work:
    made = {name: building.build(library) for name, library in (("bushel", BUSHEL), ("grain", GRAIN))}
    return {name: (_times(200, lambda ds=ds: iter(ds)), lambda ds=ds: ds) for name, ds in made.items()}


def _first_batch_here() -> Work:
    made = {name: building.build(library) for name, library in (("bushel", BUSHEL), ("grain", GRAIN))}
    return {name: (_times(100, lambda ds=ds: next(iter(ds))), lambda ds=ds: ds) for name, ds in made.items()}


def _states(what: str) -> Work:
    work: Work = {}
    for name, library in (("bushel", BUSHEL), ("grain", GRAIN)):
        dataset = lifecycle._dataset(library)
        iterator = iter(dataset)
        library.experimental.set_next_index(iterator, lifecycle.INDEX)
        state = json.loads(json.dumps(iterator.get_state()))

        def resume(dataset: Any = dataset, state: Any = state) -> Iterator[Any]:
            fresh = iter(dataset)
            fresh.set_state(state)
            return fresh

        actions: dict[str, tuple[int, Callable[[], Any]]] = {
            "get_state": (1_000, iterator.get_state),
            "set_state": (1_000, lambda iterator=iterator, state=state: iterator.set_state(state)),
            "resume": (50, lambda resume=resume: next(resume())),
        }
        work[name] = (_times(*actions[what]), lambda resume=resume: itertools.islice(resume(), 5))
    return work


def _windows(table: bool) -> Work:
    robots = trajectories.make_robots()
    batches = sum(map(len, robots)) // trajectories.BATCH
    ours = trajectories.table_stream(robots) if table else trajectories.opaque_stream(BUSHEL, robots)
    theirs = trajectories.opaque_stream(GRAIN, robots)
    floor = (trajectories.gather_images if table else trajectories.call_class)(robots[0], batches)
    samples = batches * trajectories.BATCH
    return {
        "bushel": (
            _pass_of(lambda: itertools.islice(ours, batches), samples),
            lambda: itertools.islice(ours, 100),
        ),
        # Grain draws another order. `benchmarks.run w5` checks the samples of both one by one.
        "grain": (_pass_of(lambda: itertools.islice(theirs, batches), samples), None),
        "floor": (floor, None),
    }


WORKS: dict[str, Callable[[], Work]] = {
    "w1a": lambda: _images(by_column=True, on_batches=True),
    "w1a-record": lambda: _images(by_column=False, on_batches=True),
    "w1b": lambda: _images(by_column=True, on_batches=False),
    "w1b-record": lambda: _images(by_column=False, on_batches=False),
    "w2": _records,
    "w4-first-fit": lambda: _packed("FirstFitPackIterDataset"),
    "w4-best-fit": lambda: _packed("BestFitPackIterDataset"),
    "w4-concat-split": lambda: _packed("ConcatThenSplitIterDataset"),
    "w5-table": lambda: _windows(table=True),
    "w5-class": lambda: _windows(table=False),
    "open": _opening,
    "first-batch-here": _first_batch_here,
    "get_state": lambda: _states("get_state"),
    "set_state": lambda: _states("set_state"),
    "resume": lambda: _states("resume"),
}

# In a process for one version: answers one line for each line that it reads.


def _serve() -> None:
    works: dict[str, Work] = {}
    for line in sys.stdin:
        verb, name, who = line.split()
        if name not in works:
            works.clear()  # the data of the work before
            gc.collect()
            works[name] = WORKS[name]()
        run, output = works[name][who]
        if verb == "output":
            print("none" if output is None else _digest(output()), flush=True)
        else:
            print(_cpu_s_each(run), flush=True)


def _digest(elements: Iterable[Any]) -> str:
    seen = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                seen.update(key.encode())
                add(value[key])
        elif isinstance(value, np.ndarray):
            seen.update(f"{value.dtype}{value.shape}".encode())
            seen.update(np.ascontiguousarray(value).data)
        else:
            seen.update(repr(value).encode())

    for element in elements:
        add(element)
    return seen.hexdigest()


def _cpu_s_each(run: Run) -> float:
    gc.collect()
    elements, begun = 0, time.process_time()
    while (spent := time.process_time() - begun) < TIMING_S:
        elements += run()
    return spent / elements


class Version:
    """A process that measures with the sources of Bushel in one folder."""

    def __init__(self, folder: Path):
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(ROOT)])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.floors", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
            cwd=ROOT,
        )

    def ask(self, verb: str, name: str, who: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(verb, name, who, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"The process that measures {name} has ended.")
        return answer.strip()

    def close(self) -> None:
        self._process.communicate()


def compare(name: str, versions: dict[str, Version], repetitions: int) -> dict[str, list[float]]:
    """CPU seconds per element of each contender, one entry per repetition."""
    work_of = {"grain": "grain", "floor": "floor", "base": "bushel", "bushel": "bushel"}
    contenders = [(label, versions["base" if label == "base" else "bushel"]) for label in work_of]
    contenders = [(label, version) for label, version in contenders if label != "base" or "base" in versions]
    if name in NO_FLOOR:
        contenders = [(label, version) for label, version in contenders if label != "floor"]
    compared = {label: version.ask("output", name, work_of[label]) for label, version in contenders if label != "floor"}
    if len({digest for digest in compared.values() if digest != "none"}) > 1:
        raise SystemExit(f"{name}: the outputs differ: {compared}")
    for label, version in contenders:
        version.ask("time", name, work_of[label])  # warm-up
    taken: dict[str, list[float]] = {label: [] for label, _ in contenders}
    for repetition in range(repetitions):
        for label, version in reversed(contenders) if repetition % 2 else contenders:
            taken[label].append(float(version.ask("time", name, work_of[label])))
    return taken


NO_FLOOR = {"open", "first-batch-here", "get_state", "set_state", "resume"}


def _ratio(numerator: list[float], denominator: list[float]) -> str:
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}..{max(ratios):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(".")[0])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help="the folder of another checkout of Bushel")
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    if options.serve:
        _serve()
        return
    folders = {"bushel": ROOT, **({} if options.base is None else {"base": options.base.resolve()})}
    versions = {label: Version(folder) for label, folder in folders.items()}
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    print(f"\nCPU microseconds per element, medians of {options.repetitions}; ratios with least and largest.\n")
    print(
        "| work | Grain | floor | base | Bushel | floor / Bushel | floor / base | x Grain | base x Grain "
        "| base / Bushel |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in options.only:
        taken = compare(name, versions, options.repetitions)
        cells = [
            f"{statistics.median(taken[who]) * 1e6:.3g}" if who in taken else ""
            for who in ("grain", "floor", "base", "bushel")
        ]
        pairs = (("floor", "bushel"), ("floor", "base"), ("grain", "bushel"), ("grain", "base"), ("base", "bushel"))
        cells += [_ratio(taken[a], taken[b]) if a in taken and b in taken else "" for a, b in pairs]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for version in versions.values():
        version.close()


if __name__ == "__main__":
    main()
