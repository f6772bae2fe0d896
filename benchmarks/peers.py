"""The same six works on what users would pick instead of Bushel: Grain, torch, SPDL, Ray Data, HF datasets, webdataset.

`make bench-peers` makes the venv, runs this and writes results/peers.md. `python -m benchmarks.peers` prints the table,
and `--save NAME` also writes results/NAME.md. A library that is not installed is left out.

Each library runs in a process of its own. All processes of a work live at once and take turns: a turn is one epoch or
several, of at least a fifth of a second. Before that, the output of one whole epoch is compared with what a plain loop
gives. CPU time is that of the process, its threads and all processes that it has started.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import itertools
import json
import math
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.peer_libraries import LIBRARIES
from benchmarks.peer_works import WHAT, Batch, Photos, make_work

ROOT = Path(__file__).parents[1]
TURN_S = 0.2  # a turn takes at least so long
START_LIMIT_S = 120  # for the import, the data and the check
TURNS_LIMIT_S = 15  # for all turns of one library on one work: a slow one has fewer turns
STREAM_BATCHES, STREAM_UNTIMED = 24, 8  # of W3, in one turn
NOTES = """\
- **Bushel** reads W1 from an `ArrayDataSource` and W4 from a `RaggedDataSource`. **Grain** reads single records, and
  without threads (`num_threads=0`), which is its fastest way here. Both have two worker processes in W3 and none
  elsewhere.
- **torch** has no workers but in W3 (two). W1a is its "bulk read", one gather for a batch. A loader over a data set
  with random access has no filter and no packing, so W2 and W4 are an `IterableDataset`; the packer is ours.
- **SPDL** has one thread, and two in W3. Its stages get the indices of a batch; in W2 and W4 they get the records of a
  batch, which a plain generator makes. The packer is ours.
- **Ray Data** has two CPUs. Records lie in its object store, and indices go through the pipeline (in W2 the records).
  It starts tasks for each epoch, which takes most of the time here: it is made for data sets that are larger than one
  machine. It packs 1,000 sequences at a time. An epoch of W3 counts as a whole.
- **HF datasets** has Arrow tables in memory. W1 shuffles the whole table and reads it in batches. W2 and W4 are an
  `IterableDataset`; W4 has a shuffle buffer of 1,000 and packs 1,000 sequences at a time. W3 and W5 are read by torch's
  loader, W5 as LeRobot does it.
- **webdataset** reads tar files from warm memory, with a shuffle buffer of 1,000: so it also reads and unpickles, which
  the others do not. W5 is cut from episodes. W3 has two workers. The packer is ours.
"""


# One library on one work, in its own process.


def serve(label: str, name: str, quick: bool) -> None:
    """Prepare a work, check its output, and run a turn for every line of the standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    try:
        work = make_work(name, quick)
        epochs = Epochs(LIBRARIES[label][1](work), isinstance(work, Photos) and label != "Ray Data")
        work.check(epochs.open())
        passes = epochs.count_passes()
        answer(answers, {"ready": True})
        for _ in sys.stdin:
            answer(answers, epochs.take_turn(passes))
    except Exception as error:
        traceback.print_exc()
        answer(answers, {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]})


def answer(answers: Any, facts: dict[str, Any]) -> None:
    answers.write(json.dumps(facts) + "\n")
    answers.flush()


class Epochs:
    """Epochs of one library, or parts of one endless stream whose workers keep running."""

    def __init__(self, open_epoch: Any, endless: bool):
        self.open_epoch, self.endless = open_epoch, endless
        self.stream: Iterator[Batch] | None = None

    def open(self) -> Iterator[Batch]:
        """The batches of one epoch, or of one part of the stream."""
        if not self.endless:
            return iter(self.open_epoch())
        if self.stream is None:
            self.stream = iter(self.open_epoch())
        return itertools.islice(self.stream, STREAM_BATCHES)

    def count_passes(self) -> int:
        """How many epochs make a turn long enough."""
        start = time.perf_counter()
        count_rows(self.open())
        return 1 if self.endless else max(1, math.ceil(TURN_S / (time.perf_counter() - start)))

    def take_turn(self, passes: int) -> dict[str, float]:
        """Seconds per row, on the wall and of all cores."""
        if self.endless:  # what workers have made ahead does not count
            count_rows(itertools.islice(self.open(), STREAM_UNTIMED))
        gc.collect()
        cpu, wall, rows = get_cpu_s(), time.perf_counter(), 0
        for _ in range(passes):
            rows += count_rows(self.open())
        wall, cpu = time.perf_counter() - wall, get_cpu_s() - cpu
        return {"wall_s": wall / rows, "cpu_s": cpu / rows}


def count_rows(batches: Iterator[Batch]) -> int:
    return sum(len(next(iter(batch.values()))) for batch in batches)


def get_cpu_s() -> float:
    """CPU seconds of this process and of all processes that it has started, also of those that have ended."""
    own = os.times()
    total = time.process_time() + own.children_user + own.children_system
    if not Path("/proc/self/stat").exists():
        return total
    ticks, parents = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    waiting = list(parents.get(os.getpid(), []))
    while waiting:
        process = waiting.pop()
        total += ticks[process] / os.sysconf("SC_CLK_TCK")
        waiting += parents.get(process, [])
    return total


# All libraries on all works, and the table.


class Contender:
    """The process of one library."""

    def __init__(self, label: str, name: str, quick: bool, log: Any):
        command = [sys.executable, "-m", "benchmarks.peers", "--serve", label, name, *(["--quick"] if quick else [])]
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        # One thread for each library: their own pools would measure the number of cores.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        self.label, self.turns, self.error = label, list[dict[str, float]](), ""
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, env=env, text=True, start_new_session=True
        )

    def read(self, limit_s: float) -> dict[str, Any]:
        """The next answer; after an error or too long a time, the contender is out."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        line = self.process.stdout.readline() if ready else ""
        facts = json.loads(line) if line else {"error": "ended" if ready else f"not done after {limit_s:.0f} s"}
        self.error = facts.get("error", "")
        return facts

    def take_turn(self) -> None:
        """One more turn, if there is time left for it."""
        spent = sum(turn["seconds"] for turn in self.turns)
        if self.error or (self.turns and spent + spent / len(self.turns) > TURNS_LIMIT_S):
            return
        start = time.perf_counter()
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        facts = self.read(START_LIMIT_S)
        if not self.error:
            self.turns.append({**facts, "seconds": time.perf_counter() - start})

    def close(self) -> None:
        """End the process, and kill what it leaves behind: workers of some libraries outlive it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def measure(name: str, labels: list[str], repetitions: int, quick: bool, bar: Any, log: Any) -> list[Contender]:
    """All libraries on one work, in turns."""
    contenders: list[Contender] = []
    try:
        for label in labels:  # one after another: a check beside another one would take twice as long
            bar.set_description(f"{name}, {label}: start and check")
            contenders.append(Contender(label, name, quick, log))
            contenders[-1].read(START_LIMIT_S)
            bar.update()
        for repetition in range(repetitions):
            for contender in reversed(contenders) if repetition % 2 else contenders:
                bar.set_description(f"{name}, {contender.label}: turn {repetition + 1}")
                contender.take_turn()
                bar.update()
    finally:
        for contender in contenders:
            contender.close()
    return contenders


def report(works: list[str], packages: list[str], repetitions: int, quick: bool, log_path: str) -> str:
    """The table in Markdown, with what it was measured on."""
    labels = [label for label, (package, _) in LIBRARIES.items() if package in packages]
    start, lines, errors = time.perf_counter(), [], []
    with (
        open(log_path, "w", encoding="utf-8") as log,
        tqdm(total=len(works) * len(labels) * (repetitions + 1), unit="step") as bar,
    ):
        for name in works:
            contenders = measure(name, labels, repetitions, quick, bar, log)
            errors += [f"- {name}, {each.label}: {each.error}" for each in contenders if each.error]
            figures = [get_medians(each) for each in contenders]
            best = [min((each[place] for each in figures if each), default=0.0) for place in (0, 1)]
            cells = [show(each, best) for each in figures]
            lines.append(f"| {name}: {WHAT[name]} | " + " | ".join(cells) + " |")
    versions = [f"{label} {find_version(LIBRARIES[label][0])}" for label in labels]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    head = [
        "# Six works on seven libraries",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} cores (load {load}), "
        f"Python {platform.python_version()}, {time.perf_counter() - start:.0f} s; {', '.join(versions)}.",
        "",
        f"Microseconds per record (W2: per record that is kept, W4: per row): CPU time / time on the wall, medians of "
        f"{repetitions} turns, or of as many as took {TURNS_LIMIT_S} s. Less is better; bold is the least of a row.",
        *(["", "**A quick run: it shows that everything works, the numbers are not to be quoted.**"] if quick else []),
        "",
        "| work | " + " | ".join(labels) + " |",
        "| --- |" + " ---: |" * len(labels),
    ]
    return "\n".join([*head, *lines, "", *errors, *([""] if errors else []), NOTES])


def get_medians(contender: Contender) -> tuple[float, float] | None:
    if not contender.turns or contender.error:
        return None
    return tuple(statistics.median(turn[name] for turn in contender.turns) for name in ("cpu_s", "wall_s"))  # type: ignore[return-value]


def show(figures: tuple[float, float] | None, best: list[float]) -> str:
    if figures is None:
        return "failed"
    texts = [f"{value * 1e6:.0f}" if value >= 1e-4 else f"{value * 1e6:.3g}" for value in figures]
    return " / ".join(f"**{text}**" if value == least else text for text, value, least in zip(texts, figures, best))


def find_version(package: str) -> str:
    try:
        return version(package)
    except Exception:  # a package that is read from its source folder has no version
        return "(source)"


def main() -> None:
    """Measures all works with all installed libraries."""
    installed = [package for package, _ in LIBRARIES.values() if importlib.util.find_spec(package)]
    description = "The same six works on Bushel and on the libraries that users would pick instead."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=description)
    parser.add_argument("--serve", nargs=2, metavar=("LIBRARY", "WORK"), help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=list(WHAT), metavar="WORK", help=f"some of: {', '.join(WHAT)}")
    parser.add_argument("--libraries", nargs="+", choices=installed, default=installed, metavar="PACKAGE")
    parser.add_argument("--repetitions", type=int, default=5, help="how many turns each library takes (5)")
    parser.add_argument("--quick", action="store_true", help="little data, two turns: only to see that it works")
    parser.add_argument("--log", metavar="FILE", default=os.devnull, help="where the libraries print their messages")
    parser.add_argument("--save", metavar="NAME", help="write benchmarks/results/NAME.md")
    options = parser.parse_args()
    if options.serve:
        label, work = options.serve
        serve(label, work, options.quick)
        return
    repetitions = min(options.repetitions, 2) if options.quick else options.repetitions
    text = report(options.only or list(WHAT), options.libraries, repetitions, options.quick, options.log)
    print(text)
    if options.save:
        (ROOT / "benchmarks" / "results" / f"{options.save}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
