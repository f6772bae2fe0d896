"""The panel "Elements": any element after any step, whole or one row of a batch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.display.describe import describe_element
from bushel._src.display.kinds import find_image_axes
from bushel._src.display.parts import find_batch_size, find_part, take_row
from bushel._src.trajectory.pixels import decode_image
from bushel._src.view.class_names import ClassNames, name_folder
from bushel._src.view.queries import BadQuery, Query, Routes
from bushel._src.view.session import Reading, Session


def routes(session: Session) -> Routes:
    """`read`: one element, described for the page. `part`: a part of it, such as one image of a stack in full size."""

    classes = ClassNames(session)

    def read(query: Query) -> dict[str, Any]:
        number, row = query.integer("step", -1), query.integer("row", -1, low=-1)
        reading = session.read(number, query.integer("index", 0, low=0), skips=query.integer("skips", 0) == 1)
        answer = describe_reading(reading) | describe_step(session, number)
        if reading.has_element:
            element = reading.element
            index = query.integer("index", 0, low=0)
            names = {} if query.integer("skips", 0) == 1 else classes.find(number, index, element)
            answer["rows"] = count_rows(session, number, element)
            if row >= 0 and answer["rows"] is not None:
                element = take_row(element, min(row, answer["rows"] - 1))
            answer["element"] = describe_element(
                element,
                tokenizer=session.tokenizer,
                decoder=decode_image,
                classes=names,
                caption=name_folder(session, number, element),
            )
        return answer

    def part(query: Query) -> dict[str, Any]:
        index, skips = query.integer("index", 0, low=0), query.integer("skips", 0) == 1
        reading = session.read(query.integer("step", -1), index, skips=skips)
        if not reading.has_element:
            raise BadQuery("This element cannot be read.")
        element, row = reading.element, query.integer("row", -1, low=-1)
        rows = find_batch_size(element)
        if row >= 0 and rows is not None:
            element = take_row(element, min(row, rows - 1))
        try:
            path = [str(name) for name in json.loads(query.text("path"))]
            found = find_part(element, path)
        except (ValueError, TypeError, KeyError, IndexError):
            raise BadQuery("The element has no such part.") from None
        name = next((name for name in reversed(path) if not name.isdigit()), "")
        (item,) = describe_element({name: found}, tokenizer=session.tokenizer, decoder=decode_image)["items"]
        return item["value"]

    return {"read": read, "part": part}


def count_rows(session: Session, number: int, element: Any) -> int | None:
    """How many rows the element has that can be shown one by one; None if it is not a batch."""
    rows = find_batch_size(element)
    if rows is None or session.step(number).is_batched:
        return rows
    # One row of tokens is not a batch, and neither is one image.
    leaves = list(trees.leaves(element))
    return None if all(getattr(leaf, "ndim", 0) < 2 for leaf in leaves) or any(map(_is_image, leaves)) else rows


def _is_image(leaf: Any) -> bool:
    axes = find_image_axes("", leaf) if isinstance(leaf, np.ndarray) else None
    return axes is not None and len(axes) == leaf.ndim


def describe_reading(reading: Reading) -> dict[str, Any]:
    """What the page knows of a reading beside the element."""
    progress = reading.progress
    return {
        "index": reading.index,
        "failure": {"message": reading.error, "trace": reading.trace} if reading.error else None,
        "missing": reading.missing,
        "ended": reading.ended,
        "progress": None if progress is None else {"at": progress.at, "wanted": progress.wanted},
    }


def describe_step(session: Session, number: int) -> dict[str, Any]:
    """How many elements a step has, and whether each is reached at once."""
    step = session.step(number)
    length = {"length": step.length, "endless": step.is_endless}
    return {"step": step.number, **length, "stream": step.is_stream, "seekable": session.is_seekable(number)}
