"""The table of speed of README.md, from results/all.json. `python -m benchmarks.readme_table` writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
KEPT = ROOT / "benchmarks" / "results" / "all.json"
START, END = "<!-- This table is written by `make bench`. -->\n\n", "\n<!-- end of the table -->\n"
OWN_SOURCE = "bushel, Grain's source"


class Figures:
    """What one run of the benchmarks gave, as texts for the table. A part that did not run is a dash."""

    def __init__(self, rows: list[dict[str, Any]]):
        self.rows = {(row["workload"], row["contender"]): row for row in rows}

    def get_ratios(self, *workloads: str, contender: str = "bushel") -> list[float]:
        return [row["ratio"] for name in workloads if (row := self.rows.get((name, contender)))]

    def show(self, *workloads: str, contender: str = "bushel") -> str:
        """The ratio of each workload."""
        found = [self.get_ratios(name, contender=contender) for name in workloads]
        return "; ".join(show_number(ratio[0]) if ratio else "-" for ratio in found)

    def show_times(self, workload: str, unit: str, factor: float = 1.0) -> str:
        """Bushel's time (or memory) against Grain's."""
        row = self.rows.get((workload, "bushel"))
        if row is None:
            return "-"
        return " against ".join(f"{show_number(row[name] * factor)} {unit}" for name in ("contender_s", "grain_s"))


def show_number(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


PACKERS = ("W4 ConcatThenSplit", "W4 BestFitPack", "W4 FirstFitPack")


def show_windows(figures: Figures) -> str:
    return f"{figures.show('W5 windows')}; {figures.show('W5 windows', contender=OWN_SOURCE)}"


ROWS: list[tuple[str, Callable[[Figures], str]]] = [
    ("28x28 images in arrays, shuffle, batch 128, then normalise the batch", lambda f: f.show("W1a")),
    ("the same from a source that gives one record at a time", lambda f: f.show("W1a", contender=OWN_SOURCE)),
    ("each image normalised before `batch`", lambda f: f.show("W1b")),
    ("small dicts, five trivial maps, a filter, batch 256", lambda f: f.show("W2")),
    ("token sequences packed: concatenated; best fit; first fit", lambda f: f.show(*PACKERS)),
    ("windows of robot trajectories from a table; from a user's class", show_windows),
    ("JPEG decoding with 2 workers each", lambda f: f.show("W3, workers 2")),
    ("1.5 MB elements through 2 workers each", lambda f: f.show("W6, workers 2")),
    ("time to the first batch of 2 workers", lambda f: f.show_times("FIRST BATCH, workers 2", "s")),
    ("memory of one worker", lambda f: f.show_times("MEMORY, per worker", "MiB")),
]
"""Ten rows at most: README is for the first minute. All rows are in results/all.md."""


def make_table(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown from the rows of a run."""
    figures = Figures(rows)
    lines = [f"| {text} | {show(figures)} |" for text, show in ROWS]
    return "\n".join(["| workload | ratio |", "| --- | --- |", *lines]) + "\n"


def write_table(rows: list[dict[str, Any]]) -> None:
    """Replaces the table of README.md."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"README.md has no place for the table: the lines {START.strip()!r} and {END.strip()!r}.")
    README.write_text(f"{before}{START}{make_table(rows)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_table(json.loads(KEPT.read_text(encoding="utf-8"))["rows"])
