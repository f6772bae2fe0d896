"""How much memory this process and the processes that it has started use."""

from __future__ import annotations

import os
import resource
import sys


def measure_memory() -> tuple[int, int]:
    """Bytes in memory of this process, and of all processes below it.

    Shared memory counts here and not there, since workers and consumer share it. On systems without /proc the first
    number is the most that this process has used so far, and the second is 0.
    """
    try:
        own = _read_field("self", "VmRSS")
        return own, sum(_read_field(str(pid), "RssAnon") for pid in _list_descendants(os.getpid()))
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, 0


def _read_field(process: str, name: str) -> int:
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            for line in file:
                if line.startswith(name.encode() + b":"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        if process == "self":
            raise
    return 0  # the process has ended meanwhile


def _list_descendants(process: int) -> list[int]:
    found: list[int] = []
    for child in _list_children(process):
        found += [child, *_list_descendants(child)]
    return found


def _list_children(process: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return children
    for thread in threads:
        try:
            with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
        except OSError:  # the thread has ended, or the system does not list children
            continue
    return children
