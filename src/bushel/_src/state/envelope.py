"""The envelope of a state: one key beside Grain's own keys, with a version and the identity of the pipeline.

Grain ignores keys that it does not know. One of its iterators does not; there the key is in the state of the parent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from bushel._src.base.errors import StateMismatch
from bushel._src.state import identity

KEY = "bushel"
VERSION = 1
logger = logging.getLogger("bushel")

_WRITER, _JIT = "writer", "bushel.jit"
_NO_ENVELOPE = object()
_PARENT = "parent_state"
_STRICT = {_PARENT, "remainder_slices", "elements_from_buffer_after_checkpoint"}
"""The keys of a state of concat-then-split. Grain refuses such a state with any other key."""


def seal(state: dict[str, Any], pipeline: list[Any]) -> dict[str, Any]:
    """A cursor's state with the identity of its pipeline beside it."""
    return _sealed(state, {"version": VERSION, "python": identity.PYTHON, "identity": pipeline})


def seal_for_host(state: dict[str, Any]) -> dict[str, Any]:
    """A state by a loader inside jit, for a pipeline of the host that the loader does not know."""
    return _sealed(state, {"version": VERSION, _WRITER: _JIT})


def _sealed(state: dict[str, Any], envelope: dict[str, Any]) -> dict[str, Any]:
    parent = state.get(_PARENT)
    if (
        state.keys() == _STRICT and isinstance(parent, dict) and KEY not in parent
    ):  # a user's iterator may have an envelope
        return {**state, _PARENT: _sealed(parent, envelope)}
    return {**state, KEY: envelope}


def _opened(state: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """A state without its envelope, and the envelope: `_NO_ENVELOPE` if the state has none."""
    parent = state.get(_PARENT)
    if KEY not in state and state.keys() == _STRICT and isinstance(parent, Mapping):
        inner, envelope = _opened(parent)
        return {**state, _PARENT: inner}, envelope
    return {key: value for key, value in state.items() if key != KEY}, state.get(KEY, _NO_ENVELOPE)


def unseal(state: Any, pipeline: list[Any], *, check: bool, method: str = "set_state") -> dict[str, Any]:
    """The state of the cursor, out of a state with an envelope. Raises StateMismatch if `pipeline` is another one.

    Messages name the `method` that was called.
    """
    if not isinstance(state, Mapping):
        raise StateMismatch(f"A state is what get_state() returned, a dict; got {state!r}.")
    inner, envelope = _opened(state)
    if envelope is _NO_ENVELOPE:
        if check:
            logger.warning(
                "This state has no identity, as states of Grain. It is restored without a comparison of the pipelines."
            )
        return inner
    version = envelope.get("version") if isinstance(envelope, Mapping) else None
    if type(version) is not int or version != VERSION:
        raise StateMismatch(f"This state has version {version!r}; this Bushel reads version {VERSION}.")
    if envelope.get(_WRITER) == _JIT and "identity" not in envelope:
        if check:  # not a warning: the user has converted the state for this pipeline
            logger.info(
                "This state comes from a loader of bushel.jit, which does not know the pipeline of the host. It is "
                "restored without a comparison of the pipelines."
            )
        return inner
    if check:
        same_python = envelope.get("python") == identity.PYTHON
        lines = identity.list_differences(envelope.get("identity"), pipeline, same_python=same_python)
        if lines:
            raise StateMismatch(
                "This state belongs to another pipeline. What differs (- in the state, + here, ~ in both):\n"
                + "\n".join(f"  {line}" for line in lines)
                + f"\nPass check=False to {method} to restore it anyway."
            )
    return inner
