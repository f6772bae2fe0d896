"""Whether the original pipeline's faults are wanted. A function that can reproduce one says so in its docstring."""

from __future__ import annotations


def is_faithful(compat: str | None) -> bool:
    """True for "crossformer", which reproduces the original's faults, and False for None.

    >>> is_faithful(None), is_faithful("crossformer")
    (False, True)
    """
    if compat is None:
        return False
    if compat == "crossformer":
        return True
    raise ValueError(
        f"compat must be None (correct values) or 'crossformer' (the original's values and faults), got {compat!r}."
    )
