"""One HTML file with tables, plots and pictures of some elements, which loads nothing from elsewhere.

uPlot, which draws, is part of it.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from bushel._src.base import shown_text
from bushel._src.base.late_imports import import_package
from bushel._src.display import pictures as media
from bushel._src.display.describe import describe_element, walk
from bushel._src.display.kinds import take_row
from bushel._src.engine.measurements import format_size
from bushel._src.inspection.benchmark import RULE, Benchmark, name_workers
from bushel._src.inspection.facts import Facts
from bushel._src.inspection.statistics import list_rows
from bushel._src.reporting.report_server import FORMAT
from bushel._src.trajectory.pixels import decode_image
from bushel._src.view.panels.elements import ClassNames, count_rows, name_folder
from bushel._src.view.session import Session

ELEMENTS = 8
"""How many elements are shown."""
EDGE = 224
"""The longest edge of a picture, in pixels."""
_STRIP_EDGE = 900
_BUDGET_S = 15.0


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture: its address, which holds it, and what is written below it."""

    url: str
    caption: str
    is_strip: bool = False
    """Whether it is several images side by side: a window of time, or an episode."""


def take_pictures(session: Session, count: int = ELEMENTS) -> list[Picture]:
    """Return the pictures in some elements, evenly spread; of a batch, in its rows. Elements that fail are left out.

    >>> import bushel
    >>> ds = bushel.MapDataset.range(2).map(lambda n: {"image": np.zeros((9, 9, 3), np.uint8), "label": n})
    >>> [picture.caption for picture in take_pictures(Session(ds))]
    ['0: label 0', '1: label 1']
    """
    pictures: list[Picture] = []
    names = ClassNames(session)
    for name, index, element, row in _read_elements(session, count):
        classes = names.find(-1, index, element)
        shown = element if row is None else take_row(element, row)
        described = describe_element(
            shown, decoder=decode_image, classes=classes, caption=name_folder(session, -1, shown)
        )
        for path, part in walk(described):
            entry = "/".join(path)
            if part["kind"] == "image":
                caption = part.get("caption") or entry
                pictures.append(Picture(_shrink(part["url"], EDGE), f"{name}: {caption}"))
            elif part["kind"] == "frames":
                caption = f"{name}: {entry}, {part['sprite']['count']} of {part['total']:,} images"
                pictures.append(Picture(_shrink(part["sprite"]["url"], _STRIP_EDGE), caption, is_strip=True))
    return pictures


def _read_elements(session: Session, count: int) -> Iterator[tuple[str, int, Any, int | None]]:
    """Yield elements, each with its name, its index and the row of a batch."""
    end, step = time.monotonic() + _BUDGET_S, session.last
    length = None if step.is_stream else step.length
    indices = range(count) if length is None else np.unique(np.linspace(0, length - 1, count).astype(int)).tolist()
    for index in indices if length != 0 else ():
        reading = session.read(-1, index)
        if reading.ended is not None or reading.progress is not None or time.monotonic() > end:
            return
        if not reading.has_element:
            continue
        rows = count_rows(session, -1, reading.element) if step.is_batched else None  # an episode is no batch
        if rows is None:
            yield str(index), index, reading.element, None
            continue
        for row in range(min(rows, count)):
            yield f"{index}[{row}]", index, reading.element, row
        return


def _shrink(url: str, edge: int) -> str:
    """Return the same picture with at most `edge` pixels in each direction."""
    pillow: Any = import_package("PIL.Image", "view", "Pictures")
    with pillow.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        if max(image.size) <= edge:
            return url
        image.thumbnail((edge, edge))
        out = io.BytesIO()
        opaque = image.mode in ("RGB", "L")
        image.save(out, "JPEG" if opaque else "PNG", **({"quality": 88} if opaque else {}))
        return media.data_url("image/jpeg" if opaque else "image/png", out.getvalue())


def is_snapshot(target: str) -> bool:
    """Return whether a target is the address of a running program, or the file of a profile."""
    if target.startswith("http://") and "#token=" in target:
        return True
    if not target.endswith(".json") or not os.path.isfile(target):
        return False
    with open(target, encoding="utf-8", errors="replace") as file:
        return f'"{FORMAT}"' in file.read(100)


def build_page(
    facts: Facts | None,
    *,
    statistics: Mapping[str, Any] | None = None,
    benchmark: Benchmark | None = None,
    snapshot: Mapping[str, Any] | None = None,
    pictures: Sequence[Picture] = (),
) -> str:
    """Return the page as a text.

    Args:
      facts: what `bushel inspect` knows of a data set or pipeline.
      statistics: of its entries.
      benchmark: measured runs of it.
      snapshot: of a running program, or of a profile.
      pictures: of some elements.
    """
    page = _Page()
    if facts is not None:
        page.title = facts.target
        _add_facts(page, facts, pictures)
    if statistics is not None:
        page.add(_heading("Statistics"), shown_text.as_html(*list_rows(statistics)))
    if benchmark is not None:
        _add_benchmark(page, benchmark)
    if snapshot is not None:
        page.title = page.title or f"{snapshot['name']}: {snapshot['program']}"
        _add_snapshot(page, snapshot)
    return page.build()


class _Page:
    """The parts of the page, and the data of its plots."""

    def __init__(self) -> None:
        self.title = ""
        self._parts: list[str] = []
        self._plots = 0

    def add(self, *parts: str) -> None:
        self._parts += parts

    def add_plot(self, name: str, data: dict[str, Any]) -> None:
        """Add a plot. The data cannot end the script element: "<" is written as an escape."""
        self._plots += 1
        number = f"plot{self._plots}"
        text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
        self.add(
            f'<figure data-plot="{number}"><figcaption>{html.escape(name)}</figcaption></figure>'
            f'<script type="application/json" id="{number}">{text}</script>'
        )

    def build(self) -> str:
        script = _read("view", "vendor/uPlot.iife.min.js"), _read("inspection", "report.js")
        style = _read("view", "vendor/uPlot.min.css") + _read("inspection", "report.css")
        policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
        written = time.strftime("%Y-%m-%d %H:%M")
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<meta name="viewport" content="width=device-width"><title>{html.escape(self.title)}</title>'
            f"<style>{style}</style></head><body><h1>{html.escape(self.title)}</h1>"
            f"{''.join(self._parts)}"
            f'<p class="quiet">Written by bushel report, {written}.</p>'
            f"<script>{script[0]}</script><script>{script[1]}</script></body></html>\n"
        )


def _read(package: str, name: str) -> str:
    return resources.files(f"bushel._src.{package}").joinpath("page", name).read_text(encoding="utf-8")


def _heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def _add_facts(page: _Page, facts: Facts, pictures: Sequence[Picture]) -> None:
    rows: list[Sequence[str]] = [("format", facts.format)]
    if facts.count is not None:
        rows.append((facts.unit, f"{facts.count:,}"))
    if facts.size_bytes is not None:
        rows.append(("size", f"{format_size(facts.size_bytes)} in {len(facts.files):,} files"))
    rows += [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in facts.details.items()]
    page.add(shown_text.as_html(("", ""), rows))
    if facts.damage:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in facts.damage)
        page.add(_heading("Damage"), f'<ul class="bad">{lines}</ul>')
    if pictures:
        page.add(_heading("Some elements"), f'<div class="pictures">{"".join(map(_draw_picture, pictures))}</div>')
    if facts.splits:
        page.add(_heading("Splits"))
        _add_bars(page, f"{facts.unit} of each split", list(facts.splits), list(facts.splits.values()))
    if facts.steps:
        page.add(
            _heading("Steps"),
            shown_text.as_html(("step", "length", "element"), [tuple(s.values()) for s in facts.steps]),
        )
    if facts.schema:
        rows = [(column.name or "(the array)", column.type, column.note) for column in facts.schema]
        page.add(_heading("Entries"), shown_text.as_html(("entry", "type", ""), rows))
    if facts.histograms:
        page.add(_heading("Histograms"), '<div class="plots">')
        for histogram in facts.histograms:
            counts: list[int] = [*histogram.counts, histogram.counts[-1]]
            edges = histogram.edges
            series = [{"label": "count", "y": counts}]
            page.add_plot(
                histogram.name, {"kind": "bars", "x": edges, "range": [edges[0], edges[-1]], "series": series}
            )
        page.add("</div>")
    if len(facts.files) > 1:
        rows = [
            (
                file.name,
                "" if file.records is None else f"{file.records:,}",
                format_size(file.size_bytes or 0),
                file.error,
            )
            for file in facts.files
        ]
        page.add(_heading("Files"), shown_text.as_html(("file", facts.unit, "size", ""), rows))
    page.add(*(f'<p class="quiet">{html.escape(note)}</p>' for note in facts.notes))


def _draw_picture(picture: Picture) -> str:
    kind = ' class="strip"' if picture.is_strip else ""
    caption = html.escape(picture.caption)
    image = f'<img src="{html.escape(picture.url)}" alt="{caption}">'
    return f"<figure{kind}>{image}<figcaption>{caption}</figcaption></figure>"


def _add_bars(page: _Page, name: str, names: list[str], values: Sequence[float], width: int = 440) -> None:
    """A bar for each name."""
    places = list(range(len(names)))
    series = [{"label": name, "y": list(values)}]
    page.add_plot(
        name,
        {
            "kind": "bars",
            "x": places,
            "names": names,
            "range": [-0.6, len(names) - 0.4],
            "series": series,
            "width": width,
        },
    )


def _add_benchmark(page: _Page, benchmark: Benchmark) -> None:
    names = [str(run.workers) for run in benchmark.runs]
    page.add(_heading(f"Elements per second, on {benchmark.cores} cores"))
    _add_bars(page, "elements/s by the number of workers", names, [run.elements_per_s for run in benchmark.runs])
    best = benchmark.best
    shown = f"Best: {name_workers(best.workers)}, {best.elements_per_s:,.1f} elements/s ({RULE})."
    page.add(f"<p>{html.escape(shown)}</p>")
    _add_snapshot(page, benchmark.profile)


def _add_snapshot(page: _Page, snapshot: Mapping[str, Any]) -> None:
    report, series = snapshot["report"], snapshot["series"]
    page.add(
        _heading("Where the time goes"), f'<p class="verdict">{html.escape(str(snapshot["verdict"]["sentence"]))}</p>'
    )
    about = (
        f"{snapshot['program']}, process {snapshot['process']} on {snapshot['machine']}, Python {snapshot['python']}"
    )
    page.add(f'<p class="quiet">{html.escape(about)}</p>', f"<pre>{html.escape(str(report['text']))}</pre>")
    stages = report["stages"]
    page.add('<div class="plots">')
    if stages:
        calls = [stage["call"][:18] for stage in stages]
        _add_bars(page, "seconds of each stage", calls, [stage["self_s"] for stage in stages], width=920)
    if len(series["at_s"]) > 1:
        charts = (
            ("elements per second", {"elements/s": series["elements_per_s"]}),
            ("waiting, percent of the time", {"waiting": [100 * share for share in series["waiting"]]}),
            ("workers", {"workers": series["workers"], "busy": series["busy_workers"]}),
            ("blocks that are ready", {"ready": series["ready"]}),
            (
                "memory, MB",
                {"consumer": _megabytes(series["own_bytes"]), "workers": _megabytes(series["worker_bytes"])},
            ),
        )
        for name, curves in charts:
            if not any(max(values) for values in curves.values()):
                continue  # there are no workers
            lines = [{"label": label, "y": values} for label, values in curves.items()]
            page.add_plot(f"{name}, over seconds", {"kind": "lines", "x": series["at_s"], "series": lines, "unit": "s"})
    page.add("</div>")
    if report["skipped"]:
        rows = [(skip["which"], skip["error"]) for skip in report["skips"]]
        page.add(_heading(f"{report['skipped']:,} skipped elements"), shown_text.as_html(("element", "error"), rows))


def _megabytes(values: Sequence[float]) -> list[float]:
    return [value / 1e6 for value in values]
