"""The panel "Running": what a training program does with its time, while it runs."""

from __future__ import annotations

from typing import Any

from bushel._src.view.session import Query, Routes, Session


def about(session: Session) -> dict[str, Any]:
    """Return whether there is a program to look at, whether it runs, and whether one may begin while the page is
    open.
    """
    attached = session.attached
    begun = attached is not None and attached.has_begun
    return {
        "applies": begun,
        "live": attached is not None and attached.is_live,
        "may_begin": attached is not None and not begun,
    }


def routes(session: Session) -> Routes:
    """`snapshot`: the report of the attached program as it is now, or `trouble`, why there is none."""

    def snapshot(query: Query) -> dict[str, Any]:
        try:
            return session.attached.read()
        except OSError as error:  # a program that has ended is no fault of this server
            return {"trouble": str(error)}

    return {} if session.attached is None else {"snapshot": snapshot}
