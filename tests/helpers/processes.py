"""Processes seen from outside: which of them live, what they have open, what a script prints. Needs Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from helpers.waiting import SOON_S


def parents() -> dict[int, int]:
    """The parent of every process that lives. One that has ended and was not yet waited for is gone."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    found[int(name)] = int(fields[1])
    return found


def offspring(pid: int | None = None) -> set[int]:
    """All living descendants of a process, by default of this one."""
    above, found = parents(), {pid or os.getpid()}
    while new := {child for child, parent in above.items() if parent in found} - found:
        found |= new
    return found - {pid or os.getpid()}


def alive(pids: Iterable[int]) -> set[int]:
    """Those of `pids` that live."""
    return set(pids) & set(parents())


def zygote() -> int | None:
    """The process that forks workers for this one, if there is one."""
    for pid, parent in parents().items():
        with contextlib.suppress(OSError):  # ended meanwhile
            if parent == os.getpid() and b"zygote.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def workers() -> set[int]:
    """The worker processes of this one."""
    above = zygote()
    return {pid for pid, parent in parents().items() if parent == above} if above else set()


def named_memory(pids: Iterable[int]) -> set[str]:
    """Files of /dev/shm that processes have open or mapped. (What else is there belongs to others.)"""
    texts: list[str] = []
    for pid in pids:
        with contextlib.suppress(OSError):  # ended meanwhile
            texts += Path(f"/proc/{pid}/maps").read_text().splitlines()
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    texts.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return {text[text.index("/dev/shm/") :] for text in texts if "/dev/shm/" in text}


def memory_of(pids: Iterable[int]) -> int:
    """Bytes that processes have in memory, what they share counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def start_script(folder: Path, text: str, *options: str, **more: Any) -> subprocess.Popen[str]:
    """Starts a script of its own, in a process group of its own."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    command = [sys.executable, *options, str(path)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **more)


def run_script(folder: Path, text: str, *options: str, timeout_s: float = SOON_S) -> tuple[int, str, str]:
    """Runs a script of its own: exit code, standard output, standard error."""
    with start_script(folder, text, *options) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    return child.returncode, out, err


def read_line(script: subprocess.Popen[str]) -> str:
    """The next line that a script prints."""
    assert script.stdout is not None and script.stderr is not None
    line = script.stdout.readline()
    assert line, script.stderr.read()
    return line.strip()
