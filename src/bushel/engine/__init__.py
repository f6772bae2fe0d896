"""How a pipeline runs: where blocks are computed and in which order they are handed over. Never what they hold."""

from bushel.engine.observe import Observer
from bushel.engine.opener import open_stream
from bushel.engine.pulling import ThreadedCursor
from bushel.engine.report import Pool, Report, Stage
from bushel.engine.tasks import Executor, Ticket

__all__ = ["Executor", "Observer", "Pool", "Report", "Stage", "ThreadedCursor", "Ticket", "open_stream"]
