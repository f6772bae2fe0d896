"""Decisions about where work runs, for tests: what otherwise follows from measured time is fixed here."""

from __future__ import annotations

from hypothesis import strategies as st

from bushel._src.engine.where_to_run import MEASURED, WhereToRun

ROWS_COME_HOME = WhereToRun(sends_rows=lambda seconds: False)
"""Workers compute the first rows after an ordered stage, and the consumer the others, however heavy the work is."""

ROWS_GO_OUT = WhereToRun(sends_rows=lambda seconds: True)
"""Workers compute all these rows, however light the work is."""

DECISIONS = {
    "as measured": MEASURED,
    "rows go out": WhereToRun(tried_rows=1, sends_rows=lambda seconds: True),
    "rows go out after eight": ROWS_GO_OUT,
    "streams go out": WhereToRun(sends_stream=lambda node: True),
}

places = st.sampled_from(list(DECISIONS))
