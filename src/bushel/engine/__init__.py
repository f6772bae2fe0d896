"""How a pipeline runs: where blocks are computed and in which order they are handed over. Never what they hold."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bushel.engine.figures import Pool, Stage
    from bushel.engine.observe import Observer
    from bushel.engine.opener import open_alone, open_stream
    from bushel.engine.pulling import ThreadedCursor
    from bushel.engine.report import Report
    from bushel.engine.tasks import Executor, Ticket

__all__ = ["Executor", "Observer", "Pool", "Report", "Stage", "ThreadedCursor", "Ticket", "open_alone", "open_stream"]

_ELSEWHERE = {
    "Executor": "tasks",
    "Observer": "observe",
    "Pool": "figures",
    "Report": "report",
    "Stage": "figures",
    "ThreadedCursor": "pulling",
    "Ticket": "tasks",
    "open_alone": "opener",
    "open_stream": "opener",
}


def __getattr__(name: str) -> Any:
    """Loads a name when it is first asked for: a worker needs little of the engine, and should start at once."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'bushel.engine' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"bushel.engine.{_ELSEWHERE[name]}"), name)
    return value
