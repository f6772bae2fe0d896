"""Damage to states, and the law of damaged states: tests/state/test_damaged_states.py has the pipelines.

A state is damaged in one place at a time, by values that JSON may hold. `check_all` restores each damaged state, and
checks that it is refused in `set_state`, with a place and without a change, or that it can be read from in little
time.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import itertools
import json
import math
import random
import signal

import numpy as np

from bushel import StateMismatch

# The damage.

NUMBERS = [-1, -(2**63), 0, 1, 2, 7, 1000, 2**31, 2**62, 2**63 - 1, 2**63, 2**70, 10**30]
OTHERS = [None, True, False, 1.5, math.nan, math.inf, "", "3", "ключ", "\ud800", [], {}, [1], {"next_index": 1}, [[[]]]]
NESTED: list = []
for _ in range(50):
    NESTED = [NESTED]
GONE = object()


def places(tree, path=()):
    """The paths to every part of a state, but for those inside the identity: it is compared whole."""
    yield path
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        if path != ("bushel",) or key in ("version", "identity"):
            yield from places(value, (*path, key)) if key != "identity" else [(*path, key)]


def changed(tree, path, value):
    """A copy of a state with one part replaced, or left out."""
    if not path:
        return value
    tree, (key, *rest) = copy.copy(tree), path
    if value is GONE and not rest:
        del tree[key]
    else:
        tree[key] = changed(tree[key], rest, value)
    return tree


def value_at(state, path):
    """What a state has at a place; None where nothing is there."""
    try:
        return functools.reduce(lambda tree, key: tree[key], path, state)
    except (KeyError, IndexError):
        return None


def damages(state):
    """All ways in which a state is damaged here, as (path, state)."""
    for path in places(state):
        value = value_at(state, path)
        others = [*NUMBERS, *OTHERS, NESTED]
        if path:
            others.append(GONE)
        if isinstance(value, dict):
            others += [{**value, "extra": 1}, {**value, "": None, "ключ": [1]}, list(value.values()), list(value)]
        if isinstance(value, list):
            others += [value[:-1], [*value, *value[-1:]], value * 3, value[::-1], dict(enumerate(map(str, value)))]
        if isinstance(value, str):
            others += [value[1:], value + "=", value.upper(), base64.b64encode(value.encode()).decode()]
        if type(value) is int:
            others += [
                value + 1,
                value - 1,
                value + 2,
                2 * value + 3,
                str(value),
                float(value),
                np.int64(value),
                [value],
            ]
        for other in others:
            yield path, changed(state, path, other)


# The law.


@contextlib.contextmanager
def at_most(seconds):
    """Ends what takes longer: a state must not make anyone read for ever."""

    def late(*_):
        raise AssertionError(f"this took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def written(state):
    """A state as an iterator takes it, after a round trip through a file where JSON can hold it."""
    return json.dumps(state).encode()


def texts(elements):
    return [repr(element) for element in elements]


def check_damaged(make, steps, path, damaged, *, as_bytes, check, uninterrupted):
    """Restores a damaged state in an iterator that has taken `steps` elements."""
    it = make()
    with contextlib.closing(it):
        for _ in range(steps):
            next(it)
        before = it.get_state()
        with at_most(20):
            try:
                it.set_state(written(damaged) if as_bytes else damaged, check=check)
            except StateMismatch as error:
                message = str(error)
                assert message.endswith("."), message
                if path and "bushel" not in path and path[0] != "version":
                    shown = "".join(f"[{key!r}]" for key in error.path)
                    assert shown and shown in message, message
                    if not isinstance(value_at(damaged, path), int):  # another number may fit, and another place not
                        common = min(len(path), len(error.path)) - 1
                        assert error.path[:common] == path[:common], (error.path, path)
                assert it.get_state() == before, "a refused state has moved the iterator"
                assert texts(itertools.islice(it, 4)) == uninterrupted[steps : steps + 4], "after a refused state"
                return error
            for _ in range(3):
                next(it, None)
            it.get_state()
    return None


def states_of(make, most=6):
    """The states of a run at some of its first elements, with how many came before, and the elements."""
    states, elements = [], []
    with contextlib.closing(make()) as it:
        for step in range(most + 5):
            if step <= most:
                state = it.get_state()
                states.append((step, json.loads(state) if isinstance(state, bytes) else copy.deepcopy(state)))
            elements += texts(itertools.islice(it, 1))
        as_bytes = isinstance(it.get_state(), bytes)
    return [pair for pair in states if pair[0] <= len(elements)], elements, as_bytes


def check_all(make, seed, count):
    """Damages three states of an iterator, each in `count` ways that are drawn at random, and checks the law."""
    states, elements, as_bytes = states_of(make)
    chosen = random.Random(seed)
    done = 0
    for _, state in (states[0], chosen.choice(states), states[-1]):
        found = list(damages(state))
        for path, damaged in chosen.sample(found, min(count, len(found))):
            for check in (True, False):
                if as_bytes and not is_json(damaged):
                    continue
                start = chosen.choice([0, min(2, len(elements))])
                try:
                    check_damaged(make, start, path, damaged, as_bytes=as_bytes, check=check, uninterrupted=elements)
                except BaseException as error:
                    error.add_note(f"state {damaged!r}\ndamaged at {path}, check={check}, after {start} elements")
                    raise
                done += 1
    return done


def is_json(state):
    try:
        json.dumps(state)
    except (TypeError, ValueError):
        return False
    return True
