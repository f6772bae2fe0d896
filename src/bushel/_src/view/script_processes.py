"""Processes that a script starts itself, with `multiprocessing`: they get what the script defines by value.

`multiprocessing` sends a function as two names, its own and that of its module. A process that is spawned, and not
forked, would import the module of the script (view/scripts.py), but no import finds it. Under `python train.py` each
such process runs the script again. Here the script runs once.
"""

from __future__ import annotations

import types
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle

from bushel._src.base.clean_python import SCRIPT_MODULE


def send_scripts_by_value() -> None:
    """Makes `multiprocessing` in this process send functions and classes of scripts by value, and nothing else."""
    ForkingPickler.reducer_override = _reduce


def _reduce(_: ForkingPickler, value: Any) -> Any:
    """How `multiprocessing` pickles an object: its own way, except for what a script defines."""
    defined = isinstance(value, (type, types.FunctionType))
    if defined and str(getattr(value, "__module__", "")).startswith(SCRIPT_MODULE):
        return _load, (cloudpickle.dumps(value),)
    return NotImplemented


def _load(data: bytes) -> Any:
    """The function or class that was sent. From now on this process sends those of the script by value, too."""
    send_scripts_by_value()
    return cloudpickle.loads(data)
