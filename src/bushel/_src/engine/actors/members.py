"""An actor and a machine as the pool sees them, and how an actor has died. No thread and no message is here."""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel._src.engine.actors.worker import Place
from bushel._src.engine.figures import format_size
from bushel._src.engine.pool.jobs import PoolWorker


@dataclasses.dataclass(slots=True, eq=False)
class Member(PoolWorker):
    """An actor as the pool sees it."""

    name: str
    handle: Any
    place: Place | None = None
    """Where it runs; None until it has started."""
    loading: int = 0
    """How many programs it is receiving. Until it has them, it computes nothing."""
    alive: bool = True


@dataclasses.dataclass(slots=True)
class NodeFigures:
    """The work and the deaths of the actors on one machine."""

    node_id: str
    host: str
    blocks: int = 0
    size_bytes: int = 0
    busy_s: float = 0.0
    deaths: int = 0

    def describe(self, actors: int) -> str:
        """A line of a report, given how many actors the machine has now."""
        died = f", {self.deaths} died" if self.deaths else ""
        done = f"{self.blocks:,} blocks, {format_size(self.size_bytes)}, {self.busy_s:.2f} s of work"
        return f"Node {self.host} ({self.node_id[:8]}): {actors} {'actor' if actors == 1 else 'actors'}{died}; {done}."


def describe_death(error: BaseException, member: Member) -> str:
    """How an actor ended, as the end of a sentence, from what Ray says about it."""
    where = "" if member.place is None else f" on node {member.place.host}"
    text = str(error)
    _, label, detail = text.partition("Worker exit detail: ")
    if not label:
        detail = text.strip().splitlines()[-1] if text.strip() else type(error).__name__
    reason = detail.partition(" Some common causes")[0].strip().rstrip(".")
    return f"ended{where} ({reason})"
