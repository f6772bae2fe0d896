"""Pictures of some elements of a data set or pipeline, with their labels, for a report."""

from __future__ import annotations

import base64
import dataclasses
import io
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bushel._src.display import media
from bushel._src.display.describe import describe_element, walk
from bushel._src.display.parts import take_row
from bushel._src.sources.optional_packages import import_package
from bushel._src.trajectory.pixels import decode_image
from bushel._src.view.class_names import ClassNames, name_folder
from bushel._src.view.panels.elements import count_rows
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
    """The pictures in some elements, evenly spread; of a batch, in its rows. Elements that fail are left out.

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
    """Elements, each with its name, its index and the row of a batch."""
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
    """The same picture with at most `edge` pixels in each direction."""
    pillow: Any = import_package("PIL.Image", "view", "Pictures")
    with pillow.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        if max(image.size) <= edge:
            return url
        image.thumbnail((edge, edge))
        out = io.BytesIO()
        opaque = image.mode in ("RGB", "L")
        image.save(out, "JPEG" if opaque else "PNG", **({"quality": 88} if opaque else {}))
        return media.data_url("image/jpeg" if opaque else "image/png", out.getvalue())
