"""The forms of states: the envelope beside Grain's keys, and the state of a DataLoader in Grain's JSON.

The envelope holds a version and the identity of the pipeline.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import StateMismatch
from bushel._src.base.options import ShardOptions
from bushel._src.base.transforms import remove_addresses
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
    """Return a cursor's state with the identity of its pipeline beside it."""
    return _sealed(state, {"version": VERSION, "python": identity.PYTHON, "identity": pipeline})


def seal_for_host(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state by a loader inside jit, for a pipeline of the host that the loader does not know."""
    return _sealed(state, {"version": VERSION, _WRITER: _JIT})


def _sealed(state: dict[str, Any], envelope: dict[str, Any]) -> dict[str, Any]:
    parent = state.get(_PARENT)
    if (
        state.keys() == _STRICT and isinstance(parent, dict) and KEY not in parent
    ):  # a user's iterator may have an envelope
        return {**state, _PARENT: _sealed(parent, envelope)}
    return {**state, KEY: envelope}


def _opened(state: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a state without its envelope, and the envelope: `_NO_ENVELOPE` if the state has none."""
    parent = state.get(_PARENT)
    if KEY not in state and state.keys() == _STRICT and isinstance(parent, Mapping):
        inner, envelope = _opened(parent)
        return {**state, _PARENT: inner}, envelope
    return {key: value for key, value in state.items() if key != KEY}, state.get(KEY, _NO_ENVELOPE)


def unseal(state: Any, pipeline: list[Any], *, check: bool, method: str = "set_state") -> dict[str, Any]:
    """Return the state of the cursor, out of a state with an envelope.

    Raises StateMismatch if `pipeline` is another one.

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


GRAIN_VERSION = 2
_NEXT = "next_index"
_SEEN = "last_seen_indices"
_WORKERS = "worker_count"
_REFUSAL_IN_GRAIN = (
    "(This state was written by Bushel. It says where {} began and how many elements it has returned since, "
    "which Grain cannot restore.)"
)
"""Stands for the number of workers. It is not a number, so Grain refuses the state and prints this text."""


@dataclasses.dataclass(frozen=True)
class LoaderFacts:
    """What a state contains about the loader that wrote it."""

    sampler: str
    data_source: str
    shard: ShardOptions
    one_to_one: bool
    """Whether every record becomes one element."""
    users_operation: str | None = None
    """An operation of the user's own, from an iterator of records to another; None where there is none.

    It may keep records for later, as packing does. Grain's state says how many records it has read, and not which of
    them it keeps, so such a state cannot be restored exactly, neither here nor in Grain.
    """


def source_text(source: Any) -> str:
    """Return the name of a source in a state: what Grain's DataLoader writes for it, without addresses and secrets.

    Grain writes the type of a list or array, and the repr of anything else. Sources that Grain has know Grain's repr.
    """
    if isinstance(source, (list, tuple, np.ndarray)):
        return str(type(source))
    repr_in_grain = getattr(type(source), "_repr_in_grain", None)
    return _without_secrets(repr(source) if repr_in_grain is None else repr_in_grain(source))


def text_of(value: Any) -> str:
    """Return the repr of a source or sampler without addresses and secrets; otherwise unchanged, since Grain compares
    it.
    """
    return _without_secrets(repr(value))


def _without_secrets(text: str) -> str:
    text = redact.clean(text)
    return remove_addresses(text) if " at 0x" in text else text


def parse_state(text: Any) -> dict[str, Any]:
    """Return the state in a JSON text. Nothing in it is executed."""
    try:
        state = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise StateMismatch(
            f"This is not the state of an iterator: it cannot be read as JSON ({str(error) or type(error).__name__}). "
            f"It is {_excerpt(text)}."
        ) from None
    if not isinstance(state, dict):
        raise StateMismatch(f"A state is a JSON object, as get_state() wrote it; this one is {_excerpt(text)}.")
    return state


def _excerpt(text: Any) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else f"{shown[:80]}... ({len(text)} characters)"


def to_grain_form(position: dict[str, Any], facts: LoaderFacts) -> dict[str, Any]:
    """Return the position of a stream as Grain's DataLoader without workers would write it."""
    if facts.users_operation is not None:
        return {**position, _WORKERS: _REFUSAL_IN_GRAIN.format(facts.users_operation)}
    if set(position) != {_NEXT}:
        return position  # with a FlatMap, Grain also writes the state of the stream itself
    shard = facts.shard
    return {
        "version": GRAIN_VERSION,
        _SEEN: {"0": shard.shard_index + (position[_NEXT] - 1) * shard.shard_count},
        "last_worker_index": -1,
        _WORKERS: 0,
        "sampler": facts.sampler,
        "data_source": facts.data_source,
    }


def position_of(state: Mapping[str, Any], facts: LoaderFacts, *, check: bool) -> dict[str, Any]:
    """Return the position of a stream in a state of either library.

    Raises StateMismatch for a state that is damaged, of another version, or does not describe a position in one
    sequence. With `check`, the state is one of Grain's, and its sampler and source must be the same as here.
    """
    if "version" not in state and _SEEN not in state:
        if check:
            _check_users_operation(facts)
        return {key: value for key, value in state.items() if key != _WORKERS}
    version = state.get("version")
    if type(version) is not int or version != GRAIN_VERSION:
        raise StateMismatch(
            f"This state of a DataLoader has version {version!r}; version {GRAIN_VERSION} is the one known.", "version"
        )
    if check:
        _compare("sampler", state, facts.sampler)
        _compare("data_source", state, facts.data_source)
    workers, seen = state.get(_WORKERS), state.get(_SEEN)
    if type(workers) is not int or workers < 0 or not isinstance(seen, Mapping):
        raise StateMismatch(
            f"This state of a DataLoader is damaged: worker_count is {workers!r}, {_SEEN} is {seen!r}.",
            _SEEN if type(workers) is int and workers >= 0 else _WORKERS,
        )
    if workers and not facts.one_to_one:
        raise StateMismatch(
            f"This state was written by Grain with {workers} workers, each of which batched or filtered records of its "
            "own. It does not describe a position in the one sequence that this loader gives. Save it in Grain with "
            "worker_count=0.",
            _WORKERS,
        )
    lanes = max(workers, 1)
    if len(seen) != lanes or set(seen) != {str(lane) for lane in range(lanes)}:  # lanes may be any number
        raise StateMismatch(
            f"This state of a DataLoader is damaged: with worker_count {workers} it should hold {lanes} positions, "
            f"it holds those of {sorted(map(str, seen))}.",
            _SEEN,
        )
    done = [_records_done(seen[str(lane)], lane, lanes, facts.shard) for lane in range(lanes)]
    total = sum(done)
    if done != [(total - lane + lanes - 1) // lanes for lane in range(lanes)]:
        raise StateMismatch(
            f"This state of a DataLoader is damaged: its workers had read {done} records, not in turn.", _SEEN
        )
    if check and total:  # before the first record, no operation can have kept one
        _check_users_operation(facts)
    return {_NEXT: total}


class reading_position:
    """A `with` block that restores a position. Errors in it name the place in the state of the loader."""

    def __init__(self, state: Mapping[str, Any]):
        self._state = state

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, StateMismatch) and error.path == (_NEXT,) and _SEEN in self._state:
            error.path = (_SEEN,)


def _check_users_operation(facts: LoaderFacts) -> None:
    if facts.users_operation is not None:
        raise StateMismatch(
            f"This state was written by Grain. It says how many records {facts.users_operation} has read, but not "
            "which of them the operation still keeps, so the elements that come next are not known. Finish this run in "
            "Grain, or begin an epoch anew. If the operation keeps no record between two elements, pass check=False "
            "to set_state: the operation then begins anew at this position, as it does in Grain."
        )


def _records_done(last: Any, lane: int, lanes: int, shard: ShardOptions) -> int:
    """Return how many records one of several workers had read. `last` is the global index of its last record."""
    if type(last) is not int:
        raise StateMismatch(
            f"This state of a DataLoader is damaged: a position in {_SEEN} is {last!r}.", _SEEN, str(lane)
        )
    step = lanes * shard.shard_count
    done, over = divmod(last - shard.shard_index - lane * shard.shard_count + step, step)
    if over or done < 0:
        raise StateMismatch(
            f"This state of a DataLoader is of another shard, or damaged: shard {shard.shard_index} of "
            f"{shard.shard_count} cannot have stood at index {last}.",
            _SEEN,
            str(lane),
        )
    return done


_NAME_OF_MEMORY = re.compile(r"(?<=, )name='[^']*'\)$")
"""The name of shared memory in the repr of a SharedMemoryDataSource. It is new in each run; the values are the data."""


def _compare(name: str, state: Mapping[str, Any], here: str) -> None:
    saved = state.get(name)
    if not isinstance(saved, str) or _comparable(redact.clean(saved)) != _comparable(here):
        hash_only = (
            " Grain's states know ArrayRecord files only by a hash of their paths, as they were given."
            if here.startswith("ArrayRecordDataSource(")
            else ""
        )
        raise StateMismatch(
            f"This state was written with another {name}:\n- {redact.clean(str(saved))}\n+ {here}\n"
            f"Pass check=False to set_state to restore it anyway.{hash_only}",
            name,
        )


def _comparable(text: str) -> str:
    text = remove_addresses(text)
    return _NAME_OF_MEMORY.sub("", text) if text.startswith("SharedMemoryDataSource(") else text
