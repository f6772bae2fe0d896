"""The envelope of a state: one extra key beside Grain's own, with a version and the pipeline's identity."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from bushel.base.errors import StateMismatch
from bushel.state import identity

KEY = "bushel"
VERSION = 1
logger = logging.getLogger("bushel")


def seal(state: dict[str, Any], pipeline: list[Any]) -> dict[str, Any]:
    """A cursor's state with the identity of its pipeline beside it."""
    return {**state, KEY: {"version": VERSION, "python": identity.PYTHON, "identity": pipeline}}


def unseal(state: Any, pipeline: list[Any], *, check: bool) -> dict[str, Any]:
    """The cursor's own part of a state, once it is clear that it belongs to `pipeline`."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"A state is what get_state() returned, a dict; got {state!r}.")
    inner = {key: value for key, value in state.items() if key != KEY}
    if KEY not in state:
        if check:
            logger.warning("This state carries no identity (Grain wrote it): it is restored without a check.")
        return inner
    envelope = state[KEY]
    version = envelope.get("version") if isinstance(envelope, Mapping) else None
    if type(version) is not int or version != VERSION:
        raise StateMismatch(f"This state has version {version!r}; this Bushel reads version {VERSION}.")
    if check:
        same_python = envelope.get("python") == identity.PYTHON
        lines = identity.differences(envelope.get("identity"), pipeline, same_python=same_python)
        if lines:
            raise StateMismatch(
                "This state belongs to another pipeline. What differs (- in the state, + here, ~ in both):\n"
                + "\n".join(f"  {line}" for line in lines)
                + "\nPass check=False to set_state to restore it anyway."
            )
    return inner
