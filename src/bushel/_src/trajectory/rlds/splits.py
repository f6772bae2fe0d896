"""The episodes that a split such as "train[:95%]" names, with TFDS's syntax and rounding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SPLIT = re.compile(r"(?P<name>[\w-]+)(\[(?P<part>[\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")

Range = tuple[str, int, int]


def parse_split(split: str, shards: Mapping[str, Sequence[int]]) -> list[Range]:
    """The ranges of episodes that a text names: tuples (split, first episode, last episode + 1).

    Args:
      split: names of splits, or "all"; each may have a part in brackets, in episodes, percents or shards ("[:95%]",
        "[10:20]", "[-5%:]", "[0shard]"); several are joined with "+". Percents are rounded to the closest episode.
      shards: the number of episodes of each shard, for each split.

    >>> parse_split("train[:95%]+val", {"train": [50, 51], "val": [7]})
    [('train', 0, 96), ('val', 0, 7)]
    """
    if not isinstance(split, str):
        raise TypeError(f"A split must be a text such as 'train' or 'train[:95%]', got {split!r}.")
    terms = re.split(r"\s*\+\s*", split)
    ranges = [part for term in terms for part in _parse_term(term, split, shards) if part[1] < part[2]]
    if not ranges:
        counts = ", ".join(f"{name!r} has {sum(lengths)}" for name, lengths in shards.items())
        raise ValueError(
            f"The split {split!r} names no episodes ({counts}). Choose a larger part: percents are rounded to the "
            "closest number of episodes."
        )
    return ranges


def _parse_term(term: str, split: str, shards: Mapping[str, Sequence[int]]) -> list[Range]:
    match = _SPLIT.fullmatch(term)
    if match is None:
        raise _make_error(split)
    name, part = match["name"], match["part"]
    if name == "all" and "all" not in shards:
        if part is not None:
            raise ValueError(
                f"{split!r}: a part of 'all' is not possible. Name a part of each split: {_split_each(part, shards)!r}."
            )
        return [(each, 0, sum(lengths)) for each, lengths in shards.items()]
    if name not in shards:
        raise ValueError(f"There is no split {name!r}; there are {', '.join(map(repr, shards))}, and 'all'.")
    total = sum(shards[name])
    if part is None:
        return [(name, 0, total)]
    low, high = _parse_bounds(part, split, shards[name])
    if max(abs(low), abs(high)) > total:
        raise ValueError(
            f"{split!r}: the split {name!r} has {total} episodes; there is no part [{low}:{high}] of them."
        )
    return [(name, low + total * (low < 0), high + total * (high < 0))]


def _parse_bounds(part: str, split: str, lengths: Sequence[int]) -> tuple[int, int]:
    """The two ends of a part, in episodes. Negative ends count from the end of the split, as in TFDS."""
    matches = [_BOUND.fullmatch(text) for text in part.split(":")]
    ends = [match for match in matches if match is not None]
    if len(ends) != len(matches) or len(ends) > 2 or not any(match[0] for match in ends):
        raise _make_error(split)
    unit = next((match["unit"] for match in ends if match["unit"]), None)
    try:
        values = [None if not match["value"] else (float if unit == "%" else int)(match["value"]) for match in ends]
    except ValueError:
        raise _make_error(split) from None
    if len(values) == 1:
        if unit != "shard":
            raise ValueError(f"{split!r}: one number names a shard, as in [0shard]; a part has a colon, as in [10:20].")
        values.append(int(values[0] or 0) + 1)
    total = sum(lengths)
    low, high = values
    if unit == "%":
        if any(value is not None and abs(value) > 100 for value in values):
            raise ValueError(f"{split!r}: percents lie between -100 and 100.")
        low, high = (None if value is None else round(value * total / 100.0) for value in values)
    elif unit == "shard":
        low = None if low is None else sum(lengths[: int(low)])
        if high is not None:
            high = sum(lengths[: int(high) if high > 0 else len(lengths) + int(high)])
    return (0 if low is None else int(low)), (total if high is None else int(high))


def _make_error(split: str) -> ValueError:
    return ValueError(
        f"The split {split!r} cannot be read. Splits are written 'train', 'train[:95%]', 'train[10:20]', 'train+val' "
        "or 'all'."
    )


def _split_each(part: str, shards: Mapping[str, Sequence[int]]) -> str:
    return "+".join(f"{name}[{part}]" for name in shards)
