"""Whether the original pipeline's faults are wanted. A function that can reproduce one says so in its docstring."""

from __future__ import annotations

from typing import Literal, get_args

from bushel._src.base import checks

Compat = Literal["crossformer"]


def is_faithful(compat: Compat | None) -> bool:
    """True for "crossformer", which reproduces the original's faults, and False for None.

    >>> is_faithful(None), is_faithful("crossformer")
    (False, True)
    """
    if compat is None:
        return False
    if compat == "crossformer":
        return True
    raise ValueError(
        "compat must be None (correct values) or 'crossformer' (the original's values and faults), "
        f"got {compat!r}.{checks.suggest(compat, get_args(Compat))}"
    )
