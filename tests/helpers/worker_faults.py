"""Functions that return their element, but for one: there they kill the process, hang, raise or wait.

Workers import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class OnceAt:
    """The identity, but for one element, the first time that any process sees it: then the action is done."""

    def __init__(self, folder: Path, at: int, action: Callable[[], Any]):
        self.mark, self.at, self.action = str(folder / "done"), at, action

    def __call__(self, x: Any) -> Any:
        if x == self.at:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                self.action()
        return x


class TwiceAt:
    """The identity, but for one element, the first two times that any process sees it: then the action is done."""

    def __init__(self, folder: Path, at: int, action: Callable[[], Any]):
        folders = folder / "one", folder / "two"
        for each in folders:
            each.mkdir(parents=True)
        self.one, self.two = (OnceAt(each, at, action) for each in folders)

    def __call__(self, x: Any) -> Any:
        return self.two(self.one(x))


class AlwaysAt:
    """The identity, but for one element: then the action is done."""

    def __init__(self, at: Any, action: Callable[[], Any]):
        self.at, self.action = at, action

    def __call__(self, x: Any) -> Any:
        if x == self.at:
            self.action()
        return x


class WaitsAt:
    """The identity, but for one element: that one waits until the file `go_on` is there."""

    def __init__(self, folder: Path, at: int = 0):
        self.begun, self.go_on, self.at = folder / "begun", folder / "go on", at

    def __call__(self, x: Any) -> Any:
        if x == self.at:
            self.begun.touch()
            while not self.go_on.exists():
                time.sleep(0.002)
        return x


def raising(error: Callable[[], BaseException]) -> Callable[[], None]:
    """An action that raises a new error each time."""

    def fail() -> None:
        raise error()

    return fail


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep_for_ever() -> None:
    time.sleep(600)


def spin_for_ever() -> None:
    while True:
        pass


def hold_the_interpreter_lock() -> None:
    ctypes.PyDLL(None).sleep(600)


WAYS_TO_END: dict[str, Callable[[], Any]] = {
    "SIGKILL": kill_this_process,
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "SIGBUS": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(3)": lambda: os._exit(3),
}
