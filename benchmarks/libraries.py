"""The two libraries as they are compared: in this process, without threads, nothing left over from the pass before."""

from __future__ import annotations

import collections
import importlib.util
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from types import ModuleType
from typing import Any

import grain

import bushel
from bushel._src.index.shuffle import forget_tables

GRAIN: ModuleType = grain
BUSHEL: ModuleType = bushel


def read_inline(library: ModuleType) -> Any:
    """No threads, no buffer: Grain's fastest setting for Python-bound work, by far."""
    return library.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def forget_epoch_tables() -> None:
    """Drops the shuffle tables Bushel keeps: a true new epoch has a seed of its own and pays for its table."""
    forget_tables()


def exhaust(elements: Iterable[Any]) -> None:
    """Goes through all elements and keeps none."""
    collections.deque(elements, maxlen=0)


def refuse_monitoring() -> None:
    """With prometheus_client installed Grain counts every element, which would make it look slower than it is."""
    if importlib.util.find_spec("prometheus_client") is not None:
        raise SystemExit(
            "prometheus_client can be imported here. Grain then keeps statistics per element and is slower than most "
            "users see it, so this comparison would be unfair. Run `make bench`, which makes a venv without it."
        )


def machine() -> dict[str, Any]:
    """Where and with what a run took place."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": load and [round(value, 2) for value in load],
        "numpy": version("numpy"),
        "grain": version("grain"),
        "bushel": bushel.__version__,
    }
