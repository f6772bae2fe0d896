"""The panel "Where it comes from": the source records of an element."""

from __future__ import annotations

from typing import Any

from bushel.view.queries import Query, Routes
from bushel.view.session import Session


def routes(session: Session) -> Routes:
    """`explain`: the records that an element is made of."""

    def explain(query: Query) -> dict[str, Any]:
        explanation = session.explain(query.integer("step", -1), query.integer("index", 0, low=0))
        records = [
            {"source": r.source, "record": r.record, "epoch": r.epoch, "component": list(r.component)}
            for r in explanation.records
        ]
        return {"index": explanation.index, "records": records}

    return {"explain": explain}
