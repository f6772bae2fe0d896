"""A worker process as the pool sees it. No thread and no message is here."""

from __future__ import annotations

import dataclasses

from bushel._src.engine.pool.jobs import PoolWorker
from bushel._src.engine.processes.channel import Channel
from bushel._src.engine.processes.whereabouts import Whereabouts
from bushel._src.engine.slabs import Arena


@dataclasses.dataclass(slots=True, eq=False)
class Member(PoolWorker):
    """A worker process."""

    channel: Channel
    pid: int
    whereabouts: Whereabouts
    """What it does, in memory that survives it."""
    arena: Arena | None = None
    """The arena it has mapped."""
    seen_since: float = 0.0
    """When it began with the element that the pool has last seen it at."""
    pidfd: int = -1
    """A file descriptor that becomes readable when the process dies; -1 where the system has none.

    The end of the channel is not enough: a child that the user's function has started may keep the socket open.
    """
    has_unsent: bool = False
    """Whether part of the messages for it is still to be sent, because its socket was full."""
    connected: bool = True
    """False once the pool has closed its channel, because it is dead or the pool has ended."""
