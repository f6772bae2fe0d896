"""The panel "Elements": any element after any step."""

from __future__ import annotations

from typing import Any

from bushel.display import describe_element
from bushel.view.queries import Query, Routes
from bushel.view.session import Session


def routes(session: Session) -> Routes:
    """`read`: one element, described for the page."""

    def read(query: Query) -> dict[str, Any]:
        reading = session.read(query.integer("step", -1), query.integer("index", 0, low=0))
        answer: dict[str, Any] = {"index": reading.index}
        if reading.has_element:
            answer["element"] = describe_element(reading.element, tokenizer=session.tokenizer)
        return answer | {
            "error": None,
            "failure": {"message": reading.error, "trace": reading.trace} if reading.error else None,
            "missing": reading.missing,
            "ended": reading.ended,
            "progress": None
            if reading.progress is None
            else {"at": reading.progress.at, "wanted": reading.progress.wanted},
        }

    return {"read": read}
