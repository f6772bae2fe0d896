"""The panel "Pipeline": the steps, with lengths, shapes and seeds."""

from __future__ import annotations

from typing import Any

from bushel.view.queries import Query, Routes
from bushel.view.session import Session


def routes(session: Session) -> Routes:
    """`step`: the length and the shapes of one step."""

    def step(query: Query) -> dict[str, Any]:
        chosen = session.step(query.integer("step", -1))
        return {
            "number": chosen.number,
            "length": chosen.length,
            "endless": chosen.is_endless,
            "spec": chosen.describe_spec(),
        }

    return {"step": step}
