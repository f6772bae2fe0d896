"""Facts as text for a terminal."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence

from bushel._src.base import tables
from bushel._src.engine.figures import format_size
from bushel._src.graph import show
from bushel._src.inspection.facts import Facts, FileFacts, Histogram

_MOST_FILES = 12
_MOST_COLUMNS = 60
_BAR = "▏▎▍▌▋▊▉█"


def describe(facts: Facts, *, width: int | None = None) -> str:
    """The facts as paragraphs and tables.

    Args:
      facts: what is known.
      width: of the terminal, in columns; by default that of this one.
    """
    columns = width or shutil.get_terminal_size().columns
    return "\n\n".join(filter(None, _list_parts(facts, columns, width))) + "\n"


def _list_parts(facts: Facts, columns: int, width: int | None) -> Iterator[str]:
    yield "\n".join([facts.target, *_list_lines(facts)])
    if facts.splits:
        yield tables.as_text(("split", facts.unit), [(name, f"{count:,}") for name, count in facts.splits.items()])
    if facts.steps:
        steps = show.Description(tuple((step["step"], step["length"], step["element"]) for step in facts.steps))
        yield steps.as_text(width or tables.find_width())
    if facts.schema:
        rows = [(column.name or "(the array)", column.type, column.note) for column in facts.schema[:_MOST_COLUMNS]]
        text = tables.as_text(("entry", "type", ""), [_cut(row, columns) for row in rows], left=3)
        more = len(facts.schema) - len(rows)
        yield text + (f"\n... and {more:,} more" if more else "")
    if len(facts.files) > 1 or any(file.error for file in facts.files):
        yield _show_files(facts.files, facts.unit)
    for histogram in facts.histograms:
        yield show_histogram(histogram, columns)
    if facts.damage:
        yield "\n".join([f"Damage ({len(facts.damage)}):", *(f"  {line}" for line in facts.damage)])
    if facts.notes:
        yield "\n".join(facts.notes)


def _list_lines(facts: Facts) -> list[str]:
    lines = [("format", facts.format)]
    if facts.count is not None:
        lines.append((facts.unit, f"{facts.count:,}"))
    if facts.files:
        size = "" if facts.size_bytes is None else f", {format_size(facts.size_bytes)}"
        lines.append(("files", f"{len(facts.files):,}{size}"))
    lines += [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in facts.details.items()]
    width = max(len(name) for name, _ in lines)
    return [f"  {name.ljust(width)}  {value}" for name, value in lines]


def _cut(row: Sequence[str], columns: int) -> tuple[str, ...]:
    most = max(20, columns // 2)
    return tuple(cell if len(cell) <= most else cell[: most - 3] + "..." for cell in row)


def _show_files(files: list[FileFacts], unit: str) -> str:
    # Files that cannot be read come first: they must not be among those that are left out.
    shown = sorted(files, key=lambda file: not file.error)[:_MOST_FILES]
    rows = [
        (
            file.name,
            "" if file.records is None else f"{file.records:,}",
            "" if file.size_bytes is None else format_size(file.size_bytes),
            "damaged" if file.error else "",
        )
        for file in shown
    ]
    more = len(files) - len(shown)
    return tables.as_text(("file", unit, "size", ""), rows) + (f"\n... and {more:,} more" if more else "")


def show_histogram(histogram: Histogram, columns: int = 80) -> str:
    """A histogram with one line per bin.

    >>> print(show_histogram(Histogram("steps", [1, 2, 3], [2, 4]), 40))
    steps
      1  ████████████▌             2
      2  █████████████████████████ 4
    """
    edges = [_short(edge) for edge in histogram.edges]
    steps = [after - before for before, after in itertools.pairwise(histogram.edges)]
    single = all(step == 1 for step in steps) and all(float(edge).is_integer() for edge in histogram.edges)
    width = max(map(len, edges))
    names = [
        low.rjust(width) if single else f"{low.rjust(width)} to {high.rjust(width)}"
        for low, high in itertools.pairwise(edges)
    ]
    most = max(histogram.counts, default=0) or 1
    room = max(10, min(50, columns - len(names[0]) - 14))
    lines = [f"  {name}  {_bar(count / most, room)} {count:,}" for name, count in zip(names, histogram.counts)]
    return "\n".join([histogram.name, *lines])


def _bar(share: float, room: int) -> str:
    eighths = round(share * room * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_BAR[rest - 1] if rest else "")).ljust(room)


def _short(number: float) -> str:
    if float(number).is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:.4g}"
