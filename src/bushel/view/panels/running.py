"""The panel "Running": what a training program does with its time, while it runs."""

from __future__ import annotations

from typing import Any

from bushel.view.queries import Query, Routes
from bushel.view.session import Session


def about(session: Session) -> dict[str, Any]:
    """Whether a program is attached, and whether it runs or is only the file of a profile."""
    attached = session.attached
    return {"applies": attached is not None, "live": attached is not None and attached.is_live}


def routes(session: Session) -> Routes:
    """`snapshot`: the report of the attached program as it is now, or `trouble`, why there is none."""

    def snapshot(query: Query) -> dict[str, Any]:
        try:
            return session.attached.read()
        except OSError as error:  # a program that has ended is no fault of this server
            return {"trouble": str(error)}

    return {} if session.attached is None else {"snapshot": snapshot}
