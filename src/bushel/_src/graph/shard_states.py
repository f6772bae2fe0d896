"""The state of an interleave as one state for each of its streams, and back. The forms are Grain's.

A stream's state, unlike that of the interleave, does not depend on which streams are read by the same host. So hosts
can exchange streams: each takes the states of the streams that are now its own. See `loaders/elastic_streams.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bushel._src.base.errors import StateMismatch
from bushel._src.graph.state_fields import State, as_number, check_type, read_field


def split_state(state: State, count: int, start_of: Callable[[int], State]) -> list[State]:
    """One entry `{"exhausted": 0 or 1, "state": ...}` for each stream of an interleave.

    Args:
      state: what the interleave's cursor returned.
      count: how many streams it has.
      start_of: the state of stream `number` before its first element. As in Grain, it also stands in for the state of
        a stream that has ended and has left the cycle.
    """
    in_cycle = {
        number: {"exhausted": ended, "state": position}
        for number, position, ended in zip(
            state["iterators_in_use_indices"], state["iterators_in_use_states"], state["exhausted"], strict=True
        )
        if position is not None  # a place in the cycle for which no stream was left
    }
    later: Mapping[int, State | None] = state["future_states"]
    following: int = state["next_index_in_datasets"]

    def make_entry(number: int) -> State:
        if number in in_cycle:
            return in_cycle[number]
        position = later.get(number)
        if position is not None:
            return {"exhausted": 0, "state": position}
        return {"exhausted": int(number < following or number in later), "state": start_of(number)}

    return [make_entry(number) for number in range(count)]


def join_states(entries: Sequence[State], cycle_length: int) -> State:
    """The state of an interleave whose streams are at these entries, one for each stream.

    The first `cycle_length` streams that have not ended are in the cycle, the first of them comes next, and the others
    follow when one of these ends. No stream that has ended is read again. (Grain begins such a stream anew if its
    number is higher than those of the streams in the cycle.)
    """
    cycle_length = min(cycle_length, len(entries))
    active = [number for number, entry in enumerate(entries) if not entry["exhausted"]]
    ended = [number for number, entry in enumerate(entries) if entry["exhausted"]]
    in_cycle, waiting = active[:cycle_length], active[cycle_length:]
    # Streams that have ended fill the places that are left, so that the state has one entry for each place.
    filling = ended[: cycle_length - len(in_cycle)]
    following = waiting[0] if waiting else len(entries)
    later: dict[int, State | None] = {number: entries[number]["state"] for number in waiting}
    later |= {number: None for number in ended if number > following}
    return {
        "next_index_in_cycle": 0,
        "next_index_in_datasets": following,
        "iterators_in_use_indices": in_cycle + filling,
        "iterators_in_use_states": [entries[number]["state"] for number in in_cycle + filling],
        "exhausted": [0] * len(in_cycle) + [1] * len(filling),
        "future_states": dict(sorted(later.items())),
    }


def check_entry(entry: Any) -> State:
    """Returns the entry of one stream. Raises StateMismatch if it has another form than those of `split_state`."""
    exhausted, position = read_field(entry, "exhausted", int), read_field(entry, "state", object)
    if exhausted not in (0, 1):
        raise StateMismatch(f"A stream has ended (1) or not (0), got {exhausted!r}.", "exhausted")
    if position is None:
        raise StateMismatch("The state of a stream must not be None.", "state")
    return {"exhausted": exhausted, "state": position}


def pick_entries(states: Any, first: int, step: int, count: int) -> dict[int, Any]:
    """The entries of streams first, first + step ..., of a mapping that may hold those of other hosts, too.

    Raises StateMismatch where one is missing, or where there are more than `count` streams in all.
    """
    if not isinstance(states, Mapping):
        raise StateMismatch(f"Shard states are what get_shard_states() returned, a dict; got {states!r}.")
    by_number = {check_type(as_number(key), int, repr(key)): entry for key, entry in states.items()}
    wanted = range(first, count, step)
    missing = [number for number in wanted if number not in by_number]
    unknown = sorted(number for number in by_number if not 0 <= number < count)
    if unknown:
        raise StateMismatch(
            f"These are states of shards {_list_numbers(unknown)}; the interleave has {count} datasets, 0 to "
            f"{count - 1}. Were they saved with more datasets?"
        )
    if missing:
        raise StateMismatch(
            f"Host {first} of {step} reads {len(wanted)} of the {count} datasets and needs a state for each; those of "
            f"{_list_numbers(missing)} are missing. Collect what get_shard_states() returned on all hosts."
        )
    return {number: by_number[number] for number in wanted}


def _list_numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} ... ({len(numbers)} in all)"
