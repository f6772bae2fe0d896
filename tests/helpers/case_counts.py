"""How many cases a law draws whose cases are expensive: few in `make test`, all in `make test-all`.

`make test` draws the same cases in every run, so that more of them find nothing new on the second day. `make test-all`
draws other cases each time.
"""

from __future__ import annotations

from hypothesis import settings


def cases(few: int, many: int) -> int:
    """The number of cases for `max_examples`. The profile is that of `conftest.py`."""
    return few if settings.get_current_profile_name() == "same" else many
