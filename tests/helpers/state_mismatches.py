"""Restoring a state of one pipeline in another: what the tests of identity share."""

import json

from bushel import StateMismatch

HEAD = "This state belongs to another pipeline. What differs (- in the state, + here, ~ in both):\n"
DETAILS = "      "
"""Lines that begin like this name what changed in the line before. tests/state/test_explain_identity.py holds them."""
TAIL = "\nPass check=False to set_state to restore it anyway."


def saved(ds, steps=1):
    """A state after some steps, as it comes back from a checkpoint file."""
    with iter(ds) as it:
        for _ in range(steps):
            next(it)
        return json.loads(json.dumps(it.get_state()))


def difference(old, new):
    """The lines in which a pipeline differs from the one that wrote a state; none where it is accepted."""
    state = saved(old)
    with iter(new) as it:
        before = it.get_state()
        try:
            it.set_state(state)
        except StateMismatch as error:
            message = str(error)
            assert message.startswith(HEAD) and message.endswith(TAIL), message
            assert it.get_state() == before
            lines = message[len(HEAD) : -len(TAIL)].splitlines()
            return [line.removeprefix("  ") for line in lines if not line.startswith(DETAILS)]
        return []
