"""The panel "Pipeline": the steps as a graph, with lengths, shapes and seeds; the time of each in a short run."""

from __future__ import annotations

import time
from typing import Any

from bushel._src.base import trees
from bushel._src.base.errors import describe_error
from bushel._src.base.options import DatasetOptions
from bushel._src.graph.node import MapNode
from bushel._src.graph.streams import Elements, WithOptions
from bushel._src.view.attachment import open_unlisted
from bushel._src.view.session import SPEC, Query, Routes, Session, without_workers

RECORDS_FOR_SHAPES = 10_000
"""The shapes of an element that is made of more records are not looked for before the user asks."""


def routes(session: Session) -> Routes:
    """`step`: length and shapes of one step. `shapes`: those of its first element. `measure`: a short run."""

    def step(query: Query) -> dict[str, Any]:
        chosen = session.step(query.integer("step", -1))
        spec = chosen.describe_spec()
        return {
            "number": chosen.number,
            "length": chosen.length,
            "endless": chosen.is_endless,
            "spec": spec,
            # The page then asks for `shapes` by itself.
            "cheap": not spec and isinstance(chosen.node, MapNode) and chosen.node.fan_in <= RECORDS_FOR_SHAPES,
        }

    def shapes(query: Query) -> dict[str, Any]:
        reading = session.read(query.integer("step", -1), 0)
        spec = trees.describe(reading.element)[:SPEC] if reading.has_element else ""
        failure = {"message": reading.error, "trace": reading.trace} if reading.error else None
        return {"spec": spec, "missing": reading.missing, "failure": failure}

    def measure(query: Query) -> dict[str, Any]:
        return measure_steps(session, query.integer("seconds", 2, low=1, high=30))

    return {"step": step, "shapes": shapes, "measure": measure}


def measure_steps(session: Session, seconds: int) -> dict[str, Any]:
    """Read the last step for some seconds, in this process and without workers, and time each step."""
    last = session.step(-1).node
    stream = Elements(last) if isinstance(last, MapNode) else without_workers(last)
    timed = WithOptions(stream, DatasetOptions(execution_tracking_mode="stage_timing"))
    failure = None
    with open_unlisted(timed) as elements:
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                next(elements)
        except StopIteration:
            pass
        except Exception as error:  # the steps up to here were measured all the same
            failure = describe_error(error)
        report = elements.report()
    stages = {number: {"elements": 0, "seconds": 0.0} for number in range(len(session.steps))}
    place = 0
    for stage in report.stages:  # in the order of the steps, without those that only say how others run
        while place < len(session.steps) and session.steps[place].node.call() != stage.call:
            place += 1
        if place == len(session.steps):
            break
        stages[place] = {"elements": stage.elements, "seconds": stage.self_s}
        place += 1
    return {"stages": stages, "elements": report.elements, "seconds": report.elapsed_s, "failure": failure}
