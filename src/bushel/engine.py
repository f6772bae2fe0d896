"""How a pipeline runs: where blocks are computed and in which order they are handed over. Never what they hold."""

from bushel._src.engine.tasks import Executor, Ticket

__all__ = [
    "Executor",
    "Ticket",
]
