"""Whether the original pipeline's faults are asked for. Each function that knows one says in its docstring which."""

from __future__ import annotations


def faithful(compat: str | None) -> bool:
    """Whether the original's faults are asked for.

    >>> faithful(None), faithful("crossformer")
    (False, True)
    """
    if compat is None:
        return False
    if compat == "crossformer":
        return True
    raise ValueError(f"compat must be None (the right values) or 'crossformer' (the original's), got {compat!r}.")
