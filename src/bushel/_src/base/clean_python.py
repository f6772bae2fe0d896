"""Starts Python processes that do not import the user's main module, so a script needs no `__main__` guard."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

SCRIPT_MODULE = "__bushel_script__"
"""The name of the module of a script that a command such as `bushel view train.py:ds` runs. No import finds it."""


def start(code: str, descriptor: int, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts a Python that runs `code` with this process's module search path, in a session of its own.

    Ctrl-C in the terminal does not reach the new process: the caller must end it.

    Args:
      code: Python statements. They never see the main module of this process.
      descriptor: a file descriptor that the new process inherits, under the same number.
      variables: the environment of the new process; this one's by default.
    """
    import subprocess  # here: the process that this starts imports this module, too

    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = {search_path()!r}\n{code}"],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        cwd=folder(),
        env=None if variables is None else dict(variables),
        start_new_session=True,
    )


def folder() -> str:
    """The current folder; the root folder if the current one was deleted, since Python could not start there."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.sep


def search_path() -> list[str]:
    """The folders in which Python looks for modules. As Python does, it ignores entries that are not a str."""
    return [str(entry) for entry in sys.path if isinstance(entry, str)]


def describe_exit(code: int) -> str:
    """How a process ended, as the end of a sentence. `code` is as in `Popen.returncode`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"
